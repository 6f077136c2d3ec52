"""What the config of a layer says of its quantized parts."""

from __future__ import annotations

import re
from typing import Any

import keras


def quantized_policies(layer: keras.layers.Layer) -> dict[str, Any]:
    """The entry of a layer's config that has its parts built quantized again, if they are.

    The layer must give its own `dtype_policy` to all of its parts. Their paths begin with those of
    the models around it, which need not be there when it is built again, and its name, which may be
    another one then: patterns leave both out.
    """
    quantized = {
        f"(.*/)?[^/]+{re.escape(part.path.removeprefix(layer.path))}": part.dtype_policy
        for part in layer._flatten_layers()
        if part is not layer and part.quantization_mode is not None
    }
    if not quantized or isinstance(layer.dtype_policy, keras.dtype_policies.DTypePolicyMap):
        return {}
    policies = keras.dtype_policies.DTypePolicyMap(layer.dtype_policy.name, quantized)
    return {"dtype": keras.dtype_policies.serialize(policies)}
