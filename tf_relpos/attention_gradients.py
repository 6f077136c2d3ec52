"""Eq. 3 and 4 with their gradients, for what computes these itself (Shaw et al. 2018, section 3.1).

The axes are those of `tf_relpos.relation_ops`, the `relations` those of `tf_relpos.relations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

from tf_relpos.bucketed import score_gradients, value_gradient
from tf_relpos.relation_ops import choose_implementation, relation_scores
from tf_relpos.relations import Relations, tensors_of
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import (
    Tensor,
    exact_dtype,
    has_value,
    heads_first,
    heads_last,
    may_train,
    picks_in_place,
    shape_of,
    with_gradient,
)


class Attention(NamedTuple):
    """Eq. 3 and 4 of some queries, and their gradients.

    Attributes:
        weigh: the softmax of Eq. 4, `(query, key, tables, relations, mask) -> [N, B, T, S]`.
        combine: Eq. 3, `(weights, value, tables, relations) -> [N, B, T, H]`.
        query: `[N, B, T, H]`, scaled.
        key, value: `[N, B, S, H]`.
        tables: what else there is to learn: the label vectors of "key" and "value", where they are
            in use, and before them what the scores need beside.
        relations: None without label vectors.
        mask: which pairs are seen, `[N or 1, B or 1, T or 1, S or 1]`.
        kept: what dropout multiplies the weights by, `[N, B, T, S]`.
        implementation: of the labels in the gradients, as for `relation_scores`.
        score_gradients: of scores other than Eq. 5's: `(by_scores, query, key, tables, relations)`
            to the gradients by query, key and all tables but that of "value".
    """

    weigh: Callable[..., Tensor]
    combine: Callable[..., Tensor]
    query: Tensor
    key: Tensor
    value: Tensor
    tables: dict[str, Tensor]
    relations: Relations
    mask: Tensor | None = None
    kept: Tensor | None = None
    implementation: str = "auto"
    score_gradients: Callable[..., list[Tensor]] | None = None

    def packed(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Attention]]:
        """All its tensors, and how to make the same of others: what has a gradient of its own, and
        each of its branches, must be given all tensors that it uses."""
        of_relations, from_tensors = tensors_of(self.relations)
        optional = {"mask": self.mask, "kept": self.kept}
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
                kept=own.get("kept"),
            )

        return [self.query, self.key, self.value, *others.values(), *of_relations], unpacked

    def exact_weights(self) -> Tensor:
        """`[N, B, T, S]`, in single precision at least."""
        return self.weigh(self.query, self.key, self.tables, self.relations, self.mask)

    def results(self) -> list[Tensor]:
        """The attended values, the weights, and these as exact as they were."""
        exact = self.exact_weights()
        weights = ops.cast(exact, self.query.dtype)
        used = dropped(weights, self.kept)
        return [self.combine(used, self.value, self.tables, self.relations), weights, exact]

    def gradients(
        self,
        exact: Tensor,
        by_attended: Tensor,
        by_returned: Tensor | None = None,
        means: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients by the query; and by key, value and tables.

        Args:
            exact: the weights, as `results` gives them.
            by_attended: the gradient by the attended values.
            by_returned: that by the weights, if there is any.
            means: see `centred`.
        """
        used = dropped(ops.cast(exact, self.query.dtype), self.kept)
        by_weights = ops.matmul(by_attended, ops.swapaxes(self.value, -1, -2))
        added = None
        if "value" in self.tables:
            has_one_label = isinstance(self.relations, RelativePositions)
            if means is not None and has_one_label and self.kept is None:
                added, means = -means, None  # what a pair gets of its label takes the mean along
            by_weights += relation_scores(
                by_attended, self.relations, self.tables["value"], self.implementation, added=added
            )
        by_weights = dropped(by_weights, self.kept)
        if by_returned is not None:
            by_weights += by_returned
        if added is None:
            by_weights = centred(exact, by_weights, means)
        by_scores = softmax_gradient(exact, by_weights, self.query.dtype)
        of_scores = self.score_gradients or _product_gradients
        by_query, by_key, *by_tables = of_scores(
            by_scores, self.query, self.key, self.tables, self.relations
        )
        by_value = ops.matmul(ops.swapaxes(used, -1, -2), by_attended)
        if "value" in self.tables:
            table = self.tables["value"]
            by_tables.append(value_gradient(used, by_attended, self.relations, table))
        return [by_query], [by_key, by_value, *by_tables]


def has_one_gradient(attention: Attention, training: Any) -> bool:
    """Whether to `attend_at_once`: in TensorFlow's graphs for training on CPUs, by bucketing, in
    single precision. What XLA compiles gains nothing by it, half precision would lose some, and
    eager weights would not tell what they were made from, for a second derivative.

    Args:
        attention: of all queries, by the product, without dropout.
        training: whether a gradient is to be expected.
    """
    query = attention.query
    is_exact = query.dtype == exact_dtype(query)
    if not (is_exact and may_train(training)) or has_value(query) or picks_in_place():
        return False
    return {"bucketed"} == {
        choose_implementation(attention.implementation, attention.relations, table)
        for table in attention.tables.values()
    }


def attend_at_once(attention: Attention) -> Tensor:
    """Eq. 3 and 4 of all queries, with one gradient for both: `[B, T, N, H]`.

    Of the weights' gradient the softmax's subtracts a mean over the pairs of a query, which is
    found without a look at them, from the result (see `gradient_means`), and goes into the numbers
    by label, of which every pair gets one.
    """
    inputs, unpacked = attention.packed()

    def attend(*inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        attended, _, exact = unpacked(inputs).results()
        attended = heads_last(attended)  # as what comes next keeps it, too
        return attended, (exact, attended)

    def gradient(inputs: Any, saved: Any, by_attended: Tensor) -> list[Tensor]:
        exact, attended = saved
        means = heads_first(gradient_means(attended, by_attended))
        by_query, by_others = unpacked(inputs).gradients(
            exact, heads_first(by_attended), means=means
        )
        return [*by_query, *by_others]

    return with_gradient(attend, gradient, *inputs)


def dropped(weights: Tensor, kept: Tensor | None) -> Tensor:
    """Weights after dropout: times what it `kept`, if there is any."""
    return weights if kept is None else weights * kept


def softmax_gradient(exact: Tensor, by_weights: Tensor, dtype: Any) -> Tensor:
    """The gradient by the scores of Eq. 4, as precise as the weights are.

    Args:
        exact: the weights, `[N, B, T, S]`.
        by_weights: the gradient by them, `centred`.
        dtype: of what is given back.
    """
    return ops.cast(exact * ops.cast(by_weights, exact.dtype), dtype)


def centred(exact: Tensor, by_weights: Tensor, means: Tensor | None = None) -> Tensor:
    """The gradient by the weights without its mean, as `softmax_gradient` takes it.

    Args:
        exact: the weights, `[N, B, T, S]`.
        by_weights: the gradient by them.
        means: for each query the mean of `by_weights`, weighted by `exact`, `[N, B, T, 1]`, if
            `gradient_means` has found it.
    """
    by_weights = ops.cast(by_weights, exact.dtype)
    if means is None:
        means = ops.sum(by_weights * exact, axis=-1, keepdims=True)
    return by_weights - means


def gradient_means(attended: Tensor, by_attended: Tensor) -> Tensor:
    """What `centred` subtracts, `[N, B, T, 1]`, without a look at the pairs: Eq. 3 is
    linear in the weights, so that their mean gradient is `z_i` times its own (Dao et al. 2022,
    section B.2).

    Args:
        attended: `[N, B, T, H]`, or with these axes in another order.
        by_attended: the gradient by it.
    """
    exact = exact_dtype(attended)
    products = ops.cast(attended, exact) * ops.cast(by_attended, exact)
    return ops.sum(products, axis=-1, keepdims=True)


def _product_gradients(
    by_scores: Tensor, query: Tensor, key: Tensor, tables: dict[str, Tensor], relations: Relations
) -> list[Tensor]:
    """Of Eq. 5, by query, key and, if it is in use, the table of keys."""
    by_query = ops.matmul(by_scores, key)
    by_key = ops.matmul(ops.swapaxes(by_scores, -1, -2), query)
    if "key" not in tables:
        return [by_query, by_key]
    by_position, by_table = score_gradients(by_scores, query, relations, tables["key"])
    return [by_query + by_position, by_key, by_table]
