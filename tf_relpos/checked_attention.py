"""Keras's attention layer, which refuses by name what it cannot work with.

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size.
"""

from __future__ import annotations

import operator
from typing import Any

import keras
import numpy as np

from tf_relpos.caches import check_update_index
from tf_relpos.checks import broadcasts, check_number, check_shape, fits
from tf_relpos.tensor_checks import check_is_array, check_is_padded
from tf_relpos.tensor_ops import Shape, Tensor


class CheckedAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` with checks of its arguments, and of those of a call.

    Keras's own takes much that cannot work: what does not fit is broadcast, or fails far from where
    it was given.

    Args:
        num_heads: N.
        key_dim: H.
        is_plain: whether it is Keras's attention alone, which more than one attention axis and
            `flash_attention` are for.
        **kwargs: the other arguments of `keras.layers.MultiHeadAttention`.

    Raises:
        ValueError: an argument that cannot work; the message names it, the rule and the value.
    """

    def __init__(self, num_heads: int, key_dim: int, *, is_plain: bool, **kwargs: Any) -> None:
        flash_attention = kwargs.get("flash_attention")
        if flash_attention and not is_plain:
            raise ValueError(
                "`flash_attention` must be None or False: no fused kernel computes the relation "
                'terms, nor compatibility="additive". '
                f"Received: flash_attention={flash_attention!r}"
            )
        axes = kwargs.get("attention_axes")
        if axes is not None and np.size(axes) != 1 and not is_plain:
            raise ValueError(
                "`attention_axes` must be None or one axis: relations join positions of one axis, "
                f'and so does compatibility="additive". Received: attention_axes={axes!r}'
            )
        if "dropout" in kwargs:
            rule = "a number between 0 and 1"
            kwargs["dropout"] = check_number(
                "dropout", kwargs["dropout"], rule, lambda rate: 0 <= rate <= 1
            )
        sizes = {"num_heads": num_heads, "key_dim": key_dim}
        for name in ("value_dim", "sliding_window", "attention_axes"):
            if name in kwargs:
                sizes[name] = kwargs.pop(name)
        super().__init__(**{name: _as_int(size) for name, size in sizes.items()}, **kwargs)
        if not flash_attention:
            self._flash_attention = False
        self._is_plain = is_plain

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        self.compute_output_shape(query_shape, value_shape, key_shape)  # refuses what cannot fit
        self._check_axes(len(query_shape))
        self._check_free_axes(query_shape, value_shape, key_shape)
        super().build(query_shape, value_shape, key_shape)
        self._built_for = {
            "query": (len(query_shape), query_shape[-1]),
            "value": (len(value_shape), value_shape[-1]),
            "key": (len(value_shape), (key_shape or value_shape)[-1]),
        }

    def _check_axes(self, rank: int) -> None:
        axes = self._positive_axes(rank)
        if not self._is_plain and len(axes) != 1:
            raise ValueError(
                "`query` must have the shape [batch, positions, features], or `attention_axes` "
                "must name one of its axes as the positions. "
                f"Received: query of rank {rank}, attention_axes={self.attention_axes}"
            )
        if not all(0 < axis < rank - 1 for axis in axes):
            raise ValueError(
                "`attention_axes` must lie between the axes of batch and features. "
                f"Received: attention_axes={self.attention_axes} for inputs of rank {rank}"
            )

    def _check_free_axes(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        shapes = [tuple(s) for s in (query_shape, value_shape, key_shape) if s is not None]
        rank = len(shapes[0])
        free = set(range(rank - 1)) - set(self._positive_axes(rank))
        for shape in shapes[1:]:
            if len(shape) != rank or any(
                None not in (shapes[0][axis], shape[axis]) and shapes[0][axis] != shape[axis]
                for axis in free
            ):
                raise ValueError(
                    "`query`, `value` and `key` must agree in all axes but positions and features. "
                    f"Received: shapes {', '.join(map(str, shapes))}"
                )

    def _positive_axes(self, rank: int) -> tuple[int, ...]:
        """The attention axes of inputs of this rank, counted from the front."""
        if self._attention_axes is None:
            return tuple(range(1, rank - 1))
        return tuple(axis if axis >= 0 else rank + axis for axis in self._attention_axes)

    def _check_built(self, method: str) -> None:
        if not self.built:
            raise ValueError(
                f"`{method}` needs the weights of a built layer: call it, or its `build`, first. "
                f"Received: built={self.built}"
            )

    def _check_call(
        self, query: Tensor, value: Tensor, key: Tensor | None, cache: Any, index: Any
    ) -> Any:
        """Refuses shapes that do not fit. Returns `cache_update_index`, an int if it is known."""
        self._check_inputs(query=query)
        self._check_keys(value, key)
        if cache is None:
            if index is not None:
                raise ValueError(
                    "`cache_update_index` needs a `cache`. "
                    f"Received: cache=None, cache_update_index={index!r}"
                )
            self._check_free_axes(query.shape, value.shape, None if key is None else key.shape)
            return None
        return self._check_cache(query, value, cache, index)

    def _check_cache(self, query: Tensor, value: Tensor, cache: Any, index: Any) -> Any:
        self._check_stackable()
        if not hasattr(cache, "shape") or "float" not in keras.backend.standardize_dtype(
            cache.dtype
        ):
            kind = getattr(cache, "dtype", type(cache).__name__)
            raise ValueError(f"`cache` must be an array or tensor of floats. Received: {kind}")
        batch = query.shape[0] if index is None or query.shape[0] is not None else value.shape[0]
        expected = (batch, 2, None, self.num_heads, self.key_dim)
        if len(query.shape) != 3 or not fits(cache.shape, expected):
            raise ValueError(
                "`cache` must have the shape [B, 2, S_max, N, H] = "
                f"{expected} beside a query [B, T, D]. "
                f"Received: cache of shape {tuple(cache.shape)}, query of shape "
                f"{tuple(query.shape)}"
            )
        if index is None:
            return None
        if not fits(value.shape, (batch, None, None)):
            raise ValueError(
                f"`value` must have the shape [B, T, D] with B = {batch}. "
                f"Received: value of shape {tuple(value.shape)}"
            )
        return check_update_index(index, value.shape[1], cache.shape[2])

    def _check_stackable(self) -> None:
        if self.key_dim != self.value_dim:
            raise ValueError(
                "`cache` needs value_dim = key_dim, so that keys and values stack. "
                f"Received: value_dim={self.value_dim}, key_dim={self.key_dim}"
            )

    def _check_keys(self, value: Tensor, key: Tensor | None = None) -> None:
        """Refuses values and keys of other shapes than the layer was built for, or each other's."""
        self._check_inputs(**({"value": value} if key is None else {"key": key, "value": value}))
        if key is None or len(key.shape) != len(value.shape):
            return
        for axis in self._positive_axes(len(value.shape)):
            if not fits((value.shape[axis],), (key.shape[axis],)):
                raise ValueError(
                    "`key` and `value` must have the same positions. Received: shapes "
                    f"{tuple(key.shape)} and {tuple(value.shape)}"
                )

    def _check_inputs(self, **inputs: Tensor) -> None:
        """Refuses inputs of another rank or with other features than the layer was built for."""
        if not self.built:  # a specification alone is asked for
            return
        for name, x in inputs.items():
            check_is_array(name, x)
            check_is_padded(name, x)
            rank, features = self._built_for[name]
            check_shape(name, x.shape, (*(None,) * (rank - 1), features))

    def _check_masks(
        self,
        query: Tensor,
        value: Tensor,
        cache: Tensor | None,
        query_mask: Tensor | None,
        value_mask: Tensor | None,
        key_mask: Tensor | None,
        attention_mask: Tensor | None,
    ) -> None:
        """Refuses masks of a call that do not fit, where positions have one axis."""
        masks = {"query_mask": query_mask}
        if cache is None:  # else they are not looked at
            masks |= {"value_mask": value_mask, "key_mask": key_mask}
        for name, mask in {**masks, "attention_mask": attention_mask}.items():
            if mask is not None:
                check_is_array(name, mask)
            check_is_padded(name, mask)
        if len(query.shape) != 3:
            self._check_ends_with_pairs(query, value, attention_mask)
            return
        keys = value.shape[1] if cache is None else cache.shape[2]
        B, T, _ = query.shape
        for name, mask in masks.items():
            if mask is not None:
                check_shape(name, mask.shape, (B, T) if name == "query_mask" else (B, keys))
        if attention_mask is None:
            return
        shape = tuple(attention_mask.shape)
        # What stands before [T, S] of [B, N, T, S] may be left out.
        axes = {2: (T, keys), 3: (B, T, keys), 4: (B, self.num_heads, T, keys)}.get(len(shape))
        if axes is None or not broadcasts(shape, axes):
            raise ValueError(
                "`attention_mask` must have the shape [T, S], [B, T, S] or [B, N, T, S] with "
                f"B, N, T, S = {(B, self.num_heads, T, keys)}, or 1 for any of them. "
                f"Received: attention_mask of shape {shape}"
            )

    def _check_ends_with_pairs(
        self, query: Tensor, value: Tensor, attention_mask: Tensor | None
    ) -> None:
        """The same of inputs with free axes, of which a mask may have any."""
        if attention_mask is None or len(self._attention_axes) != 1:
            return
        (axis,) = self._attention_axes
        shape, pairs = tuple(attention_mask.shape), (query.shape[axis], value.shape[axis])
        if not broadcasts(shape[-2:], pairs):
            raise ValueError(
                f"`attention_mask` must end with [T, S] = {pairs}, or 1 for either. "
                f"Received: attention_mask of shape {shape}"
            )


def _as_int(size: Any) -> Any:
    """Whole numbers of NumPy's as Python's; anything else as it is, for Keras to judge."""
    try:
        return operator.index(size)
    except TypeError:
        return size
