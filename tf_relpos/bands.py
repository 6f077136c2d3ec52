"""Eq. 3 and 5 over long sequences: beyond the clipping distance a label is part of the key.

All keys that are k or more to the left of a query have the same label, and so have those to the
right (Shaw et al. 2018, section 3.2). For these `k_j + w^K` is a key like any other: one product
makes both terms of Eq. 5, `q_i (k_j + w^K)^T`, and another both terms of Eq. 3, with `v_j + w^V`.
For a block of t queries only a band of t + 2k - 2 keys is left whose labels have to be picked:

    keys    0 ......... first ......... last ......... S
    label      0              0 to 2k          2k

so that time and memory beyond plain attention's grow with T (t + 2k) in place of T S. The sizes of
the bands must be known when a graph is made.

Axes are those of `tf_relpos.relation_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from keras import ops

from tf_relpos.attention import Attention, dropped, gradient_means, softmax_gradient
from tf_relpos.attention_at_once import MOST_KEPT
from tf_relpos.bucketed import score_gradients, value_gradient
from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import has_gpu, may_train, runs_eagerly
from tf_relpos.relation_ops import relation_scores, relation_values
from tf_relpos.relations import Relations
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, exact_dtype, times_transposed, transposed_times

# Queries of a block: an eighth of all, and at least so many.
FEWEST = 128


class Band(NamedTuple):
    """A block of queries, from `start` to `stop`, and the keys whose labels differ, from `first` to
    `last`."""

    start: int
    stop: int
    first: int
    last: int

    def positions(self, positions: RelativePositions) -> RelativePositions:
        """Those within the band."""
        return positions._replace(
            query_length=self.stop - self.start,
            key_length=self.last - self.first,
            query_offset=positions.query_offset + self.start - self.first,
        )

    def sides(self, ends: _Ends) -> list[Tensor]:
        """The keys (or values) `[N, B, S, H]` left of the band, in it, and right of it."""
        return [ends.left[:, :, : self.first], self.of(ends.x, 2), ends.right[:, :, self.last :]]

    def of(self, x: Tensor, axis: int) -> Tensor:
        """The band of what has keys on `axis`."""
        return x[(slice(None),) * axis + (slice(self.first, self.last),)]

    def queries(self, x: Tensor | None) -> Tensor | None:
        """The block of what has all queries, `[N, B, T, ...]`, or one entry for all of them."""
        return x if x is None or x.shape[2] == 1 else x[:, :, self.start : self.stop]


def bands_of(relations: Relations, query: Tensor, key: Tensor, training: Any) -> list[Band]:
    """The blocks of queries; none where sizes are not known, bands save little, there is no
    gradient to keep weights for, the weights of all pairs are too many to be kept, or on a GPU,
    for which one large operation takes less time than several.

    Args:
        relations: see `tf_relpos.relations`.
        query: `[N, B, T, H]`.
        key: `[N, B, S, H]`.
        training: whether a gradient is to be expected.
    """
    if not isinstance(relations, RelativePositions) or has_gpu():
        return []
    T, S, k, offset, _ = relations
    if not all(isinstance(size, int) for size in relations) or k == 0:
        return []
    if not may_train(training) or query.shape[0] * (query.shape[1] or 1) * T * S > MOST_KEPT:
        return []
    size = max(-(-T // 8), FEWEST)
    bands = []
    for start in range(0, T, size):
        stop = min(start + size, T)
        # A key at least, which no block of queries beyond the keys needs, but all products do.
        first = min(max(start + offset - k + 1, 0), S - 1)
        last = min(max(stop + offset + k - 1, first + 1), S)
        bands.append(Band(start, stop, first, last))
    return bands if 2 * sum(band.last - band.first for band in bands) <= S * len(bands) else []


def attend_in_bands(attention: Attention, bands: Sequence[Band]) -> Tensor:
    """Eq. 3 and 5, block by block; in a graph the weights are kept, as plain attention keeps them.

    Args:
        attention: of all queries, by the product, with `RelativePositions`.
        bands: what `bands_of` has found.

    Returns:
        The attended values, `[N, B, T, H]`.
    """
    tensors, unpacked = attention.packed()
    query = attention.query

    def blocks(inputs: Sequence[Tensor]) -> Iterator[_BandAttention]:
        own = unpacked(inputs)
        keys = _Ends(own.key, own.tables.get("key"))
        values = _Ends(own.value, own.tables.get("value"))
        for band in bands:
            yield _BandAttention(
                band,
                band.positions(cast(RelativePositions, own.relations)),
                band.queries(own.query),
                keys,
                values,
                band.queries(own.mask),
                band.queries(own.dropout_mask),
                own.implementation,
            )

    # An eager tape would not know what kept weights were made from, for a second derivative.
    is_kept = not runs_eagerly(query)

    def attend(*inputs: Tensor) -> tuple[Tensor, tuple[list[Tensor], Tensor | None]]:
        results, weights = [], []
        for block in blocks(inputs):
            exact = block.exact_weights(attention.softmax)
            results.append(block.attended(exact))
            weights += [exact] if is_kept else []
        attended = ops.concatenate(results, axis=2)
        return attended, (weights, attended if is_kept else None)

    def gradient(inputs: Any, saved: Any, by_attended: Tensor) -> list[Tensor]:
        weights, attended = saved
        means = gradient_means(attended, by_attended) if is_kept else None
        by_queries: list[Tensor] = []
        by_others: list[Tensor] = []
        for index, block in enumerate(blocks(inputs)):
            queries = block.band.queries
            exact = weights[index] if is_kept else block.exact_weights(attention.softmax)
            by_query, *terms = block.gradients(exact, queries(by_attended), queries(means))
            terms = [ops.cast(term, exact_dtype(query)) for term in terms]
            by_queries.append(by_query)
            by_others = [a + b for a, b in zip(by_others, terms, strict=False)] or terms
        by_others = [ops.cast(x, query.dtype) for x in by_others]
        return [ops.concatenate(by_queries, axis=2), *by_others]

    return with_gradient(attend, gradient, *tensors)


class _Ends:
    """Keys or values, with the vectors of the labels at both ends added where there is a table."""

    def __init__(self, x: Tensor, table: Tensor | None):
        self.x, self.table = x, table
        self.left = self.right = x
        if table is not None:
            rows = table if len(table.shape) == 2 else ops.expand_dims(table, 1)
            self.left, self.right = x + rows[..., :1, :], x + rows[..., -1:, :]

    def by_table(self, band: Band, by_x: Tensor, by_labels: Tensor) -> Tensor:
        """The gradient by the table: that of the band's labels, and at both ends that of all keys
        beside the band."""
        dtype = exact_dtype(by_x)
        axes = (0, 1) if len(by_labels.shape) == 2 else 1
        left, right = (
            # First over the keys: TensorFlow takes long over axes with others between them.
            ops.expand_dims(ops.sum(ops.sum(ops.cast(beside, dtype), axis=2), axis=axes), -2)
            for beside in (by_x[:, :, : band.first], by_x[:, :, band.last :])
        )
        by_labels = ops.cast(by_labels, dtype)
        ends = [left, ops.zeros_like(by_labels[..., 1:-1, :]), right]
        return by_labels + ops.concatenate(ends, axis=-2)


class _BandAttention(NamedTuple):
    """A block of queries and what it attends to; see `attend_in_bands`."""

    band: Band
    positions: RelativePositions
    query: Tensor
    keys: _Ends
    values: _Ends
    mask: Tensor | None
    dropout_mask: Tensor | None
    implementation: str

    def exact_weights(self, softmax: Callable[..., Tensor]) -> Tensor:
        """`[N, B, t, S]`, in single precision at least."""
        return softmax(self._product(self.query, self.keys), self.mask)

    def attended(self, exact: Tensor) -> Tensor:
        """`[N, B, t, H]`, by these weights."""
        used = dropped(ops.cast(exact, self.query.dtype), self.dropout_mask)
        attended = ops.matmul(used, self._joined(self.values))
        if self.values.table is None:
            return attended
        in_band = self.band.of(used, 3)
        edges = relation_values(in_band, self.positions, self.values.table, self.implementation)
        return attended + edges

    def gradients(
        self, exact: Tensor, by_attended: Tensor, means: Tensor | None = None
    ) -> list[Tensor]:
        """By the query, keys and values, and by the tables that are in use; `means` are
        those of `softmax_gradient`."""
        used = dropped(ops.cast(exact, self.query.dtype), self.dropout_mask)
        by_weights = dropped(self._product(by_attended, self.values), self.dropout_mask)
        by_scores = softmax_gradient(exact, by_weights, means)
        by_query = ops.matmul(by_scores, self._joined(self.keys))
        by_key = transposed_times(by_scores, self.query)
        by_value = transposed_times(used, by_attended)
        by_tables = []
        if self.keys.table is not None:
            in_band = self.band.of(by_scores, 3)
            table = self.keys.table
            by_labels, by_table = score_gradients(in_band, self.query, self.positions, table)
            by_query += by_labels
            by_tables.append(self.keys.by_table(self.band, by_key, by_table))
        if self.values.table is not None:
            in_band = self.band.of(used, 3)
            by_table = value_gradient(in_band, by_attended, self.positions, self.values.table)
            by_tables.append(self.values.by_table(self.band, by_value, by_table))
        return [by_query, by_key, by_value, *by_tables]

    def _product(self, x: Tensor, ends: _Ends) -> Tensor:
        """`[N, B, t, S]`: `x` by all keys (or values), to which label vectors are added."""
        left, middle, right = (times_transposed(x, side) for side in self.band.sides(ends))
        if ends.table is not None:
            middle += relation_scores(x, self.positions, ends.table, self.implementation)
        return ops.concatenate([left, middle, right], axis=-1)

    def _joined(self, ends: _Ends) -> Tensor:
        return ops.concatenate(self.band.sides(ends), axis=2)
