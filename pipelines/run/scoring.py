"""A score as it is recorded: with all that it takes to repeat it."""

from typing import Any

from pipelines.config import RunConfig
from pipelines.run.metrics import Score
from pipelines.run.provenance import code_version


def score_record(
    config: RunConfig,
    score: Score,
    *,
    split: str,
    checkpoint: str,
    step: int,
    beam_size: int,
    alpha: float,
) -> dict[str, Any]:
    """A record of `scores.json`: a score with all that it takes to repeat it.

    Args:
        config: of the run.
        score: of its translations.
        split: "test", "valid", or the file that was translated.
        checkpoint, step: which weights, and the update that they are from.
        beam_size, alpha: of the search.
    """
    return {
        "split": split,
        "bleu": round(score.score, 4),
        "signature": score.signature,
        "checkpoint": checkpoint,
        "step": step,
        "beam_size": beam_size,
        "alpha": alpha,
        "seed": config.training.seed,
        "preset": config.preset,
        "position": config.model.position,
        **code_version(),
    }
