"""BLEU as the field reports it: sacreBLEU, with its signature."""

from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu

from pipelines.errors import InputError


@dataclass(frozen=True)
class Bleu:
    """A corpus score, 0 to 100, and the signature that tells how it was computed."""

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
