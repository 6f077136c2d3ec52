"""The run directory: configuration, checkpoints, and what else a run leaves behind.

    runs/demo/
      config.json         the resolved configuration
      tokenizer.model     SentencePiece
      checkpoints/
        step-00001000/    model.weights.h5, optimizer.npz, state.json
        best.json         the step with the best validation score
        average/          averaged weights: model.weights.h5, state.json
      history.jsonl       a line for each log interval and validation
      scores.json         a list of test scores

Checkpoints are complete or absent: written under a temporary name and renamed.
"""

import json
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipelines.config import RunConfig
from pipelines.errors import InputError
from tf_relpos import Transformer

_WEIGHTS, _OPTIMIZER, _STATE = "model.weights.h5", "optimizer.npz", "state.json"


class RunDirectory:
    """Where a run keeps its state. Making the object touches nothing on disk."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.tokenizer_path = self.path / "tokenizer.model"
        self.checkpoints_path = self.path / "checkpoints"
        self.events_path = self.path / "events"
        self.history_path = self.path / "history.jsonl"
        self.scores_path = self.path / "scores.json"

    # Configuration

    def config(self) -> RunConfig:
        """The configuration of the run.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        if not self.path.is_dir():
            raise InputError(f"there is no run directory {self.path}")
        try:
            return RunConfig.from_dict(json.loads(self.config_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(f"{self.path} is not a run directory: no config.json") from None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.config_path} cannot be read: {_first_line(error)}") from error

    def start(self, config: RunConfig) -> None:
        """Makes the directory, or checks that what is there was trained alike.

        Raises:
            InputError: the directory holds something else, or cannot be written.
        """
        if self.config_path.exists():
            difference = self.config().difference(config)
            if difference and self.steps():  # nothing is trained otherwise: the flags may change
                raise InputError(
                    f"run_dir {self.path} was started with {difference}: "
                    "choose another --run_dir or the same flags"
                )
        elif self.checkpoints_path.exists():
            raise InputError(f"run_dir {self.path} has checkpoints, but no config.json")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.config_path, config.to_dict())
        except OSError as error:
            raise InputError(f"cannot write to run_dir {self.path}: {error.strerror}") from error

    def check_tokenizer(self, path: Path) -> None:
        """Checks that a tokenizer is the one that the run was started with, if it was.

        Raises:
            InputError: it is another.
        """
        known = self.tokenizer_path
        if known.exists() and known.read_bytes() != path.read_bytes():
            raise InputError(
                f"run_dir {self.path} was started with other subwords than {path}: "
                "choose another --run_dir or the same corpus"
            )

    # Checkpoints

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, in order."""
        if not self.checkpoints_path.is_dir():
            return []
        found = (re.fullmatch(r"step-(\d+)", p.name) for p in self.checkpoints_path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def best(self) -> dict[str, Any] | None:
        """`{"step", "bleu"}` of the best validation score so far."""
        path = self.checkpoints_path / "best.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def save(
        self, model: Transformer, optimizer: keras.optimizers.Optimizer, step: int, keep: int
    ) -> None:
        """Writes the checkpoint of a step and removes those no longer kept."""
        if step not in self.steps():
            with self._new_checkpoint(f"step-{step:08d}") as directory:
                model.save_weights(directory / _WEIGHTS)
                variables: dict[str, np.ndarray] = {}
                optimizer.save_own_variables(variables)
                np.savez(directory / _OPTIMIZER, **variables)
                write_json(directory / _STATE, {"step": step})
        best = self.best()
        kept = set(self.steps()[-keep:]) | ({best["step"]} if best else set())
        for old in set(self.steps()) - kept:
            shutil.rmtree(self._step_path(old))

    def mark_best(self, step: int, bleu: float) -> None:
        write_json(self.checkpoints_path / "best.json", {"step": step, "bleu": bleu})

    def restore(self, model: Transformer, optimizer: keras.optimizers.Optimizer) -> int:
        """Loads the last checkpoint; returns its step, 0 if there is none."""
        if not self.steps():
            return 0
        step = self.steps()[-1]
        _load_weights(model, self._step_path(step) / _WEIGHTS)
        path = self._step_path(step) / _OPTIMIZER
        try:
            with np.load(path, allow_pickle=False) as variables:
                optimizer.load_own_variables(variables)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} cannot be read: {_first_line(error)}") from error
        return step

    def load(self, model: Transformer, checkpoint: str = "last") -> int:
        """Loads weights alone.

        Args:
            model: built.
            checkpoint: "last", "best" or "average".

        Returns:
            The step that the weights are from.

        Raises:
            InputError: there is no such checkpoint.
        """
        if checkpoint not in ("last", "best", "average"):
            raise InputError(f"checkpoint must be last, best or average, got {checkpoint}")
        if not self.steps():
            raise InputError(f"run directory {self.path} has no checkpoints yet")
        step = self.steps()[-1]
        path = self._step_path(step)
        if checkpoint == "best":
            best = self.best()
            if best is None:
                raise InputError(f"run directory {self.path} has no best checkpoint: no validation")
            step = best["step"]
            path = self._step_path(step)
        elif checkpoint == "average":
            path = self.checkpoints_path / "average"
            if not path.is_dir():
                raise InputError(f"run directory {self.path} has no averaged checkpoint")
            step = json.loads((path / _STATE).read_text(encoding="utf-8"))["steps"][-1]
        _load_weights(model, path / _WEIGHTS)
        return step

    def average(self, model: Transformer, count: int) -> list[int]:
        """Averages the weights of the last `count` checkpoints into `model` and `average/`.

        Returns:
            The steps averaged.
        """
        steps = self.steps()[-count:]
        total = None
        for step in steps:
            _load_weights(model, self._step_path(step) / _WEIGHTS)
            weights = [w.astype("float64") for w in model.get_weights()]
            total = (
                weights if total is None else [a + b for a, b in zip(total, weights, strict=True)]
            )
        model.set_weights([(w / len(steps)).astype("float32") for w in total])
        with self._new_checkpoint("average") as directory:
            model.save_weights(directory / _WEIGHTS)
            write_json(directory / _STATE, {"steps": steps})
        return steps

    def _step_path(self, step: int) -> Path:
        return self.checkpoints_path / f"step-{step:08d}"

    @contextmanager
    def _new_checkpoint(self, name: str) -> Iterator[Path]:
        """A temporary directory that takes its name when the block ends without an error."""
        self.checkpoints_path.mkdir(parents=True, exist_ok=True)
        temporary = self.checkpoints_path / f".{name}.{uuid.uuid4().hex[:8]}.incomplete"
        temporary.mkdir()
        try:
            yield temporary
            final = self.checkpoints_path / name
            if final.exists():
                shutil.rmtree(final)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    # Records

    def add_score(self, record: dict[str, Any]) -> None:
        """Appends to `scores.json`."""
        scores = []
        if self.scores_path.exists():
            scores = json.loads(self.scores_path.read_text(encoding="utf-8"))
        write_json(self.scores_path, [*scores, record])

    def add_history(self, record: dict[str, Any]) -> None:
        """Appends a line to `history.jsonl`."""
        with self.history_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def rewind_history(self, step: int) -> None:
        """Drops what `history.jsonl` tells of steps after the one that is resumed from."""
        if self.history_path.exists():
            lines = self.history_path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= step]
            _write_text(self.history_path, "".join(line + "\n" for line in kept))


def write_json(path: Path, value: Any) -> None:
    """Writes a file that is complete or as it was."""
    _write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.incomplete")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):  # a line cut short when the run was killed
        return float("inf")


def _load_weights(model: Transformer, path: Path) -> None:
    try:
        model.load_weights(path)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
