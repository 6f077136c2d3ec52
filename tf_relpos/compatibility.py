"""A compatibility of query, key and edge that is not linear (Bahdanau et al. 2014, section 3.1).

    e_ij = v^T tanh(x_i W^Q + x_j W^K + a^K_ij)

It stands where Eq. 4 of Shaw et al. 2018 has its scaled product, as their section 5 proposes. No
product of matrices makes these scores: each pair has H numbers of its own. They are made and summed
one coordinate of the heads at a time, forward and, again, backward, so that memory is that of a
few tensors like the scores, `[N, B, T, S]`, and not of H times as many numbers.

Axes: N heads, B batch, T query positions, S key positions, H head size, R labels, L labels an edge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import runs_eagerly
from tf_relpos.loops import loop, turns, vary_alike
from tf_relpos.relations import Relations, tensors_of
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, exact_dtype, int32_labels, shape_of


def additive_scores(
    query: Tensor, key: Tensor, vector: Tensor, relations: Relations, table: Any
) -> Tensor:
    """`v^T tanh(x_i W^Q + x_j W^K + a^K_ij)`, in single precision at least.

    Args:
        query: `[N, B, T, H]`, not scaled.
        key: `[N, B, S, H]`.
        vector: v of each head, `[N, H]`.
        relations: see `tf_relpos.relations`; not looked at without a table.
        table: the key vectors `w^K` of the labels, `[R, H]` or `[N, R, H]`; None for no edges.

    Returns:
        `[N, B, T, S]`.
    """
    tables = [] if table is None else [table]
    tensors, from_tensors = tensors_of(None if table is None else relations)

    def pairs(inputs: Any) -> _Pairs:
        query, key, vector, *others = inputs
        own_tables, own_tensors = others[: len(tables)], others[len(tables) :]
        return _Pairs(query, key, vector, from_tensors(*own_tensors), *own_tables)

    def scored(*inputs: Tensor) -> tuple[Tensor, None]:
        return pairs(inputs).scores(), None

    def gradient(inputs: Any, saved: None, by_scores: Tensor) -> list[Tensor]:
        return pairs(inputs).gradients(by_scores)

    return with_gradient(scored, gradient, query, key, vector, *tables, *tensors)


def additive_gradients(
    by_scores: Tensor,
    query: Tensor,
    key: Tensor,
    vector: Tensor,
    relations: Relations,
    table: Any,
) -> list[Tensor]:
    """The gradients of `additive_scores` by query, key, vector and, if there is one, table.

    Args:
        by_scores: gradient by the scores, `[N, B, T, S]`.
        others: those of `additive_scores`.
    """
    return _Pairs(query, key, vector, relations, table).gradients(by_scores)


class _Pairs:
    """The pairs of queries and keys, one coordinate of the heads at a time."""

    def __init__(
        self, query: Tensor, key: Tensor, vector: Tensor, relations: Relations, table: Any = None
    ):
        self.dtype, self.exact = query.dtype, exact_dtype(query)
        self.is_eager = runs_eagerly(query)
        self.size = vector.shape[-1]  # H
        self.query = ops.transpose(query, (3, 0, 1, 2))  # [H, N, B, T]
        self.key = ops.transpose(key, (3, 0, 1, 2))  # [H, N, B, S]
        self.vector = ops.cast(ops.transpose(vector), self.exact)  # [H, N]
        self.table: Any = None
        if table is not None:
            self.num_labels = table.shape[-2]
            self.labels = _labels(relations, self.num_labels)
            rows = ops.concatenate([table, ops.zeros_like(table[..., :1, :])], axis=-2)
            self.table = ops.moveaxis(rows, -1, 0)  # [H, R + 1] or [H, N, R + 1], the last of none

    def scores(self) -> Tensor:
        """`[N, B, T, S]`."""

        def add(h: Any, scores: Tensor) -> tuple[Tensor]:
            term = ops.cast(self._tanh(h), self.exact) * self._vector(h)
            return (scores + ops.reshape(term, shape_of(scores)),)

        scores = ops.zeros((*shape_of(self.query)[1:], shape_of(self.key)[-1]), self.exact)
        return self._for_each_coordinate(self.size, add, scores)[0]

    def gradients(self, by_scores: Tensor) -> list[Tensor]:
        """By query, key, vector and, if there is one, table, as these were given."""
        by_scores = ops.cast(by_scores, self.exact)
        count = turns(self.size, *shape_of(by_scores))

        def add(h: Any, *wholes: Tensor) -> tuple[Tensor, ...]:
            x = ops.cast(self._tanh(h), self.exact)
            of_vector = by_scores * x
            # Without v, by which what is summed is multiplied, as that is less.
            pairs = by_scores - of_vector * x
            vector = self._vector(h)[..., 0]  # [N, 1, 1]
            parts = [
                ops.sum(pairs, axis=3) * vector,
                ops.sum(pairs, axis=2) * vector,
                ops.sum(of_vector, axis=(1, 2, 3)),
            ]
            if self.table is not None:
                parts.append(self._by_label(pairs, self._vector(h)))
            return tuple(_written(x, h, part) for x, part in zip(wholes, parts, strict=True))

        wholes = [self.query, self.key, self.vector]
        if self.table is not None:
            wholes.append(self.table[..., :-1])
        nothing = [ops.zeros(shape_of(x), self.exact) for x in wholes]
        by_query, by_key, by_vector, *by_table = (
            ops.cast(x, self.dtype) for x in self._for_each_coordinate(count, add, *nothing)
        )
        return [
            ops.transpose(by_query, (1, 2, 3, 0)),
            ops.transpose(by_key, (1, 2, 3, 0)),
            ops.transpose(by_vector),
            *(ops.moveaxis(x, 0, -1) for x in by_table),
        ]

    def _tanh(self, h: Any) -> Tensor:
        """`[N, B, T, S]`."""
        x = ops.expand_dims(self.query[h], 3) + ops.expand_dims(self.key[h], 2)
        return ops.tanh(x if self.table is None else x + self._edges(h))

    def _vector(self, h: Any) -> Tensor:
        """`[N, 1, 1, 1]`."""
        return ops.reshape(self.vector[h], (-1, 1, 1, 1))

    def _edges(self, h: Any) -> Tensor:
        """`a_ij`, as far as pairs differ in it: `[T, S]`, `[B, T, S]` or `[N, 1 or B, T, S]`."""
        edges = ops.take(self.table[h], self.labels, axis=-1)
        if len(self.labels.shape) == 4:
            return ops.sum(edges, axis=-1)
        is_of_heads = len(self.labels.shape) == 2 and len(self.table.shape) == 3
        return ops.expand_dims(edges, 1) if is_of_heads else edges

    def _by_label(self, pairs: Tensor, vector: Tensor) -> Tensor:
        """From pairs `[N, B, T, S]`, to be multiplied by v, to their sums by label: `[R]` or, where
        the table has heads, `[N, R]`."""
        is_shared = len(self.table.shape) == 2
        if len(self.labels.shape) == 2:
            pairs = ops.sum(pairs, axis=1, keepdims=True)
        pairs = pairs * vector
        pairs = ops.sum(pairs, axis=0) if is_shared else ops.moveaxis(pairs, 0, -1)
        rows = ops.reshape(pairs, (-1, 1 if is_shared else pairs.shape[-1]))
        if len(self.labels.shape) == 4:
            rows = ops.repeat(rows, shape_of(self.labels)[3], axis=0)
        labels = ops.reshape(self.labels, (-1,))
        sums = ops.segment_sum(rows, labels, num_segments=self.num_labels + 1)[:-1]
        return sums[:, 0] if is_shared else ops.transpose(sums)

    def _for_each_coordinate(
        self, count: Any, step: Callable[..., Any], *state: Tensor
    ) -> tuple[Tensor, ...]:
        """The state after `count` turns: one for each of the H coordinates, or none."""
        if self.is_eager or not (ops.is_tensor(count) or count):
            # Python's own loop: the other one would be compiled at every call.
            for h in range(count):
                state = step(h, *state)
            return state

        def body(h: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            state = step(h, *state)
            # The next coordinate waits for this one, as nothing is above infinity: TensorFlow would
            # make several at once, and hold as many times the memory.
            more = ops.reshape(state[0], (-1,))[:1] > float("inf")
            return h + 1 + ops.sum(ops.cast(more, "int32")), *state

        return loop(count, body, *vary_alike(state, self.query, self.key))


def _labels(relations: Relations, num_labels: int) -> Tensor:
    """int32 `[T, S]`, `[B, T, S]` or `[B, T, S, L]`, with R for no label."""
    if isinstance(relations, RelativePositions):
        return relations.ids
    labels = int32_labels(relations, num_labels)
    return ops.where((labels >= 0) & (labels < num_labels), labels, num_labels)


def _written(whole: Tensor, h: Any, part: Tensor) -> Tensor:
    """`whole` `[H, ...]` with a part `[...]` at h."""
    part = ops.reshape(part, (1, *shape_of(whole)[1:]))
    return ops.scatter_update(whole, ops.reshape(ops.cast(h, "int32"), (1, 1)), part)
