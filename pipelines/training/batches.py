"""What the batches of a run are: their shapes, and which pairs each holds."""

from collections.abc import Sequence
from typing import NamedTuple

from pipelines.config import RunConfig
from pipelines.data.buckets import BATCHES_PER_BUCKET, Bucket, batch_sizes
from pipelines.data.dataset import TokenizedCorpus
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.preparation import Prepared
from pipelines.data.subword_model import check_can_sample
from pipelines.data.subword_sampling import with_room
from pipelines.errors import InputError


class Batches(NamedTuple):
    """Pairs in buckets that can fill a batch, the shapes of these, and the order of training."""

    corpus: TokenizedCorpus
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
    tokens = training.tokens_per_replica * replicas
    corpus = prepared.train.with_buckets_of(BATCHES_PER_BUCKET * tokens)
    buckets = corpus.buckets
    if training.subword_sampling:
        check_can_sample(prepared.tokenizer_path)
        buckets = with_room(buckets)
    sizes = batch_sizes(buckets, training.tokens_per_replica, replicas)
    try:
        plan = EpochPlan(corpus.pairs_per_bucket, sizes, training.seed)
    except InputError as error:
        metadata = corpus.metadata
        if not (too_long := metadata["dropped"].get("too long")):
            raise
        limit = f"max_length, {metadata['max_length']}"
        raise InputError(f"{error}, or raise {limit}: {too_long:,} pairs are longer") from error
    return Batches(corpus, buckets, plan)
