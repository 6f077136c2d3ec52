"""Text to text with a directory that `pipelines.exporters.ctranslate2` wrote."""

import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from pipelines.errors import InputError, first_line
from pipelines.files.records import read_json
from pipelines.importing import import_optional
from pipelines.translators.base import (
    BATCH_SIZE,
    MIN_LENGTH,
    TextTranslator,
    Translation,
    check_nbest,
    check_search,
)
from tf_relpos.config import ALPHA, BEAM_SIZE

TOKENIZER_FILE = "tokenizer.model"
_VOCABULARY_FILE = "shared_vocabulary.json"  # which CTranslate2 reads

_PAD, _START = "<pad>", "<s>"
_LONGEST = 1 << 20  # subwords that can be asked for


class CTranslate2Translator(TextTranslator):
    """Translates sentences with CTranslate2 on the CPU, best hypotheses first.

    Greedy search gives the tokens of `greedy_search`. The beam search of CTranslate2 compares
    finished hypotheses by log-probability / length^p and stops after a number of them, so that the
    later ones of its K may differ from those of `beam_search`. Here they are ranked and scored like
    in every other form, by log-probability / ((5 + length) / 6)^alpha. The probabilities exclude
    padding and the start id, which raises a score by the little that these had; and a translation
    cut at its limit does not pay for its end.

    Args:
        path: the directory.
        beam_size: K, hypotheses kept; 1 is greedy search.
        alpha: length penalty.
        nbest: hypotheses given back, all that are kept unless given.
        threads: of the processor, all unless given.

    Raises:
        InputError: the directory cannot be read, or ctranslate2 is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        beam_size: int = BEAM_SIZE,
        alpha: float = ALPHA,
        nbest: int | None = None,
        threads: int | None = None,
    ):
        check_search(beam_size=beam_size, alpha=alpha)
        self.nbest = beam_size if nbest is None else nbest
        check_nbest(self.nbest, beam_size)
        self.beam_size = beam_size
        self.alpha = alpha
        ctranslate2 = import_optional("ctranslate2", "ctranslate2")
        # It warns that float16 weights become float32 on a CPU, which is as it should be.
        ctranslate2.set_log_level(logging.ERROR)
        try:
            self._limits = _limits(Path(path))
            self._subwords = _subwords(Path(path))
            # Batches side by side, a thread for each: threads that share a batch wait for each
            # other, which is many times slower as soon as the machine is doing something else.
            self._threads = threads or os.cpu_count() or 1
            self._translator = ctranslate2.Translator(
                str(path), device="cpu", inter_threads=self._threads, intra_threads=1
            )
        except (OSError, RuntimeError, ValueError, LookupError) as error:
            raise InputError(f"{path} cannot be read: {first_line(error)}") from error
        self._path = path

    def _translate_chunk(self, sentences: Sequence[str]) -> Iterator[list[Translation]]:
        end, longest = self._subwords.eos_id(), self._limits.max_source_length
        ids = [[*row, end][:longest] for row in self._subwords.encode(list(sentences))]
        limits = [len(row) + self._limits.extra_length for row in ids]
        results = self._search(ids, max(limits))
        # CTranslate2 has one limit for all. The few that exceed their own are searched again.
        past = [
            i
            for i, result in enumerate(results)
            if max(len(pieces) for pieces in result.hypotheses) > limits[i]
        ]
        for limit in {limits[i] for i in past}:
            rows = [i for i in past if limits[i] == limit]
            for i, result in zip(rows, self._search([ids[i] for i in rows], limit), strict=True):
                results[i] = result
        for result in results:
            hypotheses = zip(result.hypotheses, result.scores, strict=True)
            translations = [self._translation(*hypothesis) for hypothesis in hypotheses]
            yield sorted(translations, key=lambda t: t.score, reverse=True)[: self.nbest]

    def _source_lengths(self, sentences: Sequence[str]) -> tuple[Sequence[int], int]:
        rows = self._subwords.encode(list(sentences))
        return [len(row) + 1 for row in rows], self._limits.max_source_length

    def _search(self, ids: list[list[int]], limit: int) -> list:
        """What CTranslate2 finds for sources in at most `limit` tokens, the end included."""
        try:
            return self._translator.translate_batch(
                [self._subwords.id_to_piece(row) for row in ids],
                max_batch_size=min(BATCH_SIZE, math.ceil(len(ids) / self._threads)),
                beam_size=self.beam_size,
                num_hypotheses=self.beam_size,
                # What comes nearest to `beam_search`: twice K finished hypotheses to choose from.
                patience=2 if self.beam_size > 1 else 1,
                length_penalty=self.alpha,
                max_input_length=0,
                min_decoding_length=MIN_LENGTH,
                max_decoding_length=limit,
                suppress_sequences=[[_PAD], [_START]],
                return_end_token=True,
                return_scores=True,
            )
        except (RuntimeError, ValueError) as error:  # such as a vocabulary that is too short
            raise InputError(f"{self._path} cannot be run: {first_line(error)}") from error

    def _translation(self, pieces: list[str], score: float) -> Translation:
        """A hypothesis; in one that met the limit, the end takes the place of the last piece."""
        length = max(1, len(pieces))  # CTranslate2 translates no source to nothing, not even an end
        log_probability = score * length**self.alpha
        ids = [self._subwords.piece_to_id(piece) for piece in pieces[:-1]]
        penalty = ((5 + length) / 6) ** self.alpha
        return Translation(self._subwords.decode(ids), log_probability / penalty)


class _Limits(NamedTuple):
    max_source_length: int  # subwords of a source that are read, its end included
    extra_length: int  # a translation has at most so many more


def pieces_of(subwords: sentencepiece.SentencePieceProcessor) -> list[str]:
    """The subwords by their ids."""
    return [subwords.id_to_piece(i) for i in range(subwords.get_piece_size())]


def _subwords(path: Path) -> sentencepiece.SentencePieceProcessor:
    """The tokenizer of the directory, which must be that of its model."""
    file, vocabulary = path / TOKENIZER_FILE, path / _VOCABULARY_FILE
    try:
        subwords = sentencepiece.SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{file} cannot be read: {first_line(error)}") from error
    if pieces_of(subwords) != read_json(vocabulary):
        raise InputError(f"{file} is of another model: its subwords must be those of {vocabulary}")
    return subwords


def _limits(path: Path) -> _Limits:
    """What the exporter wrote into the directory's configuration."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        limits = _Limits(*(config[name] for name in _Limits._fields))
        if not all(type(limit) is int and 0 < limit <= _LONGEST for limit in limits):
            raise TypeError
        return limits
    except (KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} was not exported by pipelines.export: its config.json must have "
            f"{' and '.join(_Limits._fields)}, from 1 to {_LONGEST:,}"
        ) from error
