"""Which pairs make up batch t of epoch e: a pure function of (seed, e, t). NumPy only.

Nothing is shuffled in memory and no state is kept. Keyed pseudo-random permutations answer "which
pair stands at place i" one by one, so resuming at any step costs nothing, workers that share the
seed cannot overlap, and memory does not grow with the corpus.
"""

from collections.abc import Sequence

import numpy as np

from pipelines.errors import InputError

_ROUNDS = 8


class Permutation:
    """A keyed pseudo-random permutation of 0 .. size - 1, evaluated at single places.

    A balanced Feistel cipher over the next power of four, whose results are enciphered again until
    they fall below `size` (cycle walking; Black and Rogaway 2002, "Ciphers with Arbitrary Finite
    Domains"). Fewer than four rounds of walking are expected.

    Args:
        size: how many numbers, at least 1.
        key: non-negative integers; another key gives another permutation.
    """

    def __init__(self, size: int, key: Sequence[int]):
        self.size = size
        self._half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """int `[B]` places below `size` -> int64 `[B]` numbers below `size`."""
        numbers = self._encipher(np.asarray(places, dtype=np.uint64))
        outside = np.flatnonzero(numbers >= self.size)
        while len(outside):
            numbers[outside] = self._encipher(numbers[outside])
            outside = outside[numbers[outside] >= self.size]
        return numbers.astype(np.int64)

    def _encipher(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class EpochPlan:
    """The order of training: full batches of one bucket each, every pair at most once an epoch.

    Within an epoch, one permutation per bucket orders its pairs and another orders the batches of
    all buckets. The pairs that fill no batch are left out; they are others in each epoch. A bucket
    with fewer pairs than a batch gives none.

    Args:
        bucket_counts: pairs in each bucket.
        batch_sizes: pairs in a global batch of each bucket.
        seed: non-negative integer.

    Attributes:
        batches_per_epoch: batches of all buckets together.
        buckets: those that give batches.
        remainder: pairs left out of each epoch.

    Raises:
        InputError: no bucket fills a batch, or the seed is negative.
    """

    def __init__(self, bucket_counts: Sequence[int], batch_sizes: Sequence[int], seed: int):
        if seed < 0:
            raise InputError(f"seed must not be negative, got {seed}")
        self.bucket_counts = [int(count) for count in bucket_counts]
        self.batch_sizes = [int(size) for size in batch_sizes]
        self.seed = int(seed)
        if len(self.bucket_counts) != len(self.batch_sizes):
            raise ValueError(
                f"{len(self.bucket_counts)} buckets, but {len(self.batch_sizes)} batch sizes"
            )
        batches = np.array(self.bucket_counts) // np.array(self.batch_sizes)
        self._last = np.cumsum(batches)
        self.buckets = np.flatnonzero(batches).tolist()
        self.batches_per_epoch = int(batches.sum())
        self.remainder = sum(self.bucket_counts) - int((batches * self.batch_sizes).sum())
        if not self.batches_per_epoch:
            raise InputError(
                "the corpus is too small for the batch: its length buckets hold "
                f"{_listed(self.bucket_counts)} pairs, a batch takes {_listed(self.batch_sizes)}; "
                "lower tokens_per_replica"
            )

    def batch(self, step: int) -> tuple[int, np.ndarray]:
        """The global batch of a step counted from 0.

        Returns:
            `(bucket, numbers)`: int64 `[B]`, which pairs of the bucket, from 0.
        """
        epoch, batch, bucket = self._place(step)
        size = self.batch_sizes[bucket]
        in_bucket = batch - (int(self._last[bucket - 1]) if bucket else 0)
        pairs = Permutation(self.bucket_counts[bucket], (self.seed, epoch, 1 + bucket))
        return bucket, pairs(np.arange(in_bucket * size, (in_bucket + 1) * size))

    def bucket(self, step: int) -> int:
        """That of the global batch of a step counted from 0."""
        return self._place(step)[2]

    def _place(self, step: int) -> tuple[int, int, int]:
        """The epoch of a step, its batch in the order of the buckets, and the bucket of that."""
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        epoch, place = divmod(int(step), self.batches_per_epoch)
        order = Permutation(self.batches_per_epoch, (self.seed, epoch, 0))
        batch = int(order(np.array([place]))[0])
        return epoch, batch, int(np.searchsorted(self._last, batch, side="right"))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
