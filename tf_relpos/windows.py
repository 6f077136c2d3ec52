"""Attention to a window of keys: blocks of queries beside the keys around them.

Vaswani et al. 2017, section 4, "restricted" self-attention. Axes are those of
`tf_relpos.relative_attention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keras import ops

from tf_relpos.masks import visible, with_axes
from tf_relpos.tensor_ops import Tensor, shape_of

# Queries that share a window of keys, where the window reaches less far: smaller blocks compute
# fewer pairs that nobody sees, larger ones make better products.
SMALLEST_BLOCK = 64


class Windows(NamedTuple):
    """Blocks of C queries, each beside the W keys around it.

    M blocks hold the T queries, and zeros behind them. Key w of a block's window stands w - reach
    positions after the block's first query, so that all blocks have the same relative positions.
    """

    num_queries: int | Tensor  # T
    num_keys: int | Tensor  # S
    window: int  # r
    causal: bool
    reach: int | Tensor  # r, or less where no pair is as far apart
    size: int | Tensor  # C
    number: int | Tensor  # M

    @classmethod
    def of(cls, T: Any, S: Any, window: int, causal: bool) -> Windows:
        known = isinstance(T, int) and isinstance(S, int)
        least, most = (min, max) if known else (ops.minimum, ops.maximum)
        reach = least(window, most(most(T, S) - 1, 0))
        size = most(most(reach, least(SMALLEST_BLOCK, T)), 1)
        return cls(T, S, window, causal, reach, size, most((T + size - 1) // size, 1))

    @property
    def width(self) -> int | Tensor:
        """W."""
        return self.reach + self.size + (0 if self.causal else self.reach)

    @property
    def pairs(self) -> int | Tensor:
        """Of queries and keys that are computed for a sentence: M C W, where all are T S."""
        return self.number * self.size * self.width

    def blocks(self, x: Tensor) -> Tensor:
        """Queries `[B, T, ...]` as `[B*M, C, ...]`."""
        x = _fit(x, self.number * self.size)
        return ops.reshape(x, (-1, self.size, *shape_of(x)[2:]))

    def join(self, x: Tensor) -> Tensor:
        """`[B*M, C, ...]` as `[B, T, ...]`."""
        x = ops.reshape(x, (-1, self.number * self.size, *shape_of(x)[2:]))
        return x[:, : self.num_queries]

    def slide(self, x: Tensor) -> Tensor:
        """Keys `[B, S, ...]` as windows `[B*M, W, ...]`, zeros where there is no key."""
        pieces = 2 if self.causal else 3  # of C positions, as W <= 3 C
        rows = self.number + pieces - 1
        B, _, *rest = shape_of(x)
        x = ops.concatenate([ops.zeros((B, self.reach, *rest), x.dtype), x], axis=1)
        x = ops.reshape(_fit(x, rows * self.size), (B, rows, self.size, *rest))
        x = ops.concatenate([x[:, i : i + self.number] for i in range(pieces)], axis=2)
        return ops.reshape(x[:, :, : self.width], (B * self.number, self.width, *rest))

    def mask(self, B: Any, key_mask: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Which pairs are seen: bool `[B*M, 1 or N, C, W]`.

        Args:
            B: sentences.
            key_mask: `[B, S]`, or None.
            attention_mask: as in a call, or None.
        """
        keys = ops.ones((B, self.num_keys), "int32")
        if key_mask is not None:
            keys = keys * ops.cast(key_mask, "int32")
        # Reshaped as numbers: TFLite cannot add axes to booleans.
        is_key = ops.cast(ops.reshape(self.slide(keys), (-1, 1, 1, self.width)), "bool")
        is_near = visible(self.size, self.width, self.reach, self.causal, self.window + 1)
        seen = is_near & is_key
        if attention_mask is None or (isinstance(self.num_keys, int) and self.num_keys == 0):
            return seen
        pairs = ops.cast(with_axes(attention_mask, 4), "int32")
        is_of_any_query = pairs.shape[2] == 1
        T = 1 if is_of_any_query else self.num_queries
        pairs = ops.broadcast_to(pairs, (B, shape_of(pairs)[1], T, self.num_keys))
        if is_of_any_query:
            pairs = ops.transpose(self.slide(ops.transpose(pairs, (0, 3, 1, 2))), (0, 2, 3, 1))
        else:
            pairs = self._of_pairs(pairs)
        return seen & ops.cast(pairs, "bool")

    def _of_pairs(self, x: Tensor) -> Tensor:
        """`[B, N, T, S]` as `[B*M, N, C, W]`."""
        B, N, _, S = shape_of(x)
        x = self.blocks(ops.transpose(x, (0, 2, 1, 3)))  # [B*M, C, N, S]
        x = ops.reshape(x, (B, self.number, self.size, N, S))
        keys = ops.expand_dims(ops.arange(self.number, dtype="int32") * self.size, 1)
        keys = ops.clip(keys + ops.arange(self.width, dtype="int32") - self.reach, 0, S - 1)
        keys = ops.broadcast_to(
            keys[None, :, None, None], (B, self.number, self.size, N, self.width)
        )
        x = ops.take_along_axis(x, keys, axis=-1)
        x = ops.reshape(x, (B * self.number, self.size, N, self.width))
        return ops.transpose(x, (0, 2, 1, 3))


def _fit(x: Tensor, length: int | Tensor) -> Tensor:
    """`x` `[B, T, ...]` cut to `length` positions, or with zeros up to them."""
    x = x[:, :length]
    B, T, *rest = shape_of(x)
    return ops.concatenate([x, ops.zeros((B, length - T, *rest), x.dtype)], axis=1)
