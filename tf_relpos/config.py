"""The hyper-parameters of a Transformer, and the published sets of them.

This module needs the standard library alone: a command line that checks its flags with it answers
a mistyped one before Keras, which takes seconds, has been imported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_relpos.checks import (
    check_boolean,
    check_choice,
    check_distance,
    check_rate,
    check_whole,
    check_window,
)

POSITIONS = ("relative", "sinusoidal", "both", "none")
NORMS = ("post", "pre")
IMPLEMENTATIONS = ("auto", "transpose_reshape", "bucketed")
COMPATIBILITIES = ("product", "additive")

# What says nothing where positions are not relative.
RELATIVE_FIELDS = (
    "max_relative_position",
    "relative_keys",
    "relative_values",
    "heads_share_relative_embedding",
    "implementation",
)

# What the searches do unless told otherwise: Vaswani et al. 2017, section 6.1. Alpha is the
# exponent of the length penalty of Wu et al. 2016 (GNMT), Eq. 14.
BEAM_SIZE = 4
ALPHA = 0.6
MAX_ALPHA = 10.0  # beyond it, the penalty of a long sentence leaves the range of float32

_MAX_LAYERS = 1000


@dataclass(frozen=True)
class TransformerConfig:
    """What a `Transformer` is made of.

    Raises:
        ValueError: a field out of its range, or fields that contradict each other; the message
            names the field, the rule and the value.
    """

    vocabulary_size: int = 32_768
    """V, shared by source, target and softmax"""
    model_dim: int = 512
    """D, width of the residual stream"""
    inner_dim: int = 1024
    """width of the feed-forward layers"""
    num_heads: int = 8
    """attention heads; must divide model_dim"""
    encoder_layers: int = 6
    """number of encoder blocks"""
    decoder_layers: int = 6
    """number of decoder blocks"""
    share_layers: bool = False
    """all blocks of the encoder have the same weights, and all of the decoder, as in a Universal
    Transformer (Dehghani et al. 2019), but without embeddings of the step and without halting"""
    position: str = "relative"
    """how positions are known: relative, sinusoidal, both or none"""
    max_relative_position: int = 16
    """k: relative positions are clipped to this distance; 0 is no order"""
    relative_keys: bool = True
    """relative positions enter the attention scores, a^K of Eq. 4"""
    relative_values: bool = True
    """relative positions enter the values, a^V of Eq. 3"""
    heads_share_relative_embedding: bool = False
    """one table of relative positions a layer for all heads, or one for each head, as in the
    paper's base model; the layers by themselves share it"""
    attention_window: int | None = None
    """self-attention sees this many positions on either side; all if none"""
    implementation: str = "auto"
    """transpose_reshape (the paper's), bucketed or auto; the results are the same"""
    compatibility: str = "product"
    """of queries and keys: their product, or additive (Bahdanau et al. 2014), slower"""
    dropout: float = 0.1
    """on embeddings and the output of each sub-layer"""
    attention_dropout: float = 0.0
    """on the attention weights"""
    inner_dropout: float = 0.0
    """on the inner layer of the feed-forward layers"""
    norm: str = "post"
    """layer normalization after the residual sum, as in the paper, or pre: before the sub-layer"""
    # Fixed by the tokenizer: command lines made from these fields leave them out.
    pad_id: int = dataclasses.field(default=0, metadata={"cmd": False})
    unknown_id: int = dataclasses.field(default=1, metadata={"cmd": False})
    start_id: int = dataclasses.field(default=2, metadata={"cmd": False})
    end_id: int = dataclasses.field(default=3, metadata={"cmd": False})

    def __post_init__(self):
        # Not None, as in a block alone.
        check_whole("max_relative_position", self.max_relative_position, least=0)
        self._set(**check_block_arguments(vars(self)))
        self._set(position=check_choice("position", self.position, POSITIONS))
        for name in ("encoder_layers", "decoder_layers"):
            self._set(**{name: check_whole(name, getattr(self, name))})
            if getattr(self, name) > _MAX_LAYERS:
                raise ValueError(
                    f"`{name}` must be at most {_MAX_LAYERS}. "
                    f"Received: {name}={getattr(self, name)}"
                )
        self._set(share_layers=check_boolean("share_layers", self.share_layers))
        self._check_ids()
        if self.uses_relative and not (self.relative_keys or self.relative_values):
            raise ValueError(
                f"`position` {self.position!r} needs `relative_keys` or `relative_values`. "
                "Received: both False"
            )

    def _set(self, **checked):
        """Takes the checked values of fields: Python's for NumPy's, so that they become JSON."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _check_ids(self):
        names = ("pad_id", "unknown_id", "start_id", "end_id")
        ids = {name: check_whole(name, getattr(self, name), least=0) for name in names}
        if len(set(ids.values())) < 4:
            raise ValueError(
                "`pad_id`, `unknown_id`, `start_id` and `end_id` must be four different ids. "
                f"Received: {tuple(ids.values())}"
            )
        above = max(ids.values()) + 1
        ids["vocabulary_size"] = check_whole("vocabulary_size", self.vocabulary_size, least=above)
        self._set(**ids)

    @property
    def block_arguments(self) -> dict[str, Any]:
        """The fields that are arguments of `EncoderBlock` and `DecoderBlock`."""
        arguments = {name: getattr(self, name) for name in _BLOCK_CHECKS}
        return arguments if self.uses_relative else {**arguments, "max_relative_position": None}

    @property
    def distinct_layers(self) -> dict[str, int]:
        """How many blocks of the encoder and of the decoder have weights of their own."""
        layers = {"encoder": self.encoder_layers, "decoder": self.decoder_layers}
        return dict.fromkeys(layers, 1) if self.share_layers else layers

    @property
    def uses_relative(self) -> bool:
        return self.position in ("relative", "both")

    @property
    def uses_sinusoidal(self) -> bool:
        return self.position in ("sinusoidal", "both")

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> TransformerConfig:
        """A published set of hyper-parameters by name, with fields of it replaced.

        Args:
            name: "base" or "big", the paper's; "tiny", for a CPU; "vaswani_base" or "vaswani_big",
                the original Transformer; "t2t_relative_base" or "t2t_relative_big",
                tensor2tensor's.
            **overrides: fields of `TransformerConfig`.

        Raises:
            ValueError: unknown name or field.
        """
        check_choice("preset", name, tuple(PRESETS))
        known = {field.name for field in dataclasses.fields(cls)}
        for field in overrides:
            if field not in known:
                raise ValueError(
                    f"`preset` takes the fields of TransformerConfig, {', '.join(sorted(known))}. "
                    f"Received: {field}={overrides[field]!r}"
                )
        return cls(**{**PRESETS[name], **overrides})


# The arguments of an encoder or decoder block, which are fields of the configuration, too.
_BLOCK_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "model_dim": check_whole,
    "inner_dim": check_whole,
    "num_heads": check_whole,
    "max_relative_position": check_distance,
    "attention_window": check_window,
    "relative_keys": check_boolean,
    "relative_values": check_boolean,
    "heads_share_relative_embedding": check_boolean,
    "implementation": functools.partial(check_choice, choices=IMPLEMENTATIONS),
    "compatibility": functools.partial(check_choice, choices=COMPATIBILITIES),
    "dropout": check_rate,
    "attention_dropout": check_rate,
    "inner_dropout": check_rate,
    "norm": functools.partial(check_choice, choices=NORMS),
}


def check_block_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of an encoder or decoder block, checked, out of more values.

    Raises:
        ValueError: an argument is out of its range, or N does not divide D.
    """
    checked = {name: check(name, values[name]) for name, check in _BLOCK_CHECKS.items()}
    if checked["model_dim"] % checked["num_heads"]:
        raise ValueError(
            "`num_heads` must divide `model_dim`. "
            f"Received: num_heads={checked['num_heads']}, model_dim={checked['model_dim']}"
        )
    return checked


_BIG: dict[str, Any] = {"model_dim": 1024, "inner_dim": 4096, "num_heads": 16, "dropout": 0.3}

PRESETS: dict[str, dict[str, Any]] = {
    # Small enough for a laptop's CPU. With the paper's norm="post" it learns half as fast.
    "tiny": {
        "norm": "pre",
        "model_dim": 128,
        "inner_dim": 256,
        "num_heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "heads_share_relative_embedding": True,
    },
    # Shaw et al. 2018, section 4.1.
    "base": {},
    "big": {**_BIG, "max_relative_position": 8, "heads_share_relative_embedding": True},
    # Vaswani et al. 2017, Table 3.
    "vaswani_base": {"inner_dim": 2048, "position": "sinusoidal"},
    "vaswani_big": {**_BIG, "position": "sinusoidal"},
    # tensor2tensor's transformer_relative and transformer_relative_big, unlike the paper.
    "t2t_relative_base": {
        "inner_dim": 2048,
        "max_relative_position": 20,
        "heads_share_relative_embedding": True,
        "attention_dropout": 0.1,
        "inner_dropout": 0.1,
        "norm": "pre",
    },
    "t2t_relative_big": {
        **_BIG,
        "max_relative_position": 20,
        "heads_share_relative_embedding": True,
        "attention_dropout": 0.1,
        "inner_dropout": 0.1,
        "norm": "pre",
    },
}
