"""The choice of length buckets: exact, and told in numbers that people can check."""

from itertools import combinations

import numpy as np
import pytest

from pipelines.data.buckets import (
    Bucket,
    batch_sizes,
    bucket_report,
    choose_boundaries,
    total_padding_share,
)
from pipelines.errors import InputError


def padded_tokens(histogram, boundaries):
    lengths = np.arange(len(histogram))
    boundary = np.array(boundaries)[np.searchsorted(boundaries, lengths[: boundaries[-1] + 1])]
    return int((boundary * histogram[: boundaries[-1] + 1]).sum())


def fewest_padded_tokens(histogram, num_shapes, min_tokens=0):
    """Tries every set of boundaries."""
    longest = int(np.flatnonzero(histogram)[-1])
    candidates = [length for length in np.flatnonzero(histogram).tolist() if length != longest]
    best = padded_tokens(histogram, [longest])
    for count in range(1, min(num_shapes, len(candidates) + 1)):
        for inner in combinations(candidates, count):
            boundaries = [*inner, longest]
            held = np.diff(np.cumsum(histogram)[boundaries], prepend=0)
            if (held * boundaries >= min_tokens).all():
                best = min(best, padded_tokens(histogram, boundaries))
    return best


@pytest.mark.parametrize("num_shapes", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("min_tokens", [0, 40])
def test_boundaries_are_as_good_as_brute_force(num_shapes, min_tokens):
    rng = np.random.default_rng(num_shapes)
    for _ in range(10):
        histogram = rng.integers(0, 9, size=12) * rng.integers(0, 2, size=12)
        histogram[rng.integers(2, 12)] += 1
        boundaries = choose_boundaries(histogram, num_shapes, min_tokens=min_tokens)
        assert boundaries == sorted(set(boundaries)) and len(boundaries) <= num_shapes
        assert boundaries[-1] == np.flatnonzero(histogram)[-1]
        expected = fewest_padded_tokens(histogram, num_shapes, min_tokens)
        assert padded_tokens(histogram, boundaries) == expected


def test_a_hand_checked_choice():
    histogram = np.zeros(101, dtype=int)
    histogram[[10, 11, 30, 100]] = 50, 50, 20, 1
    assert choose_boundaries(histogram, 1) == [100]
    assert choose_boundaries(histogram, 2) == [11, 100] or choose_boundaries(histogram, 2) == [
        30,
        100,
    ]
    assert choose_boundaries(histogram, 3) == [11, 30, 100]
    assert choose_boundaries(histogram, 9) == [10, 11, 30, 100]


def test_rare_long_pairs_join_a_bucket_that_fills_a_batch():
    histogram = np.zeros(101, dtype=int)
    histogram[[10, 30, 100]] = 50, 20, 1
    assert choose_boundaries(histogram, 3, min_tokens=400) == [10, 100]
    assert choose_boundaries(histogram, 3, min_tokens=10**9) == [100]


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
        choose_boundaries(np.array(histogram), num_shapes)


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


def test_report_tells_shapes_padding_and_what_is_left_out():
    report = bucket_report(buckets(), [16, 8], {"empty": 3, "too long": 2})
    lines = [line.split() for line in report.splitlines()]
    assert lines[1] == ["0", "7", "x", "5", "100", "16", "6", "4", "16.7%"]
    assert lines[2] == ["1", "30", "x", "31", "11", "8", "1", "3", "32.9%"]
    assert lines[3] == ["total", "111", "7", "7", "22.5%"]
    assert "3 empty, 2 too long" in report
    assert "7 of 111 pairs" in report
    assert total_padding_share(buckets()) == pytest.approx(1 - 1450 / 1871)
