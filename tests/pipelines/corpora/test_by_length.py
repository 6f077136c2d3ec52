"""Corpora whose training text is short, and what they are tested on."""

import pytest

from pipelines.corpora.by_length import ShortSources, ShortTargets, even_ranges, shortest_share
from pipelines.corpora.text_files import TextFileCorpus
from pipelines.errors import InputError

# A pair of n words becomes n + 1 words.
LENGTHS = {"train": (1, 2, 3, 3, 4, 5, 7), "valid": (2, 6), "test": (1, 3, 8)}


@pytest.fixture
def corpus(tmp_path):
    files = []
    for split, lengths in LENGTHS.items():
        for side, more in (("source", 0), ("target", 1)):
            path = tmp_path / f"{split}.{side}"
            path.write_text("".join(" ".join("x" * (n + more)) + "\n" for n in lengths))
            files.append(path)
    return TextFileCorpus(*files)


def lengths(corpus, split):
    """In words of the source."""
    return [len(source.split()) for source, _ in corpus.pairs(split)]


def test_long_sources_are_tested_but_neither_trained_nor_validated_on(corpus):
    short = ShortSources(corpus, 3)
    assert short.splits == ("train", "valid", "test")
    assert lengths(short, "train") == lengths(short, "train") == [1, 2, 3, 3]
    assert lengths(short, "valid") == [2]
    assert lengths(short, "test") == list(LENGTHS["test"])


def test_all_pairs_with_long_targets_are_tested_and_none_of_them_trained_on(corpus):
    short = ShortTargets(corpus, 4)
    assert short.splits == ("train", "test")
    assert lengths(short, "train") == [1, 2, 3, 3]
    assert lengths(short, "test") == [4, 5, 7]
    every = [*short.pairs("train"), *short.pairs("test")]
    assert sorted(every) == sorted(corpus.pairs("train"))


def test_texts_of_other_lengths_are_other_corpora(corpus):
    one, other = (ShortTargets(corpus, longest) for longest in (4, 5))
    assert one.name == "train.source up to 4 words" != other.name
    assert (one.files, one.text_bytes) == (corpus.files, corpus.text_bytes)
    assert (one.source_language, one.target_language) == ("en", "de")


@pytest.mark.parametrize("longest, split", [(1, "train"), (8, "test")])
def test_a_text_without_pairs_is_refused(corpus, longest, split):
    with pytest.raises(InputError, match=f"the {split} text of .* must have pairs, but there is"):
        list(ShortTargets(corpus, longest).pairs(split))
    with pytest.raises(InputError, match="split must be one of train, test, got 'valid'"):
        list(ShortTargets(corpus, longest).pairs("valid"))


@pytest.mark.parametrize(
    "share, length", [(0.01, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 2), (0.76, 9), (1.0, 9)]
)
def test_the_length_up_to_which_a_share_goes(share, length):
    assert shortest_share([9, 2, 1, 2], share) == length


@pytest.mark.parametrize("percent", range(1, 101))
def test_a_share_is_as_it_is_written(percent):
    """0.55 * 100 is above 55 in binary."""
    assert shortest_share(range(1, 101), percent / 100) == percent


@pytest.mark.parametrize(
    "lengths, count, ranges",
    [
        ([1, 2, 3, 4, 5, 6], 3, [(1, 2), (3, 4), (5, 6)]),
        ([1, 1, 1, 1, 5, 9], 3, [(1, 1), (5, 5), (9, 9)]),
        ([1] * 5 + [2, 3, 3, 4], 3, [(1, 1), (2, 3), (4, 4)]),
        ([4, 0, 7], 5, [(0, 0), (4, 4), (7, 7)]),
        ([3, 3], 2, [(3, 3)]),
        ([], 2, []),
    ],
)
def test_ranges_hold_about_as_many_each_and_all_of_them(lengths, count, ranges):
    assert even_ranges(lengths, count) == ranges
