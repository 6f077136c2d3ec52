"""Scores on held-out text while training, and the end of training when they stall."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines import train_wmt
from pipelines.data.preparation import open_prepared
from pipelines.data.tokenizer import Tokenizer
from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from pipelines.training.callbacks import ValidationAndCheckpoints
from pipelines.training.history import recorder_of
from pipelines.training.reports import Counting
from pipelines.training.validation import EarlyStopping, Scores, Validation, Validator
from pipelines.training.workers import Workers
from pipelines.translators.keras_model import Translator, load_run
from tests.support.runs import train_flags
from tests.support.updates import feed, logs

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level("INFO", "pipelines")


def test_the_best_validation_is_saved_after_it_is_recorded(run, caplog):
    """Whoever resumes from a checkpoint finds the validation of its step."""
    state, saved = RunState(), []

    def save():
        recorded = json.loads(run.history_path.read_text().splitlines()[-1])
        assert recorded == {
            "step": state.step,
            "validation_bleu": state.best["bleu"],
            "validation_perplexity": 4.0,
            "validation_accuracy": 0.5,
        }
        saved.append(dict(state.best))

    scores = (Scores(bleu, 4.0, 0.5) for bleu in (10.0, 30.0, 20.0, 30.0, 40.0))
    validation = Validation(lambda: next(scores), save, recorder_of(run), state, every=2)
    checkpoints = ValidationAndCheckpoints(
        lambda interrupted: None, state, validation=validation, last_step=11, every=0, minutes=0
    )
    feed([logs()] * 11, Counting(state, log_every=3), checkpoints)
    assert saved == [
        {"step": 2, "bleu": 10.0, "perplexity": 4.0},
        {"step": 4, "bleu": 30.0, "perplexity": 4.0},
        {"step": 10, "bleu": 40.0, "perplexity": 4.0},
    ]
    assert state.best == saved[-1]
    records = [json.loads(line) for line in run.history_path.read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10]
    line = "step 4  validation BLEU 30.00  perplexity 4.00  accuracy 0.500  (best)"
    assert line in caplog.messages


def test_among_equal_bleu_the_lower_perplexity_is_better(run):
    """BLEU is 0 for a while at first: that a model learns shows in the perplexity alone."""
    scores = [Scores(0.0, perplexity, 0.1) for perplexity in (90.0, 60.0, 70.0, 50.0)]
    validations, state = iter(scores), RunState()
    validation = Validation(
        lambda: next(validations), lambda: None, recorder_of(run), state, every=1
    )
    found = []
    for state.step in range(1, 5):
        validation.run_if_due()
        found.append((state.best["step"], state.validations_since_best))
    assert found == [(1, 0), (2, 0), (2, 1), (4, 0)]


def test_a_best_score_of_long_ago_without_perplexity_is_beaten_by_bleu_alone(run):
    state = RunState(step=2, best={"step": 1, "bleu": 0.0})
    scores = (Scores(bleu, 1.5, 0.5) for bleu in (0.0, 0.1))
    validation = Validation(lambda: next(scores), lambda: None, recorder_of(run), state, every=1)
    validation.run_if_due()
    assert state.best["step"] == 1
    validation.run_if_due()
    assert state.best["bleu"] == 0.1


def test_the_perplexity_is_that_of_sentence_after_sentence(trained_run):
    translator = Translator.of(load_run(RunDirectory(trained_run)))
    prepared = open_prepared(trained_run / "prepared")
    tokenizer = Tokenizer(prepared.tokenizer_path)
    nll, right, tokens = 0.0, 0, 0
    for pair in zip(*prepared.text("valid"), strict=True):
        source, labels = (tokenizer.encode(tf.constant([text])).to_tensor() for text in pair)
        shifted = np.concatenate([[[2]], labels[:, :-1]], axis=1)
        logits = translator.model({"source_ids": source, "target_ids": shifted})[0].numpy()
        for label, row in zip(labels[0].numpy(), logits.astype("float64"), strict=True):
            nll += np.log(np.sum(np.exp(row))) - row[label]
            right += int(np.argmax(row)) == label
            tokens += 1
    scores = Validator(translator.model, prepared, "de")()
    assert scores.perplexity == pytest.approx(math.exp(nll / tokens), rel=1e-4)
    assert scores.accuracy == right / tokens
    assert 50 < scores.bleu < 100.001


@pytest.mark.parametrize("patience, stops_at", [(1, 6), (2, 12), (3, None)])
def test_training_ends_after_validations_without_a_better_score(run, caplog, patience, stops_at):
    state, saved = RunState(), []
    scores = (Scores(bleu, 4.0, 0.5) for bleu in (10.0, 30.0, 30.0, 31.0, 20.0, 30.0))

    def save(interrupted=False):
        saved.append((state.step, interrupted))

    validation = Validation(lambda: next(scores), save, recorder_of(run), state, every=2)
    checkpoints = ValidationAndCheckpoints(
        save, state, validation=validation, last_step=99, patience=patience, every=0, minutes=0
    )
    workers = Workers(tf.distribute.get_strategy())
    stopping = EarlyStopping(state, workers, patience=patience, valid_every=2)
    stopping.set_model(keras.Model())
    stopping.model.stop_training = False
    callbacks = (Counting(state, log_every=3), checkpoints, stopping)
    for _ in range(12):
        for callback in callbacks:
            callback.on_train_batch_begin(0)
        for callback in callbacks:
            callback.on_train_batch_end(0, logs=logs())
        if stopping.model.stop_training:
            break
    checkpoints.on_train_end()
    if stops_at is None:
        assert state.step == 12 and saved[-1] == (12, True)
        return
    assert state.step == stops_at
    # The end of a run, not an interruption; and it stays the end when it is resumed.
    assert saved[-1] == (stops_at, False)
    assert RunState.from_dict(vars(state)).is_over(99, patience)
    assert not state.is_over(99, patience + 1)
    assert caplog.messages[-1].startswith(f"stopped early at step {stops_at}: no better")


def test_a_stalled_run_ends_with_its_best_checkpoint(corpus, tmp_path):
    """At a rate of nothing, no validation is better than the first."""
    arguments = train_flags(
        corpus,
        tmp_path,
        tokens_per_replica=512,
        learning_rate_scale=1e-12,
        steps=50,
        valid_every=2,
        patience=2,
        checkpoint_every=1,
    )
    assert train_wmt.main(arguments) == 0
    assert RunDirectory(tmp_path).checkpoints.steps()[-1] == 6
    (record,) = RunDirectory(tmp_path).scores()
    assert (record["checkpoint"], record["step"]) == ("best", 2)
    assert train_wmt.main(arguments) == 0
    assert RunDirectory(tmp_path).checkpoints.steps()[-1] == 6
    assert len(RunDirectory(tmp_path).scores()) == 1


@pytest.mark.parametrize(
    "values, message",
    [
        ({"patience": -1}, "patience must be at least 0, got -1"),
        ({"patience": 2, "valid_every": 0}, "patience needs validations, but valid_every is 0"),
        ({"patience": 2, "splits": ("train", "test")}, "patience needs text to validate on"),
    ],
)
def test_patience_without_validations_is_refused(corpus, tmp_path, values, message):
    with pytest.raises(InputError, match=message):
        train_wmt.parse(train_flags(corpus, tmp_path, **values))
