"""The checkpoints of a run.

    checkpoints/
      step-00001000/    see `pipelines.run.checkpoint_files`
      best.json         the step with the best validation score
      average/          averaged weights

A checkpoint's state is the truth about the run: what `best.json` says beyond the one that a run is
resumed from is taken back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.files.checksums import Damaged
from pipelines.files.records import read_json
from pipelines.run import checkpoint_files

if TYPE_CHECKING:
    from tf_relpos import Transformer
    from tf_relpos.config import TransformerConfig

INTERRUPTED = "stopgap"  # its name in state.json, of runs that there are as well


@dataclass
class RunState:
    """Where a run stands besides its weights and its optimizer.

    Attributes:
        step: updates done.
        best: `{"step", "bleu", "perplexity"}` of the best validation so far.
        interval: sums over the updates of the log interval that the last one is in.
        initialized_from: `{"run", "checkpoint", "step"}` that the weights of step 0 are from.
        validations_since_best: how many have not been better.
    """

    step: int = 0
    best: dict[str, Any] | None = None
    interval: dict[str, float] = field(default_factory=dict)
    initialized_from: dict[str, Any] | None = None
    validations_since_best: int = 0

    def has_stalled(self, patience: int) -> bool:
        """Whether so many validations in a row have found no better score; 0 is never."""
        return bool(patience) and self.validations_since_best >= patience

    def is_over(self, last_step: int, patience: int) -> bool:
        """Whether training is, after its last step or because it has stalled."""
        return self.step >= last_step or self.has_stalled(patience)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunState:
        """From what a checkpoint says, which may be older than some of the fields."""
        return cls(**{name.name: values[name.name] for name in fields(cls) if name.name in values})


class Checkpoints:
    """The checkpoints in a directory, to read. Making the object touches nothing on disk.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: Path):
        self.path = path
        self.best_path = path / "best.json"
        self.average_path = path / "average"

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, in order."""
        if not self.path.is_dir():
            return []
        found = (re.fullmatch(r"step-(\d+)", p.name) for p in self.path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def best(self) -> dict[str, Any] | None:
        """`{"step", "bleu", "perplexity"}` of the best validation so far.

        Raises:
            InputError: it cannot be read.
        """
        remedy = "train on, which writes it anew, or choose another --checkpoint"
        try:
            best = read_json(self.best_path)
        except InputError as error:
            raise InputError(f"{error}: {remedy}") from error
        step = best.get("step") if isinstance(best, dict) else None
        if best is not None and not (type(step) is int and step > 0):
            raise InputError(
                f"{self.best_path} cannot be read: it must have a step and a score: {remedy}"
            )
        return best

    def provenance(self) -> dict[str, Any]:
        """The `Provenance` of the newest checkpoint that can be read; empty without one.

        Raises:
            InputError: it is none.
        """
        for step in reversed(self.steps()):
            if state := self._state(step):
                return _checked_provenance(state.get("trained_with", {}), self._step_path(step))
        return {}

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
        paths = self._paths(checkpoint)
        while True:
            try:
                state = checkpoint_files.read_state(paths[-1])
                if len(paths) == 1:
                    checkpoint_files.load_weights(paths[0], model)
                else:
                    checkpoint_files.load_average(paths, model)
                break
            except InputError:
                tried, paths = paths, self._paths(checkpoint)
                if paths == tried:
                    raise
                # A run in progress has removed it, because there is a newer one.
        return state["step"]

    def check_could_hold(self, config: TransformerConfig, checkpoint: str) -> None:
        """Compares a model with the size of the weights, before memory is taken for it.

        Raises:
            InputError: the weights are of a smaller model, or there is no such checkpoint.
        """
        for path in self._paths(checkpoint):
            checkpoint_files.check_could_hold(path, config)

    def average_is_of_the_end(self) -> bool:
        """Whether there is an average that training has not left behind.

        Raises:
            InputError: it is damaged.
        """
        if not self.average_path.is_dir():
            return False
        return checkpoint_files.read_state(self.average_path)["step"] in self.steps()[-1:]

    def _step_path(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def _paths(self, checkpoint: str) -> list[Path]:
        """The checkpoints that "last", "best" or "average" are made of at the moment.

        What was averaged before training went on is not the average any more: that is made anew, of
        as many checkpoints.
        """
        path = self._checkpoint_path(checkpoint)
        if checkpoint != "average" or self.average_is_of_the_end():
            return [path]
        count = len(checkpoint_files.read_state(path)["steps"])
        return [self._step_path(step) for step in self._averaged(count)]

    def _averaged(self, count: int) -> list[int]:
        """The last checkpoints that an uninterrupted run would have saved."""
        return (self._regular_steps() or self.steps())[-count:]

    def _regular_steps(self) -> list[int]:
        """The steps that an uninterrupted run would have saved."""
        return [step for step in self.steps() if not self._state(step).get(INTERRUPTED)]

    def _checkpoint_path(self, checkpoint: str) -> Path:
        """Where "last", "best" or "average" was written."""
        if not self.steps():
            raise InputError(f"run directory {self.path.parent} has no checkpoints yet")
        if checkpoint == "last":
            return self._step_path(self.steps()[-1])
        if checkpoint == "average":
            if not self.average_path.is_dir():
                raise InputError(f"run directory {self.path.parent} has no averaged checkpoint")
            return self.average_path
        best = self.best()
        if best is None:
            raise InputError(
                f"run directory {self.path.parent} has no best checkpoint: no validation"
            )
        path = self._step_path(best["step"])
        if not path.exists():
            raise InputError(
                f"run directory {self.path.parent} has lost {path}, the best checkpoint by its "
                f"{self.best_path.name}"
            )
        return path

    def _state(self, step: int) -> dict[str, Any]:
        """The state of a checkpoint; empty if it is damaged."""
        try:
            return checkpoint_files.read_state(self._step_path(step))
        except Damaged:
            return {}


def _checked_provenance(trained_with: dict[str, Any], path: Path) -> dict[str, Any]:
    try:
        if "config" in trained_with:
            RunConfig.from_dict(trained_with["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be used: it must say what it was trained with") from error
    return trained_with
