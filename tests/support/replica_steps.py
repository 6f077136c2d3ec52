"""Training steps on virtual devices: python replica_steps.py REPLICAS CASES OUTPUT.npz

`test_replicas` runs this in a process for each number of replicas: virtual devices exist only where
TensorFlow has not started, and strategies of several sizes get in each other's way.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from pipelines.training.adam import Adam
from pipelines.training.trainer import TranslationTrainer
from tf_relpos import Transformer, TransformerConfig

V, ROWS = 17, 8
CONFIG = {
    "vocabulary_size": V,
    "model_dim": 10,
    "inner_dim": 13,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_relative_position": 2,
    "dropout": 0.0,
}


def global_batches(shapes, empty_rows=0):
    """A batch of `ROWS` pairs for each shape `(S, T)`: row i of target tokens has from 1 to T of
    them, the last `empty_rows` have none; the first, if it is negative."""
    rng = np.random.default_rng(7)
    for S, T in shapes:
        source_ids = rng.integers(4, V, (ROWS, S), dtype="int32")
        labels = rng.integers(4, V, (ROWS, T), dtype="int32")
        for row in range(ROWS):
            source_ids[row, 1 + row * S // ROWS :] = 0
            labels[row, 1 + row * T // ROWS :] = 0
        labels[slice(ROWS - empty_rows, None) if empty_rows >= 0 else slice(-empty_rows)] = 0
        shifted = np.concatenate([np.full((ROWS, 1), 2, "int32"), labels[:, :-1]], axis=1)
        yield {"source_ids": source_ids, "target_ids": shifted, "labels": labels}


def train(
    strategy,
    shapes,
    *,
    micro_batches=1,
    empty_rows=0,
    dropout=0.0,
    dtype="float32",
    learning_rate=0.003,
    initial_scale=None,
    **arguments,
):
    """Losses, tokens and correct tokens of each step `[steps, 3]`, the final weights, and how many
    steps were not skipped.

    A global batch is cut into micro-batches, these into replicas. `initial_scale` is that of the
    loss in float16.
    """
    keras.utils.set_random_seed(11)
    with strategy.scope():
        transformer = Transformer(TransformerConfig(**CONFIG | {"dropout": dropout}), dtype=dtype)
        transformer.build()
    trainer = TranslationTrainer(
        transformer, strategy, micro_batches=micro_batches, **{"seed": 5, **arguments}
    )
    with strategy.scope():
        optimizer = Adam(learning_rate)
        if initial_scale:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale)
        trainer.compile(optimizer=optimizer, jit_compile=False)
        trainer.optimizer.build(transformer.trainable_variables)
    batches = list(global_batches(shapes, empty_rows))
    part = ROWS // micro_batches // strategy.num_replicas_in_sync

    def parts():
        for batch in batches:
            for begin in range(0, ROWS, part):
                yield {name: ids[begin : begin + part] for name, ids in batch.items()}

    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in batches[0]}
    dataset = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_generator(parts, output_signature=signature)
    )
    records = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            records.append([float(logs[name]) for name in ("loss", "tokens", "correct")])

    trainer.fit(dataset, steps_per_epoch=len(batches), shuffle=False, verbose=0, callbacks=[Keep()])
    weights = np.concatenate([weight.ravel() for weight in transformer.get_weights()])
    inner = getattr(trainer.optimizer, "inner_optimizer", trainer.optimizer)
    return np.array(records), weights, int(keras.ops.convert_to_numpy(inner.iterations))


if __name__ == "__main__":
    replicas, cases, output = sys.argv[1:]
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * int(replicas)
    tf.config.set_logical_device_configuration(cpu, devices)
    if replicas == "1":
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    else:  # one for all cases: their collective operations would meet
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(int(replicas))])
    results = {}
    for name, case in json.loads(cases).items():
        for part, value in zip(
            ("logs", "weights", "updates"), train(strategy, **case), strict=True
        ):
            results[f"{name}.{part}"] = value
    np.savez(output, **results)
