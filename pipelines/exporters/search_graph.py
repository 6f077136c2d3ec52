"""The search of a translator as a graph that TFLite can hold: ids to ids, constants for weights."""

import tensorflow as tf

from pipelines.exporters.frozen_model import FrozenModel
from pipelines.translators.base import MIN_LENGTH
from pipelines.translators.keras_model import Translator
from tf_relpos import beam_search
from tf_relpos.search import EXTRA_LENGTH


def search_graph(
    translator: Translator,
    source_length: int,
    target_length: int,
    *,
    hypotheses: int,
    in_integers: bool,
) -> tf.types.experimental.ConcreteFunction:
    """The signature of `write_model` as a graph with constants for variables.

    Args:
        translator: the model, and the settings of its search.
        source_length: S.
        target_length: L.
        hypotheses: how many of them are given back, at most those of the beam.
        in_integers: whether the weights become integers of 8 bits.
    """
    frozen = FrozenModel(translator.model, in_integers=in_integers)
    model = frozen.model

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([1, source_length], tf.int32, name="source_ids")],
    )
    def search(source_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        # Padding is cut off, so that a short sentence has short matrices and caches. With lengths
        # that are known, the converter would store the relations of S^2 pairs as constants, too.
        length = tf.reduce_sum(tf.cast(source_ids != model.config.pad_id, tf.int32))
        length = tf.maximum(length, 1)  # a source without a token gets an answer, too
        limit = tf.minimum(length + EXTRA_LENGTH, target_length)
        with frozen.weights_as_constants():
            ids, scores = beam_search(
                model,
                source_ids[:, :length],
                translator.beam_size,
                translator.alpha,
                max_length=limit,
                nbest=hypotheses,
                min_length=MIN_LENGTH,
            )
        behind = [[0, 0], [0, target_length - limit]]
        best = tf.pad(ids[0], behind, constant_values=model.config.pad_id)
        return {
            "target_ids": tf.reshape(best, [hypotheses, target_length]),
            "score": scores[0],
        }

    return search.get_concrete_function()
