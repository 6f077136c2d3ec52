"""One checkpoint: a directory with weights, optimizer, state, and the checksums of all of them.

    model.weights.h5   Keras's own format
    optimizer.npz      the optimizer's variables by number
    state.json         what else training goes on from
    SHA256SUMS         see `pipelines.files.checksums`

Nothing in it can make a reader execute code.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.errors import InputError, first_line
from pipelines.files.atomic import new_directory
from pipelines.files.checksums import Damaged, read_verified, verify, write_checksums

if TYPE_CHECKING:
    import keras

    from tf_relpos import Transformer
    from tf_relpos.config import TransformerConfig

# What `state.json` may say besides.
_KINDS = {
    **{"step": int, "steps": list, "interval": dict, "trained_with": dict},
    **dict.fromkeys(("best", "initialized_from"), dict | None),
}
_LEAST_BYTES = 2  # of a weight

WEIGHTS, OPTIMIZER, STATE = "model.weights.h5", "optimizer.npz", "state.json"


def write_checkpoint(
    path: Path,
    model: Transformer,
    optimizer: keras.optimizers.Optimizer | None,
    state: Mapping[str, Any],
    *,
    replace: bool = False,
) -> None:
    """Writes a checkpoint, complete or not at all.

    Args:
        path: the directory.
        model: its weights are written.
        optimizer: its variables are, unless it is None.
        state: anything that JSON can hold.
        replace: whether `path` may exist.

    Raises:
        InputError: it cannot be written.
    """
    with new_directory(path, replace=replace) as directory:
        weights = _InMemory()
        model.save_weights(weights)
        with (directory / WEIGHTS).open("wb") as file, weights.getbuffer() as view:
            file.write(view)  # and let go of: Python 3.12 crashes on one that an exception keeps
        if optimizer is not None:
            variables: dict[str, Any] = {}
            optimizer.save_own_variables(variables)
            np.savez(directory / OPTIMIZER, **variables)
        text = json.dumps(state, indent=2, ensure_ascii=False)
        (directory / STATE).write_text(text + "\n", encoding="utf-8")
        write_checksums(directory)


def read_state(path: Path) -> dict[str, Any]:
    """The state that was written with a checkpoint.

    Raises:
        Damaged: it is missing, or is not what was written.
    """
    content = read_verified(path / STATE)
    try:
        state = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path / STATE} cannot be read: {first_line(error)}") from error
    if not isinstance(state, dict) or "step" not in state:
        raise Damaged(f"{path / STATE} is damaged: it must have a step")
    for name, kind in _KINDS.items():
        if name in state and not isinstance(state[name], kind):
            raise Damaged(f"{path / STATE} is damaged: its {name} is of another kind")
    best = state.get("best")
    if best and not (
        isinstance(best.get("step"), int) and isinstance(best.get("bleu"), int | float)
    ):
        raise Damaged(f"{path / STATE} is damaged: its best must have a step and a bleu")
    return state


def check_could_hold(path: Path, config: TransformerConfig) -> None:
    """Compares a model with the size of a checkpoint's weights, before memory is taken for it.

    Raises:
        InputError: the weights are of a smaller model.
    """
    layers = sum(config.distinct_layers.values())
    labels = 2 * config.max_relative_position + 1 if config.uses_relative else 0
    values = config.model_dim * (config.vocabulary_size + 2 * layers * config.inner_dim)
    values += layers * labels * (config.model_dim // config.num_heads)
    file = path / WEIGHTS
    if file.exists() and file.stat().st_size < _LEAST_BYTES * values:
        raise InputError(f"{file} must hold the model of config.json, but is too small for it")


def load_weights(path: Path, model: Transformer) -> None:
    """Loads the weights of a checkpoint.

    Raises:
        Damaged: the file is missing, or is not what was written.
        InputError: they are those of another model.
    """
    verify(path, WEIGHTS)
    try:
        model.load_weights(path / WEIGHTS)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path / WEIGHTS} cannot be read: {first_line(error)}") from error


def load_average(paths: Sequence[Path], model: Transformer) -> None:
    """Loads the average of the weights of several checkpoints.

    Raises:
        Damaged, InputError: as `load_weights`.
    """
    totals = [np.zeros(weight.shape) for weight in model.weights]
    for path in paths:
        load_weights(path, model)
        for total, weight in zip(totals, model.get_weights(), strict=True):
            total += weight
    model.set_weights([(total / len(paths)).astype("float32") for total in totals])


def load_optimizer(path: Path, optimizer: keras.optimizers.Optimizer) -> None:
    """Loads the optimizer's variables of a checkpoint.

    Raises:
        Damaged: the file is missing, or is not what was written.
        InputError: they are those of another optimizer.
    """
    verify(path, OPTIMIZER)
    try:
        with np.load(path / OPTIMIZER, allow_pickle=False) as variables:
            if len(variables) != len(optimizer.variables):  # Keras would warn, and load nothing
                raise ValueError(f"{len(variables)} variables, expected {len(optimizer.variables)}")
            optimizer.load_own_variables(variables)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path / OPTIMIZER} cannot be read: {first_line(error)}") from error


class _InMemory(io.BytesIO):
    """A weights file that Keras writes into memory: HDF5 crashes the process on a full disk."""

    def __str__(self):  # where Keras looks for the format
        return WEIGHTS
