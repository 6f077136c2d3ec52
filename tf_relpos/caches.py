"""Keys and values of earlier positions, `[B, 2, S_max, N, H]`, for attention step by step."""

from __future__ import annotations

from typing import Any

from keras import ops

from tf_relpos.tensor_checks import check_index
from tf_relpos.tensor_ops import Tensor, shape_of


def check_update_index(index: Any, T: int | None, S: int | None) -> Any:
    """The position to write at: an int where its value is known, else a scalar int32 tensor.

    Raises:
        ValueError: it is no whole number, or leaves no room for T positions in a cache of S.
    """
    index = check_index("cache_update_index", index)
    if isinstance(index, int) and T is not None and S is not None and index + T > S:
        raise ValueError(
            f"`cache_update_index` must leave room for the {T} positions that are written from it "
            f"on into a cache of {S}. Received: cache_update_index={index}"
        )
    return index


def write(cache: Tensor, new: Tensor, index: int | Tensor) -> Tensor:
    """`cache` `[B, 2, S, N, H]` with `new` `[B, 2, T, N, H]` at positions index .. index + T - 1.

    Written with `where`: `ops.slice_update` becomes an operation of XLA's in a TensorFlow graph,
    which a server without a compiler cannot run.
    """
    source = ops.arange(shape_of(cache)[2], dtype="int32") - index
    T = shape_of(new)[2]
    is_new = ops.reshape((source >= 0) & (source < T), (1, 1, -1, 1, 1))
    new = ops.cast(new, cache.dtype)
    if new.shape[2] != 1:
        # With a row more, for what is not written: there may be no other.
        new = ops.pad(new, ((0, 0), (0, 0), (0, 1), (0, 0), (0, 0)))
        new = ops.take(new, ops.clip(source, 0, T), axis=2)
    return ops.where(is_new, new, cache)


def given(output: Any, *others: Any) -> Any:
    """The output alone, or a tuple with those of the others that were asked for."""
    others = tuple(x for x in others if x is not None)
    return (output, *others) if others else output
