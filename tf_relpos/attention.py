"""Eq. 3, 4 and 5 of any relations as pure functions, and their gradients (Shaw et al. 2018, section
3.1).

The axes are those of `tf_relpos.relation_ops`, the `relations` those of `tf_relpos.relations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from keras import ops

from tf_relpos import bucketed
from tf_relpos.compatibility import additive_gradients, additive_scores
from tf_relpos.fused_passes import fused
from tf_relpos.label_sums import add_by_label, with_lengths_of, without_lengths
from tf_relpos.relation_ops import choose_implementation, relation_scores, relation_values
from tf_relpos.relations import Relations, tensors_of
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import (
    Tensor,
    exact_dtype,
    row_sums,
    shape_of,
    times_transposed,
    transposed_times,
)


class Attention(NamedTuple):
    """Eq. 3, 4 and 5 of some queries, and their gradients.

    Attributes:
        softmax: `(scores, mask) -> weights`, in single precision at least.
        query: `[N, B, T, H]`, scaled.
        key, value: `[N, B, S, H]`.
        tables: what else there is to learn: the label vectors of "key" and "value", where they are
            in use, and before them the "vector" of additive compatibility.
        relations: None without label vectors.
        mask: which pairs are seen, `[N or 1, B or 1, T or 1, S or 1]`.
        dropout_mask: what dropout multiplies the weights by, `[N, B, T, S]`.
        implementation: of the labels, as for `relation_scores`.
    """

    softmax: Callable[..., Tensor]
    query: Tensor
    key: Tensor
    value: Tensor
    tables: dict[str, Tensor]
    relations: Relations
    mask: Tensor | None = None
    dropout_mask: Tensor | None = None
    implementation: str = "auto"

    def packed(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Attention]]:
        """All its tensors, and how to make the same of others: what has a gradient of its own, and
        each of its branches, must be given all tensors that it uses."""
        of_relations, from_tensors = tensors_of(self.relations)
        optional = {"mask": self.mask, "dropout_mask": self.dropout_mask}
        others = {**self.tables, **{name: x for name, x in optional.items() if x is not None}}

        def unpacked(tensors: Sequence[Tensor]) -> Attention:
            query, key, value, *rest = tensors
            own = dict(zip(others, rest, strict=False))
            relations = from_tensors(*rest[len(own) :])
            if isinstance(relations, RelativePositions):
                # Seen from within a branch, as XLA takes lengths from without for unknown.
                T, S = shape_of(query)[2], shape_of(key)[2]
                relations = relations._replace(query_length=T, key_length=S)
            return self._replace(
                query=query,
                key=key,
                value=value,
                tables={name: own[name] for name in self.tables},
                relations=relations,
                mask=own.get("mask"),
                dropout_mask=own.get("dropout_mask"),
            )

        return [self.query, self.key, self.value, *others.values(), *of_relations], unpacked

    def scores(self) -> Tensor:
        """Eq. 5, or the additive compatibility in its place: `[N, B, T, S]`."""
        query, relations, table = self.query, self.relations, self.tables.get("key")
        if "vector" in self.tables:
            return additive_scores(query, self.key, self.tables["vector"], relations, table)
        scores = times_transposed(query, self.key)
        if table is None:
            return scores
        if self._is_picked(table):
            return add_by_label(scores, *bucketed.scores_by_label(query, relations, table))
        return scores + relation_scores(query, relations, table, self.implementation)

    def is_bucketed(self, table: Tensor) -> bool:
        """Whether products with this table are made by label, not by pair."""
        chosen = choose_implementation(self.implementation, self.relations, table)
        return chosen == "bucketed"

    def _is_picked(self, table: Tensor) -> bool:
        """Whether a pair gets one number by label, as it has one label."""
        return isinstance(self.relations, RelativePositions) and self.is_bucketed(table)

    def exact_weights(self) -> Tensor:
        """The softmax of Eq. 4, `[N, B, T, S]`, in single precision at least."""
        return self.softmax(self.scores(), self.mask)

    def attended(self, weights: Tensor) -> Tensor:
        """Eq. 3, `[N, B, T, H]`."""
        attended = ops.matmul(weights, self.value)
        if "value" not in self.tables:
            return attended
        table = self.tables["value"]
        edges = relation_values(weights, self.relations, table, self.implementation)
        # Added flat, as TFLite's converter fails to move the transposition that follows in a loop
        # before the sum.
        shape = shape_of(attended)
        return ops.reshape(ops.reshape(attended, (-1,)) + ops.reshape(edges, (-1,)), shape)

    def results(self) -> list[Tensor]:
        """The attended values, the weights, and these as exact as they were."""
        exact = self.exact_weights()
        weights = ops.cast(exact, self.query.dtype)
        used = dropped(weights, self.dropout_mask)
        return [self.attended(used), weights, exact]

    def gradients(
        self,
        exact: Tensor,
        by_attended: Tensor,
        by_returned: Tensor | None = None,
        means: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients by the query; and by key, value and tables.

        Args:
            exact: the weights, as `results` gives them.
            by_attended: the gradient by the attended values.
            by_returned: that by the weights, if there is any.
            means: see `softmax_gradient`.
            weights: `exact` in the precision of the query, if they are at hand.
        """
        if weights is None:
            weights = ops.cast(exact, self.query.dtype)
        used = dropped(weights, self.dropout_mask)
        by_scores = self._softmax_gradient(exact, by_attended, by_returned, means)
        by_query, by_key, *by_tables = self._score_gradients(by_scores)
        by_value = transposed_times(used, by_attended)
        if "value" in self.tables:
            table = self.tables["value"]
            by_tables.append(bucketed.value_gradient(used, by_attended, self.relations, table))
        return [by_query], [by_key, by_value, *by_tables]

    def _softmax_gradient(
        self, exact: Tensor, by_attended: Tensor, by_returned: Tensor | None, means: Tensor | None
    ) -> Tensor:
        """The gradient by the scores; see `gradients`."""
        by_weights = times_transposed(by_attended, self.value)
        if "value" in self.tables:
            labelled = self.relations, self.tables["value"]
            is_all = self.dropout_mask is None and by_returned is None
            if is_all and self._is_picked(self.tables["value"]):
                per_label, positions = bucketed.scores_by_label(by_attended, *labelled)
                return labelled_softmax_gradient(exact, by_weights, per_label, positions, means)
            by_weights += relation_scores(by_attended, *labelled, self.implementation)
        by_weights = dropped(by_weights, self.dropout_mask)
        if by_returned is not None:
            by_weights += by_returned
        return softmax_gradient(exact, by_weights, means)

    def _score_gradients(self, by_scores: Tensor) -> list[Tensor]:
        """Of `scores`, by query, key and all tables but that of values."""
        query, key, table = self.query, self.key, self.tables.get("key")
        if "vector" in self.tables:
            vector = self.tables["vector"]
            return additive_gradients(by_scores, query, key, vector, self.relations, table)
        by_query = ops.matmul(by_scores, key)
        by_key = transposed_times(by_scores, query)
        if table is None:
            return [by_query, by_key]
        by_position, by_table = bucketed.score_gradients(by_scores, query, self.relations, table)
        return [by_query + by_position, by_key, by_table]


def dropped(weights: Tensor, dropout_mask: Tensor | None) -> Tensor:
    """Weights after dropout: times the mask, if there is any."""
    return weights if dropout_mask is None else weights * dropout_mask


def softmax_gradient(exact: Tensor, by_weights: Tensor, means: Tensor | None = None) -> Tensor:
    """The gradient by the scores of Eq. 4, computed as precisely as the weights are.

    Args:
        exact: the weights, `[N, B, T, S]`.
        by_weights: the gradient by them.
        means: for each query the mean of `by_weights`, weighted by `exact`, `[N, B, T, 1]`, if
            `gradient_means` has found it.

    Returns:
        `[N, B, T, S]` of the type of `by_weights`.
    """
    # In single precision there is no cast to save, and it takes no less time.
    is_half = by_weights.dtype != exact.dtype
    function = fused(_softmax_gradient) if is_half else _softmax_gradient
    return function(exact, by_weights, means)


def _softmax_gradient(exact: Tensor, by_weights: Tensor, means: Tensor | None) -> Tensor:
    total = ops.cast(by_weights, exact.dtype)
    if means is None:
        means = row_sums(total * exact)
    return ops.cast(exact * (total - means), by_weights.dtype)


def labelled_softmax_gradient(
    exact: Tensor,
    by_weights: Tensor,
    per_label: Tensor,
    positions: RelativePositions,
    means: Tensor | None = None,
) -> Tensor:
    """`softmax_gradient` of `by_weights` plus what each pair gets of its label.

    Args:
        exact, by_weights, means: see there.
        per_label, positions: see `tf_relpos.label_sums.add_by_label`.
    """
    if means is not None:
        per_label -= ops.cast(means, per_label.dtype)  # all pairs take it along with their label
    function = fused(_labelled_softmax_gradient)
    return function(exact, by_weights, per_label, without_lengths(positions), means is None)


def _labelled_softmax_gradient(
    exact: Tensor,
    by_weights: Tensor,
    per_label: Tensor,
    positions: RelativePositions,
    has_mean: bool,
) -> Tensor:
    total = add_by_label(by_weights, per_label, with_lengths_of(by_weights, positions))
    total = ops.cast(total, exact.dtype)
    if has_mean:
        total -= row_sums(total * exact)
    return ops.cast(exact * total, by_weights.dtype)


def gradient_means(attended: Tensor, by_attended: Tensor) -> Tensor:
    """What `softmax_gradient` subtracts, `[N, B, T, 1]`, without a look at the pairs: Eq. 3 is
    linear in the weights, so that their mean gradient is `z_i` times its own (Dao et al. 2022,
    section B.2).

    Args:
        attended: `[N, B, T, H]`, or with these axes in another order.
        by_attended: the gradient by it.
    """
    exact = exact_dtype(attended)
    products = ops.cast(attended, exact) * ops.cast(by_attended, exact)
    return ops.sum(products, axis=-1, keepdims=True)
