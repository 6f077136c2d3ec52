"""Parts of a model that stay as they are while the others are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import InputError
from tf_relpos.config import TransformerConfig

if TYPE_CHECKING:
    from tf_relpos import Transformer


def frozen_layers(config: TransformerConfig, parts: str) -> set[str]:
    """The names of the layers that the parts consist of.

    Args:
        config: of the model.
        parts: with commas between them: embedding (which is the softmax, too), encoder, decoder,
            or single layers such as encoder_0 or decoder_norm; empty for none.

    Raises:
        InputError: the model has no such part, or nothing would be left to train.
    """
    if not parts.strip():
        return set()
    layers = {part: _layers(config, part) for part in ("embedding", "encoder", "decoder")}
    everything = set().union(*layers.values())
    layers |= {name: [name] for name in everything}
    frozen: set[str] = set()
    for part in filter(None, map(str.strip, parts.split(","))):
        if part not in layers:
            raise InputError(
                "freeze must name parts of the model, with commas between them: "
                f"{', '.join(sorted(layers))}; got {part}"
            )
        frozen.update(layers[part])
    if frozen == everything:
        raise InputError(f"freeze must leave something to train, got {parts}")
    return frozen


def freeze(model: Transformer, parts: str) -> None:
    """Keeps the weights of parts of a built model out of training, as `frozen_layers` says.

    Dropout stays on in them.
    """
    frozen = frozen_layers(model.config, parts)
    for layer in model.layers:
        if layer.name in frozen:
            layer.trainable = False


def _layers(config: TransformerConfig, part: str) -> list[str]:
    if part == "embedding":
        return [part]
    norm = [f"{part}_norm"] if config.norm == "pre" else []
    return [*(f"{part}_{number}" for number in range(config.distinct_layers[part])), *norm]
