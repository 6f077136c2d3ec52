"""BLEU, chrF and TER as the field reports them: sacreBLEU's, with its signatures."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU

from pipelines.errors import InputError

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
    """A corpus score, 0 to 100, and the signature that says how it was computed."""

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str], target_language: str) -> Score:
    """Corpus BLEU of detokenized text against one reference.

    Args:
        translations, references: a sentence each, in the same order.
        target_language: its code, such as "zh" or "pt-BR", which decides the tokenizer.

    Raises:
        InputError: nothing to score, or other counts of translations and references.
    """
    if len(translations) != len(references):
        raise InputError(
            f"the source has {len(translations)} lines, but the reference has {len(references)}"
        )
    if not references:
        raise InputError("there is nothing to score: the source is empty")
    metric = BLEU(tokenize=tokenizer_for(target_language))
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Score(score, str(metric.get_signature()))


@functools.cache
def tokenizer_for(language: str) -> str:
    """The name of sacreBLEU's tokenizer for BLEU of a language; "char" where one is not installed.

    What is missing is told once: a training run should not end for it.
    """
    code = language.lower().replace("_", "-").partition("-")[0]
    name = _TOKENIZERS.get(code, BLEU.TOKENIZER_DEFAULT)
    try:
        check_tokenizer(name)
    except InputError as error:
        _LOG.warning("%s; BLEU counts characters instead (tok:char)", error)
        return "char"
    return name


def check_tokenizer(name: str) -> None:
    """Raises InputError if a tokenizer of sacreBLEU's cannot be used here."""
    try:
        BLEU(tokenize=name)
    except (RuntimeError, ImportError, AssertionError) as error:  # what sacreBLEU raises
        extra = name.partition("-")[0]
        raise InputError(
            f"BLEU's tokenizer {name} needs packages: pip install 'sacrebleu[{extra}]'"
        ) from error
