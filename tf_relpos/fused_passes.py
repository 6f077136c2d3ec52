"""What layers have once in a graph for training on CPUs: passes over memory, of which XLA makes one
each, and other functions, which all layers call.

Products of matrices stay with TensorFlow, whose are faster there than XLA's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras

from tf_relpos.execution import is_for_xla_on_cpu

_are_fused: ContextVar[bool] = ContextVar("are_fused", default=False)


@contextlib.contextmanager
def fused_passes(are_wanted: bool = True) -> Iterator[None]:
    """Has XLA compile what is bound by memory in a graph for training that is made in this context,
    on TensorFlow: layer normalization, dropout, and what attention does with numbers of all pairs
    beside products. What `made_once` is given is a function of the graph, that of gradients if they
    are asked for in this context.

    XLA compiles for each shape that occurs. That pays where there are few and each comes often, as
    in training by buckets of lengths.
    """
    token = _are_fused.set(are_wanted)
    try:
        yield
    finally:
        _are_fused.reset(token)


def are_fused() -> bool:
    """Whether this is within `fused_passes`, on TensorFlow, and not compiled by XLA anyway."""
    if not _are_fused.get() or keras.backend.backend() != "tensorflow":
        return False
    return not is_for_xla_on_cpu()


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors and of Python's values, which XLA compiles within `fused_passes`.

    It should be one of a module: whatever calls it shares what is compiled.
    """
    return _function(function, is_compiled=True) if are_fused() else function


def made_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors and of Python's values, which a graph makes once for each kind of them
    within `fused_passes`, and calls from then on, in place of all its operations anew.

    It should be one of a module, of many operations that take little time.
    """
    return _function(function, is_compiled=False) if are_fused() else function


@functools.cache
def _function(function: Callable[..., Any], is_compiled: bool) -> Callable[..., Any]:
    import tensorflow as tf

    # Or TensorFlow would copy the operations to where they are called, before it runs the graph.
    attributes = None if is_compiled else {"_noinline": True}
    return tf.function(
        function,
        jit_compile=is_compiled or None,
        autograph=False,
        experimental_attributes=attributes,
    )
