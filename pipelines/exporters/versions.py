"""Numbered directories of one model, complete or absent, as TensorFlow Serving reads them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from pipelines.errors import InputError, reason_of
from pipelines.files.atomic import new_directory


@contextlib.contextmanager
def new_version(directory: str | Path, version: int | None = None) -> Iterator[tuple[Path, Path]]:
    """A directory to write a version into; it gets its number when everything is written.

    Until then, and for good if the process dies, it has a hidden name that is no number, which
    TensorFlow Serving does not look at. Earlier versions stay as they are.

    Args:
        directory: the model's directory, made if need be.
        version: the number, at least 1; one more than the largest unless given.

    Yields:
        the directory to write to, and the path that it will have.

    Raises:
        InputError: the version exists, or it cannot be written.
    """
    directory = Path(directory)
    final = directory / str(_number(directory, version))
    with new_directory(final) as temporary:
        try:
            yield temporary, final
        except tf.errors.OpError as error:
            raise InputError(f"cannot write {final}: {reason_of(error)}") from error


def _number(directory: Path, version: int | None) -> int:
    if version is not None and version < 1:
        raise InputError(f"version must be at least 1, got {version}")
    if (directory / "saved_model.pb").exists():
        raise InputError(
            f"the output directory must hold versions, but {directory} is one itself: "
            f"give {directory.parent}"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in directory.iterdir()]
    except OSError as error:
        raise InputError(
            f"cannot write to the output directory {directory}: {error.strerror}"
        ) from error
    following = max((int(n) for n in names if n.isascii() and n.isdigit()), default=0) + 1
    if version is not None and str(version) in names:
        raise InputError(
            f"version {version} exists in {directory} already: give another --version, or none "
            f"for the next, {following}"
        )
    return version or following
