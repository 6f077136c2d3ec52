"""Which pairs of query and key are seen.

Axes are those of `tf_relpos.edge_attention`.
"""

from __future__ import annotations

from keras import ops

from tf_relpos.tensor_ops import Tensor


def both(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Where both masks are true; a mask that lacks heads or free axes has them before `[T, S]`."""
    if mask is None or other is None:
        return other if mask is None else ops.cast(mask, "bool")
    axes = max(len(mask.shape), len(other.shape))
    return with_axes(mask, axes) & with_axes(other, axes)


def with_axes(mask: Tensor, axes: int) -> Tensor:
    """A mask as bool of so many axes, those that it lacks before `[T, S]`."""
    mask = ops.cast(mask, "bool")
    while len(mask.shape) < axes:
        mask = ops.expand_dims(mask, -3)
    return mask


def heads_first_mask(mask: Tensor | None) -> Tensor | None:
    """A mask, which may lack axes before `[T, S]`, as `[N or 1, B or 1, T or 1, S or 1]`."""
    if mask is None:
        return None
    if len(mask.shape) == 3:
        return ops.expand_dims(ops.cast(mask, "bool"), 0)
    return ops.swapaxes(with_axes(mask, 4), 0, 1)


def visible(
    query_length: int | Tensor,
    key_length: int | Tensor,
    query_offset: int | Tensor = 0,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Which keys each query may see: bool `[1, T, S]`.

    Args:
        query_length: T.
        key_length: S.
        query_offset: the position of query 0 among the keys.
        causal: no query sees a key later than itself.
        window: queries see keys nearer than that alone, on either side.
    """
    keys = ops.reshape(ops.arange(key_length, dtype="int32"), (1, 1, -1))
    queries = ops.reshape(ops.arange(query_length, dtype="int32"), (1, -1, 1)) + query_offset
    seen = keys <= queries if causal else ops.ones_like(keys <= queries)
    return seen if window is None else seen & (ops.abs(keys - queries) < window)
