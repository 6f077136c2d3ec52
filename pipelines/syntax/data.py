"""Sentences of the demo corpus as ids of words, with the labels that join the words of a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.corpora.demo.corpus import distinct_sentences, sentences
from pipelines.graphs.batches import labels_of_pairs, padded_rows, planned
from pipelines.graphs.conllu import Sentence, edges_of_sentence
from pipelines.syntax.trees import LABELS, tree, words_of

PAD, UNKNOWN, START, END = range(4)
_NUMBERS = {label: i for i, label in enumerate(LABELS)}


class Example(NamedTuple):
    """A sentence and its translation.

    Attributes:
        source: ids of its words, int32 `[S]`.
        edges: of its dependency tree, int32 `[M, 3]`, see `tf_relpos.edge_relations`.
        target: ids of the translation's words, `START` before and `END` after them, int32 `[T]`.
        reference: the translation.
    """

    source: np.ndarray
    edges: np.ndarray
    target: np.ndarray
    reference: str


class Text(NamedTuple):
    """Examples to train on and to validate on, and the words of both languages by their ids."""

    train: Sequence[Example]
    valid: Sequence[Example]
    source_words: Sequence[str]
    target_words: Sequence[str]


def read(train: int, valid: int, seed: int) -> Text:
    """So many sentences of the demo corpus of that seed. Known are the words to train on."""
    rows = {}
    for split, count in (("train", train), ("valid", valid)):
        candidates = sentences(f"{seed} {split}")
        found = distinct_sentences(candidates, split, count)
        rows[split] = [(tree(sentence), target) for sentence, _, target in found]
    source_words = _vocabulary(source.forms for source, _ in rows["train"])
    target_words = _vocabulary(words_of(target) for _, target in rows["train"])
    source_ids, target_ids = (
        {word: i for i, word in enumerate(words)} for words in (source_words, target_words)
    )

    def example(source: Sentence, reference: str) -> Example:
        target = [target_ids.get(word, UNKNOWN) for word in words_of(reference)]
        return Example(
            np.array([source_ids.get(word, UNKNOWN) for word in source.forms], "int32"),
            edges_of_sentence(source, _NUMBERS),
            np.array([START, *target, END], "int32"),
            reference,
        )

    train_examples, valid_examples = ([example(*row) for row in rows[split]] for split in rows)
    return Text(train_examples, valid_examples, source_words, target_words)


def _vocabulary(texts: Iterable[Sequence[str]]) -> list[str]:
    counts = Counter(word for text in texts for word in text)
    return [
        "<pad>",
        "<unk>",
        "<s>",
        "</s>",
        *sorted(counts, key=lambda word: (-counts[word], word)),
    ]


def batches(
    examples: Sequence[Example],
    relations: str,
    words: int,
    seeds: Sequence[Sequence[int] | None] = (None,),
) -> tf.data.Dataset:
    """The examples, once for each seed:
    `({"source", "relations", "target"}, next words [B, T], weights [B, T])`.

    Args:
        examples: see `Example`.
        relations: what joins the words of a source, "order", "graph" or "both"; see
            `pipelines.graphs.batches.batches`.
        words: of the sources of a batch, padding included.
        seeds: see `pipelines.graphs.batches.plan`.
    """

    def padded(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        some = [examples[number] for number in numbers]
        return (
            padded_rows([example.source for example in some], PAD),
            padded_rows([example.edges for example in some], -1),
            padded_rows([example.target for example in some], PAD),
        )

    def labelled(source: tf.Tensor, edges: tf.Tensor, target: tf.Tensor) -> Any:
        joined = labels_of_pairs(edges, tf.shape(source)[1], len(LABELS), relations)
        inputs = {"source": source, "relations": joined, "target": target[:, :-1]}
        return inputs, target[:, 1:], tf.cast(target[:, 1:] != PAD, tf.float32)

    return planned([len(example.source) for example in examples], words, seeds, padded, labelled)
