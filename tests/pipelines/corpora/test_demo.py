"""The demo corpus: as many pairs as asked for, all distinct, the same every time, splits apart."""

import hashlib
from collections import Counter
from itertools import cycle, islice

import pytest

from pipelines.corpora.demo import lexicon
from pipelines.corpora.demo.corpus import DemoCorpus, distinct_pairs, sentences
from pipelines.errors import InputError

# SHA-256 of the first 97 pairs with the default seed: scores of other versions compare with these.
DIGESTS = {
    "train": "abf5a705e95de8e2",
    "valid": "9b9f6f64698fba8b",
    "test": "16e5b1de0b3bc537",
}


@pytest.fixture(scope="module")
def corpus():
    return DemoCorpus(train_pairs=5003, valid_pairs=101, test_pairs=211)


@pytest.fixture(scope="module")
def pairs(corpus):
    return {split: list(corpus.pairs(split)) for split in corpus.splits}


def words(text: str) -> list[str]:
    return text.replace(",", "").removesuffix(".").split()


def test_attributes(corpus):
    assert corpus.name == "demo"
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    assert corpus.splits == ("train", "valid", "test")
    assert DemoCorpus(test_pairs=0).splits == ("train", "valid")


def test_sizes(pairs):
    assert {split: len(found) for split, found in pairs.items()} == {
        "train": 5003,
        "valid": 101,
        "test": 211,
    }


@pytest.mark.parametrize("split", DIGESTS)
def test_default_pairs_are_the_same_everywhere(pairs, split):
    lines = "\n".join("\t".join(pair) for pair in pairs[split][:97])
    assert hashlib.sha256(lines.encode()).hexdigest().startswith(DIGESTS[split])


def test_restarts_from_the_beginning(corpus, pairs):
    assert list(islice(corpus.pairs("train"), 307)) == pairs["train"][:307]


def test_size_changes_nothing_but_the_length(pairs):
    assert list(DemoCorpus(train_pairs=17).pairs("train")) == pairs["train"][:17]


def test_another_seed_gives_other_pairs(pairs):
    other = DemoCorpus(seed=2, train_pairs=503).pairs("train")
    assert len({source for source, _ in other} & {source for source, _ in pairs["train"]}) < 50


def test_no_source_occurs_twice(pairs):
    sources = Counter(source for found in pairs.values() for source, _ in found)
    assert sources.most_common(1)[0][1] == 1


def test_splits_stay_apart_whatever_the_seed(pairs):
    test = {source for source, _ in DemoCorpus(seed=3, test_pairs=2003).pairs("test")}
    assert not test & {source for source, _ in pairs["train"] + pairs["valid"]}


def test_lengths(pairs):
    lengths = [len(words(text)) for pair in pairs["train"] for text in pair]
    assert min(lengths) == 4
    assert max(lengths) <= 30
    assert 12 < sum(lengths) / len(lengths) < 17


def test_vocabulary_is_small_and_every_word_frequent(pairs):
    count = Counter(
        word.lower() for pair in pairs["train"] for text in pair for word in words(text)
    )
    assert 500 < len(count) < 850
    assert min(count.values()) >= 3


def test_sentences_look_like_sentences(pairs):
    for pair in pairs["train"]:
        for text in pair:
            assert text[0].isupper() and text.endswith(".") and text.count(".") == 1
            assert ",," not in text and ",." not in text and " ," not in text and "  " not in text


def test_a_source_has_one_translation():
    translations = {}
    for sentence in islice(sentences("any"), 20_011):
        german = sentence.german()
        assert translations.setdefault(sentence.english(), german) == german


def test_most_sentences_have_several_adjectives(pairs):
    """A bag of words does not tell which noun each belongs to, so that word order matters."""
    adjectives = {
        adjective.english for adjective in lexicon.ANIMATE_ADJECTIVES + lexicon.THING_ADJECTIVES
    }
    several = [s for s, _ in pairs["train"] if len(adjectives.intersection(words(s))) >= 2]
    assert len(several) > 0.7 * len(pairs["train"])


def test_asking_for_too_many_ends():
    few = list(islice(sentences("few"), 53))
    with pytest.raises(InputError, match="train_pairs .* got 1000 and found"):
        list(distinct_pairs(cycle(few), "train", 1000))


@pytest.mark.parametrize("argument", ["train_pairs", "valid_pairs", "test_pairs"])
def test_negative_size(argument):
    with pytest.raises(InputError, match=f"{argument} must not be negative, got -1"):
        DemoCorpus(**{argument: -1})


def test_unknown_split():
    with pytest.raises(InputError, match="split must be one of train, valid, test, got 'dev'"):
        DemoCorpus().pairs("dev")
