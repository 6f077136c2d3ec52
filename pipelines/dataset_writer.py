"""Writes the tokenized corpus: appends while streaming, sorts by bucket at the end. NumPy only.

Memory does not grow with the corpus: ids and offsets go straight to disk, and the sorting is a
counting sort over memory-mapped offsets, a chunk at a time.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from pipelines.buckets import Bucket, choose_boundaries
from pipelines.dataset import FORMAT, METADATA_FILE
from pipelines.errors import InputError

_CHUNK = 1 << 17  # pairs sorted at a time


class TokenizedCorpusWriter:
    """Builds a corpus in `<directory>.incomplete-<process>` and renames it when it is complete.

    Used as a context manager: leaving it completes the corpus, an exception removes what was
    written. A crash leaves a directory whose name says that it is incomplete.

    Pairs are dropped, and counted in `dropped`, when a side is `"empty"` (nothing but its end id)
    or `"too long"` (more than `max_length` ids with the end id).

    Args:
        directory: where the corpus will be; must not exist.
        vocabulary_size: V; ids are stored in 16 bits if they fit.
        max_length: the most ids of a side, its end id included.
        num_shapes: the most length buckets.
        min_tokens: the fewest padded tokens of a side in a bucket, see `choose_boundaries`.
        metadata: whatever else `metadata.json` is to hold.
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
        self.dropped = {"empty": 0, "too long": 0}
        self._num_shapes, self._min_tokens = num_shapes, min_tokens
        self._metadata = {"vocabulary_size": vocabulary_size, **(metadata or {})}
        self._histogram = np.zeros(max_length + 1, dtype=np.int64)

        self._temporary = self.directory.with_name(
            f"{self.directory.name}.incomplete-{os.getpid()}"
        )
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(parents=True)
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        self._sides = [_Side(self._temporary, side, dtype) for side in ("source", "target")]

    @property
    def pairs(self) -> int:
        """How many pairs have been kept so far."""
        return int(self._histogram.sum())

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
        self._histogram += np.bincount(longer[keep], minlength=self.max_length + 1)
        self._sides[0].append(source_ids, source_lengths, keep)
        self._sides[1].append(target_ids, target_lengths, keep)

    def close(self) -> None:
        """Chooses the buckets, sorts the pairs and makes the corpus appear under its name.

        Raises:
            InputError: no pair is left.
        """
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
        if not self.pairs:
            raise InputError(f"no training pairs are left to write (dropped: {dropped})")
        for side in self._sides:
            side.close()
        boundaries = choose_boundaries(
            self._histogram, self._num_shapes, min_tokens=self._min_tokens
        )
        buckets = self._sort(np.asarray(boundaries))
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
        self._temporary.rename(self.directory)

    def _sort(self, boundaries: np.ndarray) -> list[Bucket]:
        """Writes `pairs.npy`, a stable counting sort of the pairs by bucket."""
        counts = np.diff(np.cumsum(self._histogram)[boundaries], prepend=0)
        next_place = np.cumsum(counts) - counts
        longest = np.zeros((len(counts), 2), dtype=np.int64)
        tokens = np.zeros((len(counts), 2), dtype=np.int64)
        pairs = np.lib.format.open_memmap(
            self._temporary / "pairs.npy", mode="w+", dtype=np.int64, shape=(self.pairs,)
        )
        for first, lengths in self._lengths():
            bucket_of = np.searchsorted(boundaries, lengths.max(axis=1))
            for bucket in range(len(counts)):
                members = np.flatnonzero(bucket_of == bucket)
                if not len(members):
                    continue
                place = next_place[bucket]
                pairs[place : place + len(members)] = first + members
                next_place[bucket] += len(members)
                longest[bucket] = np.maximum(longest[bucket], lengths[members].max(axis=0))
                tokens[bucket] += lengths[members].sum(axis=0)
        pairs.flush()
        rows = zip(longest.tolist(), counts.tolist(), tokens.tolist(), strict=True)
        return [Bucket(*shape, count, *both) for shape, count, both in rows]

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
        return self

    def __exit__(self, error_type: type | None, *_) -> None:
        try:
            if error_type is None:
                self.close()
        finally:
            for side in self._sides:
                side.close()
            shutil.rmtree(self._temporary, ignore_errors=True)


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

    def close(self) -> None:
        self._ids.close()
        self._offsets.close()


class _GrowingArray:
    """A one-dimensional `.npy` file of unknown final size.

    NumPy leaves room in the header for the size to grow, so the header is written again in place.
    """

    def __init__(self, path: Path, dtype: type):
        self._dtype = np.dtype(dtype)
        self._file = open(path, "wb")  # noqa: SIM115 (closed by `close`)
        self._size = 0
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).tobytes())
        self._size += len(values)

    def close(self) -> None:
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def _write_header(self) -> None:
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self._size,)}
        np.lib.format.write_array_header_1_0(self._file, header)
