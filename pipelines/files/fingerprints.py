"""Whether files still hold what they held, read again only where they may have been changed.

A fingerprint is the checksum of a file with its size, inode and times, which change when it is
written to or replaced.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.errors import InputError
from pipelines.files.checksums import sha256
from pipelines.files.records import read_json, write_json


def write_fingerprints(record: Path, files: Sequence[str]) -> None:
    """Writes those of files, in their order, as JSON.

    Raises:
        InputError: one cannot be read, or the record cannot be written.
    """
    write_json(record, [_fingerprint(path) for path in files])


def are_unchanged(record: Path, files: Sequence[str]) -> bool:
    """Whether files hold what they did when the record was written; True if there is none.

    Files that have been moved, copied or touched are read, once: the record is brought up to date.

    Raises:
        InputError: one cannot be read, or the record is damaged.
    """
    earlier = read_json(record)
    if earlier is None:
        return True
    try:
        if len(earlier) != len(files):
            return False
        now = [_renewed(path, before) for path, before in zip(files, earlier, strict=True)]
        same = all(a["sha256"] == b["sha256"] for a, b in zip(now, earlier, strict=True))
    except (KeyError, TypeError) as error:
        raise InputError(f"{record} cannot be read: it must have checksums") from error
    if same and now != earlier:
        with contextlib.suppress(InputError):  # all that it saves is time
            write_json(record, now)
    return same


def _renewed(path: str, before: dict[str, Any]) -> dict[str, Any]:
    now = {**_status(path), "sha256": before["sha256"]}
    return now if now == before else _fingerprint(path)


def _fingerprint(path: str) -> dict[str, Any]:
    # In this order: what is written meanwhile shows in the times that are found later.
    status = _status(path)
    return {**status, "sha256": sha256(Path(path))}


def _status(path: str) -> dict[str, int]:
    try:
        status = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return {
        "bytes": status.st_size,
        "inode": status.st_ino,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }
