"""Text to text with the signatures of an exported model, wherever it runs."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from pipelines.errors import InputError
from pipelines.translators.base import BATCH_SIZE, TextTranslator, Translation
from pipelines.translators.predictor import Predictor
from tf_relpos.config import ALPHA, BEAM_SIZE


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
        if not 1 <= nbest <= self.beam_size:
            raise InputError(f"nbest must be from 1 to beam_size {self.beam_size}, got {nbest}")

    def _translate_chunk(self, sentences: Sequence[str]) -> list[list[Translation]]:
        by_length = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        results: list[list[Translation]] = [[] for _ in sentences]
        for begin in range(0, len(by_length), BATCH_SIZE):
            chosen = by_length[begin : begin + BATCH_SIZE]
            answers = self._request([sentences[i] for i in chosen])
            for i, hypotheses in zip(chosen, answers, strict=True):
                results[i] = hypotheses
        return results

    def _request(self, sentences: list[str]) -> list[list[Translation]]:
        if not self.has_own_search:
            outputs = self.predictor.predict("serving_default", {"text": sentences})
            texts, scores = (_output(outputs, name) for name in ("translation", "score"))
            rows = [[text] for text in texts], [[score] for score in scores]
            return _translations(*rows, len(sentences), 1)
        inputs = {"text": sentences, "beam_size": self.beam_size, "alpha": float(self.alpha)}
        outputs = self.predictor.predict("nbest", inputs)
        texts, scores = (_output(outputs, name) for name in ("translations", "scores"))
        hypotheses = _translations(texts, scores, len(sentences), self.beam_size)
        return [row[: self.nbest] for row in hypotheses]


def _output(outputs: Mapping[str, object], name: str) -> list:
    if not isinstance(value := outputs.get(name), list):
        _refuse(f"no list of {name}")
    return value


def _translations(texts: list, scores: list, rows: int, columns: int) -> list[list[Translation]]:
    """Hypotheses of each sentence from two nested lists `[rows, columns]`, which are checked."""
    for values, kind in ((texts, str), (scores, (int, float))):
        lengths = {len(row) if isinstance(row, list) else 0 for row in values}
        if len(values) != rows or lengths - {columns}:
            _refuse(f"other than {columns} hypotheses for each of {rows} sentences")
        if not all(isinstance(value, kind) for row in values for value in row):
            _refuse("texts that are no text or scores that are no numbers")
    return [
        [Translation(text, float(score)) for text, score in zip(*row, strict=True)]
        for row in zip(texts, scores, strict=True)
    ]


def _refuse(detail: str) -> NoReturn:
    raise InputError(f"model must be a translator, but its answer has {detail}")
