"""Dependency graphs of sentences from CoNLL-U files (universaldependencies.org)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from pipelines.corpora.text_files import check_file, read_lines
from pipelines.errors import InputError, first_line
from pipelines.graphs.graph import Graph, Task, as_edges
from pipelines.importing import import_optional

ROOT = "root"  # the label of the word that no other is the head of


class Sentence(NamedTuple):
    """The words of a sentence, without multiword tokens and empty nodes.

    Attributes:
        forms: the words.
        tags: their universal parts of speech.
        heads: the number of each word's head, from 0; -1 for the root's.
        labels: the relation of each word to its head.
    """

    forms: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]


def read_conllu(path: str) -> Iterator[Sentence]:
    """Streams the sentences of a file, plain, or compressed by gzip or xz.

    Raises:
        InputError: the file cannot be read, is not CoNLL-U, has no sentence, or a word has no part
            of speech, no relation, or a head that is none of the sentence's words.
    """
    conllu = import_optional("conllu", "conllu", extra="graphs")
    number = 0
    for number, text in enumerate(_blocks(path), start=1):
        try:
            (tokens,) = conllu.parse(text)
            yield _sentence([token for token in tokens if isinstance(token["id"], int)])
        except (conllu.exceptions.ParseException, ValueError, KeyError) as error:
            raise InputError(
                f"{path} must be CoNLL-U, but sentence {number} is not: {first_line(error)}"
            ) from error
    if not number:
        raise InputError(f"{path} must have at least one sentence, found none")


def _blocks(path: str) -> Iterator[str]:
    """The lines of each sentence; those of comments alone are none."""
    lines: list[str] = []
    for line in chain(read_lines(path), [""]):
        if line.strip():
            lines.append(line)
        elif lines:
            if not all(line.startswith("#") for line in lines):
                yield "\n".join(lines)
            lines = []


def _sentence(tokens: Sequence[Mapping[str, Any]]) -> Sentence:
    if not tokens:
        raise ValueError("it has no word")
    for number, token in enumerate(tokens, start=1):
        if token["id"] != number:
            raise ValueError(f"word {number} has the number {token['id']}")
        for name in ("upos", "deprel"):
            if token.get(name) in (None, "", "_"):
                raise ValueError(f"word {number} has no {name}")
        head = token.get("head")
        if not isinstance(head, int) or not 0 <= head <= len(tokens):
            raise ValueError(f"word {number} has the head {head}")
    columns = ("form", "upos", "head", "deprel")
    forms, tags, heads, labels = (tuple(token[name] for token in tokens) for name in columns)
    return Sentence(forms, tags, tuple(head - 1 for head in heads), labels)


def edges_of_sentence(sentence: Sentence, labels: Mapping[str, int]) -> np.ndarray:
    """The edges of a sentence, for `tf_relpos.edge_relations`: from each head to its dependants.

    The root has an edge to itself. A relation without a number, "nmod:poss", is taken for the
    universal one that it is a kind of, "nmod"; if that has none either, there is no edge.

    Args:
        sentence: of T words.
        labels: the number of each relation.

    Returns:
        int32 `[M, 3]` with at most T edges.
    """
    triples = []
    for word, (head, label) in enumerate(zip(sentence.heads, sentence.labels, strict=True)):
        number = labels.get(label, labels.get(label.partition(":")[0]))
        if number is not None:
            triples.append((word if head < 0 else head, word, number))
    return as_edges(triples)


def part_of_speech_task(train: Sequence[Sentence], test: Sequence[Sentence]) -> Task:
    """Parts of speech to be told from the dependency graph alone: all words look the same."""
    names = {label for sentence in train for label in sentence.labels}
    names |= {name.partition(":")[0] for name in names}
    labels = {name: i for i, name in enumerate(sorted(names))}
    classes = sorted({tag for sentence in (*train, *test) for tag in sentence.tags})
    numbers = {tag: i for i, tag in enumerate(classes)}

    def graph(sentence: Sentence) -> Graph:
        nodes = np.ones(len(sentence.forms), "int32")
        targets = np.array([numbers[tag] for tag in sentence.tags], "int32")
        return Graph(nodes, edges_of_sentence(sentence, labels), targets, sentence.forms)

    return Task([*map(graph, train)], [*map(graph, test)], tuple(labels), tuple(classes), 2)


def read_task(train: str, test: str | None, held_out: float) -> Task:
    """The task of one file or two.

    Args:
        train: a file to train on.
        test: a file to test on; None for the last sentences of `train`.
        held_out: without `test`, the share of these sentences.

    Raises:
        InputError: see `read_conllu`.
    """
    for name, path in (("train", train), ("test", test)):
        if path is not None:
            check_file(name, path)
    sentences = [*read_conllu(train)]
    if test is not None:
        return part_of_speech_task(sentences, [*read_conllu(test)])
    size = round(len(sentences) * (1 - held_out))
    if not 0 < size < len(sentences):
        raise InputError(
            f"hold_out must leave sentences on both sides, got {held_out} of {len(sentences)}"
        )
    return part_of_speech_task(sentences[:size], sentences[size:])
