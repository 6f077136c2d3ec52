"""What the batches of a run are: their shapes, and which pairs each holds."""

from collections.abc import Sequence
from typing import NamedTuple

from pipelines.config import RunConfig
from pipelines.data.buckets import Bucket, batch_sizes
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.preparation import Prepared
from pipelines.data.subword_model import check_can_sample
from pipelines.data.subword_sampling import with_room
from pipelines.errors import InputError


class Batches(NamedTuple):
    """Shapes, and the order of training."""

    buckets: Sequence[Bucket]
    plan: EpochPlan


def batches_of(config: RunConfig, prepared: Prepared, replicas: int) -> Batches:
    """Those of a configuration on a text.

    Args:
        config: as `as_prepared` gives it.
        prepared: the tokenized corpus.
        replicas: how many share a batch.

    Raises:
        InputError: the corpus is too small for a batch, or its subwords cannot be sampled.
    """
    training = config.training
    buckets = prepared.train.buckets
    if training.subword_sampling:
        check_can_sample(prepared.tokenizer_path)
        buckets = with_room(buckets)
    sizes = batch_sizes(buckets, training.tokens_per_replica, replicas)
    try:
        plan = EpochPlan(prepared.train.pairs_per_bucket, sizes, training.seed)
    except InputError as error:
        metadata = prepared.train.metadata
        if not (too_long := metadata["dropped"].get("too long")):
            raise
        limit = f"max_length, {metadata['max_length']}"
        raise InputError(f"{error}, or raise {limit}: {too_long:,} pairs are longer") from error
    return Batches(buckets, plan)
