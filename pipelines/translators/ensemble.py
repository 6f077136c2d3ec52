"""Several models that translate as one."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from pipelines.errors import InputError
from pipelines.translators.keras_model import LoadedRun
from tf_relpos import Transformer


class Ensemble:
    """The average of what several models say, as a model to search with: see `tf_relpos.search`.

    The probabilities of the next token are averaged, not their logarithms: one model that finds a
    token impossible has no veto.

    Args:
        models: of the same vocabulary; all else may differ.
    """

    def __init__(self, models: Sequence[Transformer]):
        self.models = models
        self.config = models[0].config
        self.weights = [weight for model in models for weight in model.weights]

    def encode(self, source_ids: Any) -> list[Any]:
        """What each model needs to know of the source."""
        return [model.encode(source_ids) for model in self.models]

    def initial_cache(self, memory: list[Any], beam_size: Any, max_length: Any) -> list[Any]:
        """The cache of each model."""
        pairs = zip(self.models, memory, strict=True)
        return [model.initial_cache(part, beam_size, max_length) for model, part in pairs]

    def step(
        self, token_ids: Any, cache: list[Any], index: Any, memory: list[Any]
    ) -> tuple[Any, list[Any]]:
        """The log-probabilities of the next token, `[B, K, V]`, and the caches."""
        log_probs, caches = [], []
        for model, old, part in zip(self.models, cache, memory, strict=True):
            logits, new = model.step(token_ids, old, index, part)
            log_probs.append(ops.log_softmax(ops.cast(logits, "float32"), axis=-1))
            caches.append(new)
        mean = ops.logsumexp(ops.stack(log_probs), axis=0) - math.log(len(self.models))
        return mean, caches


def combined(loaded: Sequence[LoadedRun]) -> LoadedRun:
    """One run as it is, or several as an ensemble, which reads as much as the least of them.

    Raises:
        InputError: their subwords differ.
    """
    first, *others = loaded
    for other in others:
        if other.subwords != first.subwords:
            raise InputError(
                "runs of an ensemble must have the same subwords, but the tokenizer.model of "
                f"{other.path} is not that of {first.path}"
            )
    if not others:
        return first
    return first._replace(
        model=Ensemble([run.model for run in loaded]),
        max_source_length=min(run.max_source_length for run in loaded),
        checkpoint=",".join(dict.fromkeys(run.checkpoint for run in loaded)),
        step=max(run.step for run in loaded),
    )
