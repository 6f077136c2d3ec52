"""Writes the tokenized corpus: appends while streaming, sorts by bucket at the end. NumPy only.

Memory does not grow with the corpus: ids and offsets go straight to disk, and the sorting is a
counting sort over memory-mapped offsets, a chunk at a time. Nothing is written through a memory
map, where a full disk would be a signal (SIGBUS) and not an error.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from pipelines.data.buckets import Bucket, choose_buckets
from pipelines.data.dataset import FORMAT, METADATA_FILE
from pipelines.errors import InputError
from pipelines.files.atomic import new_directory
from pipelines.files.checksums import write_checksums
from pipelines.progress import progress

_CHUNK = 1 << 17  # pairs sorted at a time


class TokenizedCorpusWriter:
    """Builds a corpus that appears when it is complete, see `pipelines.files.atomic`.

    Used as a context manager: leaving it completes the corpus, an exception removes what was
    written. A full disk is an `InputError`.

    Pairs are dropped, and counted in `dropped`, when a side is `"empty"` (nothing but its end id)
    or `"too long"` (more than `max_length` ids with the end id).

    Args:
        directory: where the corpus will be; must not exist.
        vocabulary_size: V; ids are stored in 16 bits if they fit.
        max_length: the most ids of a side, its end id included.
        num_shapes: the most length buckets.
        min_tokens: the fewest padded tokens of a side in a bucket, see `choose_buckets`.
        metadata: whatever else `metadata.json` is to hold.

    Attributes:
        pairs: how many have been kept so far.
        dropped: how many have not, by reason.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        vocabulary_size: int,
        max_length: int,
        num_shapes: int,
        min_tokens: int = 0,
        metadata: Mapping | None = None,
    ):
        if max_length < 2:
            raise InputError(f"max_length must be at least 2 (an id and the end), got {max_length}")
        if num_shapes < 1:
            raise InputError(f"num_shapes must be at least 1, got {num_shapes}")
        self.directory = Path(directory)
        if self.directory.exists():
            raise InputError(f"cannot write a tokenized corpus: {self.directory} exists already")
        self.max_length = max_length
        self.pairs = 0
        self.dropped = {"empty": 0, "too long": 0}
        self._num_shapes, self._min_tokens = num_shapes, min_tokens
        self._metadata = {"vocabulary_size": vocabulary_size, **(metadata or {})}
        self._dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32

    def append(
        self,
        source_ids: np.ndarray,
        source_lengths: np.ndarray,
        target_ids: np.ndarray,
        target_lengths: np.ndarray,
    ) -> None:
        """Adds a batch of pairs.

        Args:
            source_ids: int, the ids of all source sides one after the other, end ids included.
            source_lengths: int `[B]`, the ids of each source side.
            target_ids: the same for the target sides.
            target_lengths: int `[B]`.
        """
        shorter = np.minimum(source_lengths, target_lengths)
        longer = np.maximum(source_lengths, target_lengths)
        empty = shorter <= 1
        too_long = ~empty & (longer > self.max_length)
        self.dropped["empty"] += int(empty.sum())
        self.dropped["too long"] += int(too_long.sum())
        keep = ~(empty | too_long)
        self.pairs += int(keep.sum())
        self._sides[0].append(source_ids, source_lengths, keep)
        self._sides[1].append(target_ids, target_lengths, keep)

    def _complete(self) -> None:
        """Chooses the buckets and sorts the pairs.

        Raises:
            InputError: no pair is left.
        """
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
        if not self.pairs:
            raise InputError(f"no training pairs are left to write (dropped: {dropped})")
        for side in self._sides:
            side.complete()
        buckets = self._sort()
        metadata = {
            "format": FORMAT,
            **self._metadata,
            "max_length": self.max_length,
            "pairs": self.pairs,
            "source_tokens": self._sides[0].tokens,
            "target_tokens": self._sides[1].tokens,
            "dropped": self.dropped,
            "buckets": [asdict(bucket) for bucket in buckets],
        }
        text = json.dumps(metadata, indent=1, ensure_ascii=False)
        (self._temporary / METADATA_FILE).write_text(text, encoding="utf-8")
        write_checksums(self._temporary)

    def _sort(self) -> list[Bucket]:
        """Writes `pairs.npy`, a stable counting sort of the pairs by bucket."""
        lengths, counts = self._combinations()
        chosen = choose_buckets(lengths, counts, self._num_shapes, min_tokens=self._min_tokens)
        bucket_of_combination = np.empty(len(counts), dtype=np.int64)
        for bucket, members in enumerate(chosen):
            bucket_of_combination[members] = bucket
        pairs = [int(counts[members].sum()) for members in chosen]
        next_place = np.cumsum(pairs) - pairs
        codes = self._codes(lengths)
        with (self._temporary / "pairs.npy").open("wb") as file:
            _write_header(file, np.int64, self.pairs)
            begin = file.tell()
            for first, chunk in self._lengths():
                bucket_of = bucket_of_combination[np.searchsorted(codes, self._codes(chunk))]
                for bucket in np.unique(bucket_of):
                    numbers = first + np.flatnonzero(bucket_of == bucket)
                    file.seek(begin + numbers.itemsize * int(next_place[bucket]))
                    file.write(numbers.tobytes())
                    next_place[bucket] += len(numbers)
        shapes = [lengths[members].max(axis=0).tolist() for members in chosen]
        tokens = [(counts[members] @ lengths[members]).tolist() for members in chosen]
        rows = zip(shapes, pairs, tokens, strict=True)
        return [Bucket(S, T, count, *both) for (S, T), count, both in rows]

    def _combinations(self) -> tuple[np.ndarray, np.ndarray]:
        """`(lengths, counts)`, int64 `[C, 2]` and `[C]`: the combinations of lengths that occur, in
        the order of their codes, and how many pairs have each.
        """
        codes, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        for _, chunk in self._lengths():
            more, of_more = np.unique(self._codes(chunk), return_counts=True)
            codes, place = np.unique(np.concatenate([codes, more]), return_inverse=True)
            both = np.concatenate([counts, of_more])
            counts = np.zeros(len(codes), dtype=np.int64)
            np.add.at(counts, place, both)
        return np.stack(np.divmod(codes, self.max_length + 1), axis=1), counts

    def _codes(self, lengths: np.ndarray) -> np.ndarray:
        """int `[pairs, 2]` lengths of both sides -> int64 `[pairs]`, one number for both."""
        return lengths[:, 0] * (self.max_length + 1) + lengths[:, 1]

    def _lengths(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (number of the first pair, int `[chunk, 2]` lengths of both sides)."""
        offsets = [
            np.load(self._temporary / f"{side.name}_offsets.npy", mmap_mode="r")
            for side in self._sides
        ]
        for first in range(0, self.pairs, _CHUNK):
            chunk = slice(first, min(first + _CHUNK, self.pairs) + 1)
            yield first, np.stack([np.diff(side[chunk]) for side in offsets], axis=1)

    def __enter__(self) -> "TokenizedCorpusWriter":
        with contextlib.ExitStack() as stack:
            self._temporary = stack.enter_context(new_directory(self.directory))
            self._sides = [
                _Side(self._temporary, side, self._dtype) for side in ("source", "target")
            ]
            for side in self._sides:
                stack.callback(side.abandon)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: Any) -> bool | None:
        if error_type is not None:
            return self._stack.__exit__(error_type, *error)
        with progress("sorting the pairs"), self._stack:
            self._complete()
        return False


class _Side:
    """The ids and offsets of one side, growing on disk."""

    def __init__(self, directory: Path, name: str, dtype: type):
        self.name = name
        self.tokens = 0
        self._ids = _GrowingArray(directory / f"{name}_ids.npy", dtype)
        self._offsets = _GrowingArray(directory / f"{name}_offsets.npy", np.int64)
        self._offsets.append(np.zeros(1))

    def append(self, ids: np.ndarray, lengths: np.ndarray, keep: np.ndarray) -> None:
        self._ids.append(ids[np.repeat(keep, lengths)])
        ends = self.tokens + np.cumsum(lengths[keep], dtype=np.int64)
        self._offsets.append(ends)
        self.tokens = int(ends[-1]) if len(ends) else self.tokens

    def complete(self) -> None:
        self._ids.complete()
        self._offsets.complete()

    def abandon(self) -> None:
        self._ids.abandon()
        self._offsets.abandon()


class _GrowingArray:
    """A one-dimensional `.npy` file of unknown final size.

    NumPy leaves room in the header for the size to grow, so the header is written again in place.
    """

    def __init__(self, path: Path, dtype: type):
        self._dtype = np.dtype(dtype)
        self._file = open(path, "wb")  # noqa: SIM115 (closed by `complete` or `abandon`)
        self._size = 0
        _write_header(self._file, self._dtype, self._size)

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).tobytes())
        self._size += len(values)

    def complete(self) -> None:
        self._file.seek(0)
        _write_header(self._file, self._dtype, self._size)
        self._file.close()

    def abandon(self) -> None:
        """Closes the file, if it is open; what a full disk has refused is refused once more."""
        with contextlib.suppress(OSError):
            self._file.close()


def _write_header(file: BinaryIO, dtype: DTypeLike, size: int) -> None:
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, header)
