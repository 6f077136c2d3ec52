"""Translations drawn from a model, as for back-translation."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from pipelines.errors import InputError
from pipelines.translators.base import Sampling, Translation
from pipelines.translators.graphs import graph_of
from pipelines.translators.keras_model import LoadedRun, Translator
from pipelines.translators.side_by_side import batches_at_once
from tf_relpos import sample
from tf_relpos.search import EXTRA_LENGTH


class SamplingTranslator(Translator):
    """Translates each sentence once, with random numbers of its own.

    They come from the seed and from how many sentences were given to this object before, so that
    what a sentence gets does not depend on how sentences were grouped.

    Args:
        loaded: what a run has trained, or several.
        sampling: how to draw.

    Raises:
        InputError: `top_k` is more than there are subwords.
    """

    def __init__(self, loaded: LoadedRun, sampling: Sampling):
        vocabulary_size = loaded.model.config.vocabulary_size
        if sampling.top_k is not None and sampling.top_k > vocabulary_size:
            raise InputError(
                f"top_k must be at most the {vocabulary_size} subwords of the model, "
                f"got {sampling.top_k}"
            )
        super().__init__(
            loaded.model,
            loaded.tokenizer,
            max_source_length=loaded.max_source_length,
            at_once=batches_at_once(),
        )
        self.sampling = sampling
        self._first = self._given = 0
        ids, uniforms = (tf.TensorSpec([None, None], d) for d in (tf.int32, tf.float32))

        def draw(source_ids: tf.Tensor, uniforms: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            ids, scores = sample(
                loaded.model,
                source_ids,
                sampling.temperature,
                top_k=sampling.top_k,
                uniforms=uniforms,
                top_p=sampling.top_p,
            )
            return loaded.tokenizer.decode(ids)[:, tf.newaxis], scores[:, tf.newaxis]

        self._draw = graph_of(draw, [ids, uniforms])

    def _translate_chunk(self, sentences: Sequence[str]) -> list[list[Translation]]:
        self._first, self._given = self._given, self._given + len(sentences)
        return super()._translate_chunk(sentences)

    def _translate_batch(
        self, source_ids: tf.Tensor, places: Sequence[int]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        length = source_ids.shape[1] + EXTRA_LENGTH
        # A longer row begins with the numbers of a shorter one: padding changes nothing.
        generators = (
            np.random.default_rng([self.sampling.seed, self._first + place]) for place in places
        )
        rows = [generator.random(length, np.float32) for generator in generators]
        return self._draw(source_ids, tf.constant(np.stack(rows)))
