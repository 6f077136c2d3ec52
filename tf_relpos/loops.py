"""Loops in graphs, on all backends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_relpos.tensor_ops import Tensor


def turns(count: int | Tensor, *sizes: int | Tensor) -> int | Tensor:
    """The turns of a loop that writes tensors of these sizes, part by part: none where there is
    nothing to write, which `scatter_update` refuses."""
    if 0 in [size for size in sizes if isinstance(size, int)]:
        return 0
    for size in sizes:
        if not isinstance(size, int):
            count = count * ops.minimum(size, 1)
    return count


def loop(count: int | Tensor, step: Callable[..., Any], *state: Any) -> tuple[Any, ...]:
    """The state after so many turns, `step(index, *state) -> (index + 1, *state)`, in a graph.

    On JAX a loop of a known number of turns has a gradient, for second derivatives.
    """
    if keras.backend.backend() == "jax" and isinstance(count, int):
        return tuple(ops.fori_loop(0, count, lambda i, state: tuple(step(i, *state)[1:]), state))
    _, *state = ops.while_loop(
        lambda index, *_: index < count,
        step,
        (ops.zeros((), "int32"), *state),
        maximum_iterations=count,
    )
    return tuple(state)


def vary_alike(tensors: Any, *inputs: Tensor) -> Any:
    """`tensors`, of the type that results of them and of `inputs` have in `jax.shard_map`.

    What is the same on all devices is of another type there: a loop must begin with the one that
    its turns make, and a function with a gradient of its own must be given the one that this has.
    """
    if keras.backend.backend() != "jax":
        return tensors
    given = (*keras.tree.flatten(tensors), *inputs)
    first, *others = map(_kind_in_shard_map, given)
    if all(kind == first for kind in others):
        return tensors
    nothing = sum(ops.sum(x[:0]) for x in given if x.ndim)  # the sum of no entries of any
    return keras.tree.map_structure(lambda x: x + ops.cast(nothing, x.dtype), tensors)


def _kind_in_shard_map(x: Tensor) -> Any:
    """Along which axes of a mesh devices have values of their own, as this version of JAX says."""
    type_ = sys.modules["jax"].typeof(x)
    return getattr(type_, "manual_axis_type", getattr(type_, "vma", None))
