"""Subword regularization: another segmentation of the same words each time that they are read.

A segmentation x of a word has the probability P(x)^alpha / sum of P(x')^alpha, with the unigram
model's P (Kudo 2018, section 3.2). The pieces of such models do not reach across words, so that
those of a sentence are drawn word by word, from alternatives that are worked out once. NumPy only.

Reference: Kudo 2018, "Subword Regularization: Improving Neural Network Translation Models with
Multiple Subword Candidates".
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.data.buckets import Bucket
from pipelines.data.dataset import PAD_ID
from pipelines.data.subword_model import check_can_sample, read_model

_MOST_ALTERNATIVES = 64  # of a word; l in section 3.2
_WORDS_KEPT = 1 << 17
_WORD_BOUNDARY = "▁"  # how SentencePiece writes a space


class _Alternatives(NamedTuple):
    """The segmentations of a word, and the sums of their probabilities up to each."""

    ids: list[tuple[int, ...]]
    sums: list[float]


class SubwordSampler:
    """Draws segmentations of sentences that are given as ids.

    Args:
        tokenizer: the SentencePiece model, a unigram model.
        alpha: towards 0 all segmentations are as probable, and the larger it is the rarer are
            others than the best.
        seed: of what is drawn.

    Raises:
        InputError: the tokenizer cannot be read, or it is no unigram model.
    """

    def __init__(self, tokenizer: Path, alpha: float, seed: int):
        self._model = read_model(tokenizer)
        check_can_sample(tokenizer)
        self.alpha = alpha
        self.seed = seed
        size = self._model.get_piece_size()
        self._pieces = [self._model.id_to_piece(number) for number in range(size)]
        self._scores = [self._model.get_score(number) for number in range(size)]
        # Bytes, unknown characters and the end mark are no words, and stay as they are.
        self._is_text = [
            not (self._model.is_control(n) or self._model.is_unknown(n) or self._model.is_byte(n))
            for n in range(size)
        ]
        self._begins_word = np.array(
            [
                not is_text or piece.startswith(_WORD_BOUNDARY)
                for piece, is_text in zip(self._pieces, self._is_text, strict=True)
            ]
        )
        self._alternatives = functools.lru_cache(_WORDS_KEPT)(self._find_alternatives)

    def uniforms(self, step: int, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers in [0, 1) for a step, the same whenever it is asked for."""
        return np.random.default_rng((self.seed, step)).random(shape)

    def __call__(self, ids: np.ndarray, uniforms: np.ndarray, length: int) -> np.ndarray:
        """Other segmentations of the same text.

        Args:
            ids: int `[B, S]`, each row with its end id, then padding.
            uniforms: `[B, S]`, numbers in [0, 1) that decide.
            length: of the rows to return, at least S. Where not all that is drawn fits, some words,
                any of the sentence, stay as they are.

        Returns:
            int32 `[B, length]`, padded.
        """
        sampled = np.full((len(ids), length), PAD_ID, dtype=np.int32)
        for row, (sentence, numbers) in enumerate(zip(ids, uniforms, strict=True)):
            kept = sentence[: np.count_nonzero(sentence != PAD_ID)]
            drawn = self._draw(kept, numbers.tolist(), length - len(kept))
            sampled[row, : len(drawn)] = drawn
        return sampled

    def _draw(self, sentence: np.ndarray, numbers: Sequence[float], room: int) -> list[int]:
        """The ids of a sentence, at most `room` more than there are."""
        begins = np.flatnonzero(self._begins_word[sentence]).tolist()
        bounds = sorted({0, *begins, len(sentence)})
        ids = sentence.tolist()
        words = [tuple(ids[begin:end]) for begin, end in itertools.pairwise(bounds)]
        # Which word is first, or the ends of long sentences would stay as they are. The number of
        # the end mark, which is the last, decides nothing else.
        first = int(numbers[len(words) - 1] * (len(words) - 1)) if words else 0
        for place in (*range(first, len(words)), *range(first)):
            choices = self._alternatives(words[place])
            choice = choices.ids[bisect.bisect_right(choices.sums, numbers[place])]
            growth = len(choice) - len(words[place])
            if growth <= room:
                room -= growth
                words[place] = choice
        return [number for word in words for number in word]

    def _find_alternatives(self, word: tuple[int, ...]) -> _Alternatives:
        """Those of a word that spell it as its own pieces do."""
        only = _Alternatives([word], [])
        if not all(self._is_text[number] for number in word):
            return only
        spelling = self._spelling(word)
        text = spelling.replace(_WORD_BOUNDARY, " ").strip()
        found = self._model.nbest_encode(text, nbest_size=_MOST_ALTERNATIVES, out_type=int)
        ids = [tuple(each) for each in found if self._spelling(each) == spelling]
        if len(ids) < 2:
            return only
        scores = np.array([sum(self._scores[number] for number in each) for each in ids])
        weights = np.exp(self.alpha * (scores - scores.max()))
        sums = np.cumsum(weights / weights.sum())
        return _Alternatives(ids, sums[:-1].tolist())

    def _spelling(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[number] for number in ids)


def with_room(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Buckets an eighth longer, as segmentations that are drawn are longer than the best."""
    return [
        dataclasses.replace(
            bucket,
            source_length=bucket.source_length * 9 // 8,
            target_length=bucket.target_length * 9 // 8,
        )
        for bucket in buckets
    ]
