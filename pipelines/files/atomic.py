"""Files and directories that are complete or absent, however the process or the machine stops.

While it is written, `x` is `.x.<random>.incomplete`. Its writer holds a lock on that, which ends
with the process: what nobody holds is a leftover, and goes when something is written beside it.
"""

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from pipelines.errors import InputError

_LONGEST_NAME = 255  # bytes, on most file systems
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{8}\.incomplete(\.keras)?")  # Keras takes no other ending


@contextlib.contextmanager
def new_directory(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """A directory to write into; it becomes `path` when the block ends without an error.

    Args:
        path: where it appears.
        replace: whether it may take the place of a directory.

    Raises:
        InputError: there is something in `path` already, the disk is full, or it cannot be written
            for another reason.
    """
    path = Path(path)
    with _new(path, Path.mkdir) as temporary:
        yield temporary
        _flush(temporary)
        if replace and path.exists():
            remove_directory(path)


@contextlib.contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """An empty file to write; it takes the place of `path`, or of the file that this is a link to,
    when the block ends without an error.

    Raises:
        InputError: the disk is full, or it cannot be written for another reason.
    """
    path = Path(path)
    with _new(path.resolve() if path.is_symlink() else path, Path.touch) as temporary:
        yield temporary
        _flush(temporary)


def write_text(path: Path, text: str) -> None:
    """Writes a file that is complete or as it was.

    Raises:
        InputError: see `new_file`.
    """
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_directory(path: Path) -> None:
    """Removes a directory; it is never there in part."""
    hidden = _hidden(path)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Removes what processes that have died left unfinished in a directory."""
    for path in directory.glob(".*.incomplete*"):
        if _LEFTOVER.fullmatch(path.name):
            _remove_if_abandoned(path)


def check_writable(directory: Path, name: str) -> None:
    """Tells, before work is done for it, that a directory cannot be made or written to.

    Args:
        directory: to be written to.
        name: of what will be written, for the message.

    Raises:
        InputError: it cannot; nothing has been changed in either case.
    """
    existing = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    probe = _hidden(existing / "probe")
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise InputError(f"cannot write to {name}: {error.strerror}") from error


def check_files_writable(flags: object, *names: str) -> None:
    """Tells the same of the directories of files that flags of these names give, if they do, and of
    names that are too long.

    Raises:
        InputError: one cannot be written to; it is named.
    """
    for name in names:
        if path := getattr(flags, name):
            if len(os.fsencode(Path(path).name)) > _LONGEST_NAME:
                raise InputError(
                    f"{name} must have a name of at most {_LONGEST_NAME} bytes, got {path}"
                )
            check_writable(Path(path).parent, f"{name} {path}")


@contextlib.contextmanager
def traceless(directory: Path) -> Iterator[None]:
    """Removes what the block has made of a directory and its parents, if it fails and has left
    nothing in them."""
    missing = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # one that holds something stays
            for path in missing:
                path.rmdir()
        raise


@contextlib.contextmanager
def _new(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    temporary = _hidden(path)
    with traceless(path.parent):
        try:
            if not path.parent.exists():  # what follows reports a file in its place
                path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path.parent)
            with _locked(temporary, make):
                yield temporary
                temporary.replace(path)
                _flush_one(path.parent)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                _remove(temporary)


def _hidden(path: Path) -> Path:
    ending = f".{uuid.uuid4().hex[:8]}.incomplete"
    room = _LONGEST_NAME - len(f".{ending}.keras")
    return path.with_name("." + os.fsdecode(os.fsencode(path.name)[:room]) + ending)


@contextlib.contextmanager
def _locked(path: Path, make: Callable[[Path], None]) -> Iterator[None]:
    """Makes a file or directory and holds its lock."""
    while True:
        make(path)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            with contextlib.suppress(OSError):  # NFS has no locks for directories
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                break
            os.close(descriptor)
        # Another process has taken it for a leftover before it was locked.
    try:
        yield
    finally:
        os.close(descriptor)


def _remove_if_abandoned(path: Path) -> None:
    """Removes what nobody holds the lock of; nothing where there are no locks."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        path.unlink()


def _flush(path: Path) -> None:
    """Waits until a file, or a directory with all that it holds, is on disk.

    After a power cut, a name must not stand for what never got there.
    """
    if path.is_dir():
        for inner in path.iterdir():
            _flush(inner)
    _flush_one(path)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
