"""A training run from its configuration: start or resume, train, average, score."""

import functools
import signal
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from pipelines.config import RunConfig
from pipelines.data.buckets import batch_sizes, bucket_report
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.input import training_dataset
from pipelines.data.preparation import Prepared
from pipelines.data.tokenizer import Tokenizer
from pipelines.files.atomic import write_text
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from pipelines.run.models import build_model
from pipelines.run.scoring import bleu
from pipelines.training import callbacks, devices
from pipelines.training.trainer import TranslationTrainer
from pipelines.training.workers import Workers
from pipelines.translators.keras_model import Translator
from tf_relpos import Transformer, WarmupInverseSqrt


def train(
    config: RunConfig, prepared: Prepared, run: RunDirectory, strategy: tf.distribute.Strategy
) -> signal.Signals | None:
    """Trains up to `config.training.steps`, from the last checkpoint on if there is one.

    Returns:
        The signal that ended training early, if one did; everything is saved then.

    Raises:
        InputError: the corpus is too small for a batch, a checkpoint cannot be read, the loss is
            not finite any more, or another worker has other flags or data.
    """
    training = config.training
    keras.utils.set_random_seed(training.seed)
    workers = Workers.of(strategy)
    replicas = strategy.num_replicas_in_sync
    sizes = batch_sizes(prepared.train.buckets, training.tokens_per_replica, replicas)
    plan = EpochPlan(prepared.train.pairs_per_bucket, sizes, training.seed)
    precision = devices.precision(training)
    alike = {
        "the flags": config.to_dict(),
        "the prepared corpus": dict(prepared.train.metadata),
        "precision": precision,
    }
    workers.check_same(alike)
    if workers.is_chief:
        _report_buckets(prepared, sizes, run)
    micro_batches = _micro_batches(config, replicas)
    if workers.is_chief:
        run.use_devices(replicas, precision)
    trainer = _make_trainer(config, micro_batches, strategy)
    state = _restore(run, trainer, workers)
    first_step = state.step
    steps_left = training.steps - first_step
    if steps_left <= 0:
        print(f"{run.path} is trained to step {first_step:,} already", flush=True)
        return None
    if workers.is_chief:
        _announce(config, trainer, plan, first_step)
        run.rewind_history(first_step)

    def load(context):
        return training_dataset(
            prepared.train,
            plan,
            first_step=first_step * micro_batches,
            num_steps=steps_left * micro_batches,
            num_replicas=replicas,
            replica_ids=workers.replicas,
        )

    interruption = callbacks.Interruption(workers)
    reports = _reports(config, prepared, run, trainer, state) if workers.is_chief else []
    trainer.fit(
        strategy.distribute_datasets_from_function(load),
        steps_per_epoch=steps_left,
        shuffle=False,
        verbose=0,
        callbacks=[
            callbacks.NonFiniteLoss(skip=training.skip_non_finite),
            *reports,
            interruption,
        ],
    )
    return interruption.signal


def _restore(run: RunDirectory, trainer: TranslationTrainer, workers: Workers) -> RunState:
    """Loads the last checkpoint, which the chief alone needs to have."""
    state = RunState()
    if workers.is_chief:
        run.check()
        state = run.checkpoints.restore(trainer.transformer, trainer.optimizer)
    if workers.count == 1:
        return state
    variables = [*trainer.transformer.weights, *trainer.optimizer.variables]
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]
    step, *values = workers.from_chief([np.int64(state.step), *values])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    state.step = int(step)
    return state


def _make_trainer(
    config: RunConfig, micro_batches: int, strategy: tf.distribute.Strategy
) -> TranslationTrainer:
    """Model and optimizer with all their variables."""
    training = config.training
    with strategy.scope():
        transformer = build_model(config.model, dtype=devices.precision(training))
    trainer = TranslationTrainer(
        transformer,
        strategy,
        label_smoothing=training.label_smoothing,
        micro_batches=micro_batches,
        clip_norm=training.clip_norm,
        skip_non_finite=training.skip_non_finite,
        seed=training.seed,
        xla=devices.what_xla_compiles(training),
    )
    with strategy.scope():
        optimizer = keras.optimizers.Adam(
            _schedule(config), training.beta_1, training.beta_2, training.epsilon
        )
        trainer.compile(optimizer=optimizer, jit_compile=False)
        trainer.optimizer.build(transformer.trainable_variables)
    return trainer


def _schedule(config: RunConfig) -> WarmupInverseSqrt:
    training = config.training
    return WarmupInverseSqrt(
        config.model.model_dim, training.warmup_steps, training.learning_rate_scale
    )


def _micro_batches(config: RunConfig, replicas: int) -> int:
    """Batches an update, so that they hold about `tokens_per_step` target tokens."""
    batch = config.training.tokens_per_replica * replicas
    return max(1, config.training.tokens_per_step // batch)


def _reports(config, prepared, run, trainer, state) -> Sequence[keras.callbacks.Callback]:
    """What prints, validates and saves."""
    training = config.training
    keep = max(training.keep_checkpoints, training.average_checkpoints)

    def save(stopgap=False):
        run.checkpoints.save(
            trainer.transformer, trainer.optimizer, state, keep=keep, stopgap=stopgap
        )

    validation = []
    if training.valid_every and "valid" in prepared.splits:
        validator = _Validator(trainer.transformer, prepared)
        validation = [callbacks.Validation(validator, save, run, state, every=training.valid_every)]
    checkpoints = callbacks.Checkpoints(
        save,
        state,
        last_step=training.steps,
        every=training.checkpoint_every,
        minutes=training.checkpoint_minutes,
    )
    progress = callbacks.Progress(
        run,
        state,
        last_step=training.steps,
        log_every=training.log_every,
        learning_rate=_schedule(config),
    )
    return [progress, *validation, checkpoints]


class _Validator:
    """Greedy BLEU of the model in training, by a float32 copy made when it is first needed."""

    def __init__(self, trained: Transformer, prepared: Prepared):
        self.trained = trained
        self.prepared = prepared
        self.sources, self.references = prepared.text("valid")

    @functools.cached_property
    def translator(self) -> Translator:
        tokenizer = Tokenizer(self.prepared.tokenizer_path)
        return Translator(
            build_model(self.trained.config),
            tokenizer,
            beam_size=1,
            max_source_length=self.prepared.settings["max_length"],
        )

    def __call__(self) -> float:
        self.translator.model.set_weights(self.trained.get_weights())
        return bleu(self.translator.translate(self.sources), self.references).score


def _report_buckets(prepared: Prepared, sizes: Sequence[int], run: RunDirectory) -> None:
    report = bucket_report(prepared.train.buckets, sizes, prepared.train.metadata["dropped"])
    print(report, flush=True)
    write_text(run.path / "buckets.txt", report + "\n")


def _announce(
    config: RunConfig, trainer: TranslationTrainer, plan: EpochPlan, first_step: int
) -> None:
    weights = trainer.transformer.trainable_weights
    parameters = sum(int(np.prod(weight.shape)) for weight in weights)
    steps = config.training.steps
    epochs = steps * trainer.micro_batches / plan.batches_per_epoch
    print(
        f"{config.preset}: {parameters:,} parameters, {trainer.transformer.dtype_policy.name}; "
        f"{steps:,} steps, {epochs:.1f} epochs"
        + (f"; resumed at step {first_step:,}" if first_step else ""),
        flush=True,
    )
