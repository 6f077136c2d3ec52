"""The choice of length buckets, told in numbers that people can check."""

import numpy as np
import pytest

from pipelines.data.buckets import (
    Bucket,
    batch_sizes,
    bucket_report,
    choose_buckets,
    join_small,
    total_padding_share,
)
from pipelines.errors import InputError


def cells(histogram):
    """How many pairs have each length of source and target, as `choose_buckets` takes it."""
    lengths = np.argwhere(histogram)
    return lengths, np.asarray(histogram)[tuple(lengths.T)]


def of_equal_sides(histogram):
    return cells(np.diag(histogram))


def shapes(lengths, chosen):
    return [tuple(lengths[bucket].max(axis=0).tolist()) for bucket in chosen]


def padded_tokens(lengths, counts, chosen):
    return sum(counts[bucket].sum() * lengths[bucket].max(axis=0).sum() for bucket in chosen)


def random_cells(rng, size=9):
    histogram = rng.integers(0, 9, size=(size, size)) * rng.integers(0, 2, size=(size, size))
    histogram[rng.integers(2, size), rng.integers(2, size)] += 1
    return cells(histogram)


def best_cut_tokens(lengths, counts, min_tokens):
    """The fewest padded tokens of a bucket and of what one cut makes of it, trying each limit."""
    longer = lengths.max(axis=1)
    fewest = counts.sum() * lengths.max(axis=0).sum()
    for side in (longer, *lengths.T):
        for limit in np.unique(side)[:-1]:
            parts = [np.flatnonzero(side <= limit), np.flatnonzero(side > limit)]
            if all(counts[part].sum() * longer[part].max() >= min_tokens for part in parts):
                fewest = min(fewest, padded_tokens(lengths, counts, parts))
    return fewest


@pytest.mark.parametrize("num_shapes", [1, 2, 3, 5, 200])
@pytest.mark.parametrize("min_tokens", [0, 60])
def test_buckets_part_the_pairs_and_hold_enough(rng, num_shapes, min_tokens):
    for _ in range(10):
        lengths, counts = random_cells(rng)
        chosen = choose_buckets(lengths, counts, num_shapes, min_tokens=min_tokens)
        assert sorted(np.concatenate(chosen).tolist()) == list(range(len(counts)))
        assert 1 <= len(chosen) <= num_shapes
        found = shapes(lengths, chosen)
        assert len(set(found)) == len(found)  # each shape is compiled once
        assert found == sorted(found, key=lambda shape: (max(shape), sum(shape), shape))
        held = [counts[bucket].sum() * lengths[bucket].max() for bucket in chosen]
        assert len(chosen) == 1 or min(held) >= min_tokens


@pytest.mark.parametrize("min_tokens", [0, 60])
def test_each_cut_is_as_good_as_any_by_a_length(rng, min_tokens):
    """The first by trying all. Each of the others is of the best bucket to cut."""
    for _ in range(10):
        lengths, counts = random_cells(rng)
        padded = [
            padded_tokens(
                lengths, counts, choose_buckets(lengths, counts, n, min_tokens=min_tokens)
            )
            for n in range(1, 12)
        ]
        assert padded[1] <= best_cut_tokens(lengths, counts, min_tokens)
        chosen = choose_buckets(lengths, counts, 11, min_tokens=min_tokens)
        possible = [
            padded_tokens(lengths, counts, [bucket])
            - best_cut_tokens(lengths[bucket], counts[bucket], min_tokens)
            for bucket in chosen
        ]
        assert (np.diff(padded) <= 0).all()
        assert padded[-2] - padded[-1] >= (max(possible) if len(chosen) == 11 else 0)


def test_enough_shapes_leave_no_padding(rng):
    lengths, counts = random_cells(rng)
    chosen = choose_buckets(lengths, counts, 200)
    assert len(chosen) == len(counts)
    assert padded_tokens(lengths, counts, chosen) == counts @ lengths.sum(axis=1)


def test_hand_checked_choices():
    histogram = np.zeros(101, dtype=int)
    histogram[[10, 11, 30, 100]] = 50, 50, 20, 1
    lengths, counts = of_equal_sides(histogram)

    def longest(num_shapes, **options):
        found = shapes(lengths, choose_buckets(lengths, counts, num_shapes, **options))
        assert all(source == target for source, target in found)
        return [source for source, _ in found]

    assert longest(1) == [100]
    assert longest(2) == [11, 100]
    assert longest(3) == [11, 30, 100]
    assert longest(9) == [10, 11, 30, 100]


def test_pairs_with_one_long_side_are_apart():
    """Forty pairs of 10 and 10, and of 10 and 20 in either order: the long sides are apart."""
    histogram = np.zeros((21, 21), dtype=int)
    histogram[10, 10] = histogram[10, 20] = histogram[20, 10] = 40
    lengths, counts = cells(histogram)
    assert shapes(lengths, choose_buckets(lengths, counts, 3)) == [(10, 10), (10, 20), (20, 10)]


def test_rare_long_pairs_join_a_bucket_that_fills_a_batch():
    histogram = np.zeros(101, dtype=int)
    histogram[[10, 30, 100]] = 50, 20, 1
    lengths, counts = of_equal_sides(histogram)
    chosen = choose_buckets(lengths, counts, 3, min_tokens=400)
    assert shapes(lengths, chosen) == [(10, 10), (100, 100)]
    assert len(choose_buckets(lengths, counts, 3, min_tokens=10**9)) == 1


@pytest.mark.parametrize(
    "histogram, num_shapes, message",
    [
        ([0, 0, 0], 2, "for a corpus without pairs"),
        ([0, 1], 0, "^num_shapes must be at least 1, got 0$"),
        ([], 1, "for a corpus without pairs"),
    ],
)
def test_impossible_choices_are_refused(histogram, num_shapes, message):
    with pytest.raises(InputError, match=message):
        choose_buckets(*of_equal_sides(histogram), num_shapes)


@pytest.mark.parametrize(
    "min_tokens, expected",
    [
        (0, [(7, 5, 100), (6, 8, 9), (30, 31, 11), (40, 9, 2)]),
        (80, [(7, 5, 100), (30, 31, 20), (40, 9, 2)]),
        (81, [(7, 5, 100), (40, 31, 22)]),
        (10**9, [(40, 31, 122)]),
    ],
)
def test_small_buckets_are_joined_with_the_next(min_tokens, expected):
    """What the last one lacks, the one before it has."""
    several = [Bucket(*shape, pairs, pairs, 2 * pairs) for *shape, pairs in (
        (7, 5, 100), (6, 8, 9), (30, 31, 11), (40, 9, 2)
    )]  # fmt: skip
    found = join_small(several, min_tokens)
    assert [(b.source_length, b.target_length, b.pairs) for b in found] == expected
    assert all(b.target_tokens == 2 * b.source_tokens == 2 * b.pairs for b in found)


def buckets():
    return [Bucket(7, 5, 100, 600, 400), Bucket(30, 31, 11, 200, 250)]


def test_batches_hold_about_the_tokens_asked_for():
    assert batch_sizes(buckets(), 4096, 1) == [584, 128]
    assert batch_sizes(buckets(), 100, 1) == [8, 3]
    assert batch_sizes(buckets(), 1, 1) == [1, 1]


@pytest.mark.parametrize("tokens", [16, 64, 1024, 4096])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8])
def test_batches_divide_among_replicas(tokens, replicas):
    sizes = batch_sizes(buckets(), tokens, replicas)
    assert all(size > 0 and size % replicas == 0 for size in sizes)


def test_two_replicas_with_half_the_tokens_see_the_same_global_batches():
    for tokens in (128, 250, 1000, 4096):
        assert batch_sizes(buckets(), tokens, 1) == batch_sizes(buckets(), tokens // 2, 2)


@pytest.mark.parametrize("tokens, replicas", [(0, 1), (-5, 1), (100, 0)])
def test_impossible_batches_are_refused(tokens, replicas):
    with pytest.raises(InputError, match="at least 1, got"):
        batch_sizes(buckets(), tokens, replicas)


def test_report_tells_shapes_padding_and_what_is_dropped():
    report = bucket_report(buckets(), [16, 8], {"empty": 3, "too long": 2})
    lines = [line.split() for line in report.splitlines()]
    assert lines[1] == ["0", "7", "x", "5", "100", "16", "6.2", "16.7%"]
    assert lines[2] == ["1", "30", "x", "31", "11", "8", "1.4", "32.9%"]
    assert lines[3] == ["total", "111", "7.6", "22.5%"]
    assert "3 empty, 2 too long" in report
    assert total_padding_share(buckets()) == pytest.approx(1 - 1450 / 1871)
