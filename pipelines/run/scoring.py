"""Scores as they are recorded: with all that it takes to repeat them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics.base import Metric

from pipelines.config import RunConfig
from pipelines.corpora.by_length import even_ranges, words
from pipelines.run.metrics import Score, compute
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

    They have all their digits: rounded here, and again where they are shown, they could differ from
    what was printed.

    Args:
        config: of the run.
        scores: of its translations, by name: "bleu" and perhaps others.
        split: "test", "valid", or the file that was translated.
        checkpoint, step: which weights, and the update that they are from.
        beam_size, alpha: of the search.
    """
    return {
        "split": split,
        **{name: score.score for name, score in scores.items()},
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


def scores_by_length(
    metrics: Mapping[str, Metric],
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[Sequence[str]],
    ranges: int,
) -> list[dict[str, Any]]:
    """The same scores of the sentences of similar length, each range a record.

    Args:
        metrics, translations, references: as for `pipelines.run.metrics.compute`.
        sources: what was translated, whose words count.
        ranges: into how many the sentences are put, about as many in each.

    Returns:
        `shortest` and `longest` in words, `sentences`, and the scores by the names of the metrics.
    """
    lengths = [words(source) for source in sources]
    found = []
    for shortest, longest in even_ranges(lengths, ranges):
        members = [n for n, length in enumerate(lengths) if shortest <= length <= longest]
        scores = compute(
            metrics,
            [translations[n] for n in members],
            [[reference[n] for n in members] for reference in references],
        )
        found.append(
            {
                "shortest": shortest,
                "longest": longest,
                "sentences": len(members),
                **{name: score.score for name, score in scores.items()},
            }
        )
    return found
