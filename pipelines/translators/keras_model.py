"""Text to text: tokenizer, beam search and detokenizer around a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.tokenizer import Tokenizer
from pipelines.files.checksums import sha256
from pipelines.progress import progress
from pipelines.run.directory import RunDirectory
from pipelines.run.models import build_model
from pipelines.translators.base import (
    MAX_SOURCE_LENGTH,
    MIN_LENGTH,
    TextTranslator,
    Translation,
    check_nbest,
    check_search,
)
from pipelines.translators.graphs import graph_of
from pipelines.translators.side_by_side import batches_at_once, by_length
from pipelines.translators.stepping import SteppingModel
from tf_relpos import Transformer, beam_search
from tf_relpos.config import ALPHA, BEAM_SIZE


class Translator(TextTranslator):
    """Translates sentences with a model, best hypotheses first.

    The translation of a sentence does not depend on what else is in its batch.

    Args:
        model: a `Transformer`, best in float32.
        tokenizer: its subwords.
        beam_size: hypotheses kept; 1 is greedy search.
        alpha: length penalty.
        nbest: how many of the hypotheses are given back.
        max_source_length: subwords read of a source, its end mark included; the rest is cut off.
            A model should read no more than it was trained with.
        at_once: batches that are searched side by side.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        beam_size: int = BEAM_SIZE,
        alpha: float = ALPHA,
        nbest: int = 1,
        max_source_length: int = MAX_SOURCE_LENGTH,
        at_once: int = 1,
    ):
        check_search(beam_size=beam_size, alpha=alpha)
        check_nbest(nbest, beam_size)
        self.model = model
        self.tokenizer = tokenizer
        self.beam_size = beam_size
        self.alpha = alpha
        self.max_source_length = max_source_length
        self.at_once = at_once

        searched = SteppingModel(model) if isinstance(model, Transformer) else model

        def search(source_ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return search_texts(searched, tokenizer, source_ids, beam_size, alpha, nbest)

        self._search = graph_of(search, [tf.TensorSpec([None, None], tf.int32)])

    @classmethod
    def of(
        cls,
        loaded: "LoadedRun",
        *,
        beam_size: int = BEAM_SIZE,
        alpha: float = ALPHA,
        nbest: int = 1,
    ) -> "Translator":
        """A translator with what a run has trained, in a process that does nothing else."""
        return cls(
            loaded.model,
            loaded.tokenizer,
            beam_size=beam_size,
            alpha=alpha,
            nbest=nbest,
            max_source_length=loaded.max_source_length,
            at_once=batches_at_once(),
        )

    def read(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """string `[B]` -> int32 `[B, (ids)]`, what the model reads of each source."""
        return self.tokenizer.encode(texts)[:, : self.max_source_length]

    def _source_lengths(self, sentences: Sequence[str]) -> tuple[Sequence[int], int]:
        texts = tf.constant([sentence.encode() for sentence in sentences], tf.string)
        return self.tokenizer.encode(texts).row_lengths().numpy().tolist(), self.max_source_length

    def _translate_chunk(self, sentences: Sequence[str]) -> list[list[Translation]]:
        ids = self.read(tf.constant([s.encode() for s in sentences]))
        lengths = ids.row_lengths().numpy()
        results: list[list[Translation]] = [[] for _ in sentences]

        def of_batch(chosen: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            source_ids = tf.gather(ids, chosen).to_tensor(self.model.config.pad_id)
            texts, scores = self._translate_batch(source_ids, chosen)
            return texts.numpy(), scores.numpy()

        for chosen, (texts, scores) in by_length(lengths, self.at_once, of_batch):
            for i, row_texts, row_scores in zip(chosen, texts, scores, strict=True):
                results[i] = [
                    Translation(text.decode(), float(score))
                    for text, score in zip(row_texts, row_scores, strict=True)
                ]
            self._advance(len(chosen))
        return results

    def _translate_batch(
        self, source_ids: tf.Tensor, places: Sequence[int]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Texts and scores `[B, n]` of sources `[B, S]`, which stand there in the chunk."""
        return self._search(source_ids)


def search_texts(
    model: Any,
    tokenizer: Tokenizer,
    source_ids: tf.Tensor,
    beam_size: int | tf.Tensor,
    alpha: float | tf.Tensor,
    nbest: int | tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The translations of sources as text, in the graph.

    Args:
        model: see `beam_search`, and so are `beam_size`, `alpha` and `nbest`, n.
        tokenizer: the subwords of the model.
        source_ids: int32 `[B, S]`, padded.

    Returns:
        string `[B, n]` and their scores, float32 `[B, n]`, best first.
    """
    ids, scores = beam_search(
        model, source_ids, beam_size, alpha, nbest=nbest, min_length=MIN_LENGTH
    )
    texts = tokenizer.decode(tf.reshape(ids, [-1, tf.shape(ids)[-1]]))
    return tf.reshape(texts, tf.shape(scores)), scores


class LoadedRun(NamedTuple):
    """What a run has trained, or several of them.

    Attributes:
        path: the directory of the run, or of the first.
        model: a `Transformer`, or an `Ensemble`.
        tokenizer: its subwords.
        subwords: the checksum of the file that they are from.
        max_source_length: what the run was trained with, and a model should read of a source.
        checkpoint: that the weights are from: "last", "best" or "average", or those of several,
            with commas between.
        step: of this checkpoint, or the newest of several.
    """

    path: Path
    model: Any
    tokenizer: Tokenizer
    subwords: str
    max_source_length: int
    checkpoint: str
    step: int


@progress("loading the model")
def load_run(run: RunDirectory, checkpoint: str | None = None) -> LoadedRun:
    """The model of a run directory, in float32.

    Args:
        run: the directory.
        checkpoint: "last", "best" or "average"; what `run.choose()` names unless given.

    Raises:
        InputError: not a run directory, no such checkpoint, or files that do not match.
    """
    config = run.config()
    run.check_unchanged()
    checkpoint = checkpoint or run.choose()
    run.checkpoints.check_could_hold(config.model, checkpoint)
    model = build_model(config.model)
    step = run.checkpoints.load(model, checkpoint)
    tokenizer, subwords = Tokenizer(run.tokenizer_path), sha256(run.tokenizer_path)
    return LoadedRun(
        run.path, model, tokenizer, subwords, config.corpus.max_length, checkpoint, step
    )
