"""Length buckets: a few fixed shapes for batches, chosen from the corpus's own lengths.

Every new shape costs a compilation, and every padded position costs time. So the corpus is cut into
a given number of buckets, by the lengths of both sides, such that little is padding. NumPy only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.errors import InputError

# What a bucket holds at least, or its pairs would always come together.
BATCHES_PER_BUCKET = 2


@dataclass(frozen=True)
class Bucket:
    """Pairs that are padded to one shape.

    Attributes:
        source_length: S, ids of the longest source side, its end id included.
        target_length: T, ids of the longest target side, its end id included.
        pairs: how many pairs the bucket holds.
        source_tokens: ids of all its source sides together, without padding.
        target_tokens: ids of all its target sides together, without padding.
    """

    source_length: int
    target_length: int
    pairs: int
    source_tokens: int
    target_tokens: int

    @property
    def longest(self) -> int:
        """Ids of the longer side."""
        return max(self.source_length, self.target_length)

    @property
    def padding_share(self) -> float:
        """The part of both padded sides that is padding, from 0 to 1."""
        padded = self.pairs * (self.source_length + self.target_length)
        return 1.0 - (self.source_tokens + self.target_tokens) / padded


def choose_buckets(
    lengths: np.ndarray, counts: np.ndarray, num_shapes: int, *, min_tokens: int = 0
) -> list[np.ndarray]:
    """Parts pairs by the lengths of their sides, so that little of the padded shapes is padding.

    Best first: of all cuts of all buckets, by the longer side, the source or the target, the one
    that saves the most padded tokens is made, until there are enough buckets or none saves any.

    Args:
        lengths: int `[C, 2]`, the lengths of both sides that occur, each combination once.
        counts: int `[C]`, how many pairs have them.
        num_shapes: the most buckets to make, at least 1.
        min_tokens: a bucket holds at least so many padded tokens of its longer side, so that rare
            long pairs come in one that can fill a batch. A single bucket is always allowed.

    Returns:
        Which of the combinations are in each bucket, those of the shortest pairs first.
    """
    if num_shapes < 1:
        raise InputError(f"num_shapes must be at least 1, got {num_shapes}")
    if not len(counts):
        raise InputError("cannot choose length buckets for a corpus without pairs")

    def cut(bucket: np.ndarray) -> tuple[int, list[np.ndarray]]:
        saved, parts = _best_cut(lengths[bucket], counts[bucket], min_tokens)
        return saved, [bucket[part] for part in parts]

    buckets = [np.arange(len(counts))]
    cuts = [cut(buckets[0])]
    while len(buckets) < num_shapes:
        best = max(range(len(cuts)), key=lambda number: cuts[number][0])
        saved, parts = cuts[best]
        if not saved:
            break
        buckets[best : best + 1] = parts
        cuts[best : best + 1] = map(cut, parts)
    return sorted(buckets, key=lambda bucket: _by_size(lengths[bucket].max(axis=0)))


def _by_size(shape: np.ndarray) -> tuple[int, int, int]:
    """A key to sort shapes by: the longer side, both together, the source."""
    source, target = shape.tolist()
    return max(source, target), source + target, source


def _best_cut(
    lengths: np.ndarray, counts: np.ndarray, min_tokens: int
) -> tuple[int, list[np.ndarray]]:
    """Where to cut a bucket in two.

    Returns:
        `(saved, parts)`: how many padded tokens that saves, 0 if it cannot be cut, and which of its
        combinations of lengths are in each part.
    """
    pairs = counts.sum()
    padded = pairs * lengths.max(axis=0).sum()
    best: tuple[int, list[np.ndarray]] = 0, []
    for side in (lengths.max(axis=1), *lengths.T):
        order = np.argsort(side, kind="stable")
        pairs_before = np.cumsum(counts[order])[:-1]
        before = np.maximum.accumulate(lengths[order])[:-1]
        after = np.maximum.accumulate(lengths[order[::-1]])[-2::-1]
        parts = [(pairs_before, before), (pairs - pairs_before, after)]
        saved = padded - sum(count * shape.sum(axis=1) for count, shape in parts)
        for count, shape in parts:
            saved = np.where(count * shape.max(axis=1) < min_tokens, 0, saved)
        if len(saved) and saved.max() > best[0]:
            best = int(saved.max()), np.split(order, [int(saved.argmax()) + 1])
    return best


def join_small(buckets: Sequence[Bucket], min_tokens: int) -> list[Bucket]:
    """Joins buckets with the next ones until each holds enough, for a batch that holds more than
    those that they were chosen for.

    Args:
        buckets: in the order of their pairs.
        min_tokens: padded tokens of its longer side that a bucket holds at least, unless it is the
            only one that is left.
    """
    joined: list[Bucket] = []
    for bucket in buckets:
        if joined and _holds_less(joined[-1], min_tokens):
            bucket = _join(joined.pop(), bucket)
        joined.append(bucket)
    if len(joined) > 1 and _holds_less(joined[-1], min_tokens):
        joined[-2:] = [_join(*joined[-2:])]
    return joined


def _holds_less(bucket: Bucket, tokens: int) -> bool:
    return bucket.pairs * bucket.longest < tokens


def _join(one: Bucket, other: Bucket) -> Bucket:
    return Bucket(
        max(one.source_length, other.source_length),
        max(one.target_length, other.target_length),
        one.pairs + other.pairs,
        one.source_tokens + other.source_tokens,
        one.target_tokens + other.target_tokens,
    )


def batch_sizes(buckets: Sequence[Bucket], tokens_per_replica: int, replicas: int) -> list[int]:
    """Pairs in a global batch of each bucket: about `tokens_per_replica * replicas` ids a side.

    A batch divides into equal parts for the replicas, by preference of whole eights. The sizes
    depend on the product of tokens and replicas only, as long as `replicas` divides eight: one
    replica with 4,096 tokens and two with 2,048 see the same global batches.
    """
    if tokens_per_replica < 1:
        raise InputError(f"tokens_per_replica must be at least 1, got {tokens_per_replica}")
    if replicas < 1:
        raise InputError(f"replicas must be at least 1, got {replicas}")
    sizes = []
    for bucket in buckets:
        pairs = tokens_per_replica * replicas // bucket.longest
        multiple = math.lcm(8, replicas)
        if pairs < multiple:
            multiple = replicas
        sizes.append(max(pairs - pairs % multiple, replicas))
    return sizes


def bucket_report(
    buckets: Sequence[Bucket], sizes: Sequence[int], dropped: Mapping[str, int] | None = None
) -> str:
    """A table of the buckets for people.

    Args:
        buckets: the buckets of a corpus.
        sizes: pairs in a global batch of each bucket.
        dropped: pairs left out of the corpus, by reason.

    Returns:
        Lines: shape, pairs, batch size, batches an epoch on average and padding share of each
        bucket, their totals, and what was dropped and why.
    """
    header = ("bucket", "S x T", "pairs", "batch", "batches", "padding")
    rows: list[tuple[str, ...]] = [header]
    for number, (bucket, size) in enumerate(zip(buckets, sizes, strict=True)):
        shape = f"{bucket.source_length} x {bucket.target_length}"
        counts = (f"{bucket.pairs:,}", f"{size:,}", f"{bucket.pairs / size:,.1f}")
        rows.append((str(number), shape, *counts, f"{100 * bucket.padding_share:.1f}%"))

    pairs = sum(bucket.pairs for bucket in buckets)
    batches = sum(bucket.pairs / size for bucket, size in zip(buckets, sizes, strict=True))
    padding = f"{100 * total_padding_share(buckets):.1f}%"
    rows.append(("total", "", f"{pairs:,}", "", f"{batches:,.1f}", padding))

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in (dropped or {}).items())
    if reasons:
        lines.append(f"dropped while preparing: {reasons}")
    return "\n".join(lines)


def total_padding_share(buckets: Sequence[Bucket]) -> float:
    """The part of all padded sides that is padding, from 0 to 1."""
    padded = sum(bucket.pairs * (bucket.source_length + bucket.target_length) for bucket in buckets)
    tokens = sum(bucket.source_tokens + bucket.target_tokens for bucket in buckets)
    return 1.0 - tokens / padded
