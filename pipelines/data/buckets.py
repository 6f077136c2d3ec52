"""Length buckets: a few fixed shapes for batches, chosen from the corpus's own lengths.

Every new shape costs a compilation, and every padded position costs time. So the corpus is cut into
a given number of buckets, by the longer side of a pair, such that padding is least. NumPy only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.errors import InputError


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
    def padding_share(self) -> float:
        """The part of both padded sides that is padding, from 0 to 1."""
        padded = self.pairs * (self.source_length + self.target_length)
        return 1.0 - (self.source_tokens + self.target_tokens) / padded


def choose_boundaries(
    lengths_histogram: np.ndarray, num_shapes: int, *, min_tokens: int = 0
) -> list[int]:
    """Cuts lengths into at most `num_shapes` ranges with the fewest padded tokens, exactly.

    Dynamic programming over the lengths that occur, `O(L^2 * num_shapes)`.

    Args:
        lengths_histogram: int `[L + 1]`, how many pairs have length 0, 1, ... L.
        num_shapes: the most ranges to make, at least 1.
        min_tokens: a range holds at least so many padded tokens (pairs times its boundary), so that
            rare long pairs come in a bucket that can fill a batch. One range over everything is
            always allowed.

    Returns:
        The longest length of each range, ascending: range `k` is `(boundary[k-1], boundary[k]]`.
        The last one is the longest length that occurs.
    """
    if num_shapes < 1:
        raise InputError(f"num_shapes must be at least 1, got {num_shapes}")
    histogram = np.asarray(lengths_histogram, dtype=np.float64)
    lengths = np.flatnonzero(histogram)
    if not len(lengths):
        raise InputError("cannot choose length buckets for a corpus without pairs")

    # cost[i, j]: padded tokens when the occurring lengths i .. j-1 form one range.
    before = np.concatenate([[0.0], np.cumsum(histogram[lengths])])
    ends = np.concatenate([[0.0], lengths])
    cost = (before[None, :] - before[:, None]) * ends[None, :]
    forbidden = np.tri(len(ends), dtype=bool) | (cost < min_tokens)
    forbidden[0, -1] = False
    cost[forbidden] = np.inf

    best, cuts = cost[0], []
    totals = [best[-1]]
    for _ in range(1, min(num_shapes, len(lengths))):
        through = best[:, None] + cost
        cuts.append(np.argmin(through, axis=0))
        best = np.min(through, axis=0)
        totals.append(best[-1])

    # Fewer ranges when more of them would not save a token.
    end, boundaries = len(lengths), []
    for choice in reversed(cuts[: int(np.argmin(totals))]):
        boundaries.append(int(ends[end]))
        end = choice[end]
    boundaries.append(int(ends[end]))
    return boundaries[::-1]


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
        longest = max(bucket.source_length, bucket.target_length)
        pairs = tokens_per_replica * replicas // longest
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
        Lines: shape, pairs, batch size, batches an epoch, remainder and padding share of each
        bucket, their totals, and what was dropped and why.
    """
    header = ("bucket", "S x T", "pairs", "batch", "batches", "remainder", "padding")
    rows: list[tuple[str, ...]] = [header]
    for number, (bucket, size) in enumerate(zip(buckets, sizes, strict=True)):
        shape = f"{bucket.source_length} x {bucket.target_length}"
        batches, remainder = divmod(bucket.pairs, size)
        counts = (bucket.pairs, size, batches, remainder)
        rows.append((str(number), shape, *(f"{count:,}" for count in counts), _percent(bucket)))

    pairs = sum(bucket.pairs for bucket in buckets)
    batches = sum(bucket.pairs // size for bucket, size in zip(buckets, sizes, strict=True))
    remainder = sum(bucket.pairs % size for bucket, size in zip(buckets, sizes, strict=True))
    padding = f"{100 * total_padding_share(buckets):.1f}%"
    rows.append(("total", "", f"{pairs:,}", "", f"{batches:,}", f"{remainder:,}", padding))

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in (dropped or {}).items())
    if reasons:
        lines.append(f"dropped while preparing: {reasons}")
    lines.append(f"left out of each epoch: {remainder:,} of {pairs:,} pairs")
    return "\n".join(lines)


def total_padding_share(buckets: Sequence[Bucket]) -> float:
    """The part of all padded sides that is padding, from 0 to 1."""
    padded = sum(bucket.pairs * (bucket.source_length + bucket.target_length) for bucket in buckets)
    tokens = sum(bucket.source_tokens + bucket.target_tokens for bucket in buckets)
    return 1.0 - tokens / padded


def _percent(bucket: Bucket) -> str:
    return f"{100 * bucket.padding_share:.1f}%"
