"""The hyper-parameters of a Transformer, and the published sets of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tf_relpos.blocks import NORMS
from tf_relpos.relation_ops import IMPLEMENTATIONS
from tf_relpos.relations import check_max_relative_position

POSITIONS = ("relative", "sinusoidal", "both", "none")


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
            _require(self, name, "a whole number >= 1", _is_whole(getattr(self, name)))
        check_max_relative_position(self.max_relative_position)
        for name, choices in (
            ("position", POSITIONS),
            ("implementation", IMPLEMENTATIONS),
            ("norm", NORMS),
        ):
            _require(self, name, f"one of {', '.join(choices)}", getattr(self, name) in choices)
        for name in ("dropout", "attention_dropout", "inner_dropout"):
            _require(self, name, "at least 0 and below 1", 0 <= getattr(self, name) < 1)
        if self.model_dim % self.num_heads:
            raise ValueError(
                "`num_heads` must divide `model_dim`. "
                f"Received: num_heads={self.num_heads}, model_dim={self.model_dim}"
            )
        special = (self.pad_id, self.unknown_id, self.start_id, self.end_id)
        if len(set(special)) < 4 or min(special) < 0:
            raise ValueError(
                "`pad_id`, `unknown_id`, `start_id` and `end_id` must be four different ids >= 0. "
                f"Received: {special}"
            )
        _require(
            self,
            "vocabulary_size",
            f"a whole number above the special ids, > {max(special)}",
            _is_whole(self.vocabulary_size) and self.vocabulary_size > max(special),
        )
        if self.uses_relative and not (self.relative_keys or self.relative_values):
            raise ValueError(
                f"`position` {self.position!r} needs `relative_keys` or `relative_values`. "
                "Received: both False"
            )

    @property
    def uses_relative(self) -> bool:
        return self.position in ("relative", "both")

    @property
    def uses_sinusoidal(self) -> bool:
        return self.position in ("sinusoidal", "both")

    @classmethod
    def preset(cls, name: str, **overrides) -> TransformerConfig:
        """A published set of hyper-parameters by name, with fields of it replaced.

        Raises:
            ValueError: unknown name or field.
        """
        if name not in PRESETS:
            raise ValueError(f"`preset` must be one of {', '.join(PRESETS)}. Received: {name!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        for field in overrides:
            if field not in known:
                raise ValueError(f"TransformerConfig has no field {field!r}")
        return cls(**{**PRESETS[name], **overrides})


def _is_whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(config, name, rule, holds):
    if not holds:
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={getattr(config, name)!r}")


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
