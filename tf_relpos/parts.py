"""What a layer that is made of others does for them where Keras does not."""

from __future__ import annotations

import re
from typing import Any

import keras
from keras.dtype_policies import DTypePolicyMap


def freeze_parts(layer: keras.layers.Layer) -> None:
    """Freezes the parts of a layer that was frozen before it had them, by a config for instance."""
    if not layer.trainable:
        for part in layer._flatten_layers(include_self=False):
            part.trainable = False


def give_own_policies(layer: keras.layers.Layer) -> None:
    """Gives each part, once it is built, its policy of a map that is that of all parts: what Keras
    makes of a quantized kernel asks for the mode of a policy, and a map has none."""
    for part in layer._flatten_layers(include_self=False):
        policy = part.dtype_policy
        if isinstance(policy, DTypePolicyMap) and part.path:
            part._dtype_policy = policy[part.path]


def own_policies(layer: keras.layers.Layer) -> dict[str, Any]:
    """The entry of a layer's config by which its parts are built with the policies that they have,
    quantized ones for instance, where these are not the layer's.

    The layer must give its own `dtype_policy` to all of its parts. Their paths begin with those of
    the models around it, which need not be there when it is built again, and its name, which may be
    another one then: patterns leave both out.

    Raises:
        ValueError: a part is quantized in a way that no policy tells.
    """
    policy = layer.dtype_policy
    is_map = isinstance(policy, DTypePolicyMap)
    default = policy.default_policy if is_map else policy
    own = {}
    for part in layer._flatten_layers(include_self=False):
        is_other = is_map and part.path and part.dtype_policy not in (default, policy)
        if is_other or part.quantization_mode is not None:
            _check_is_told_by_policy(part)
            pattern = f"(.*/)?[^/]+{re.escape(part.path.removeprefix(layer.path))}"
            own[pattern] = part.dtype_policy
    if not own:
        return {}
    return {"dtype": keras.dtype_policies.serialize(DTypePolicyMap(default.name, own))}


def _check_is_told_by_policy(part: keras.layers.Layer) -> None:
    config: Any = getattr(part, "quantization_config", None)
    if part.quantization_mode not in ("int8", "int4") or config is None:
        return  # of the other modes the policy tells all there is to choose
    usual = type(config)().activation_quantizer is None
    if (config.activation_quantizer is None) is not usual:
        raise ValueError(
            f"`activation_quantizer` must be that of a plain {type(config).__name__}() in a layer "
            "that is saved with its config, which has no place for another: save the weights "
            f"alone. Received: {config.activation_quantizer} for {part.path}"
        )
