"""Functions of TensorFlow's that translators make for their models."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def graph_of(function: Callable[..., Any], input_signature: Sequence[Any]) -> Callable[..., Any]:
    """A function as a graph, traced once, when it is first called.

    TensorFlow counts traces by the Python code of a function, and warns of a few: here each
    translator has its own trace of the same code.
    """
    own = functools.partial(function)  # which has no code for TensorFlow
    return tf.function(own, autograph=False, input_signature=input_signature)
