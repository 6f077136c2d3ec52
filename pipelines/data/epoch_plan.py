"""Which pairs make up batch t: a pure function of (seed, t). NumPy only.

Nothing is shuffled in memory and no state is kept. Keyed pseudo-random permutations answer "which
pair stands at place i" one by one, so resuming at any step costs nothing, workers that share the
seed cannot overlap, and memory does not grow with the corpus.
"""

import bisect
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
    """The order of training: full batches of one bucket each, every pair once a pass.

    The pairs of a bucket come pass after pass, each in the order of a permutation of its own, and
    batches are cut from that without end. Epoch e has those that are full after e + 1 passes and
    were not after e; another permutation orders the batches of all buckets in it. So no pair is
    left out: those that fill no batch come in one of the next epoch.

    Args:
        bucket_counts: pairs in each bucket.
        batch_sizes: pairs in a global batch of each bucket.
        seed: non-negative integer.

    Attributes:
        batches_per_epoch: of all buckets together, on average.
        buckets: those that hold any pairs.

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
        self.buckets = [bucket for bucket, count in enumerate(self.bucket_counts) if count]
        self._counts, self._sizes = np.array(self.bucket_counts), np.array(self.batch_sizes)
        self.batches_per_epoch = float((self._counts / self._sizes).sum())
        if not self._batches_before(1).any():
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
        bucket, batch = self._place(step)
        count, size = self.bucket_counts[bucket], self.batch_sizes[bucket]
        passes, places = np.divmod(np.arange(batch * size, (batch + 1) * size), count)
        numbers = [
            Permutation(count, (self.seed, number, 1 + bucket))(places[passes == number])
            for number in np.unique(passes).tolist()
        ]
        return bucket, np.concatenate(numbers)

    def bucket(self, step: int) -> int:
        """That of the global batch of a step counted from 0."""
        return self._place(step)[0]

    def epoch(self, step: int) -> int:
        """That of a step, both counted from 0."""
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        # Of each bucket less than a batch is missing to its mean.
        latest = int((step + len(self._counts)) / self.batches_per_epoch) + 1

        def first_step(epoch: int) -> int:
            return int(self._batches_before(epoch).sum())

        return bisect.bisect_right(range(latest + 1), int(step), key=first_step) - 1

    def _batches_before(self, epoch: int) -> np.ndarray:
        """int64 `[buckets]`: how many batches of each come before an epoch."""
        return epoch * self._counts // self._sizes

    def _place(self, step: int) -> tuple[int, int]:
        """The bucket of a step, and which of all batches of that bucket it takes."""
        epoch = self.epoch(step)
        before, after = self._batches_before(epoch), self._batches_before(epoch + 1)
        last = np.cumsum(after - before)
        order = Permutation(int(last[-1]), (self.seed, epoch, 0))
        batch = int(order(np.array([int(step) - int(before.sum())]))[0])
        bucket = int(np.searchsorted(last, batch, side="right"))
        return bucket, int(after[bucket] - last[bucket]) + batch


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
