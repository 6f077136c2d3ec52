"""The run directory: configuration, checkpoints, and what else a run leaves behind.

    runs/demo/
      config.json         the resolved configuration
      tokenizer.model     SentencePiece
      checkpoints/
        step-00001000/    see `pipelines.checkpoint_files`
        best.json         the step with the best validation score
        average/          averaged weights
      history.jsonl       a line for each log interval and validation
      scores.json         a list of test scores
      lock                held by the process that trains

A checkpoint's state is the truth about the run: what `best.json` and `history.jsonl` say beyond
the one that a run is resumed from is taken back.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras

from pipelines import checkpoint_files
from pipelines.atomic import exclusive, new_file, remove_directory, remove_leftovers
from pipelines.checkpoint_files import DamagedCheckpoint
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.records import append_line, first_line, read_json, rewind, write_json
from tf_relpos import Transformer


@dataclass
class RunState:
    """Where a run stands besides its weights and its optimizer.

    Attributes:
        step: updates done.
        best: `{"step", "bleu"}` of the best validation so far.
        interval: sums over the updates since the last line of progress.
    """

    step: int = 0
    best: dict[str, Any] | None = None
    interval: dict[str, float] = field(default_factory=dict)


class RunDirectory:
    """Where a run keeps its state. Making the object touches nothing on disk."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.tokenizer_path = self.path / "tokenizer.model"
        self.checkpoints_path = self.path / "checkpoints"
        self.best_path = self.checkpoints_path / "best.json"
        self.average_path = self.checkpoints_path / "average"
        self.events_path = self.path / "events"
        self.history_path = self.path / "history.jsonl"
        self.scores_path = self.path / "scores.json"
        self.lock_path = self.path / "lock"
        # What the checkpoints of this process are trained with: the configuration and checksums of
        # the data. A checkpoint tells it, so that no edited file goes unnoticed.
        self._trained_with: dict[str, Any] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory, and keeps other training runs out of it until the block ends.

        Raises:
            InputError: another process trains here, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to run_dir {self.path}: {error.strerror}") from error
        with exclusive(self.lock_path) as holder:
            if holder:
                raise InputError(
                    f"run_dir {self.path} is in use by {holder}: wait for it, or choose another "
                    "--run_dir"
                )
            remove_leftovers(self.path)
            remove_leftovers(self.checkpoints_path)
            yield

    # What it trains

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
            raise InputError(f"{self.config_path} cannot be read: {first_line(error)}") from error

    def start(self, config: RunConfig) -> None:
        """Makes the directory, or checks that what is there was trained alike.

        Raises:
            InputError: the directory holds something else, is damaged, or cannot be written.
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
        self.scores()
        write_json(self.config_path, config.to_dict())
        self._trained_with["config"] = config.to_dict()

    def use_data(self, tokenizer: Path, arrays: Path) -> None:
        """Takes over a tokenizer, or checks that it and the data are those of the checkpoints.

        Args:
            tokenizer: the SentencePiece model.
            arrays: a file that tells the tokenized corpus from others.

        Raises:
            InputError: the checkpoints were trained on other data.
        """
        found = {"tokenizer": tokenizer, "arrays": arrays}
        sums = {name: checkpoint_files.sha256(path) for name, path in found.items()}
        trained_with = self._newest_state().get("trained_with", {})
        for name, path in found.items():
            if trained_with.get(name, sums[name]) != sums[name]:
                raise InputError(
                    f"run_dir {self.path} was trained with other {name} than {path}: choose "
                    "another --run_dir or the same corpus"
                )
        self._trained_with |= sums
        with new_file(self.tokenizer_path) as file:
            file.write_bytes(tokenizer.read_bytes())

    def use_replicas(self, count: int) -> None:
        """Checks that as many replicas train as before: a batch of more is another batch.

        Raises:
            InputError: the checkpoints were trained on another number.
        """
        known = self._newest_state().get("trained_with", {}).get("replicas", count)
        if known != count:
            raise InputError(
                f"run_dir {self.path} was trained on {known} replicas, not {count}: choose another "
                "--run_dir or as many devices and workers"
            )
        self._trained_with["replicas"] = count

    # Checkpoints

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, in order."""
        if not self.checkpoints_path.is_dir():
            return []
        found = (re.fullmatch(r"step-(\d+)", p.name) for p in self.checkpoints_path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def best(self) -> dict[str, Any] | None:
        """`{"step", "bleu"}` of the best validation score so far.

        Raises:
            InputError: it cannot be read.
        """
        best = read_json(self.best_path)
        if best is not None and not (isinstance(best, dict) and isinstance(best.get("step"), int)):
            raise InputError(f"{self.best_path} cannot be read: it must have a step and a score")
        return best

    def save(
        self,
        model: Transformer,
        optimizer: keras.optimizers.Optimizer,
        state: RunState,
        *,
        keep: int,
        stopgap: bool = False,
    ) -> None:
        """Writes the checkpoint of a step and removes those no longer kept.

        Kept are the last `keep`, the best, and the newest. A stopgap is what an interrupted run
        leaves besides the checkpoints that it would have written anyway: it does not count among
        the last, or interruptions would change what is averaged in the end.

        Raises:
            InputError: it cannot be written; all is as it was.
        """
        if state.step not in self.steps():
            checkpoint_files.write_checkpoint(
                self._step_path(state.step),
                model,
                optimizer,
                {**asdict(state), "stopgap": stopgap, "trained_with": self._trained_with},
            )
        self._set_best(state.best)
        kept = {*self._regular_steps()[-keep:], self.steps()[-1]}
        if state.best:
            kept.add(state.best["step"])
        for old in set(self.steps()) - kept:
            remove_directory(self._step_path(old))

    def restore(self, model: Transformer, optimizer: keras.optimizers.Optimizer) -> RunState:
        """Loads the newest checkpoint that is not damaged, and sets newer ones aside.

        Returns:
            where the run stands; at step 0 if there is no checkpoint.

        Raises:
            InputError: all checkpoints are damaged, or they are of another model.
        """
        damage = {}
        for step in reversed(self.steps()):
            path = self._step_path(step)
            try:
                state = checkpoint_files.read_state(path)
                checkpoint_files.load_optimizer(path, optimizer)
                checkpoint_files.load_weights(path, model)
                break
            except DamagedCheckpoint as error:
                damage[path] = error
        else:
            if damage:
                raise InputError(
                    f"run_dir {self.path} has no checkpoint that is not damaged: "
                    f"{next(iter(damage.values()))}"
                )
            return RunState()
        self._check_config(state)
        for path, error in damage.items():
            aside = path.with_name(f"{path.name}.damaged")
            print(f"{error}: set aside as {aside.name}", file=sys.stderr, flush=True)
            if aside.exists():
                remove_directory(aside)
            path.rename(aside)
        self._set_best(state["best"])
        return RunState(state["step"], state["best"], state["interval"])

    def load(self, model: Transformer, checkpoint: str = "last") -> int:
        """Loads weights alone.

        Args:
            model: built.
            checkpoint: "last", "best" or "average".

        Returns:
            The step that the weights are from.

        Raises:
            InputError: there is no such checkpoint, or it is damaged.
        """
        if checkpoint not in ("last", "best", "average"):
            raise InputError(f"checkpoint must be last, best or average, got {checkpoint}")
        path = self._checkpoint_path(checkpoint)
        while True:
            try:
                state = checkpoint_files.read_state(path)
                checkpoint_files.load_weights(path, model)
                break
            except InputError:
                tried, path = path, self._checkpoint_path(checkpoint)
                if path == tried:
                    raise
                # A run in progress has removed it, because there is a newer one.
        self._check_config(state)
        self._check_tokenizer(state)
        return state["step"]

    def average(self, model: Transformer, count: int) -> list[int]:
        """Averages the weights of the last `count` checkpoints into `model` and `average/`.

        Returns:
            The steps averaged.

        Raises:
            InputError: one of them is damaged, or the average cannot be written.
        """
        steps = (self._regular_steps() or self.steps())[-count:]
        try:
            checkpoint_files.load_average([self._step_path(step) for step in steps], model)
        except DamagedCheckpoint as error:
            raise InputError(f"{error}: remove its directory to average the others") from error
        state = {"step": steps[-1], "steps": steps, "trained_with": self._trained_with}
        checkpoint_files.write_checkpoint(self.average_path, model, None, state, replace=True)
        return steps

    def _step_path(self, step: int) -> Path:
        return self.checkpoints_path / f"step-{step:08d}"

    def _checkpoint_path(self, checkpoint: str) -> Path:
        """Where "last", "best" or "average" lies at the moment."""
        if not self.steps():
            raise InputError(f"run directory {self.path} has no checkpoints yet")
        if checkpoint == "last":
            return self._step_path(self.steps()[-1])
        if checkpoint == "average":
            if not self.average_path.is_dir():
                raise InputError(f"run directory {self.path} has no averaged checkpoint")
            return self.average_path
        best = self.best()
        if best is None:
            raise InputError(f"run directory {self.path} has no best checkpoint: no validation")
        return self._step_path(best["step"])

    def _regular_steps(self) -> list[int]:
        """The steps without stopgaps."""
        return [step for step in self.steps() if not self._state(step).get("stopgap")]

    def _newest_state(self) -> dict[str, Any]:
        """The state of the newest checkpoint that tells its state; empty without one."""
        return next(filter(None, map(self._state, reversed(self.steps()))), {})

    def _state(self, step: int) -> dict[str, Any]:
        """The state of a checkpoint; empty if it is damaged."""
        try:
            return checkpoint_files.read_state(self._step_path(step))
        except DamagedCheckpoint:
            return {}

    def _check_config(self, state: dict[str, Any]) -> None:
        trained = state["trained_with"].get("config")
        difference = trained and RunConfig.from_dict(trained).difference(self.config())
        if difference:
            raise InputError(
                f"{self.config_path} has been changed: the checkpoints were trained with "
                f"{difference}"
            )

    def _check_tokenizer(self, state: dict[str, Any]) -> None:
        trained, path = state["trained_with"].get("tokenizer"), self.tokenizer_path
        if trained and not (path.exists() and checkpoint_files.sha256(path) == trained):
            raise InputError(f"{path} is not what the checkpoints were trained with")

    def _set_best(self, best: dict[str, Any] | None) -> None:
        """Makes `best.json` say what a checkpoint says."""
        try:
            if self.best() == best:
                return
        except InputError as error:
            print(f"{error}: written again from a checkpoint", file=sys.stderr, flush=True)
        if best is None:
            self.best_path.unlink()
        else:
            write_json(self.best_path, best)

    # Records

    def scores(self) -> list[dict[str, Any]]:
        """The records of `scores.json`.

        Raises:
            InputError: it cannot be read.
        """
        scores = read_json(self.scores_path)
        if not isinstance(scores, list | None):
            raise InputError(f"{self.scores_path} cannot be read: it must have a list")
        return scores or []

    def add_score(self, record: dict[str, Any]) -> None:
        """Appends to `scores.json`, unless it is there: a run may be killed after its scoring.

        Raises:
            InputError: it cannot be read or written.
        """
        scores = self.scores()
        if record not in scores:
            write_json(self.scores_path, [*scores, record])

    def add_history(self, record: dict[str, Any]) -> None:
        """Appends a line to `history.jsonl`.

        Raises:
            InputError: it cannot be written.
        """
        append_line(self.history_path, record)

    def rewind_history(self, step: int) -> None:
        """Drops what `history.jsonl` tells of steps after the one that is resumed from.

        Raises:
            InputError: it cannot be read or written.
        """
        rewind(self.history_path, step)
