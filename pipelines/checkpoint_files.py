"""One checkpoint: a directory with weights, optimizer, state, and the checksums of all of them.

    model.weights.h5   Keras's own format
    optimizer.npz      the optimizer's variables by number
    state.json         what else training goes on from
    SHA256SUMS         as `sha256sum --check` reads them

Nothing in it can make a reader execute code.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipelines.atomic import new_directory
from pipelines.errors import InputError
from pipelines.records import first_line
from tf_relpos import Transformer

WEIGHTS, OPTIMIZER, STATE, CHECKSUMS = (
    "model.weights.h5",
    "optimizer.npz",
    "state.json",
    "SHA256SUMS",
)


class DamagedCheckpoint(InputError):
    """A file of a checkpoint is missing, or is not what was written."""


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
        (directory / WEIGHTS).write_bytes(weights.getbuffer())
        if optimizer is not None:
            variables: dict[str, np.ndarray] = {}
            optimizer.save_own_variables(variables)
            np.savez(directory / OPTIMIZER, **variables)
        text = json.dumps(state, indent=2, ensure_ascii=False)
        (directory / STATE).write_text(text + "\n", encoding="utf-8")
        sums = [f"{sha256(file)}  {file.name}\n" for file in sorted(directory.iterdir())]
        (directory / CHECKSUMS).write_text("".join(sums), encoding="utf-8")


def verify(path: Path, *names: str) -> None:
    """Compares files of a checkpoint with their checksums.

    Raises:
        DamagedCheckpoint: one differs, or is missing.
    """
    try:
        sums = _checksums(path / CHECKSUMS)
        for name in names:
            if name not in sums:
                raise DamagedCheckpoint(f"{path / CHECKSUMS} is damaged: {name} is not in it")
            if sums[name] != sha256(path / name):
                raise DamagedCheckpoint(f"{path / name} is damaged: its checksum is another")
    except OSError as error:
        raise DamagedCheckpoint(f"{error.filename} cannot be read: {error.strerror}") from error


def read_state(path: Path) -> dict[str, Any]:
    """The state that was written with a checkpoint.

    Raises:
        DamagedCheckpoint: it is missing, or is not what was written.
    """
    verify(path, STATE)
    try:
        return json.loads((path / STATE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedCheckpoint(f"{path / STATE} cannot be read: {first_line(error)}") from error


def load_weights(path: Path, model: Transformer) -> None:
    """Loads the weights of a checkpoint.

    Raises:
        DamagedCheckpoint: the file is missing, or is not what was written.
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
        DamagedCheckpoint, InputError: as `load_weights`.
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
        DamagedCheckpoint: the file is missing, or is not what was written.
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


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(path: Path) -> dict[str, str]:
    """Checksum by file name."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except ValueError as error:
        raise DamagedCheckpoint(f"{path} is damaged: it must hold checksums") from error
