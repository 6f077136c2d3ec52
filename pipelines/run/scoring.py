"""BLEU as the field reports it: sacreBLEU, with its signature, and with all that repeats it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sacrebleu

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.run.provenance import code_version


@dataclass(frozen=True)
class Bleu:
    """A corpus score, 0 to 100, and the signature that says how it was computed."""

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Corpus BLEU of detokenized text against one reference.

    Raises:
        InputError: nothing to score, or other counts of translations and references.
    """
    if len(translations) != len(references):
        raise InputError(
            f"the source has {len(translations)} lines, but the reference has {len(references)}"
        )
    if not references:
        raise InputError("there is nothing to score: the source is empty")
    metric = sacrebleu.metrics.BLEU()
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Bleu(score, str(metric.get_signature()))


def score_record(
    config: RunConfig,
    score: Bleu,
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
