"""The run that another one starts from: its model, its subwords and its weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.files.checksums import sha256
from pipelines.run.directory import RunDirectory
from tf_relpos.config import TransformerConfig

if TYPE_CHECKING:
    from tf_relpos import Transformer

# What may differ from the model that the weights are of: it has no weights, and changes no result.
_FREE = {"dropout", "attention_dropout", "inner_dropout", "implementation"}


def origin_of(initialize_from: str | Path, run_dir: str | Path) -> RunDirectory:
    """Where a run takes its model and its subwords from.

    That is the run which `initialize_from` names until its weights have arrived in `run_dir`, and
    from then on `run_dir` itself: a run that resumes needs the other one no more.

    Raises:
        InputError: there is no such run, or it has no checkpoints.
    """
    origin, own = RunDirectory(initialize_from), RunDirectory(run_dir)
    if origin.path.resolve() == own.path.resolve():
        raise InputError(f"initialize_from must name another run than run_dir, got {run_dir}")
    if own.checkpoints.steps():
        return own
    origin.config()
    if not origin.checkpoints.steps():
        raise InputError(f"initialize_from must name a run with checkpoints, got {initialize_from}")
    return origin


def check_fits(model: TransformerConfig, origin: RunDirectory) -> None:
    """Checks that a model can take the weights of a run.

    Raises:
        InputError: a field differs.
    """
    theirs = dataclasses.asdict(origin.config().model)
    for name, value in dataclasses.asdict(model).items():
        if name not in _FREE and value != theirs[name]:
            raise InputError(
                f"{name} must be that of the run to start from, {origin.path}, "
                f"{theirs[name]!r}, got {value!r}"
            )


def check_same_subwords(tokenizer: Path, origin: RunDirectory) -> None:
    """Checks that text was prepared with the subwords of a run.

    Raises:
        InputError: it was not, or a file cannot be read.
    """
    if sha256(tokenizer) != sha256(origin.tokenizer_path):
        raise InputError(
            f"the text in {tokenizer.parent} must be prepared with the subwords of {origin.path} "
            "to start from its weights, and was not: prepare it with "
            f"--tokenizer {origin.tokenizer_path}"
        )


def initialize(model: Transformer, config: RunConfig) -> dict[str, Any]:
    """Loads the weights that a run is to start from.

    Args:
        model: built from `config.model`.
        config: of the run, which says where they are.

    Returns:
        `{"run", "checkpoint", "step"}`, where they are from.

    Raises:
        InputError: there are none, or they do not fit.
    """
    origin = RunDirectory(str(config.training.initialize_from))
    check_fits(config.model, origin)
    checkpoint = origin.choose()
    step = origin.load_weights(model, checkpoint)
    return {"run": str(origin.path), "checkpoint": checkpoint, "step": step}
