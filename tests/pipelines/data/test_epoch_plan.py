"""The epoch plan: permutations are permutations, and a batch depends on seed and step alone."""

import itertools

import numpy as np
import pytest

from pipelines.data.epoch_plan import EpochPlan, Permutation
from pipelines.errors import InputError

COUNTS, SIZES = [101, 3, 64, 257], [8, 4, 16, 3]


def epoch(plan, number):
    """The batches of an epoch as (bucket, tuple of pair numbers)."""
    steps = (step for step in itertools.count() if plan.epoch(step) >= number)
    batches = map(plan.batch, itertools.takewhile(lambda step: plan.epoch(step) == number, steps))
    return [(bucket, tuple(numbers.tolist())) for bucket, numbers in batches]


@pytest.mark.parametrize(
    "size", [1, 2, 3, 4, 5, 7, 16, 17, 64, 97, 255, 256, 257, 1009, 4096, 10007]
)
def test_permutation_is_a_bijection(size):
    for key in ((0,), (1, 2, 3)):
        numbers = Permutation(size, key)(np.arange(size))
        np.testing.assert_array_equal(np.sort(numbers), np.arange(size))


def test_permutation_of_large_numbers_stays_inside_and_apart():
    size = 3 * 10**12 + 7
    places = np.concatenate([np.arange(5000), size - 1 - np.arange(5000)])
    numbers = Permutation(size, (5,))(places)
    assert len(np.unique(numbers)) == 10_000
    assert numbers.min() >= 0 and numbers.max() < size
    assert 0.45 < np.mean(numbers < size / 2) < 0.55


def test_place_by_place_equals_all_at_once():
    permutation = Permutation(97, (3, 1))
    one_by_one = [int(permutation(np.array([place]))[0]) for place in range(97)]
    np.testing.assert_array_equal(permutation(np.arange(97)), one_by_one)


def test_numbers_land_everywhere_alike():
    """Each number stands at the first place about equally often: chi-square with 10 degrees."""
    firsts = [int(Permutation(11, (0, epoch))(np.array([0]))[0]) for epoch in range(2200)]
    counts = np.bincount(firsts, minlength=11)
    assert ((counts - 200) ** 2 / 200).sum() < 35  # one key set in ten thousand is beyond


def test_every_pair_once_a_pass():
    """What fills no batch in an epoch comes in the next, and no pair a second time before all."""
    plan = EpochPlan(COUNTS, SIZES, seed=1)
    assert plan.batches_per_epoch == pytest.approx(101 / 8 + 3 / 4 + 64 / 16 + 257 / 3)
    times = [np.zeros(count, int) for count in COUNTS]
    for number in range(5):
        for bucket, numbers in epoch(plan, number):
            assert len(numbers) == SIZES[bucket]
            np.add.at(times[bucket], list(numbers), 1)
        for count, size, found in zip(COUNTS, SIZES, times, strict=True):
            drawn = (number + 1) * count // size * size
            assert found.sum() == drawn
            assert set(found.tolist()) <= {drawn // count, -(-drawn // count)}
    assert [int(found.min()) for found in times] == [4, 4, 5, 4]


def test_epochs_follow_each_other():
    """Each with as many batches as are full, give or take what is left of each bucket."""
    plan = EpochPlan(COUNTS, SIZES, seed=1)
    epochs = [plan.epoch(step) for step in range(1100)]
    assert epochs == sorted(epochs) and epochs[0] == 0 and epochs[-1] == 10
    lengths = np.bincount(epochs)[:-1]
    assert abs(lengths - plan.batches_per_epoch).max() < len(COUNTS)
    assert lengths.mean() == pytest.approx(plan.batches_per_epoch, abs=len(COUNTS) / 10)
    assert plan.epoch(10**12) == pytest.approx(10**12 / plan.batches_per_epoch, abs=1)


def test_epochs_and_seeds_differ_in_order_and_in_batches():
    plan = EpochPlan(COUNTS, SIZES, seed=1)
    orders = [epoch(plan, 0), epoch(plan, 1), epoch(EpochPlan(COUNTS, SIZES, seed=2), 0)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert [b for b, _ in orders[first]] != [b for b, _ in orders[second]]
        assert len(set(orders[first]) & set(orders[second])) <= 1


def test_a_batch_begins_with_what_the_pass_before_has_left():
    """Of ten pairs in batches of eight: two, then six of the next pass, of which four are left."""
    plan = EpochPlan([10], [8], seed=0)
    first, second, third = (plan.batch(step)[1].tolist() for step in range(3))
    assert sorted(first + second[:2]) == list(range(10))
    assert sorted(second[2:] + third[:4]) == list(range(10))
    assert first != (second[2:] + third)[:8]


def test_buckets_are_mixed_within_an_epoch():
    sequence = [bucket for bucket, _ in epoch(EpochPlan([400, 400], [8, 8], seed=3), 0)]
    assert sequence != sorted(sequence)
    assert 15 < sum(sequence[:50]) < 35


def test_a_batch_is_a_pure_function_of_seed_and_step():
    plan = EpochPlan(COUNTS, SIZES, seed=7)
    forwards = [plan.batch(step) for step in range(250)]
    for step in reversed(range(250)):
        bucket, numbers = EpochPlan(COUNTS, SIZES, seed=7).batch(step)
        assert bucket == forwards[step][0]
        np.testing.assert_array_equal(numbers, forwards[step][1])


def test_the_bucket_is_known_without_the_pairs():
    plan = EpochPlan(COUNTS, SIZES, 5)
    steps = range(206)
    buckets = [plan.bucket(step) for step in steps]
    assert buckets == [plan.batch(step)[0] for step in steps]
    assert plan.buckets == sorted(set(buckets)) == [0, 1, 2, 3]
    assert EpochPlan([9, 0], [4, 4], 5).buckets == [0]


def test_a_stored_plan_still_means_the_same():
    """Changing the cipher would change the order of every resumed run."""
    bucket, numbers = EpochPlan([1000], [5], seed=42).batch(1234)
    assert (bucket, numbers.tolist()) == (0, [617, 95, 59, 338, 888])


def test_a_corpus_too_small_for_any_batch_is_refused():
    with pytest.raises(InputError, match="hold 3, 5 pairs, a batch takes 8, 16"):
        EpochPlan([3, 5], [8, 16], seed=0)


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="seed must not be negative, got -1"):
        EpochPlan([8], [8], seed=-1)
    with pytest.raises(ValueError, match="2 buckets, but 1 batch sizes"):
        EpochPlan([8, 8], [8], seed=0)
    with pytest.raises(ValueError, match="step must not be negative, got -1"):
        EpochPlan([8], [8], seed=0).batch(-1)
