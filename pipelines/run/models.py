"""The model that a configuration describes."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from pipelines.data.buckets import Bucket
from pipelines.errors import InputError, reason_of
from tf_relpos import Transformer, TransformerConfig
from tf_relpos.execution import has_gpu
from tf_relpos.relation_ops import longest_in_the_paper_s_form


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
    is_open = config.implementation == "auto" and not has_gpu()
    if is_open and buckets and _are_short(config, buckets):
        config = dataclasses.replace(config, implementation="transpose_reshape")
    try:
        model = Transformer(config, dtype=dtype)
        model.build()
    # The configuration is right as such: what remains is the size of a tensor.
    except (tf.errors.OpError, MemoryError, ValueError) as error:
        raise InputError(f"the model is too large for this machine: {reason_of(error)}") from error
    return model


def _are_short(config: TransformerConfig, buckets: Sequence[Bucket]) -> bool:
    """Whether the paper's form is for this text: it takes less time on short sentences
    (`tf_relpos.relation_ops.choose_implementation`), of which this must be for the most part."""
    shared = config.heads_share_relative_embedding
    longest = longest_in_the_paper_s_form(2 * config.max_relative_position + 1, shared)
    lengths = [bucket.longest for bucket in buckets]
    positions = [bucket.pairs * length for bucket, length in zip(buckets, lengths, strict=True)]
    short = sum(n for n, length in zip(positions, lengths, strict=True) if length <= longest)
    return max(lengths) <= 4 * longest and 2 * short >= sum(positions)
