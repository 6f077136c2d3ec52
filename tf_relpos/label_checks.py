"""Checks of the labels of pairs: their type, their shape, and that they are below their number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_relpos.checks import fits
from tf_relpos.execution import known_value
from tf_relpos.tensor_checks import check_is_padded
from tf_relpos.tensor_ops import Shape, Tensor


def check_relations(
    relations: Any, num_relations: int, lengths: Shape = (None, None), batch: int | None = None
) -> Tensor:
    """Returns labels that a layer with R = `num_relations` labels can use.

    Args:
        relations: int labels `[T, S]`, `[B or 1, T, S]` or `[B or 1, T, S, L]`.
        num_relations: R.
        lengths: T and S, None where they are not known.
        batch: B, likewise.

    Returns:
        Integer labels. Floats whose values are not known are cast, as Keras's `Embedding` does:
        Keras makes floats of all inputs of a model that it builds by itself or exports.

    Raises:
        ValueError: no labels, known labels that are not integers, labels of another shape, or,
            where the values are known, a label of R or above.
    """
    shapes = "[T, S], [B, T, S] or [B, T, S, L]"
    if relations is None:
        raise ValueError(f"`relations` must be given: int labels {shapes}. Received: None")
    check_is_padded("relations", relations)
    if "float" in str(getattr(relations, "dtype", "")) and known_value(relations) is None:
        check_tells_labels_apart(relations.dtype, num_relations)
        relations = ops.cast(relations, "int32")
    relations = as_labels("relations", relations, shapes)
    B, *pairs = relations.shape if len(relations.shape) > 2 else (1, *relations.shape)
    is_of_batch = B == 1 or fits((B,), (batch,))  # 1: those of all sentences
    if len(pairs) not in (2, 3) or not (is_of_batch and fits(pairs[:2], lengths)):
        raise ValueError(
            f"`relations` must have the shape {shapes} with B, T, S = "
            f"{(batch, *lengths)}. Received: shape={tuple(relations.shape)}"
        )
    check_below("relations", relations, "num_relations", num_relations)
    return relations


def check_tells_labels_apart(dtype: Any, num_relations: int) -> None:
    """Checks that labels below R are what they were before Keras made them floats of a dtype.

    Raises:
        ValueError: R is too large: half precision rounds labels to others.
    """
    dtype = keras.backend.standardize_dtype(dtype)
    exact = {"bfloat16": 1 << 8, "float16": 1 << 11}.get(dtype, math.inf)
    if num_relations - 1 > exact:
        raise ValueError(
            f"`relations` must be integers: labels above {exact} are others in {dtype}, of "
            f"{num_relations} that there are. Received: dtype={dtype}"
        )


def as_labels(name: str, labels: Any, shapes: str, ranks: Sequence[int] = ()) -> Tensor:
    """Labels that may be lists, as an array or a tensor; `ranks` are those they may have."""
    check_is_padded(name, labels)
    if not hasattr(labels, "dtype"):
        try:
            labels = np.asarray(labels)
        except ValueError as error:
            raise ValueError(f"`{name}` must have the shape {shapes}. Received: {error}") from None
    is_other = isinstance(labels, np.ndarray) and labels.dtype.kind in "OSU"  # text, None, ...
    dtype = str(labels.dtype) if is_other else keras.backend.standardize_dtype(labels.dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must hold integer labels. Received: dtype={dtype}")
    if ranks and len(labels.shape) not in ranks:
        raise ValueError(
            f"`{name}` must have the shape {shapes}. Received: shape={tuple(labels.shape)}"
        )
    return labels


def check_alike(names: str, relations: Sequence[Tensor]) -> None:
    """Checks that labels are of the same queries and keys, and of the same graphs or of all."""
    shapes = [tuple(labels.shape) for labels in relations]
    pairs = [shape[-3:-1] if len(shape) == 4 else shape[-2:] for shape in shapes]
    batches = [shape[:-2][:1] for shape in shapes]
    if not all(map(_is_one_size, zip(*pairs, strict=True))):
        raise ValueError(f"{names} must have the same T and S. Received: shapes {shapes}")
    if not _is_one_size(size for batch in batches for size in batch if size != 1):
        raise ValueError(f"{names} must have the same B, or 1. Received: shapes {shapes}")


def _is_one_size(sizes: Iterable[int | None]) -> bool:
    return len({size for size in sizes if size is not None}) <= 1


def check_below(name: str, labels: Tensor, argument: str, size: int) -> None:
    """Checks labels whose values are known against a limit, which is another argument."""
    values = known_value(labels)
    largest = -1 if values is None or not values.size else int(np.max(values))
    if largest >= size:
        raise ValueError(f"`{name}` must be below {argument}={size}. Received: a label {largest}")
