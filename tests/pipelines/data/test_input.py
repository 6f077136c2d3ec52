"""The tf.data input: the plan's batches, in order, from any step, cut among replicas."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.buckets import batch_sizes
from pipelines.data.dataset import shift_right
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.input import training_dataset
from tests.pipelines.data.test_dataset import random_pairs, write


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("corpus") / "train", random_pairs(211))


@pytest.fixture(scope="module")
def plan(corpus):
    return EpochPlan(corpus.pairs_per_bucket, batch_sizes(corpus.buckets, 211, 2), seed=5)


def elements(corpus, plan, **arguments):
    return list(training_dataset(corpus, plan, **arguments).as_numpy_iterator())


def assert_same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for name in ("source_ids", "target_ids", "labels"):
            np.testing.assert_array_equal(one[name], other[name])


def test_elements_are_the_plans_batches(corpus, plan):
    steps = round(2 * plan.batches_per_epoch) + 3
    found = elements(corpus, plan, first_step=0, num_steps=steps)
    assert len(found) == steps
    for step, element in enumerate(found):
        source_ids, labels = corpus.gather(*plan.batch(step))
        np.testing.assert_array_equal(element["source_ids"], source_ids)
        np.testing.assert_array_equal(element["labels"], labels)
        np.testing.assert_array_equal(element["target_ids"], shift_right(labels))
        assert all(array.dtype == np.int32 for array in element.values())


def test_starting_late_skips_nothing(corpus, plan):
    whole = elements(corpus, plan, first_step=0, num_steps=17)
    assert_same(elements(corpus, plan, first_step=11, num_steps=6), whole[11:])
    million = elements(corpus, plan, first_step=10**6, num_steps=1)
    np.testing.assert_array_equal(million[0]["labels"], corpus.gather(*plan.batch(10**6))[1])


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_replicas_partition_the_global_batch(corpus, plan, num_replicas):
    whole = elements(corpus, plan, first_step=3, num_steps=5)
    parts = elements(corpus, plan, first_step=3, num_steps=5, num_replicas=num_replicas)
    assert len(parts) == 5 * num_replicas
    for step, element in enumerate(whole):
        own = parts[step * num_replicas : (step + 1) * num_replicas]
        assert len({len(part["labels"]) for part in own}) == 1
        for name, array in element.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in own]), array)


def test_workers_read_their_own_replicas(corpus, plan):
    arguments = {"first_step": 2, "num_steps": 5, "num_replicas": 4}
    everything = elements(corpus, plan, **arguments)
    first = elements(corpus, plan, **arguments, replica_ids=[0, 1])
    last = elements(corpus, plan, **arguments, replica_ids=[3])
    assert_same(first, [part for i, part in enumerate(everything) if i % 4 < 2])
    assert_same(last, everything[3::4])


def test_the_rank_is_static(corpus, plan):
    dataset = training_dataset(corpus, plan, first_step=0, num_steps=1)
    for spec in dataset.element_spec.values():
        assert spec.shape.as_list() == [None, None] and spec.dtype == tf.int32
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


def test_batches_that_do_not_divide_are_refused(corpus, plan):
    with pytest.raises(ValueError, match="multiples of num_replicas 7"):
        training_dataset(corpus, plan, first_step=0, num_steps=1, num_replicas=7)


def test_no_steps_give_no_elements(corpus, plan):
    assert elements(corpus, plan, first_step=4, num_steps=0) == []
