"""The compiled training step: one optimizer update from the batches of all replicas.

    loss = sum of token losses of all replicas and micro-batches / their number of target tokens

so that any number of replicas and micro-batches with the same pairs takes the same step. Forward
and backward pass of a replica may be compiled by XLA; the update is applied outside of it, because
XLA cannot hold variables that live on several devices.
"""

from typing import Any, Literal, get_args

import keras
import tensorflow as tf

from pipelines.training.token_loss import TokenLoss
from tf_relpos import Transformer
from tf_relpos.fused_passes import fused_passes
from tf_relpos.query_blocks import lengths_up_to

XlaScope = Literal["nothing", "passes", "model"]

# Draws that one random layer may make each time that its block is called, before it would repeat
# those of the next.
_DRAWS_PER_CALL = 16


class TranslationTrainer(keras.Model):
    """Trains a `Transformer` with Keras's `fit` on batches of `pipelines.data.input`.

    Dropout is a pure function of (seed, step, replica, micro-batch): a resumed run draws the same
    masks as one that was never stopped, and no two replicas draw the same.

    Args:
        transformer: the model, built in the scope of the strategy.
        strategy: whose replicas train. The trainer itself is made outside of its scope, or Keras
            would look at a batch to build what is built; `compile` is called inside.
        label_smoothing: see `smoothed_cross_entropy`.
        micro_batches: batches whose gradients add up to one update.
        clip_norm: the largest norm of the gradient of all weights together, beyond which it is
            scaled down (Pascanu et al. 2013, algorithm 1); 0 is no limit.
        skip_non_finite: leave weights and optimizer as they are where loss or gradient is not
            finite.
        r_drop: weight alpha of the divergence between two passes with other dropout; 0 is one pass.
            The loss of a token is then half that of Wu et al. 2021, Eq. 4: the mean of both
            cross-entropies and alpha / 2 of the `divergence`.
        seed: of the dropout masks.
        longest: the most ids of a side of a batch, which the graph, made once for batches of all
            lengths, does not know.
        xla: what XLA compiles: "nothing", the "passes" that are bound by memory and which it fuses,
            of the loss and of `fused_passes`, or the whole "model", forward and backward.

    The logs of a step are sums over all replicas, float32 scalars: `loss` and `nll` in nats,
    `correct`, `tokens` (target tokens), `source_tokens` and `positions` (of both sides, padding
    included); and `non_finite`, in how many replicas loss or gradient is not finite.
    """

    train_function: Any  # Keras's

    def __init__(
        self,
        transformer: Transformer,
        strategy: tf.distribute.Strategy | None = None,
        *,
        label_smoothing: float = 0.1,
        micro_batches: int = 1,
        clip_norm: float = 0.0,
        skip_non_finite: bool = False,
        r_drop: float = 0.0,
        seed: int = 0,
        longest: int | None = None,
        xla: XlaScope = "nothing",
        **kwargs: Any,
    ):
        if xla not in get_args(XlaScope):
            raise ValueError(
                f"`xla` must be one of {', '.join(get_args(XlaScope))}. Received: xla={xla!r}"
            )
        # Keras scales the loss for float16 where the trainer's own policy says so.
        super().__init__(dtype=transformer.dtype_policy, **kwargs)
        self.transformer = transformer
        self.pad_id = transformer.config.pad_id
        self.strategy = strategy or tf.distribute.get_strategy()
        self.label_smoothing = label_smoothing
        self.micro_batches = micro_batches
        self.clip_norm = clip_norm
        self.skip_non_finite = skip_non_finite
        self.r_drop = r_drop
        self.seed = seed
        self.longest = longest
        self.xla = xla
        config = transformer.config
        calls = max(config.encoder_layers, config.decoder_layers) if config.share_layers else 1
        self._draws_per_layer = calls * _DRAWS_PER_CALL
        self.built = True

    def make_train_function(self, force: bool = False) -> None:
        if self.train_function is not None and not force:
            return
        strategy = self.strategy
        gradients = tf.function(
            self._gradients,
            jit_compile=self.xla == "model",
            reduce_retracing=True,
            autograph=False,
        )

        def gradients_of_replica(batches):
            replica = tf.distribute.get_replica_context()
            tokens = tf.add_n([self._count(batch["labels"]) for batch in batches])
            total = tf.maximum(replica.all_reduce(tf.distribute.ReduceOp.SUM, tokens), 1.0)
            grads, logs = gradients(batches[0], total, self._dropout_seed(replica, 0))
            for number, batch in enumerate(batches[1:], start=1):
                more = gradients(batch, total, self._dropout_seed(replica, number))
                grads, logs = _add(grads, more[0]), _add(logs, more[1])
            if self.clip_norm:
                grads = self._clip(replica, grads)
            watched = [logs["loss"], *grads]
            if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
                # Scaled gradients may overflow: the optimizer skips them by itself.
                grads, watched = self._overflow_everywhere(replica, grads), watched[:1]
            return grads, {**logs, "non_finite": _is_non_finite(watched)}

        def update_replica(grads):
            self.optimizer.apply(grads, self.transformer.trainable_variables)

        def train_function(iterator):
            batches = [next(iterator) for _ in range(self.micro_batches)]
            grads, logs = strategy.run(gradients_of_replica, args=(batches,))
            logs = {name: strategy.reduce("SUM", logs[name], axis=None) for name in logs}

            def update():
                strategy.run(update_replica, args=(grads,))

            if self.skip_non_finite:
                tf.cond(logs["non_finite"] == 0, update, lambda: None)
            else:
                update()
            return logs

        self.train_function = tf.function(train_function, reduce_retracing=True, autograph=False)

    def _clip(self, replica, grads):
        """A replica's part of the gradient, scaled by what the sum over replicas asks for."""
        scale = self.optimizer.scale_loss(tf.constant(1.0))
        summed = replica.all_reduce(tf.distribute.ReduceOp.SUM, grads)
        norm = tf.linalg.global_norm(summed) / scale
        factor = tf.minimum(1.0, self.clip_norm / norm)
        return [grad * factor for grad in grads]

    def _overflow_everywhere(self, replica, grads):
        """A replica's part of the gradient; NaN if any replica's is not finite.

        The optimizer decides in each replica by itself whether scaled gradients have overflowed.
        """
        overflows = replica.all_reduce(tf.distribute.ReduceOp.SUM, _is_non_finite(grads))
        return [
            tf.where(overflows > 0, tf.constant(float("nan"), grad.dtype), grad) for grad in grads
        ]

    def _dropout_seed(self, replica, micro_batch):
        """uint32 `[2]`: the seed, and a counter that no two forward passes share."""
        step = tf.cast(self.optimizer.iterations.value, tf.uint32)
        replica_id = tf.cast(replica.replica_id_in_sync_group, tf.uint32)
        counter = step * replica.num_replicas_in_sync + replica_id
        counter = counter * self.micro_batches + micro_batch
        stride = self._draws_per_layer * max(1, len(self._seed_states()))
        return tf.stack([tf.constant(self.seed, tf.uint32), counter * stride])

    def _seed_states(self):
        weights = {id(variable) for variable in self.transformer.weights}
        return [v for v in self.transformer.variables if id(v) not in weights]

    def _gradients(self, batch, total_tokens, seed):
        """One replica's part of the gradient of the loss, and its sums for the logs."""
        random_states = [
            (state, seed + tf.constant([0, i * self._draws_per_layer], tf.uint32))
            for i, state in enumerate(self._seed_states())
        ]
        labels = batch["labels"]
        inputs = {name: _twice(ids) for name, ids in batch.items()} if self.r_drop else batch
        loss = TokenLoss(
            self.label_smoothing,
            self.r_drop,
            self.pad_id,
            self.optimizer.scale_loss,
            is_compiled=self.xla != "nothing",
        )
        with (
            tf.GradientTape() as tape,
            keras.StatelessScope(state_mapping=random_states),
            lengths_up_to(self.longest),
            fused_passes(self.xla == "passes"),
        ):
            hidden = self.transformer.hidden(inputs, training=True)
            columns = self.transformer.columns()
        *by_both, sums = loss.gradients(
            labels, hidden, columns, total_tokens, at_once=self.xla == "model"
        )
        variables = [variable.value for variable in self.transformer.trainable_variables]
        with fused_passes(self.xla == "passes"):
            grads = tape.gradient([hidden, columns], variables, output_gradients=by_both)
        positions = tf.size(labels) + tf.size(batch["source_ids"])
        logs = {
            **sums,
            "tokens": self._count(labels),
            "source_tokens": self._count(batch["source_ids"]),
            "positions": tf.cast(positions, tf.float32),
        }
        return [tf.convert_to_tensor(grad) for grad in grads], logs

    def _count(self, ids):
        """How many are no padding, float32."""
        return tf.reduce_sum(tf.cast(ids != self.pad_id, tf.float32))


def _twice(ids):
    return tf.concat([ids, ids], axis=0)


def _is_non_finite(values):
    """1.0 if there is a value that is not finite, else 0.0."""
    sums = tf.stack([tf.reduce_sum(tf.cast(value, tf.float32)) for value in values])
    return 1.0 - tf.cast(tf.reduce_all(tf.math.is_finite(sums)), tf.float32)


def _add(a, b):
    return tf.nest.map_structure(tf.add, a, b)
