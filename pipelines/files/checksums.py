"""Checksums of the files of a directory, in a file beside them that `sha256sum --check` reads."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import InputError

CHECKSUMS = "SHA256SUMS"


class Damaged(InputError):
    """A file is missing, or is not what was written."""


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal digits.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return _digest(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def write_checksums(directory: Path) -> None:
    """Writes those of all files that are there."""
    sums = [f"{_digest(file)}  {file.name}\n" for file in sorted(directory.iterdir())]
    (directory / CHECKSUMS).write_text("".join(sums), encoding="utf-8")


def verify(directory: Path, *names: str) -> None:
    """Compares files of a directory with their checksums, reading each of them once.

    Raises:
        Damaged: one differs, or is missing.
        InputError: one cannot be read for another reason, which may pass.
    """
    with _reading(directory):
        sums = _checksums(directory / CHECKSUMS)
        for name in names:
            _compare(directory / name, _digest(directory / name), sums)


def read_verified(path: Path) -> bytes:
    """What a file holds, which is compared with its checksum.

    Raises:
        Damaged, InputError: as `verify`.
    """
    with _reading(path.parent):
        sums = _checksums(path.parent / CHECKSUMS)
        content = path.read_bytes()
        _compare(path, hashlib.sha256(content).hexdigest(), sums)
        return content


@contextlib.contextmanager
def _reading(directory: Path) -> Iterator[None]:
    """Raises what `verify` does where a file cannot be read."""
    try:
        yield
    except OSError as error:
        kind = Damaged if isinstance(error, FileNotFoundError) else InputError
        raise kind(f"{error.filename or directory} cannot be read: {error.strerror}") from error


def _compare(path: Path, digest: str, sums: dict[str, str]) -> None:
    if path.name not in sums:
        raise Damaged(f"{path.parent / CHECKSUMS} is damaged: {path.name} is not in it")
    if sums[path.name] != digest:
        raise Damaged(f"{path} is damaged: its checksum does not match")


def _checksums(path: Path) -> dict[str, str]:
    """Checksum by file name."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except ValueError as error:
        raise Damaged(f"{path} is damaged: it must hold checksums") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
