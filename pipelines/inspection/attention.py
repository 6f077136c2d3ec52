"""What the attentions of a model do with one pair of sentences, and what their tables hold.

Axes: N heads, T query positions, S key positions, R labels, H head size, M tables of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from pipelines.data.dataset import START_ID
from pipelines.data.subword_model import read_model
from pipelines.errors import InputError
from pipelines.run.directory import RunDirectory
from pipelines.translators.keras_model import LoadedRun
from pipelines.translators.pairs import pair_batches
from tf_relpos import RelativeMultiHeadAttention
from tf_relpos.blocks import AttentionInputs

MAX_SUBWORDS = 128  # of a side; beyond it the subwords on the axes cannot be read

# Distances from a query to a key, j - i, of which a head's mean weight is told.
NEAR = (-2, -1, 0, 1, 2)


class Attention(NamedTuple):
    """One attention layer on a pair of sentences.

    Attributes:
        name: of the layer, "encoder_0/self_attention".
        rows: the subwords of the queries; of a cross-attention those that are predicted there.
        columns: the subwords of the keys.
        weights: float `[N, T, S]`.
        content: the first term of Eq. 5, `[N, T, S]`, NaN where a query does not see a key.
        position: the second term, likewise; None where positions do not enter the scores.
    """

    name: str
    rows: Sequence[str]
    columns: Sequence[str]
    weights: np.ndarray
    content: np.ndarray
    position: np.ndarray | None

    @property
    def is_self(self) -> bool:
        return self.name.endswith("self_attention")

    def position_shares(self) -> np.ndarray | None:
        """Of each head, how much of the scores' variation over the keys comes from positions.

        In 0 to 1: the variance of the second term within the rows over the sum of both terms'
        variances; None where positions do not enter the scores.
        """
        if self.position is None:
            return None
        content, position = (_variance(term) for term in (self.content, self.position))
        return position / np.maximum(content + position, 1e-12)

    def near(self) -> np.ndarray:
        """The mean weight of the keys at the distances `NEAR`, `[N, distances]`.

        Over the queries that have such a key and more than one key to choose from.
        """
        found = np.full((len(self.weights), len(NEAR)), np.nan)
        seen = ~np.isnan(self.content[0])
        choices = seen & (seen.sum(axis=1, keepdims=True) > 1)
        for number, distance in enumerate(NEAR):
            is_there = np.diagonal(choices, distance)
            if is_there.any():
                along = np.diagonal(self.weights, distance, axis1=1, axis2=2)
                found[:, number] = along[:, is_there].mean(axis=1)
        return found


class Tables(NamedTuple):
    """The tables of a layer's relative positions, `[M, R, H]`, M = 1 if the heads share one.

    Attributes:
        name: of the layer.
        keys: w^K of Eq. 4; None if positions do not enter the keys.
        values: w^V of Eq. 3, likewise.
    """

    name: str
    keys: np.ndarray | None
    values: np.ndarray | None


def norms(table: np.ndarray) -> np.ndarray:
    """The length of every vector of a table `[M, R, H]`: `[M, R]`."""
    return np.linalg.norm(table, axis=-1)


def similarities(table: np.ndarray) -> np.ndarray:
    """The cosine of every two vectors of a table `[M, R, H]`: `[M, R, R]`."""
    unit = table / np.maximum(norms(table)[..., None], 1e-12)
    return unit @ unit.swapaxes(-1, -2)


def check_has_two_terms(loaded: LoadedRun) -> None:
    """Checks that the scores of a run's model are the two terms of Eq. 5.

    Raises:
        InputError: they are not.
    """
    compatibility = loaded.model.config.compatibility
    if compatibility != "product":
        raise InputError(
            "run_dir must hold a model whose scores are content and position, with compatibility "
            f"product, got compatibility {compatibility}"
        )


def check_lengths(loaded: LoadedRun, **texts: str | None) -> None:
    """Checks that each text, by the name of its argument, if it is given, is as long as can be
    shown.

    Raises:
        InputError: one has no subwords, or more.
    """
    for name, text in texts.items():
        if text is None:
            continue
        (ids,) = loaded.tokenizer.encode(tf.constant([text]))
        if not 1 < len(ids) <= MAX_SUBWORDS:
            raise InputError(
                f"{name} must have 1 to {MAX_SUBWORDS - 1} subwords, got {len(ids) - 1}"
            )


def look(loaded: LoadedRun, sentence: str, target: str) -> list[Attention]:
    """All attentions of a model that is told a sentence and its translation.

    Args:
        loaded: a run's model.
        sentence, target: text.

    Raises:
        InputError: a side has no subwords, or more than can be shown, or the scores are not the two
            terms that are to be shown.
    """
    check_has_two_terms(loaded)
    check_lengths(loaded, sentence=sentence, target=target)
    (batch,) = pair_batches(loaded, [sentence], [target])
    source_ids, target_ids = batch.source_ids[0].numpy(), batch.target_ids[0].numpy()
    tokenizer = read_model(RunDirectory(loaded.path).tokenizer_path)
    source, predicted, given = (
        [tokenizer.id_to_piece(int(i)) for i in ids]
        for ids in (source_ids, target_ids, [START_ID, *target_ids[:-1]])
    )
    found = []
    for name, inputs in loaded.model.attention_inputs(batch.inputs).items():
        if name.startswith("encoder"):
            rows, columns = source, source
        elif name.endswith("self_attention"):
            rows, columns = given, given
        else:
            rows, columns = predicted, source
        found.append(_attention(name, rows, columns, inputs))
    return found


def _attention(
    name: str, rows: Sequence[str], columns: Sequence[str], inputs: AttentionInputs
) -> Attention:
    content, position = map(_numpy, inputs.layer.score_terms(inputs.query, inputs.value))
    if inputs.mask is not None:
        seen = np.broadcast_to(_numpy(inputs.mask), content.shape[1:])
        content, position = (np.where(seen, term, np.nan) for term in (content, position))
    has_positions = inputs.layer.relation_keys
    return Attention(
        name, rows, columns, _numpy(inputs.weights()), content, position if has_positions else None
    )


def tables(loaded: LoadedRun) -> list[Tables]:
    """The tables of all layers that have any, from the bottom up; those that the layers of a side
    share once, under its name, "encoder/self_attention"."""
    config, model = loaded.model.config, loaded.model
    found = []
    for block in dict.fromkeys((*model.encoder_blocks, *model.decoder_blocks)):
        layer: RelativeMultiHeadAttention = block.self_attention
        keys, values = (
            None
            if table is None
            else ops.convert_to_numpy(table).reshape(
                -1, 2 * config.max_relative_position + 1, table.shape[-1]
            )
            for table in (layer.relative_key_embeddings, layer.relative_value_embeddings)
        )
        if keys is not None or values is not None:
            name = block.name.partition("_")[0] if config.share_layers else block.name
            found.append(Tables(f"{name}/self_attention", keys, values))
    return found


def _numpy(tensor: object) -> np.ndarray:
    """The only sentence of a batch."""
    return np.asarray(ops.convert_to_numpy(tensor))[0]


def _variance(term: np.ndarray) -> np.ndarray:
    """Of a term `[N, T, S]`, the variance over the keys that are seen, as a mean over the rows."""
    return np.nanvar(term, axis=2).mean(axis=1)
