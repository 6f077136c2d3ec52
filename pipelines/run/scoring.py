"""Scores as they are recorded: with all that it takes to repeat them."""

from collections.abc import Mapping
from typing import Any

from pipelines.config import RunConfig
from pipelines.run.metrics import Score
from pipelines.run.provenance import code_version


def score_record(
    config: RunConfig,
    scores: Mapping[str, Score],
    *,
    split: str,
    checkpoint: str,
    step: int,
    beam_size: int,
    alpha: float,
) -> dict[str, Any]:
    """A record of `scores.json`: scores with all that it takes to repeat it.

    Args:
        config: of the run.
        scores: of its translations, by name: "bleu" and perhaps others.
        split: "test", "valid", or the file that was translated.
        checkpoint, step: which weights, and the update that they are from.
        beam_size, alpha: of the search.
    """
    return {
        "split": split,
        **{name: round(score.score, 4) for name, score in scores.items()},
        "signature": scores["bleu"].signature,
        **{f"{name}_signature": scores[name].signature for name in scores if name != "bleu"},
        "checkpoint": checkpoint,
        "step": step,
        "beam_size": beam_size,
        "alpha": alpha,
        "seed": config.training.seed,
        "preset": config.preset,
        "position": config.model.position,
        **code_version(),
    }
