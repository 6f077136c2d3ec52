"""Scores of the model in training on held-out text, and the end of training when they stall."""

import functools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

from pipelines.data.preparation import Prepared
from pipelines.data.tokenizer import Tokenizer
from pipelines.run.checkpoints import RunState
from pipelines.run.metrics import bleu
from pipelines.run.models import build_model
from pipelines.training.history import Recorder
from pipelines.training.workers import Workers
from pipelines.translators.keras_model import Translator
from pipelines.translators.likelihood import LikelihoodModel
from tf_relpos import Transformer

_LOG = logging.getLogger(__name__)


class Scores(NamedTuple):
    """What a validation finds.

    Attributes:
        bleu: of greedy translations, 0 to 100.
        perplexity: of the references' subwords, each given those before it, end marks included.
        accuracy: the share of these subwords that the model holds most probable, 0 to 1.
    """

    bleu: float
    perplexity: float
    accuracy: float


class Validation:
    """Scores the model every so many updates and keeps the best checkpoint.

    Args:
        validate: gives the scores; the BLEU tells which checkpoint is best, and where that is the
            same, as the 0 of a young model often is, the perplexity.
        save: writes a checkpoint of the state.
        record: appends to the history of the run.
        state: where the run stands.
        every: updates between validations.
    """

    def __init__(
        self,
        validate: Callable[[], Scores],
        save: Callable[[], None],
        record: Recorder,
        state: RunState,
        *,
        every: int,
    ):
        self.validate = validate
        self.save = save
        self.record = record
        self.state = state
        self.every = every

    def run_if_due(self) -> None:
        state = self.state
        if state.step % self.every:
            return
        scores = self.validate()
        is_best = _is_better(scores, state.best)
        _LOG.info(
            f"step {state.step:,}  validation BLEU {scores.bleu:.2f}  "
            f"perplexity {scores.perplexity:.2f}  accuracy {scores.accuracy:.3f}"
            + ("  (best)" if is_best else "")
        )
        found = {f"validation_{name}": value for name, value in scores._asdict().items()}
        self.record({"step": state.step, **found})
        state.validations_since_best = 0 if is_best else state.validations_since_best + 1
        if is_best:
            state.best = {
                "step": state.step,
                "bleu": scores.bleu,
                "perplexity": scores.perplexity,
            }
            self.save()


def _is_better(scores: Scores, best: Mapping[str, Any] | None) -> bool:
    """Whether scores are better than the best, of which older runs know the BLEU alone."""
    if best is None or scores.bleu != best["bleu"]:
        return best is None or scores.bleu > best["bleu"]
    return scores.perplexity < best.get("perplexity", 0.0)


class EarlyStopping(keras.callbacks.Callback):
    """Ends training, on all workers alike, when validations no longer find better scores.

    Args:
        state: where the run stands; the chief's counts the validations.
        workers: all of whom must have this callback, the chief behind its `Validation`.
        patience: validations in a row without a better score that end training.
        valid_every: updates between validations.
    """

    def __init__(self, state: RunState, workers: Workers, *, patience: int, valid_every: int):
        super().__init__()
        self.state = state
        self.workers = workers
        self.patience = patience
        self.valid_every = valid_every
        self._step = state.step  # only the chief counts in the state

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._step % self.valid_every:
            return
        if self.workers.any(self.state.has_stalled(self.patience)):
            self.model.stop_training = True
            if self.workers.is_chief:
                best = self.state.best or {}
                _LOG.info(
                    f"stopped early at step {self._step:,}: no better validation BLEU in "
                    f"{self.state.validations_since_best} validations than {best['bleu']:.2f} at "
                    f"step {best['step']:,}"
                )


class Validator:
    """Scores the model in training by a float32 copy, made when it is first needed.

    Args:
        trained: the model.
        prepared: has the text, and the subwords.
        language: code of the target language, which decides how BLEU is counted.
    """

    def __init__(self, trained: Transformer, prepared: Prepared, language: str):
        self.trained = trained
        self.prepared = prepared
        self.language = language
        self.sources, self.references = prepared.text("valid")

    @functools.cached_property
    def _translator(self) -> Translator:
        return Translator(
            build_model(self.trained.config),
            Tokenizer(self.prepared.tokenizer_path),
            beam_size=1,
            max_source_length=self.prepared.train.metadata["max_length"],
        )

    @functools.cached_property
    def _likelihoods(self) -> LikelihoodModel:
        return LikelihoodModel(self._translator, self._translator.max_source_length)

    def __call__(self) -> Scores:
        self._translator.model.set_weights(self.trained.get_weights())
        translations = self._translator.translate(self.sources)
        found = self._likelihoods(self.sources, self.references)
        subwords = int(found.subwords.sum())
        log_prob = float(found.log_probs.sum())
        return Scores(
            bleu=bleu(translations, self.references, self.language).score,
            perplexity=math.exp(min(-log_prob / subwords, 700.0)),  # float64's limit
            accuracy=float(found.right.sum()) / subwords,
        )
