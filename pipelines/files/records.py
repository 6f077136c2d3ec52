"""JSON files that people and tools read beside the checkpoints: complete, or as they were."""

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


def read_comparison(
    path: Path | None, settings: dict[str, Any], fields: Mapping[str, type]
) -> dict[str, Any]:
    """`{"settings", "runs"}`: the runs of a comparison that a file has, none where there is none.

    Args:
        path: the file, if there may be one.
        settings: those of the comparison.
        fields: what each of its runs must have, and of which type.

    Raises:
        InputError: it cannot be read, or is of a comparison with other settings.
    """
    found = (read_json(path) if path else None) or {"settings": settings, "runs": []}
    if not isinstance(found, dict) or found.get("settings") != settings:
        raise InputError(f"output {path} is of another comparison: remove it, or name another")
    runs = found.get("runs")
    if not isinstance(runs, list) or not all(_has_fields(run, fields) for run in runs):
        raise InputError(
            f"output {path} cannot be read: each of its runs must have {', '.join(fields)}: "
            "correct it, remove it, or name another"
        )
    return found


def _has_fields(run: Any, fields: Mapping[str, type]) -> bool:
    return isinstance(run, dict) and all(
        isinstance(run.get(name), (int, float) if kind is float else kind)
        for name, kind in fields.items()
    )


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
