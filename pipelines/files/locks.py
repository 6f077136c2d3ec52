"""Locks: one process at a time writes to a directory, makes a file, or is in a block."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pipelines.errors import InputError
from pipelines.files.atomic import traceless


@contextlib.contextmanager
def exclusive(directory: Path, argument: str = "") -> Iterator[None]:
    """Makes a directory and keeps others out of it until the block or the process ends.

    The file `lock` in it tells who is there, and goes when the block ends. So do the directories
    that were made, if it fails and has left nothing in them: what is refused leaves no trace.

    Args:
        directory: the directory.
        argument: the name of the flag that it was given as, for messages.

    Raises:
        InputError: another process is there, or the directory cannot be written to.
    """
    name = f"{argument} {directory}" if argument else str(directory)
    with traceless(directory), _held(directory / "lock", directory, name):
        yield


@contextlib.contextmanager
def exclusive_file(path: Path, argument: str) -> Iterator[None]:
    """Keeps others from making a file, by a hidden lock beside it; otherwise like `exclusive`."""
    with _held(path.with_name(f".{path.name}.lock"), path, f"{argument} {path}"):
        yield


@contextlib.contextmanager
def _held(lock: Path, what: Path, name: str) -> Iterator[None]:
    """Holds a lock file, which says by whom, and goes."""
    with _lock_of(lock, what, name) as file:
        _check_is_lock(lock, file)
        try:
            _sign(file, name)
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(file.name)


def _lock_of(path: Path, what: Path, name: str) -> IO[bytes]:
    """A lock file, locked."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = path.open("a+b", buffering=0)
            if not _try_to_lock(file.fileno()):
                with file:
                    file.seek(0)
                    holder = file.read().decode(errors="replace") or "another process"
                kind = "directory" if path.parent == what else "file"
                raise InputError(
                    f"{what} is in use by {holder}: wait for it, or choose another {kind}"
                )
            if _is_still(path, file):
                return file
            file.close()  # whoever held it has removed it
    except OSError as error:
        if path.parent.is_symlink() and not path.parent.exists():
            raise InputError(
                f"{name} is a link to {os.readlink(path.parent)}, which does not exist"
            ) from error
        raise InputError(f"cannot write to {name}: {error.strerror}") from error


def _check_is_lock(path: Path, file: IO[bytes]) -> None:
    """Refuses a file of somebody's own, which would be lost."""
    file.seek(0)
    if (first := file.read(8)) and first != b"process ":
        raise InputError(
            f"{path} must be absent, or the lock of a process: it holds something else"
        )


def _sign(file: IO[bytes], name: str) -> None:
    """Writes into a lock file who holds it."""
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
    except OSError as error:
        raise InputError(f"cannot write to {name}: {error.strerror}") from error


def _is_still(path: Path, file: IO[bytes]) -> bool:
    """Whether the path leads to a file that is open."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Waits until no other process is in such a block for the directory, which must exist."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # NFS has no locks for directories
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    """False if another process holds the lock; there are file systems without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
