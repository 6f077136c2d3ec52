"""Text to text with the signatures of an exported model, wherever it runs."""

import logging
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pipelines.errors import InputError
from pipelines.translators.base import BATCH_SIZE, TextTranslator, Translation, check_nbest
from pipelines.translators.predictor import Predictor
from pipelines.translators.side_by_side import by_length
from tf_relpos.config import ALPHA, BEAM_SIZE

_LOG = logging.getLogger(__name__)


class SignatureTranslator(TextTranslator):
    """Translates sentences with the signatures that `pipelines.exporters.saved_model` writes.

    `serving_default` is asked for one hypothesis with the settings of the export, `nbest` for
    anything else.

    Args:
        predictor: what answers.
        nbest: hypotheses of each sentence.
        beam_size: None for that of the export, or for `nbest` if that is above 4.
        alpha: length penalty; None for that of the export, or 0.6 if another setting is given.

    Raises:
        InputError: nbest is below 1 or above the beam size. While translating: the predictor
            refuses, or its answer is not that of a translator.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        nbest: int = 1,
        beam_size: int | None = None,
        alpha: float | None = None,
    ):
        self.predictor = predictor
        self.nbest = nbest
        self.has_own_search = nbest != 1 or beam_size is not None or alpha is not None
        self.beam_size = max(BEAM_SIZE, nbest) if beam_size is None else beam_size
        self.alpha = ALPHA if alpha is None else alpha
        self._limit = 0  # subwords of a source that are read; 0 until the model has told it
        check_nbest(nbest, self.beam_size)

    def _translate_chunk(self, sentences: Sequence[str]) -> list[list[Translation]]:
        results: list[list[Translation]] = [[] for _ in sentences]

        def of_batch(chosen: Sequence[int]) -> list[list[Translation]]:
            return self._request([sentences[i] for i in chosen])

        lengths = [len(sentence) for sentence in sentences]
        for chosen, answer in by_length(lengths, self.predictor.at_once, of_batch):
            for i, hypotheses in zip(chosen, answer, strict=True):
                results[i] = hypotheses
        return results

    def _request(self, sentences: list[str]) -> list[list[Translation]]:
        if not self.has_own_search:
            outputs = self.predictor.predict("serving_default", {"text": sentences})
            texts, scores = (self._output(outputs, name) for name in ("translation", "score"))
            rows = [[text] for text in texts], [[score] for score in scores]
            return self._translations(*rows, len(sentences), 1)
        inputs = {"text": sentences, "beam_size": self.beam_size, "alpha": float(self.alpha)}
        outputs = self.predictor.predict("nbest", inputs)
        texts, scores = (self._output(outputs, name) for name in ("translations", "scores"))
        hypotheses = self._translations(texts, scores, len(sentences), self.beam_size)
        return [row[: self.nbest] for row in hypotheses]

    def _source_lengths(self, sentences: Sequence[str]) -> tuple[Sequence[int], int]:
        """Asks for those that may be beyond the limit, which the first answer tells."""
        lengths = [0] * len(sentences)
        left = list(range(len(sentences)))
        while left := [i for i in left if _most_subwords(sentences[i]) > self._limit]:
            chosen, left = left[:BATCH_SIZE], left[BATCH_SIZE:]
            subwords, self._limit = self._ask_lengths([sentences[i] for i in chosen])
            for i, length in zip(chosen, subwords, strict=False):
                lengths[i] = length
        return lengths, self._limit

    def _ask_lengths(self, sentences: list[str]) -> tuple[list[int], int]:
        """Subwords of each and the limit; none, and no limit, if the model does not tell."""
        try:
            outputs = self.predictor.predict("source_length", {"text": sentences})
            subwords, limits = (self._output(outputs, name) for name in ("subwords", "limit"))
            return [int(value) for value in subwords], int(limits[0])
        except (InputError, IndexError, OverflowError, TypeError, ValueError):
            _LOG.warning(
                "%s does not tell which sources it cuts: one that is exported anew does",
                self.predictor.name,
            )
            return [], sys.maxsize

    def _output(self, outputs: Mapping[str, object], name: str) -> list:
        if not isinstance(value := outputs.get(name), list):
            self._refuse(f"no list of {name}")
        return value

    def _translations(
        self, texts: list, scores: list, rows: int, columns: int
    ) -> list[list[Translation]]:
        """Hypotheses of each sentence from two nested lists `[rows, columns]`, checked."""
        for values, is_right, wrong in (
            (texts, _is_text, "texts that are not Unicode text"),
            (scores, _is_score, "scores that are no finite numbers"),
        ):
            lengths = {len(row) if isinstance(row, list) else 0 for row in values}
            if len(values) != rows or lengths - {columns}:
                self._refuse(f"other than {columns} hypotheses for each of {rows} sentences")
            if not all(is_right(value) for row in values for value in row):
                self._refuse(wrong)
        return [
            [Translation(text, float(score)) for text, score in zip(*row, strict=True)]
            for row in zip(texts, scores, strict=True)
        ]

    def _refuse(self, detail: str) -> NoReturn:
        raise InputError(
            f"model {self.predictor.name} must be a translator, but its answer has {detail}"
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _is_score(value: object) -> bool:
    """Any number but NaN and those that only an int can hold; `True` is none."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore


def _most_subwords(sentence: str) -> int:
    """What no tokenizer of ours exceeds: one for each byte, one for the space in front, the end."""
    return len(unicodedata.normalize("NFKC", sentence).encode(errors="replace")) + 2
