"""The model that a configuration describes."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from pipelines.data.buckets import Bucket
from pipelines.errors import InputError, reason_of
from tf_relpos import Transformer, TransformerConfig


def build_model(
    config: TransformerConfig, dtype: str = "float32", buckets: Sequence[Bucket] = ()
) -> Transformer:
    """A `Transformer` with all its variables.

    Args:
        config: of the model.
        dtype: its precision.
        buckets: of the text that it is to be trained on, whose graph does not know the lengths.

    Raises:
        InputError: there is no room for them.
    """
    if config.implementation == "auto" and buckets and _are_short(config, buckets):
        config = dataclasses.replace(config, implementation="transpose_reshape")
    try:
        model = Transformer(config, dtype=dtype)
        model.build()
    # The configuration is right as such: what remains is the size of a tensor.
    except (tf.errors.OpError, MemoryError, ValueError) as error:
        raise InputError(f"the model is too large for this machine: {reason_of(error)}") from error
    return model


def _are_short(config: TransformerConfig, buckets: Sequence[Bucket]) -> bool:
    """Whether batches of these shapes are attended to faster in the paper's form.

    As in `tf_relpos.relation_ops.choose_implementation`, for half of all positions. The vectors of
    all pairs of the longest sentences must not be many either.
    """
    labels = 2 * config.max_relative_position + 1
    typical, longest = (labels, 4 * labels)
    if config.heads_share_relative_embedding:
        typical, longest = (3 * labels // 2, 8 * labels)
    lengths = [max(bucket.source_length, bucket.target_length) for bucket in buckets]
    positions = [bucket.pairs * length for bucket, length in zip(buckets, lengths, strict=True)]
    short = sum(n for n, length in zip(positions, lengths, strict=True) if length <= typical)
    return max(lengths) <= longest and 2 * short >= sum(positions)
