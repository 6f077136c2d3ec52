"""The tf.data pipeline over the tokenized corpus: batches of the epoch plan, from any step on."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from pipelines.data.dataset import TokenizedCorpus, shift_right
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.subword_sampling import SubwordSampler, with_room


def training_dataset(
    corpus: TokenizedCorpus,
    plan: EpochPlan,
    *,
    first_step: int,
    num_steps: int,
    num_replicas: int = 1,
    replica_ids: Sequence[int] | None = None,
    sampler: SubwordSampler | None = None,
) -> tf.data.Dataset:
    """Batches of steps `first_step` to `first_step + num_steps - 1`, read ahead in parallel.

    Args:
        corpus: the pairs.
        plan: which of them make up each global batch.
        first_step: steps are counted from 0; starting late costs nothing.
        num_steps: how many steps.
        num_replicas: parts of a global batch, of equal size.
        replica_ids: the replicas of this worker, all of them unless given.
        sampler: draws other subwords of the same pairs for each step; the shapes are those of
            `with_room(corpus.buckets)` then.

    Returns:
        For each step, for each replica in order, a dict of int32 tensors: `source_ids` `[B, S]`,
        `target_ids` `[B, T]` (the decoder's input: the start id, then the labels but the last)
        and `labels` `[B, T]`; B is the global batch divided by `num_replicas`.
    """
    replica_ids = list(range(num_replicas)) if replica_ids is None else list(replica_ids)
    if any(size % num_replicas for size in plan.batch_sizes):
        raise ValueError(
            f"batch sizes {plan.batch_sizes} must be multiples of num_replicas {num_replicas}"
        )

    shapes = with_room(corpus.buckets)

    def read(element: np.int64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        step, worker_replica = divmod(int(element), len(replica_ids))
        bucket, numbers = plan.batch(first_step + step)
        replica = replica_ids[worker_replica]
        part = np.split(numbers, num_replicas)[replica]
        source_ids, labels = corpus.gather(bucket, part)
        if sampler:
            # Of the whole batch, or the pairs would depend on the number of replicas.
            lengths = source_ids.shape[1] + labels.shape[1]
            uniforms = sampler.uniforms(first_step + step, (len(numbers), lengths))
            uniforms = np.split(uniforms, num_replicas)[replica]
            for_source, for_target = np.split(uniforms, [source_ids.shape[1]], axis=1)
            shape = shapes[bucket]
            source_ids = sampler(source_ids, for_source, shape.source_length)
            labels = sampler(labels, for_target, shape.target_length)
        return source_ids, shift_right(labels), labels

    def load(element: tf.Tensor) -> dict[str, tf.Tensor]:
        arrays = tf.numpy_function(read, [element], [tf.int32] * 3, stateful=False)
        for array in arrays:
            array.set_shape([None, None])
        return dict(zip(("source_ids", "target_ids", "labels"), arrays, strict=True))

    dataset = tf.data.Dataset.range(num_steps * len(replica_ids))
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    options = tf.data.Options()
    # Each worker reads its own replicas already; sharding again would lose batches.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)
