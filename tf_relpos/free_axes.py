"""Inputs `[B, ..., T, D]`: all axes but positions and features are batch, and one while attending.

Axes are those of `tf_relpos.edge_attention`; F is the product of the free axes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keras import ops

from tf_relpos.masks import with_axes
from tf_relpos.relations import Relations
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, shape_of


class FreeAxes(NamedTuple):
    """The batch axes of projected inputs `[B, ..., T, N, H]`."""

    axis: int  # of the positions
    sizes: tuple[Any, ...]  # B and the free axes

    @classmethod
    def of(cls, x: Tensor, axis: int) -> FreeAxes:
        """Those of `x`, whose positions are on an axis."""
        shape = shape_of(x)[:-2]
        return cls(axis, (*shape[:axis], *shape[axis + 1 :]))

    def fold(self, x: Tensor) -> Tensor:
        """`[B, ..., T, N, H]` as `[B*F, T, N, H]`."""
        x = ops.moveaxis(x, self.axis, -3)
        return ops.reshape(x, (-1, *shape_of(x)[-3:]))

    def unfold(self, x: Tensor) -> Tensor:
        """`[B*F, T, N, H]` as `[B, ..., T, N, H]`."""
        return ops.moveaxis(self.unfold_pairs(x), -3, self.axis)

    def unfold_pairs(self, x: Tensor) -> Tensor:
        """`[B*F, N, T, S]` as `[B, ..., N, T, S]`."""
        return ops.reshape(x, (*self.sizes, *shape_of(x)[1:]))

    def fold_mask(self, mask: Tensor | None) -> Tensor | None:
        """A mask that may lack axes before `[T, S]` as `[B*F or 1, N or 1, T, S]`."""
        if mask is None:
            return None
        mask = with_axes(mask, len(self.sizes) + 3)
        own = shape_of(mask)[-3:]
        if set(mask.shape[:-3]) != {1}:
            mask = ops.broadcast_to(mask, (*self.sizes, *own))
        return ops.reshape(mask, (-1, *own))

    def fold_relations(self, relations: Relations | None) -> Relations | None:
        """Labels of sentences, `[B, T, S]` or `[B, T, S, L]`, for all of their free axes."""
        if isinstance(relations, RelativePositions | None) or len(relations.shape) == 2:
            return relations
        B, *own = shape_of(relations)
        _, *free = self.sizes
        relations = ops.reshape(relations, (B, *(1 for _ in free), *own))
        return ops.reshape(ops.broadcast_to(relations, (B, *free, *own)), (-1, *own))
