"""JSON files that people and tools read beside the checkpoints: complete, or as they were."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import InputError, first_line
from pipelines.files.atomic import new_file, write_text


def write_json(path: Path, value: Any) -> None:
    """Writes a file.

    Raises:
        InputError: it cannot be written.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """What a file holds; None if there is none.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}") from error


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Appends a record to a file with a record a line, and waits until it is on disk.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def rewind(path: Path, step: int) -> None:
    """Drops the lines of steps after `step`, and what was cut short by a kill.

    Raises:
        InputError: it cannot be written, or a line is damaged; all is as it was.
    """
    if path.exists():
        *lines, _ = path.read_bytes().split(b"\n")
        kept = [line + b"\n" for n, line in enumerate(lines, 1) if _step(path, n, line) <= step]
        with new_file(path) as file:
            file.write_bytes(b"".join(kept))


def _step(path: Path, number: int, line: bytes) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged: line {number} has no step; correct or remove it"
        ) from error


def settings_with_model(model: Any, training: Any) -> dict[str, Any]:
    """Two dataclasses as a record tells them: the fields of the second, and the first below
    "model"."""
    return {"model": dataclasses.asdict(model), **dataclasses.asdict(training)}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that is another, perhaps of a table inside: "name was a, got b"."""
    for name in dict.fromkeys([*now, *before]):
        known, value = before.get(name), now.get(name)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            if inner := difference(known, value):
                return inner
        elif known != value:
            return f"{name} was {known}, got {value}"
    return None
