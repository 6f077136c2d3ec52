"""Which source word each word of a translation comes from, by a model's cross-attention."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from keras import ops

from pipelines.data.dataset import END_ID
from pipelines.translators.graphs import graph_of
from pipelines.translators.keras_model import LoadedRun
from pipelines.translators.pairs import pair_batches
from tf_relpos.blocks import AttentionInputs


def aligning_weights(attentions: Mapping[str, AttentionInputs]) -> tf.Tensor:
    """The weights that align: of the cross-attention of the last decoder block but one (the only
    one, if there is one), averaged over the heads.

    Reference: Garg et al. 2019, section 4.1: the last layer but one aligns best.

    Args:
        attentions: what `Transformer.attention_inputs` gives.

    Returns:
        `[B, T, S]`.
    """
    cross = [inputs for name, inputs in attentions.items() if name.endswith("cross_attention")]
    return ops.mean(cross[max(0, len(cross) - 2)].weights(), axis=1)


class Aligner:
    """Aligns translations with their sources.

    The model is told the translation. The `aligning_weights` of the subwords of a word add up, on
    both sides; a word belongs to the source word with the highest sum.

    Args:
        loaded: a run's model.
    """

    def __init__(self, loaded: LoadedRun):
        self._loaded = loaded
        ids = tf.TensorSpec([None, None], tf.int32)

        def weights(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
            return aligning_weights(loaded.model.attention_inputs(inputs))

        self._weights = graph_of(weights, [{"source_ids": ids, "target_ids": ids}])

    def __call__(self, sources: Sequence[str], translations: Sequence[str]) -> list[str]:
        """The links of each pair in Pharaoh's format, "0-0 1-2": source word, target word.

        Words are what stands between white space. A word of a translation has one link, unless
        there is nothing that it could belong to.
        """
        lines = [""] * len(sources)
        source_words = self._subwords_of_words(sources, self._loaded.max_source_length)
        target_words = self._subwords_of_words(translations, None)
        for batch in pair_batches(self._loaded, sources, translations):
            for place, weights in zip(
                batch.places, self._weights(batch.inputs).numpy(), strict=True
            ):
                links = _links(weights, source_words[place], target_words[place])
                lines[place] = " ".join(f"{source}-{target}" for source, target in links)
        return lines

    def _subwords_of_words(self, texts: Sequence[str], most: int | None) -> list[np.ndarray]:
        """For each text, which of its first subwords are of which words: bool `[words, subwords]`,
        without the words behind them."""
        encoded = self._loaded.tokenizer.encode_with_offsets(tf.constant(texts))
        rows = zip(*(tensor.to_list() for tensor in encoded), strict=True)
        return [
            _overlaps(text, *(part[:most] for part in row))
            for text, row in zip(texts, rows, strict=True)
        ]


def _overlaps(text: str, ids: list[int], begins: list[int], ends: list[int]) -> np.ndarray:
    """Bool `[words, subwords]`, of the words up to the last subword; a subword without text of its
    own is where the next one is."""
    begin = np.array(begins, int)
    end = np.maximum(ends, begin + 1)
    spans = np.array([match.span() for match in re.finditer(r"\S+", text)], int).reshape(-1, 2)
    spans = _places_in_bytes(text)[spans]
    words = spans[spans[:, 0] < end.max(initial=0), :, np.newaxis]
    return (begin < words[:, 1]) & (end > words[:, 0]) & (np.array(ids) != END_ID)


def _places_in_bytes(text: str) -> np.ndarray:
    """Where each character begins in UTF-8, and where the last one ends."""
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + sum((characters >= first).astype(int) for first in (0x80, 0x800, 0x10000))
    return np.concatenate([[0], np.cumsum(sizes)])


def _links(
    weights: np.ndarray, source_words: np.ndarray, target_words: np.ndarray
) -> list[tuple[int, int]]:
    """Links in order, of weights float `[T, S]`; what was cut off a source has none."""
    read = source_words[:, : weights.shape[1]]
    written = target_words[:, : weights.shape[0]]
    sums = written @ weights[: written.shape[1], : read.shape[1]] @ read.T  # [words, source words]
    if not sums.size:
        return []
    best = sums.argmax(axis=1)
    return sorted((int(s), t) for t, s in enumerate(best) if sums[t, s] > 0)
