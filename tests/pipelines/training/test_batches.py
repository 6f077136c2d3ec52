"""Batches of a run: buckets that can fill them, whatever they hold."""

import dataclasses
import math

import numpy as np
import pytest

from pipelines.config import TrainingConfig, default_config
from pipelines.data.preparation import open_prepared
from pipelines.training.batches import batches_of


@pytest.fixture(scope="module")
def prepared(trained_run):
    return open_prepared(trained_run / "prepared")


def batches(prepared, tokens, replicas=1):
    config = default_config("tiny", demo=False)
    training = TrainingConfig(tokens_per_replica=tokens)
    return batches_of(dataclasses.replace(config, training=training), prepared, replicas)


def test_usual_batches_take_the_buckets_as_they_are(prepared):
    corpus, buckets, _ = batches(prepared, 4096)
    assert corpus.buckets == buckets == prepared.train.buckets
    assert len(buckets) > 1


@pytest.mark.parametrize("tokens, replicas", [(8000, 1), (1000, 8)])
def test_larger_batches_have_joined_buckets(prepared, tokens, replicas):
    """So that all pairs have their turn, and batches hold what was asked for."""
    corpus, (bucket,), plan = batches(prepared, tokens, replicas)
    assert bucket.pairs == len(prepared.train)
    assert plan.batch_sizes == [8000 // bucket.longest // 8 * 8]
    taken = set()
    for step in range(math.ceil(2 * plan.batches_per_epoch)):
        number, pairs = plan.batch(step)
        assert number == 0
        taken.update(pairs.tolist())
    assert taken == set(range(bucket.pairs))
    ids, _ = corpus.gather(0, np.arange(bucket.pairs))
    assert np.count_nonzero(ids) == prepared.train.metadata["source_tokens"]
