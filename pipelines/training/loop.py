"""The training loop of a run: start or resume, train, validate, save."""

import logging
import signal
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from pipelines.config import RunConfig
from pipelines.data.buckets import Bucket, bucket_report
from pipelines.data.dataset import TokenizedCorpus
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.input import training_dataset
from pipelines.data.preparation import Prepared
from pipelines.data.subword_sampling import SubwordSampler
from pipelines.files.atomic import write_text
from pipelines.progress import progress
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import TrainingRun
from pipelines.run.freezing import freeze
from pipelines.run.models import build_model
from pipelines.run.origin import initialize
from pipelines.run.provenance import Provenance
from pipelines.training import callbacks, devices
from pipelines.training.adam import Adam
from pipelines.training.batches import Batches
from pipelines.training.history import recorder_of
from pipelines.training.reports import Counting, Progress, ProgressLine, StartUp
from pipelines.training.schedule import last_rate, schedule_of
from pipelines.training.trainer import TranslationTrainer
from pipelines.training.validation import EarlyStopping, Validation, Validator
from pipelines.training.workers import Workers

_LOG = logging.getLogger(__name__)


def train(
    provenance: Provenance,
    prepared: Prepared,
    batches: Batches,
    run: TrainingRun | None,
    workers: Workers,
) -> signal.Signals | None:
    """Trains up to `config.training.steps`, from the last checkpoint on if there is one.

    Args:
        provenance: what to train with.
        prepared: the tokenized corpus.
        batches: of it.
        run: where to save; None for a worker that is not the chief.
        workers: whose strategy trains.

    Returns:
        The signal that ended training early, if one did; everything is saved then.

    Raises:
        InputError: a checkpoint cannot be read, the loss is not finite any more, or another worker
            has other flags or data.
    """
    config = provenance.config
    training = config.training
    keras.utils.set_random_seed(training.seed)
    workers.check_same(
        {
            "the flags": config.to_dict(),
            "the prepared corpus": [provenance.tokenizer, provenance.arrays],
            "precision": provenance.precision,
        }
    )
    corpus, buckets, plan = batches
    if run:
        report = bucket_report(buckets, plan.batch_sizes, corpus.metadata["dropped"])
        _LOG.info("%s", report)
        write_text(run.path / "buckets.txt", report + "\n")
    with progress("building the model"):
        trainer = _make_trainer(provenance, buckets, workers.strategy)
    state = _restore(config, run, trainer, workers)
    if state.is_over(training.steps, training.patience):
        if run:
            _LOG.info("%s is trained to step %s already", run.path, f"{state.step:,}")
        return None
    if run:
        _announce(config, trainer, plan, state.step)
        run.rewind_history(state.step)
    data = _data(provenance, prepared, corpus, plan, trainer.micro_batches, state.step, workers)
    found: list[keras.callbacks.Callback] = [callbacks.NonFiniteLoss(skip=training.skip_non_finite)]
    if run:
        found += _callbacks_of_the_chief(config, prepared, run, trainer, state, plan)
    if training.patience:
        every = training.valid_every
        found.append(EarlyStopping(state, workers, patience=training.patience, valid_every=every))
    interruption = callbacks.Interruption(workers)
    with progress("compiling", "steps", training.steps, done=state.step) as work:
        trainer.fit(
            data,
            steps_per_epoch=training.steps - state.step,
            shuffle=False,
            verbose=0,
            callbacks=[*found, ProgressLine(work), interruption],
        )
    return interruption.signal


def _data(
    provenance: Provenance,
    prepared: Prepared,
    corpus: TokenizedCorpus,
    plan: EpochPlan,
    micro_batches: int,
    first_step: int,
    workers: Workers,
) -> tf.distribute.DistributedDataset:
    """The batches of all updates that are left, for each replica its own."""
    training = provenance.config.training
    sampler = None
    if training.subword_sampling:
        tokenizer = prepared.tokenizer_path
        sampler = SubwordSampler(tokenizer, training.subword_sampling, training.seed)

    def load(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return training_dataset(
            corpus,
            plan,
            first_step=first_step * micro_batches,
            num_steps=(training.steps - first_step) * micro_batches,
            num_replicas=provenance.replicas,
            replica_ids=workers.replicas,
            sampler=sampler,
        )

    return workers.strategy.distribute_datasets_from_function(load)


def _restore(
    config: RunConfig, run: TrainingRun | None, trainer: TranslationTrainer, workers: Workers
) -> RunState:
    """Loads the last checkpoint, or what to start from; the chief alone needs to have it."""
    state = RunState()
    if run:
        state = run.checkpoints.restore(trainer.transformer, trainer.optimizer)
        if config.training.initialize_from and not run.checkpoints.steps():
            state.initialized_from = origin = initialize(trainer.transformer, config)
            _LOG.info(
                "starting from {run}, checkpoint {checkpoint}, step {step:,}".format(**origin)
            )
            # Whatever becomes of the other run, this one can be resumed.
            run.checkpoints.save(
                trainer.transformer, trainer.optimizer, state, keep=1, interrupted=True
            )
    if workers.count == 1:
        return state
    variables = [*trainer.transformer.weights, *trainer.optimizer.variables]
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]
    counts = np.asarray([state.step, state.validations_since_best], np.int64)
    counts, *values = workers.from_chief([counts, *values])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    state.step, state.validations_since_best = map(int, counts)
    return state


def _make_trainer(
    provenance: Provenance, buckets: Sequence[Bucket], strategy: tf.distribute.Strategy
) -> TranslationTrainer:
    """Model and optimizer with all their variables, for sentences of these lengths."""
    config, training = provenance.config, provenance.config.training
    with strategy.scope():
        transformer = build_model(config.model, dtype=provenance.precision, buckets=buckets)
        freeze(transformer, training.freeze)
    batch = training.tokens_per_replica * provenance.replicas
    trainer = TranslationTrainer(
        transformer,
        strategy,
        label_smoothing=training.label_smoothing,
        micro_batches=max(1, training.tokens_per_step // batch),
        clip_norm=training.clip_norm,
        skip_non_finite=training.skip_non_finite,
        r_drop=training.r_drop,
        seed=training.seed,
        longest=max(bucket.longest for bucket in buckets),
        xla=devices.xla_scope(training),
    )
    with strategy.scope():
        optimizer = Adam(schedule_of(config), training.beta_1, training.beta_2, training.epsilon)
        trainer.compile(optimizer=optimizer, jit_compile=False)
        trainer.optimizer.build(transformer.trainable_variables)
    return trainer


def _callbacks_of_the_chief(
    config: RunConfig,
    prepared: Prepared,
    run: TrainingRun,
    trainer: TranslationTrainer,
    state: RunState,
    plan: EpochPlan,
) -> Sequence[keras.callbacks.Callback]:
    """What counts, reports, validates and saves."""
    training = config.training
    keep = max(training.keep_checkpoints, training.average_checkpoints)
    schedule = schedule_of(config)
    record = recorder_of(run)

    def save(interrupted: bool = False) -> None:
        run.checkpoints.save(
            trainer.transformer, trainer.optimizer, state, keep=keep, interrupted=interrupted
        )

    validation = None
    if training.valid_every and "valid" in prepared.splits:
        validation = Validation(
            Validator(trainer.transformer, prepared, config.corpus.target_language),
            save,
            record,
            state,
            every=training.valid_every,
        )
    return [
        Counting(state, log_every=training.log_every),
        StartUp(state, plan, trainer.micro_batches),
        Progress(
            record,
            state,
            last_step=training.steps,
            log_every=training.log_every,
            learning_rate=lambda: last_rate(schedule, trainer.optimizer),
        ),
        callbacks.ValidationAndCheckpoints(
            save,
            state,
            validation=validation,
            last_step=training.steps,
            patience=training.patience,
            every=training.checkpoint_every,
            minutes=training.checkpoint_minutes,
        ),
    ]


def _announce(
    config: RunConfig, trainer: TranslationTrainer, plan: EpochPlan, first_step: int
) -> None:
    parameters, frozen = (
        sum(int(np.prod(weight.shape)) for weight in weights)
        for weights in (trainer.transformer.weights, trainer.transformer.non_trainable_weights)
    )
    steps = config.training.steps
    epochs = steps * trainer.micro_batches / plan.batches_per_epoch
    size = f"{parameters:,} parameters" + (f", {frozen:,} of them frozen" if frozen else "")
    _LOG.info(
        f"{config.preset}: {size}, {trainer.transformer.dtype_policy.name}; "
        f"{steps:,} steps, {epochs:.1f} epochs"
        + (f"; resumed at step {first_step:,}" if first_step else "")
    )
