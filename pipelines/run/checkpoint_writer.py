"""Checkpoints as training writes, restores and averages them."""

from __future__ import annotations

import itertools
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import InputError
from pipelines.files.atomic import remove_directory
from pipelines.files.checksums import Damaged
from pipelines.files.records import write_json
from pipelines.progress import progress
from pipelines.run import checkpoint_files
from pipelines.run.checkpoints import INTERRUPTED, Checkpoints, RunState
from pipelines.run.provenance import Provenance

if TYPE_CHECKING:
    import keras

    from tf_relpos import Transformer

_LOG = logging.getLogger(__name__)


class CheckpointWriter(Checkpoints):
    """The checkpoints of a run that trains.

    Args:
        path: the directory.
        provenance: what the run is trained with; each checkpoint says so, and no edited
            configuration and no exchanged file goes unnoticed.
    """

    def __init__(self, path: Path, provenance: Provenance):
        super().__init__(path)
        self._trained_with = provenance.to_dict()

    def save(
        self,
        model: Transformer,
        optimizer: keras.optimizers.Optimizer,
        state: RunState,
        *,
        keep: int,
        interrupted: bool = False,
    ) -> None:
        """Writes the checkpoint of a step and removes those no longer kept.

        Kept are the last `keep`, the best, and the newest. What an interrupted run saves besides
        the checkpoints that it would have written anyway does not count among the last, or
        interruptions would change what is averaged in the end.

        Raises:
            InputError: it cannot be written; all is as it was.
        """
        if not (run := self.path.parent).exists():
            raise InputError(f"run_dir {run} has been moved or removed while it was trained in")
        if state.step not in self.steps():
            checkpoint_files.write_checkpoint(
                self._step_path(state.step),
                model,
                optimizer,
                {**asdict(state), INTERRUPTED: interrupted, "trained_with": self._trained_with},
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
            except Damaged as error:
                damage[path] = error
        else:
            if damage:
                raise InputError(
                    f"run_dir {self.path.parent} has no checkpoint that is not damaged: "
                    f"{next(iter(damage.values()))}"
                )
            return RunState()
        for path, damaged in damage.items():
            aside = _unused(path.with_name(f"{path.name}.damaged"))
            _LOG.warning("%s: set aside as %s", damaged, aside.name)
            path.rename(aside)
        best = state.get("best")
        if best and best["step"] not in self.steps():  # gone when a better one, now aside, had come
            _LOG.warning("the best checkpoint, of step %s, is lost", f"{best['step']:,}")
            state |= {"best": None, "validations_since_best": 0}
        self._set_best(state.get("best"))
        return RunState.from_dict(state)

    @progress("averaging checkpoints")
    def average(self, model: Transformer, count: int) -> list[int]:
        """Averages the weights of the last `count` checkpoints into `model` and `average/`, once
        training is over: the newest is one of them, wherever it was written.

        Returns:
            The steps averaged.

        Raises:
            InputError: one of them is damaged, or the average cannot be written.
        """
        steps = sorted({*self._averaged(count), *self.steps()[-1:]})[-count:]
        try:
            checkpoint_files.load_average([self._step_path(step) for step in steps], model)
        except Damaged as error:
            raise InputError(f"{error}: remove its directory to average the others") from error
        state = {"step": steps[-1], "steps": steps, "trained_with": self._trained_with}
        checkpoint_files.write_checkpoint(self.average_path, model, None, state, replace=True)
        return steps

    def _set_best(self, best: dict[str, Any] | None) -> None:
        """Makes `best.json` say what a checkpoint says."""
        try:
            if self.best() == best:
                return
        except InputError as error:
            _LOG.warning("%s: written again from a checkpoint", error)
        if best is None:
            self.best_path.unlink()
        else:
            write_json(self.best_path, best)


def _unused(path: Path) -> Path:
    """The path, or the first of path.2, path.3, ... that does not exist."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(p for p in itertools.chain([path], numbered) if not p.exists())
