"""The tokenized corpus on disk: flat arrays that are memory-mapped, never loaded whole. NumPy only.

    train/
      source_ids.npy      ids of all source sides, one after the other; uint16 where they fit
      source_offsets.npy  int64 [pairs + 1], where the side of each pair begins and ends
      target_ids.npy      the same for the target sides
      target_offsets.npy
      pairs.npy           int64 [pairs], pair numbers sorted by bucket
      metadata.json       counts, buckets, tokenizer, settings
      SHA256SUMS          see `pipelines.files.checksums`

`pipelines.data.dataset_writer` makes such a directory.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from pipelines.data.buckets import Bucket, join_small
from pipelines.errors import InputError, first_line
from pipelines.files.checksums import verify
from tf_relpos.config import TransformerConfig

# What the arrays, SentencePiece and the model agree on.
PAD_ID, UNKNOWN_ID = TransformerConfig.pad_id, TransformerConfig.unknown_id
START_ID, END_ID = TransformerConfig.start_id, TransformerConfig.end_id

FORMAT = 1
METADATA_FILE = "metadata.json"
ARRAYS = ("source_ids", "source_offsets", "target_ids", "target_offsets", "pairs")


class TokenizedCorpus:
    """Pairs of id sequences, sorted into length buckets.

    Attributes:
        directory: where the arrays lie.
        metadata: what `metadata.json` holds.
        buckets: list of `Bucket`, shortest first.
        pairs_per_bucket: list of int, the pairs in each bucket.
    """

    def __init__(self, directory: Path, metadata: Mapping, arrays: Mapping[str, np.ndarray]):
        self.directory = directory
        self.metadata = metadata
        self.buckets = [Bucket(**fields) for fields in metadata["buckets"]]
        self.pairs_per_bucket = [bucket.pairs for bucket in self.buckets]
        self._first = np.concatenate([[0], np.cumsum(self.pairs_per_bucket)])
        self._arrays = arrays

    @classmethod
    def open(cls, directory: str | Path) -> "TokenizedCorpus":
        """Maps a corpus that `TokenizedCorpusWriter` completed.

        Raises:
            InputError: the directory is missing, incomplete, damaged or of another format.
        """
        directory = Path(directory)
        try:
            metadata = json.loads((directory / METADATA_FILE).read_text(encoding="utf-8"))
            if metadata["format"] != FORMAT:
                raise ValueError(f"format {metadata['format']}, expected {FORMAT}")
            arrays = {
                name: np.lib.format.open_memmap(directory / f"{name}.npy", mode="r")
                for name in ARRAYS
            }
            _check_sizes(metadata, arrays)
            return cls(directory, metadata, arrays)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"no tokenized corpus can be read from {directory}: {first_line(error)}"
            ) from error

    def with_buckets_of(self, min_tokens: int) -> "TokenizedCorpus":
        """The same pairs in fewer buckets, see `join_small`."""
        buckets = [asdict(bucket) for bucket in join_small(self.buckets, min_tokens)]
        return TokenizedCorpus(self.directory, {**self.metadata, "buckets": buckets}, self._arrays)

    def __len__(self) -> int:
        return int(self._first[-1])

    def verify(self) -> None:
        """Compares the files with their checksums; it takes a second for each gigabyte or so.

        Raises:
            Damaged: one is not what was written.
        """
        verify(self.directory, METADATA_FILE, *(f"{name}.npy" for name in ARRAYS))

    def gather(self, bucket: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads pairs of one bucket, padded to its shape.

        Args:
            bucket: which bucket.
            numbers: int `[B]`, which of its pairs, from 0 to `pairs_per_bucket[bucket] - 1`.

        Returns:
            `(source_ids, labels)`, int32 `[B, S]` and `[B, T]`: each side with its end id, then 0.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        count = self.pairs_per_bucket[bucket]
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
            raise IndexError(f"numbers must be from 0 to {count - 1} in bucket {bucket}")
        pairs = self._arrays["pairs"][self._first[bucket] + numbers]
        shape = self.buckets[bucket]
        return (
            self._side("source", pairs, shape.source_length),
            self._side("target", pairs, shape.target_length),
        )

    def _side(self, side: str, pairs: np.ndarray, length: int) -> np.ndarray:
        """`[B]` pair numbers -> int32 `[B, length]` ids of one side, padded."""
        offsets = self._arrays[f"{side}_offsets"]
        begin = offsets[pairs][:, None]
        end = offsets[pairs + 1][:, None]
        position = begin + np.arange(length)
        inside = position < end
        ids = self._arrays[f"{side}_ids"][np.where(inside, position, begin)]
        return np.where(inside, ids, PAD_ID).astype(np.int32)


def shift_right(labels: np.ndarray) -> np.ndarray:
    """int `[B, T]` labels -> `[B, T]`, the decoder's input: the start id, then all but the last."""
    return np.concatenate([np.full_like(labels[:, :1], START_ID), labels[:, :-1]], axis=1)


def _check_sizes(metadata: Mapping, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError unless the arrays have the sizes that the metadata states."""
    pairs = metadata["pairs"]
    sizes = {"pairs": pairs, "source_offsets": pairs + 1, "target_offsets": pairs + 1}
    sizes |= {f"{side}_ids": metadata[f"{side}_tokens"] for side in ("source", "target")}
    for name, size in sizes.items():
        if arrays[name].shape != (size,):
            raise ValueError(f"{name}.npy has shape {arrays[name].shape}, expected ({size},)")
    if sum(bucket["pairs"] for bucket in metadata["buckets"]) != pairs:
        raise ValueError(f"the buckets do not hold the {pairs} pairs")
