"""What a model looks at while it writes a translation, as a graph that TFLite can hold."""

import tensorflow as tf

from pipelines.exporters.frozen_model import FrozenModel
from pipelines.translators.alignment import aligning_weights
from tf_relpos import Transformer


def attention_graph(
    model: Transformer, source_length: int, target_length: int, *, in_integers: bool
) -> tf.types.experimental.ConcreteFunction:
    """Ids of a pair of sentences to attentions, with constants for variables.

    In: `source_ids` int32 `[1, S]`, as for the search; `target_ids` int32 `[1, L]`, the start id
    and the subwords of a translation without its end, then padding. Out: `weights` float32
    `[L, S]`, the `aligning_weights` of what is predicted at each position, 0 at padding; and, if
    `layers_with_distances` has any, `distances` float32 `[layers, N, R]`: of each head, what every
    distance scores (`RelativeMultiHeadAttention.distance_scores`), as a mean over the queries.

    Args:
        model: the model.
        source_length: S.
        target_length: L.
        in_integers: whether the weights become integers of 8 bits.
    """
    frozen = FrozenModel(model, in_integers=in_integers)
    pad_id, layers = model.config.pad_id, layers_with_distances(model)

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([1, source_length], tf.int32, name="source_ids"),
            tf.TensorSpec([1, target_length], tf.int32, name="target_ids"),
        ],
    )
    def attend(source_ids: tf.Tensor, target_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        S, T = (  # without padding
            tf.maximum(tf.reduce_sum(tf.cast(ids != pad_id, tf.int32)), 1)
            for ids in (source_ids, target_ids)
        )
        inputs = {"source_ids": source_ids[:, :S], "target_ids": target_ids[:, :T]}
        with frozen.weights_as_constants():
            attentions = frozen.model.attention_inputs(inputs)
            weights = aligning_weights(attentions)[0]
            distances = [
                tf.reduce_mean(inputs.layer.distance_scores(inputs.query)[0], axis=1)
                for name, inputs in attentions.items()
                if name in layers
            ]
        weights = tf.pad(weights, [[0, target_length - T], [0, source_length - S]])
        found = {"weights": tf.reshape(weights, [target_length, source_length])}
        if distances:
            found["distances"] = tf.stack(distances)
        return found

    return attend.get_concrete_function()


def layers_with_distances(model: Transformer) -> list[str]:
    """The names of the attentions whose scores have a term of positions, from the bottom up."""
    return [
        f"{side}_{number}/self_attention"
        for side, blocks in (("encoder", model.encoder_blocks), ("decoder", model.decoder_blocks))
        for number, block in enumerate(blocks)
        if block.self_attention.relation_keys and not block.self_attention.is_additive
    ]
