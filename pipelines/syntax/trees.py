"""Dependency trees of the demo corpus's English sentences, which its grammar knows for certain.

Labels, heads and parts of speech are those of Universal Dependencies, version 2. Marks of
punctuation are words of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipelines.corpora.demo import lexicon
from pipelines.corpora.demo.grammar import (
    Adverbial,
    Clause,
    Mood,
    NounPhrase,
    Pair,
    Pronoun,
    Relative,
    english_verb,
)
from pipelines.corpora.demo.grammar import Sentence as DemoSentence
from pipelines.corpora.demo.morphology import Modal, Phrase, Verb
from pipelines.graphs.conllu import ROOT, Sentence

LABELS = (
    *("acl:relcl", "advcl", "advmod", "amod", "aux", "case", "cc", "ccomp", "compound:prt"),
    *("conj", "det", "fixed", "mark", "nsubj", "obj", "obl", "punct", ROOT),
)

# The words of phrases of several words that are not their heads, and what these are to the heads.
_PARTS = {
    **dict.fromkeys(("on", "in", "at"), ("ADP", "case")),
    **dict.fromkeys(("the", "every"), ("DET", "det")),
    **dict.fromkeys(("next", "last"), ("ADJ", "amod")),
}


def tree(sentence: DemoSentence) -> Sentence:
    """The English words of a sentence, and how they depend on each other.

    `text_of(tree(sentence).forms)` is `sentence.english()`.
    """
    words = _Words()
    first, conjunction, second, second_first = sentence
    if not second or not conjunction:
        root = words.clause(first)
    elif second_first:
        mark = words.add(conjunction.english, "SCONJ")
        other = words.clause(second)
        comma = words.add(",", "PUNCT")
        root = words.clause(first)
        words.attach(mark, other, "mark")
        words.attach(other, root, "advcl")
        words.attach(comma, other, "punct")
    else:
        root = words.clause(first)
        comma = words.add(",", "PUNCT") if conjunction.english_comma else -1
        mark = words.add(conjunction.english, "SCONJ" if conjunction.subordinating else "CCONJ")
        other = words.clause(second)
        if comma >= 0:
            words.attach(comma, other, "punct")
        words.attach(mark, other, "mark" if conjunction.subordinating else "cc")
        relation = "ccomp" if conjunction is lexicon.THAT else "advcl"
        words.attach(other, root, relation if conjunction.subordinating else "conj")
    words.attach(words.add(".", "PUNCT"), root, "punct")
    return words.finish()


def text_of(words: Sequence[str]) -> str:
    """Words in a row, marks of punctuation at the end of the word before."""
    return re.sub(r" ([.,])", r"\1", " ".join(words))


def words_of(text: str) -> list[str]:
    """The words of a text of the corpus: what `text_of` joins."""
    return re.findall(r"[^\s.,]+|[.,]", text)


class _Words:
    """The words so far. What adds a phrase returns the number of its head, to be attached."""

    def __init__(self) -> None:
        self.forms: list[str] = []
        self.tags: list[str] = []
        self.heads: list[int] = []
        self.labels: list[str] = []

    def add(self, form: str, tag: str) -> int:
        """A word; without a head it stays the root."""
        self.forms.append(form)
        self.tags.append(tag)
        self.heads.append(-1)
        self.labels.append(ROOT)
        return len(self.forms) - 1

    def attach(self, word: int, head: int, label: str) -> None:
        self.heads[word], self.labels[word] = head, label

    def finish(self) -> Sentence:
        first = self.forms[0]
        self.forms[0] = first[0].upper() + first[1:]
        words = tuple(self.forms), tuple(self.tags)
        return Sentence(*words, tuple(self.heads), tuple(self.labels))

    def clause(self, clause: Clause) -> int:
        """In the order of `Clause.english`."""
        fronted = clause.time if clause.fronted else None
        time = self._time(fronted) if fronted else None
        subject = self._subject(clause.subject)
        verb, preposition = self._verb(clause.verb, clause.mood, clause.subject.plural)
        self.attach(subject, verb, "nsubj")
        if clause.object:
            self._object(self._noun_phrase(clause.object), verb, preposition)
        if clause.recipient:
            to = self.add("to", "ADP")
            recipient = self._noun_phrase(clause.recipient)
            self.attach(to, recipient, "case")
            self.attach(recipient, verb, "obl")
        for adverbial in (clause.place, clause.manner):
            if isinstance(adverbial, Adverbial):
                self.attach(self._adverbial(adverbial), verb, "obl")
            elif adverbial:
                self.attach(self.add(adverbial.english, "ADV"), verb, "advmod")
        if clause.time and not clause.fronted:
            time = self._time(clause.time)
        if time is not None:
            self.attach(time, verb, "advmod" if self.tags[time] == "ADV" else "obl")
        return verb

    def _verb(self, verb: Verb, mood: Mood, plural: bool) -> tuple[int, int | None]:
        """The verb, and what it takes its object with, "listens to"; of "gets up" the particle."""
        forms = english_verb(verb, mood, plural).split()
        first = len(mood.english.split()) if isinstance(mood, Modal) else 0
        before = [self.add(form, "PART" if form == "to" else "AUX") for form in forms[:first]]
        head = self.add(forms[first], "VERB")
        for word in before:
            self.attach(word, head, "mark" if self.tags[word] == "PART" else "aux")
        rest = forms[first + 1 :]
        if not rest:
            return head, None
        particle = self.add(rest[0], "ADP")
        self.attach(particle, head, "compound:prt")
        return head, particle

    def _object(self, noun: int, verb: int, preposition: int | None) -> None:
        self.attach(noun, verb, "obj" if preposition is None else "obl")
        if preposition is not None:
            self.attach(preposition, noun, "case")

    def _subject(self, subject: Pronoun | NounPhrase | Pair) -> int:
        if isinstance(subject, Pronoun):
            return self.add(subject.english_form, "PRON")
        if isinstance(subject, NounPhrase):
            return self._noun_phrase(subject)
        head = self._noun_phrase(subject.first)
        conjunction = self.add("and", "CCONJ")
        second = self._noun_phrase(subject.second)
        self.attach(conjunction, second, "cc")
        self.attach(second, head, "conj")
        return head

    def _noun_phrase(self, phrase: NounPhrase) -> int:
        article, *words = phrase._replace(relative=None).english().split()
        before = [(self.add(article, "DET"), "det")]
        before += [(self.add(word, "ADJ"), "amod") for word in words[:-1]]
        noun = self.add(words[-1], "NOUN")
        for word, label in before:
            self.attach(word, noun, label)
        if phrase.relative:
            self.attach(self._relative(phrase.relative, phrase.plural), noun, "acl:relcl")
        return noun

    def _relative(self, relative: Relative, head_plural: bool) -> int:
        pronoun = self.add("that", "PRON")
        if relative.head_is_subject:
            verb, preposition = self._verb(relative.verb, relative.mood, head_plural)
            subject, noun = pronoun, self._noun_phrase(relative.other)
        else:
            noun, subject = pronoun, self._noun_phrase(relative.other)
            verb, preposition = self._verb(relative.verb, relative.mood, relative.other.plural)
        self.attach(subject, verb, "nsubj")
        self._object(noun, verb, preposition)
        return verb

    def _adverbial(self, adverbial: Adverbial) -> int:
        """A preposition of several words is a fixed expression, whose first word is the head."""
        preposition, *rest = adverbial.preposition.english.split()
        head = self.add(preposition, "ADP")
        for word in rest:
            self.attach(self.add(word, "ADP"), head, "fixed")
        noun = self._noun_phrase(adverbial.phrase)
        self.attach(head, noun, "case")
        return noun

    def _time(self, phrase: Phrase) -> int:
        *words, last = phrase.english.split()
        before = [(self.add(word, _PARTS[word][0]), _PARTS[word][1]) for word in words]
        head = self.add(last, "NOUN" if before else "ADV")
        for word, label in before:
            self.attach(word, head, label)
        return head
