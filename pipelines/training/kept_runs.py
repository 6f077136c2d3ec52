"""The trainings of a comparison, in a file that is written after each of them."""

import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import keras

from pipelines.errors import InputError
from pipelines.files.records import difference, read_json, write_json
from pipelines.training.devices import description


class KeptRuns:
    """What the trainings of a comparison reached, so that none is repeated.

    Args:
        path: a JSON file, if they are to be kept.
        settings: what they have in common.
        fields: what each must have, and of which type; what is found by it names it.

    Attributes:
        found: `{"settings", "runs"}`, the values of the file.

    Raises:
        InputError: the file cannot be read, or is of a comparison with other settings.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], fields: Mapping[str, type]):
        self._path = path
        self.found: dict[str, Any] = {"settings": settings, "runs": []}
        if path and path.exists():
            self.found = read_json(path)
        known = self.found.get("settings") if isinstance(self.found, dict) else None
        if known != settings:
            which = f": {difference(known, settings)}" if isinstance(known, dict) else ""
            raise InputError(
                f"output {path} is of another comparison{which}: remove it, or name another"
            )
        runs = self.found.get("runs")
        if not isinstance(runs, list) or not all(_has_fields(run, fields) for run in runs):
            raise InputError(
                f"output {path} cannot be read: each of its runs must have {', '.join(fields)}: "
                "correct it, remove it, or name another"
            )

    def __len__(self) -> int:
        return len(self.found["runs"])

    def has(self, **which: Any) -> bool:
        """Whether there is a training with these values."""
        return any(which.items() <= run.items() for run in self.found["runs"])

    def of_seeds(self, seeds: Sequence[int]) -> dict[str, Any]:
        """What was found with these seeds, so that each mean is over the same ones."""
        runs = [run for run in self.found["runs"] if run["seed"] in seeds]
        return {**self.found, "runs": runs}

    def add(self, **run: Any) -> None:
        """Keeps one more.

        Raises:
            InputError: the file cannot be written.
        """
        self.found["runs"].append(run)
        if self._path:
            write_json(self._path, self.found)


def circumstances(model: keras.Model, began: float) -> dict[str, Any]:
    """The size of what was trained, its minutes since `time.monotonic()` was `began`, when and on
    what."""
    return {
        "parameters": model.count_params(),
        "minutes": round((time.monotonic() - began) / 60, 2),
        "date": str(date.today()),
        "device": description(),
    }


def _has_fields(run: Any, fields: Mapping[str, type]) -> bool:
    return isinstance(run, dict) and all(
        isinstance(run.get(name), (int, float) if kind is float else kind)
        for name, kind in fields.items()
    )
