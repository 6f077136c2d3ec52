"""The hyper-parameters of a Transformer, the published sets of them, and checks of arguments.

This module imports the standard library alone: a command line that checks its flags with it answers
a mistyped one before Keras, which takes seconds, has been imported.
"""

from __future__ import annotations

import dataclasses
import numbers
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

POSITIONS = ("relative", "sinusoidal", "both", "none")
NORMS = ("post", "pre")
IMPLEMENTATIONS = ("auto", "transpose_reshape", "bucketed")

# What the searches do unless told otherwise: Vaswani et al. 2017, section 6.1. Alpha is the
# exponent of the length penalty of Wu et al. 2016 (GNMT), Eq. 14.
BEAM_SIZE = 4
ALPHA = 0.6


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
    position: str = "relative"
    """how positions are known: relative, sinusoidal, both or none"""
    max_relative_position: int = 16
    """k: relative positions are clipped to this distance; 0 is no order"""
    relative_keys: bool = True
    """relative positions enter the attention scores, a^K of Eq. 4"""
    relative_values: bool = True
    """relative positions enter the values, a^V of Eq. 3"""
    heads_share_relative_embedding: bool = False
    """one table of relative positions a layer for all heads, or one for each head"""
    implementation: str = "auto"
    """transpose_reshape (the paper's), bucketed or auto; the results are the same"""
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
        for name in ("model_dim", "inner_dim", "num_heads", "encoder_layers", "decoder_layers"):
            self._set(name, check_whole(name, getattr(self, name)))
        self._set("max_relative_position", check_max_relative_position(self.max_relative_position))
        for name, choices in (
            ("position", POSITIONS),
            ("implementation", IMPLEMENTATIONS),
            ("norm", NORMS),
        ):
            self._set(name, check_choice(name, getattr(self, name), choices))
        for name in ("relative_keys", "relative_values", "heads_share_relative_embedding"):
            self._set(name, check_boolean(name, getattr(self, name)))
        for name in ("dropout", "attention_dropout", "inner_dropout"):
            self._set(name, check_rate(name, getattr(self, name)))
        check_heads(self.num_heads, self.model_dim)
        self._check_ids()
        if self.uses_relative and not (self.relative_keys or self.relative_values):
            raise ValueError(
                f"`position` {self.position!r} needs `relative_keys` or `relative_values`. "
                "Received: both False"
            )

    def _set(self, name, value):
        """Replaces a field by its checked value: a Python number for NumPy's, so that JSON can be
        made of it."""
        object.__setattr__(self, name, value)

    def _check_ids(self):
        names = ("pad_id", "unknown_id", "start_id", "end_id")
        for name in names:
            self._set(name, check_whole(name, getattr(self, name), least=0))
        special = tuple(getattr(self, name) for name in names)
        if len(set(special)) < 4:
            raise ValueError(
                "`pad_id`, `unknown_id`, `start_id` and `end_id` must be four different ids. "
                f"Received: {special}"
            )
        least = max(special) + 1  # the special ids are below it
        self._set("vocabulary_size", check_whole("vocabulary_size", self.vocabulary_size, least))

    @property
    def uses_relative(self) -> bool:
        return self.position in ("relative", "both")

    @property
    def uses_sinusoidal(self) -> bool:
        return self.position in ("sinusoidal", "both")

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> TransformerConfig:
        """A published set of hyper-parameters by name, with fields of it replaced.

        Raises:
            ValueError: unknown name or field.
        """
        check_choice("preset", name, tuple(PRESETS))
        known = {field.name for field in dataclasses.fields(cls)}
        for field in overrides:
            if field not in known:
                raise ValueError(f"TransformerConfig has no field {field!r}")
        return cls(**{**PRESETS[name], **overrides})


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number, NumPy's or a tensor's too, as an int.

    Raises:
        ValueError: it is none, a bool, or below `least`.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool) or whole < least:
        raise ValueError(f"`{name}` must be a whole number >= {least}. Received: {name}={value!r}")
    return whole


def check_number(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> float:
    """Returns a number, NumPy's too, as a float.

    Args:
        name: of the argument.
        value: what was given.
        rule: what it must be, for the message.
        holds: whether the number is; NaN must fail it.

    Raises:
        ValueError: it is no number, or the rule does not hold.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and holds(value)):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return float(value)


def check_rate(name: str, value: Any) -> float:
    """Returns a share that is dropped, or smoothed away: at least 0 and below 1.

    Raises:
        ValueError: it is no such number.
    """
    return check_number(name, value, "a number at least 0 and below 1", lambda x: 0 <= x < 1)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns one of `choices`.

    Raises:
        ValueError: it is none of them.
    """
    if not (isinstance(value, str) and value in choices):
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}"
        )
    return str(value)


def check_boolean(name: str, value: Any) -> bool:
    """Returns True or False; strings and numbers, which Python would take, are neither.

    Raises:
        ValueError: it is neither.
    """
    # NumPy's own type is no subclass of bool, and NumPy is not imported here.
    if type(value).__name__ not in ("bool", "bool_"):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def check_max_relative_position(max_relative_position: Any) -> int:
    """Returns k as an int.

    Raises:
        ValueError: k is not a whole number of at least 0.
    """
    return check_whole("max_relative_position", max_relative_position, least=0)


def check_heads(num_heads: int, model_dim: int) -> None:
    """Raises ValueError unless N divides D."""
    if model_dim % num_heads:
        raise ValueError(
            "`num_heads` must divide `model_dim`. "
            f"Received: num_heads={num_heads}, model_dim={model_dim}"
        )


_BIG = {"model_dim": 1024, "inner_dim": 4096, "num_heads": 16, "dropout": 0.3}

PRESETS = {
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
