"""Parallel text files: line n of the source belongs to line n of the target, or one has both."""

import gzip
import io
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from pipelines.errors import InputError

Path = str | os.PathLike[str]
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\0"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The two sides of a text, or the one file that has both.
_Files = tuple[str, str] | tuple[str]
# Endings that say what is inside a file rather than what it is called.
_ENDINGS = re.compile(r"\.(gz|txt|tok|tsv)$")


class TextFileCorpus:
    """Pairs from text files, plain or gzipped; of several a side, one is read after another.

    Args:
        train_source, train_target: a path or a list of paths; as many on one side as on the other.
        valid_source, valid_target, test_source, test_target: the same, each pair of them optional.
        source_language, target_language: codes such as "en" and "de".
        train_tsv, valid_tsv, test_tsv: instead of the two sides of a split, files with a pair a
            line, the source, a tab and the target.
        weights: how many times the pairs of each file to train on are read, one file after another.

    Raises:
        InputError: if a file is missing or not a regular file, or a side lacks its counterpart.
            While iterating: if a file cannot be read, is not UTF-8 or a broken gzip archive, if
            files that belong together differ in their number of lines, or if a split has no lines.
    """

    def __init__(
        self,
        train_source: Path | Sequence[Path],
        train_target: Path | Sequence[Path],
        valid_source: Path | Sequence[Path] | None = None,
        valid_target: Path | Sequence[Path] | None = None,
        test_source: Path | Sequence[Path] | None = None,
        test_target: Path | Sequence[Path] | None = None,
        source_language: str = "en",
        target_language: str = "de",
        *,
        train_tsv: Path | Sequence[Path] | None = None,
        valid_tsv: Path | Sequence[Path] | None = None,
        test_tsv: Path | Sequence[Path] | None = None,
        weights: Sequence[int] | None = None,
    ):
        given = {
            "train": (train_source, train_target, train_tsv),
            "valid": (valid_source, valid_target, valid_tsv),
            "test": (test_source, test_target, test_tsv),
        }
        self._files = {}
        for split, several in given.items():
            files = _files_of(split, *map(_as_paths, several))
            if files:
                self._files[split] = files
        if "train" not in self._files:
            raise InputError("train_source and train_target must name at least one file each")
        if weights is not None:
            self._files["train"] = _repeated(self._files["train"], weights)
        self.name = _corpus_name(self._files["train"][0][0], source_language)
        self.source_language = source_language
        self.target_language = target_language
        self.splits = tuple(self._files)
        pairs = chain.from_iterable(self._files.values())
        self.files = tuple(chain.from_iterable(pairs))
        self.text_bytes = sum(os.path.getsize(path) for path in self.files)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs of a split, empty lines included. See the class for errors."""
        if split not in self._files:
            raise InputError(f"split must be one of {', '.join(self.splits)}, got {split!r}")
        return self._pairs(self._files[split])

    def _pairs(self, files: list[_Files]) -> Iterator[tuple[str, str]]:
        empty = True
        for paths in files:
            for pair in _aligned(*paths) if len(paths) == 2 else _columns(*paths):
                empty = False
                yield pair
        if empty:
            names = ", ".join(" and ".join(paths) for paths in files)
            raise InputError(
                f"a corpus must have at least one sentence pair, found none in {names}"
            )


def read_lines(path: Path) -> Iterator[str]:
    r"""Stream the lines, without ends, of a UTF-8 text file, plain, gzip or xz, whatever its name.

    Only "\n" ends a line: whatever else Python takes for a line end (U+2028, U+0085, a lone "\r")
    occurs inside sentences and would shift one side against the other. One "\r" before the "\n"
    and a byte order mark at the beginning of the file are dropped. The last line may lack its end.

    Raises:
        InputError: while iterating, if the file cannot be read, is an archive cut short or
            damaged, or is not UTF-8 (with the line number).
    """
    return _lines(lambda: open(path, "rb"), os.fspath(path))


def read_standard_input() -> Iterator[str]:
    """Stream the lines of standard input from where it stands: see `read_lines`.

    Opening /dev/stdin would start a file from its beginning again, and fail for a socket.

    Raises:
        InputError: at once, if it is closed. While iterating: see `read_lines`.
    """
    if sys.stdin is None:
        raise InputError("standard input must be open, but it is closed")

    def opened() -> io.BufferedReader:
        descriptor = sys.stdin.fileno()
        # Where nothing has come yet, one that does not wait looks as if it had ended.
        os.set_blocking(descriptor, True)
        # With a buffer of its own: a thread that waits for sys.stdin's would crash Python's exit.
        return open(descriptor, "rb", closefd=False)

    return _lines(opened, "standard input")


def _lines(opened: Callable[[], io.BufferedReader], name: str) -> Iterator[str]:
    form = ""
    try:
        with opened() as file:
            start = _first_bytes(file)
            stream: Any = io.BufferedReader(_Unread(start, file))
            if start.startswith(_GZIP_MAGIC):
                form, stream = "gzip", io.BufferedReader(gzip.GzipFile(fileobj=stream))
            elif start.startswith(_XZ_MAGIC):
                form, stream = "xz", io.BufferedReader(lzma.LZMAFile(stream))  # noqa: SIM115
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                    if not line:  # nothing but the mark
                        return
                yield _decoded(line, name, number)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise InputError(
            f"{form} file must be whole, but {name} is cut short or damaged"
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from error


def _first_bytes(file: io.BufferedReader) -> bytes:
    """As many as tell text from an archive: a pipe may give less at a time, and a short line must
    not wait for the next one."""
    start = b""
    while any(magic.startswith(start) for magic in (_GZIP_MAGIC, _XZ_MAGIC)):
        part = file.read1(1)
        if not part:
            break
        start += part
    return start


class _Unread(io.RawIOBase):
    """What has been read of a file, and then the rest of it."""

    def __init__(self, start: bytes, file: io.BufferedReader):
        self._start = start
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._start[: len(buffer)] or self._file.read1(len(buffer))
        self._start = self._start[len(part) :]
        buffer[: len(part)] = part
        return len(part)


def _decoded(line: bytes, name: str, number: int) -> str:
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"text must be UTF-8, but line {number} of {name} is not ({error.reason} "
            f"at byte {error.start + 1})"
        ) from error


def _aligned(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Pair the lines of two files; when one ends first, count on in the other for the message."""
    counts = [0, 0]
    for pair in zip_longest(read_lines(source), read_lines(target)):
        counts[0] += pair[0] is not None
        counts[1] += pair[1] is not None
        if counts[0] == counts[1]:
            yield pair
    if counts[0] != counts[1]:
        raise InputError(
            "source and target must have as many lines as each other, "
            f"but {source} has {counts[0]} and {target} has {counts[1]}"
        )


def _columns(path: str) -> Iterator[tuple[str, str]]:
    """The pairs of a file with two columns."""
    for number, line in enumerate(read_lines(path), start=1):
        source, *others = line.split("\t")
        if len(others) != 1:
            raise InputError(
                "a line of a TSV file must have a source, a tab and a target, but line "
                f"{number} of {path} has {len(others)} tabs"
            )
        yield source, others[0]


_MAX_WEIGHT = 1000  # times that a file is read for an epoch


def _repeated(files: list[_Files], weights: Sequence[int]) -> list[_Files]:
    """The files to train on, each as often as its weight says."""
    if len(files) == 1:
        raise InputError("corpus_weights needs several files to train on, got one")
    if len(weights) != len(files):
        raise InputError(
            f"corpus_weights must have a weight for each of the {len(files)} files to train on, "
            f"got {len(weights)}"
        )
    if min(weights) < 1:
        raise InputError(f"corpus_weights must be whole numbers of at least 1, got {min(weights)}")
    if max(weights) > _MAX_WEIGHT:
        raise InputError(f"corpus_weights must be at most {_MAX_WEIGHT:,}, got {max(weights)}")
    return [paths for paths, weight in zip(files, weights, strict=True) for _ in range(weight)]


def _files_of(split: str, sources: list[str], targets: list[str], tsv: list[str]) -> list[_Files]:
    """The files of a split, in either form."""
    if not tsv:
        return [*_matched_files(split, sources, targets)]
    if sources or targets:
        raise InputError(f"{split}_tsv must not be given with {split}_source and {split}_target")
    for path in tsv:
        check_file(f"{split}_tsv", path)
    return [(path,) for path in tsv]


def _matched_files(split: str, sources: list[str], targets: list[str]) -> list[tuple[str, str]]:
    if bool(sources) != bool(targets):
        given, missing = ("source", "target") if sources else ("target", "source")
        raise InputError(f"{split}_{given} needs {split}_{missing} as well, which is not given")
    if len(sources) != len(targets):
        raise InputError(
            f"{split}_source and {split}_target must have as many files as each other, "
            f"got {len(sources)} and {len(targets)}"
        )
    for side, paths in (("source", sources), ("target", targets)):
        for path in paths:
            check_file(f"{split}_{side}", path)
    return list(zip(sources, targets, strict=True))


def check_file(argument: str, path: str) -> None:
    """Raise `InputError` unless the path names a file that can be read again and again."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{argument} must name files that exist, got {path}: {reason}") from error
    if not regular:
        kind = "a directory" if os.path.isdir(path) else "a pipe or a device"
        raise InputError(f"{argument} must name regular files, but {path} is {kind}")


def _as_paths(paths: Path | Sequence[Path] | None) -> list[str]:
    if paths is None:
        return []
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    return [os.fspath(path) for path in paths]


def _corpus_name(path: str, language: str) -> str:
    """The file's name without its endings and its language: "data/news.en.gz" is "news"."""
    name = os.path.basename(path)
    while (shorter := _ENDINGS.sub("", name)) != name and shorter:
        name = shorter
    return name.removesuffix(f".{language}") or name
