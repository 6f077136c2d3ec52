"""What XLA compiles of a graph on CPUs: passes over memory, of which it makes one.

Products of matrices stay with TensorFlow, whose are faster there than XLA's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras

_are_fused: ContextVar[bool] = ContextVar("are_fused", default=False)


@contextlib.contextmanager
def fused_passes(are_wanted: bool = True) -> Iterator[None]:
    """Has XLA compile what is bound by memory in a graph for training that is made in this context,
    on TensorFlow: layer normalization and dropout.

    It compiles for each shape that occurs. That pays where there are few and each comes often, as
    in training by buckets of lengths.
    """
    token = _are_fused.set(are_wanted)
    try:
        yield
    finally:
        _are_fused.reset(token)


def are_fused() -> bool:
    return _are_fused.get() and keras.backend.backend() == "tensorflow"


@functools.cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors, and of Python's values, that XLA compiles.

    All that call the same function share what is compiled: it should be one of a module.
    """
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)
