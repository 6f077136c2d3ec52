"""The trees of the demo corpus: their words are the sentence, and what depends on what is so."""

from itertools import islice

import pytest

from pipelines.corpora.demo.corpus import sentences
from pipelines.graphs.conllu import ROOT
from pipelines.syntax.trees import LABELS, text_of, tree, words_of

# The number from 1 of each word's head, 0 for the root, and what the word is to it.
EXPECTED = {
    "They will wait next to these houses tomorrow.": (
        "3 nsubj, 3 aux, 0 root, 7 case, 4 fixed, 7 det, 3 obl, 3 advmod, 3 punct"
    ),
    "He wants to arrive quickly today.": (
        "4 nsubj, 4 aux, 4 mark, 0 root, 4 advmod, 4 advmod, 4 punct"
    ),
    "These black sons and every doctor worked yesterday.": (
        "3 det, 3 amod, 7 nsubj, 6 cc, 6 det, 3 conj, 0 root, 7 advmod, 7 punct"
    ),
    "Before the strong aunt waited, our bird worked.": (
        "5 mark, 4 det, 4 amod, 5 nsubj, 9 advcl, 5 punct, 8 det, 9 nsubj, 0 root, 9 punct"
    ),
    "We arrive, but these horses steal the dangerous chair.": (
        "2 nsubj, 0 root, 7 punct, 7 cc, 6 det, 7 nsubj, 2 conj, 10 det, 10 amod, 7 obj, 2 punct"
    ),
    "In the evening the strong bird that the quiet goat needs listens to a strong cat.": (
        "3 case, 3 det, 12 obl, 6 det, 6 amod, 12 nsubj, 11 obj, 10 det, 10 amod, 11 nsubj, "
        "6 acl:relcl, 0 root, 16 case, 16 det, 16 amod, 12 obl, 12 punct"
    ),
}


@pytest.fixture(scope="module")
def many():
    return [(s, tree(s)) for s in islice(sentences("trees"), 4000)]


@pytest.mark.parametrize("english", EXPECTED)
def test_what_depends_on_what(many, english):
    (found,) = [found for sentence, found in many if sentence.english() == english]
    pairs = zip(found.heads, found.labels, strict=True)
    assert ", ".join(f"{head + 1} {label}" for head, label in pairs) == EXPECTED[english]


def test_the_words_are_the_sentence(many):
    for sentence, found in many:
        assert text_of(found.forms) == sentence.english()
        assert list(found.forms) == words_of(sentence.english())
        assert text_of(words_of(sentence.german())) == sentence.german()


def test_each_is_a_tree_with_known_labels(many):
    used = set()
    for _, (forms, tags, heads, labels) in many:
        assert len(forms) == len(tags) == len(heads) == len(labels)
        assert [label for head, label in zip(heads, labels, strict=True) if head < 0] == [ROOT]
        for word in range(len(forms)):
            seen = set()
            while word >= 0:
                assert word not in seen
                seen.add(word)
                word = heads[word]
        used.update(labels)
    assert used == set(LABELS)


def test_particles_stay_with_verbs_that_take_no_object(many):
    for _, (forms, _, heads, labels) in many:
        for word, label in enumerate(labels):
            if label == "compound:prt":
                assert (forms[word], heads[word]) == ("up", word - 1)


def test_every_verb_has_one_subject(many):
    for _, (_, tags, heads, labels) in many:
        subjects = [i for i, label in enumerate(labels) if label == "nsubj"]
        assert {tags[i] for i in subjects} <= {"NOUN", "PRON"}
        assert sorted(heads[i] for i in subjects) == [i for i, t in enumerate(tags) if t == "VERB"]
