"""Checks of what several command lines are given."""

import math
from pathlib import Path
from typing import Any

from pipelines.errors import InputError


def check_positive(flags: object, *names: str) -> None:
    """Raises InputError unless the fields of these names are at least 1."""
    for name in names:
        if getattr(flags, name) < 1:
            raise InputError(f"{name} must be at least 1, got {getattr(flags, name)}")


def check_heads(flags: Any) -> None:
    """Raises InputError unless `num_heads` divides `model_dim`."""
    if flags.model_dim % flags.num_heads:
        raise InputError(
            f"model_dim must be a multiple of num_heads, {flags.num_heads}, got {flags.model_dim}"
        )


def check_dropout(rate: float) -> None:
    """Raises InputError unless it is a share that leaves something."""
    if not 0 <= rate < 1:
        raise InputError(f"dropout must be at least 0 and below 1, got {rate}")


def check_learning_rate(rate: float) -> None:
    """Raises InputError unless it is above 0 and finite."""
    if not 0 < rate < float("inf"):
        raise InputError(f"learning_rate must be above 0 and finite, got {rate}")


def check_finite(loss: float, rate: float) -> None:
    """Raises InputError if training at this rate has lost its loss to overflow."""
    if not math.isfinite(loss):
        raise InputError(f"loss is no longer finite: learning_rate must be smaller, got {rate}")


def check_seed(seed: int) -> None:
    """Raises InputError unless generators of random numbers take it."""
    for rule, holds in (("at least 0", seed >= 0), ("below 4,294,967,296", seed < 1 << 32)):
        if not holds:
            raise InputError(f"seed must be {rule}, got {seed}")


def check_files(flags: object, *names: str) -> None:
    """Raises InputError if a field of these names, which may be None, is there and no file."""
    for name in names:
        given = getattr(flags, name)
        if given is None:
            continue
        path = Path(given)
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "a pipe or a device"
            raise InputError(f"{name} must be a file, got {kind}, {path}")
