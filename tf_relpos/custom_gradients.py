"""Functions with a gradient of their own, on all backends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_relpos.execution import runs_eagerly
from tf_relpos.loops import vary_alike
from tf_relpos.tensor_ops import Tensor


def with_gradient(
    function: Callable[..., tuple[Tensor, Any]], gradient: Callable[..., Any], *inputs: Tensor
) -> Any:
    """A function's result, with a gradient of its own.

    Args:
        function: from `inputs` to the result and what `gradient` needs of it beside.
        gradient: `(inputs, what it needs, gradient of the result) -> gradients` of the first
            inputs; the others have none.
        inputs: all tensors that either uses, or JAX's rematerialization loses them.

    The transforms of `torch.func` differentiate the function itself, as they take no gradients
    that Keras makes.
    """
    inputs = vary_alike(tuple(map(ops.convert_to_tensor, inputs)))
    if _is_in_torch_func():
        result, _ = function(*inputs)
        return result

    @ops.custom_gradient
    def call(*inputs: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        # An eager tape would record, and keep, all that the function makes. A graph does not, and
        # a second derivative needs to know what was saved from what.
        stopped = map(ops.stop_gradient, inputs) if runs_eagerly(inputs[0]) else inputs
        result, saved = function(*stopped)

        def backward(*upstream: Any, **named: Any) -> Any:
            # By its position; on PyTorch by a name, behind the inputs.
            found = gradient(inputs, saved, *(named.values() or upstream))
            return *found, *(None for _ in inputs[len(found) :])

        return result, backward

    return call(*inputs)


def _is_in_torch_func() -> bool:
    if keras.backend.backend() != "torch":
        return False
    return sys.modules["torch"]._C._are_functorch_transforms_active()
