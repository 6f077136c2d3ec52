"""TensorFlow Datasets: real prepared data of a few pairs, and TFDS's own random data."""

import os
import subprocess
import sys

import pytest

from pipelines.corpora.tfds import NAMES, TfdsCorpus
from tests.support.refusals import refused

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture
def prepared(tmp_path):
    """A data directory with `wmt14_translate/de-en` as TFDS would have prepared it."""
    from tensorflow_datasets.core.sequential_writer import SequentialWriter

    builder = tfds.builder("wmt14_translate/de-en", data_dir=tmp_path)
    os.makedirs(builder.data_dir)
    splits = ["train", "validation", "test"]
    writer = SequentialWriter(builder.info, max_examples_per_shard=3)
    writer.initialize_splits(splits)
    writer.add_examples(
        {
            split: [{"de": f"{split} Sätze {n}", "en": f"{split} words {n}"} for n in range(7)]
            for split in splits
        }
    )
    writer.close_all()
    return tmp_path


@pytest.mark.parametrize(
    ("split", "stored"), [("train", "train"), ("valid", "validation"), ("test", "test")]
)
def test_prepared_data(prepared, split, stored):
    corpus = TfdsCorpus("wmt14_translate/de-en", "en", "de", data_dir=prepared)
    expected = [(f"{stored} words {n}", f"{stored} Sätze {n}") for n in range(7)]
    assert list(corpus.pairs(split)) == expected
    assert list(corpus.pairs(split)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_both_directions(name):
    other = name.rpartition("/")[2].split("-")[0]
    with tfds.testing.mock_data(num_examples=11):
        there = TfdsCorpus(name, "en", other)
        back = TfdsCorpus(name, other, "en")
        assert there.name == name
        assert (there.source_language, there.target_language) == ("en", other)
        assert there.splits == ("train", "valid", "test")
        for split in there.splits:
            pairs = list(there.pairs(split))
            assert len(pairs) == 11
            assert all(isinstance(text, str) for pair in pairs for text in pair)
            assert any(source != target for source, target in pairs)
            assert list(back.pairs(split)) == [(target, source) for source, target in pairs]


@pytest.mark.parametrize("name", NAMES)
def test_newstest_sets(name):
    """What the docstring says about TFDS's splits."""
    subsets = tfds.builder(name).subsets
    assert subsets[tfds.Split.VALIDATION] == ["newstest2013"]
    assert subsets[tfds.Split.TEST] == ["newstest2014"]


@pytest.mark.parametrize("name", ["wmt14_translate/cs-en", "wmt14_translate", "mnist", ""])
def test_unknown_name(name):
    with refused("dataset must be one of wmt14_translate/de-en, .* got"):
        TfdsCorpus(name, "en", "de")


@pytest.mark.parametrize("languages", [("en", "fr"), ("de", "de"), ("en", "")])
def test_language_of_another_pair(languages):
    with refused("must be de and en in either order"):
        TfdsCorpus("wmt_t2t_translate/de-en", *languages)


def test_preparation_fails(tmp_path):
    """A file where the data directory should be: nothing can be prepared there."""
    occupied = tmp_path / "occupied"
    occupied.write_text("")
    with refused("wmt14_translate/de-en cannot be downloaded"):
        next(TfdsCorpus("wmt14_translate/de-en", "en", "de", data_dir=occupied).pairs("train"))


def test_unknown_split(prepared):
    corpus = TfdsCorpus("wmt14_translate/de-en", "en", "de", data_dir=prepared)
    with refused("split must be one of train, valid, test"):
        corpus.pairs("validation")


def test_the_package_is_imported_lazily():
    code = "import sys, pipelines.config; print('tensorflow_datasets' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
