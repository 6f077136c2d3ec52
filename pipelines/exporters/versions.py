"""Numbered directories of one model, complete or absent, as TensorFlow Serving reads them.

Each says what it was made from, in `assets.extra/tf_relpos.json`, which servers ignore.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines.errors import InputError, reason_of
from pipelines.files.atomic import check_writable, new_directory, traceless
from pipelines.files.locks import one_at_a_time
from pipelines.files.records import write_json

SOURCE_FILE = Path("assets.extra", "tf_relpos.json")
_NEEDED = (
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
)


class AlreadyExported(InputError):
    """The newest version was made from the same; it stays the newest.

    Attributes:
        path: its directory.
    """

    def __init__(self, path: Path):
        super().__init__(
            f"{path} holds this model with this search already: give --version to export it again, "
            "or remove it"
        )
        self.path = path


def check_place(directory: str | Path, run: str | None) -> None:
    """Tells before training that its export will not be possible. Nothing is changed.

    Args:
        directory: of the versions, if it exists.
        run: the `id` of the run to export from, None if it has none yet.

    Raises:
        InputError: it cannot be written to, or read from, is a version itself, or holds those of
            another run.
    """
    directory = Path(directory)
    _check_can_be_read(directory)
    check_writable(directory, f"export_dir {directory}")
    _check_holds_versions(directory)
    _check_same_run(directory, run)


def check_is_new(directory: Path, source: Mapping[str, Any]) -> None:
    """Checks, in a block of `new_version`, that what is exported goes on with those before it.

    A server takes up the newest version by itself: it must not be that of another run of the same
    name.

    Args:
        directory: of the versions, if it exists.
        source: what the next is made from; its `run` is the run's `id`.

    Raises:
        AlreadyExported: the newest version is made from the same.
        InputError: it is another run's.
    """
    _check_same_run(directory, source["run"])
    if newest := _newest(directory):
        path = directory / str(newest)
        if _source(path) == source and _has_files(path):
            raise AlreadyExported(path)


def write_source(version: Path, source: Mapping[str, Any]) -> None:
    """Writes into a version what it is made from."""
    write_json(version / SOURCE_FILE, source)


def _check_same_run(directory: Path, run: str | None) -> None:
    newest = _newest(directory)
    known = _source(directory / str(newest)).get("run") if newest else None
    if known not in (None, run):
        raise InputError(
            f"{directory} holds versions of another run, which a server would replace by those of "
            f"this one: choose another directory, or `pipelines.export --version {newest + 1}`"
        )


def _newest(directory: Path) -> int:
    """The largest number of a version, 0 without one."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _has_files(version: Path) -> bool:
    """Whether a version has what it cannot do without."""
    files = (version / name for name in _NEEDED)
    return all(file.is_file() and file.stat().st_size for file in files)


def _source(version: Path) -> dict[str, Any]:
    """What a version says it was made from; empty where it does not say, as one of long ago."""
    try:
        source = json.loads((version / SOURCE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return source if isinstance(source, dict) else {}


@contextlib.contextmanager
def new_version(directory: str | Path, version: int | None = None) -> Iterator[tuple[Path, Path]]:
    """A directory to write a version into; it gets its number when everything is written.

    Until then, and for good if the process dies, it has a hidden name that is no number, which
    TensorFlow Serving does not look at. Earlier versions stay as they are. Another process that is
    in such a block for the directory is waited for.

    Args:
        directory: the model's directory, made if need be.
        version: the number, at least 1; one more than the largest unless given.

    Yields:
        the directory to write to, and the path that it will have.

    Raises:
        InputError: the version exists, or it cannot be written, or not be read.
    """
    directory = Path(directory)
    _check_can_be_read(directory)
    with traceless(directory), _alone_in(directory):
        final = directory / str(_number(directory, version))
        with new_directory(final) as temporary:
            try:
                yield temporary, final
            except tf.errors.OpError as error:
                raise InputError(f"cannot write {final}: {reason_of(error)}") from error


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Makes a directory of versions, and waits until nobody else writes one: numbers are taken
    one after the other."""
    _check_holds_versions(directory)
    with contextlib.ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(one_at_a_time(directory))
        except OSError as error:
            raise InputError(
                f"cannot write to the output directory {directory}: {error.strerror}"
            ) from error
        yield


def _number(directory: Path, version: int | None) -> int:
    if version is not None and version < 1:
        raise InputError(f"version must be at least 1, got {version}")
    if version is not None and version >= 1 << 63:
        raise InputError(f"version must be below 2^63, as TensorFlow Serving's, got {version}")
    following = _newest(directory) + 1
    if version is not None and (directory / str(version)).exists():
        raise InputError(
            f"version {version} exists in {directory} already: give another --version, or none "
            f"for the next, {following}"
        )
    return version or following


def _check_can_be_read(directory: Path) -> None:
    """Refuses a path that TensorFlow takes for a pattern, which leads somewhere else."""
    if any(character in str(directory) for character in "[\\"):
        raise InputError(
            "the directory of a SavedModel must have no [ and no \\ in its path, where TensorFlow "
            f"would not find it, got {directory}: give another one"
        )


def _check_holds_versions(directory: Path) -> None:
    if (directory / "saved_model.pb").exists():
        raise InputError(
            f"the output directory must hold versions, but {directory} is one itself: "
            f"give {directory.parent}"
        )
