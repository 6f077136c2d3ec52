"""BLEU, chrF and TER as the field reports them: sacreBLEU's, with its signatures."""

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from pipelines.errors import InputError
from pipelines.progress import progress

_LOG = logging.getLogger(__name__)

# BLEU counts words, so text without spaces needs a tokenizer that knows the language. By the codes
# of ISO 639; sacreBLEU has none for the last line.
_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya"), "char"),
}


@dataclass(frozen=True)
class Score:
    """A corpus score, 0 to 100 unless it is COMET's, and how it was computed."""

    name: str
    score: float
    signature: str


def sacrebleu_metrics(
    target_language: str, *, tokenize: str | None = None, lowercase: bool = False
) -> dict[str, Metric]:
    """BLEU, chrF and TER, by the names that `scores.json` gives them.

    Args:
        target_language: its code, such as "zh" or "pt-BR", which decides how words are told.
        tokenize: sacreBLEU's name of another tokenizer for BLEU.
        lowercase: whether case does not count; in TER it never does, which is sacreBLEU's default.

    Raises:
        InputError: the tokenizer cannot be used here.
    """
    if tokenize:
        check_tokenizer(tokenize)
    by_character = _TOKENIZERS.get(_code(target_language)) in ("zh", "ja-mecab")
    return {
        "bleu": BLEU(tokenize=tokenize or tokenizer_for(target_language), lowercase=lowercase),
        "chrf": CHRF(lowercase=lowercase),
        "ter": TER(normalized=by_character, asian_support=by_character),
    }


@progress("scoring")
def compute(
    metrics: Mapping[str, Metric],
    translations: Sequence[str],
    references: Sequence[Sequence[str]],
) -> dict[str, Score]:
    """Corpus scores of detokenized text.

    Args:
        metrics: what to compute, by name.
        translations: a sentence each.
        references: one or several translations of the whole text, each in the same order.

    Raises:
        InputError: nothing to score, or other counts of translations and references.
    """
    for reference in references:
        if len(translations) != len(reference):
            raise InputError(
                f"the source has {len(translations)} lines, but the reference has {len(reference)}"
            )
    if not translations:
        raise InputError("there is nothing to score: the source is empty")
    scores = {}
    for key, metric in metrics.items():
        result = metric.corpus_score(list(translations), references)
        scores[key] = Score(result.name, result.score, str(metric.get_signature()))
    return scores


def bleu(translations: Sequence[str], references: Sequence[str], target_language: str) -> Score:
    """Corpus BLEU against one reference. See `compute` and `sacrebleu_metrics`."""
    metric = BLEU(tokenize=tokenizer_for(target_language))
    return compute({"bleu": metric}, translations, [references])["bleu"]


@functools.cache
def tokenizer_for(language: str) -> str:
    """The name of sacreBLEU's tokenizer for BLEU of a language; "char" where one is not installed.

    What is missing is told once: a training run should not end for it.
    """
    name = _TOKENIZERS.get(_code(language), BLEU.TOKENIZER_DEFAULT)
    try:
        check_tokenizer(name)
    except InputError as error:
        _LOG.warning("%s; BLEU counts characters instead (tok:char)", error)
        return "char"
    return name


def _code(language: str) -> str:
    """The language of a code that may have a script and a region: "zh_Hant-TW" is "zh"."""
    return language.lower().replace("_", "-").partition("-")[0]


def check_tokenizer(name: str) -> None:
    """Raises InputError if a tokenizer of sacreBLEU's cannot be used here."""
    try:
        BLEU(tokenize=name)
    except OSError as error:  # some download a SentencePiece model when they are first used
        raise InputError(f"BLEU's tokenizer {name} cannot be loaded: {error}") from error
    except (RuntimeError, ImportError, AssertionError) as error:
        extra = name.partition("-")[0]
        raise InputError(
            f"BLEU's tokenizer {name} needs packages: pip install 'sacrebleu[{extra}]'"
        ) from error
