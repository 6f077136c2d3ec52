"""From text to arrays: everything arrives, is found again, and is refused when it does not fit."""

import json
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf

import pipelines.data.tokenization
import pipelines.progress
from pipelines.command_line import show_log
from pipelines.corpora.text_files import TextFileCorpus
from pipelines.data.dataset import METADATA_FILE
from pipelines.data.preparation import open_prepared, prepare
from pipelines.data.tokenizer import Tokenizer
from pipelines.errors import InputError
from pipelines.files.checksums import write_checksums
from tests.support.runs import content_of


class WordCorpus:
    """Sentences of numbered words; German ones reverse the English."""

    source_language, target_language = "en", "de"
    text_bytes = None
    files = ()

    def __init__(self, sizes, name="words", odd=()):
        self.name = name
        self.sizes, self.odd = sizes, list(odd)
        self.splits = tuple(sizes)

    def pairs(self, split):
        rng = random.Random(split)
        words = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
        for _ in range(self.sizes[split]):
            chosen = rng.choices(words, k=rng.randint(2, 11))
            yield " ".join(chosen), " ".join(reversed(chosen)) + "."
        if split == "train":
            yield from self.odd


SETTINGS = {"vocabulary_size": 288, "max_length": 90, "num_shapes": 3}
ODD = [
    ("", "nichts"),
    ("nichts", ""),
    (" ", "\t"),
    ("eins", "\t\x0b"),
    ("eins " * 200, "zwei"),
    ("NUL\x00 ", "😀\n"),
]


@pytest.fixture(scope="module")
def corpus():
    return WordCorpus({"train": 331, "valid": 7, "test": 5}, odd=ODD)


@pytest.fixture(scope="module")
def directory(corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared") / "run" / "demo"
    prepare(corpus, directory, **SETTINGS)
    return directory


def decoded(prepared):
    """All training pairs as text."""
    tokenizer = Tokenizer(prepared.tokenizer_path)
    pairs = []
    for number, count in enumerate(prepared.train.pairs_per_bucket):
        sides = prepared.train.gather(number, np.arange(count))
        texts = [tokenizer.decode(side).numpy().tolist() for side in sides]
        pairs.extend(zip(*texts, strict=True))
    return sorted((source.decode(), target.decode()) for source, target in pairs)


def test_every_pair_is_prepared(corpus, directory, monkeypatch, tmp_path):
    prepared = open_prepared(directory)
    expected = [*WordCorpus(corpus.sizes).pairs("train"), ("NUL\x00", "😀\n")]
    assert [(s.rstrip(), t.rstrip()) for s, t in decoded(prepared)] == sorted(
        (s.rstrip(), t.rstrip()) for s, t in expected
    )
    # A side of white space is a side without words.
    assert prepared.train.metadata["dropped"] == {"empty": 2 + 2, "too long": 1}
    assert prepared.train.metadata["vocabulary_size"] == 288

    for limit, value in (("_PAIRS_PER_CALL", 17), ("_BYTES_PER_CALL", 500)):
        monkeypatch.setattr(pipelines.data.tokenization, limit, value)
        again = prepare(corpus, tmp_path / limit, **SETTINGS)
        assert again.train.metadata == prepared.train.metadata
        for name in ("pairs", "source_ids", "target_offsets"):
            first, second = (np.load(p.train.directory / f"{name}.npy") for p in (prepared, again))
            np.testing.assert_array_equal(first, second)


def test_held_out_text_stays_as_it_is(corpus, directory, tmp_path):
    prepared = open_prepared(directory)
    assert prepared.splits == ("valid", "test")
    for split, count in (("valid", 7), ("test", 5)):
        source, target = prepared.text(split)
        assert list(zip(source, target, strict=True)) == list(corpus.pairs(split))
        assert len(source) == count
    with pytest.raises(InputError, match="split must be one of valid, test, got 'dev'"):
        prepared.text("dev")

    class Odd(WordCorpus):
        def pairs(self, split):
            odd = [("", "x\r"), ("\u2028a\x85", "two\nlines"), ("ﬁ", " ")]
            return iter(odd) if split == "valid" else super().pairs(split)

    prepared = prepare(Odd({"train": 50, "valid": 3}), tmp_path / "odd", **SETTINGS)
    assert prepared.text("valid") == (["", "\u2028a\x85", "ﬁ"], ["x\r", "two lines", " "])


def test_a_complete_preparation_is_reused(corpus, directory):
    files = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}

    class Unread(WordCorpus):
        def pairs(self, split):
            raise AssertionError("read again")

    prepare(Unread(corpus.sizes), directory, **SETTINGS)
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == files


@pytest.mark.parametrize(
    "name, value", [("vocabulary_size", 280), ("max_length", 91), ("num_shapes", 4)]
)
def test_other_settings_are_refused_by_name(corpus, directory, name, value):
    with pytest.raises(InputError, match=f"prepared with {name} {SETTINGS[name]}, got {value}"):
        prepare(corpus, directory, **{**SETTINGS, name: value})


def test_another_corpus_is_refused(corpus, directory):
    with pytest.raises(InputError, match="prepared with corpus 'words', got 'others'"):
        prepare(WordCorpus(corpus.sizes, name="others"), directory, **SETTINGS)


def test_text_for_another_split_is_refused(corpus, directory):
    sizes = {split: size for split, size in corpus.sizes.items() if split != "test"}
    with pytest.raises(InputError, match="text for train, valid, test, got train, valid: choose"):
        prepare(WordCorpus(sizes), directory, **SETTINGS)


def test_other_text_under_the_same_name_is_refused(corpus, directory):
    longer = WordCorpus(corpus.sizes)
    longer.text_bytes = 1234
    with pytest.raises(InputError, match="prepared with text_bytes None, got 1234"):
        prepare(longer, directory, **SETTINGS)


def test_text_that_has_changed_in_place_is_refused(tmp_path):
    sides = [tmp_path / name for name in ("words.en", "words.de")]
    for side, path in enumerate(sides):
        pairs = WordCorpus({"train": 50}).pairs("train")
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs))
    made = prepare(TextFileCorpus(*sides), tmp_path / "run", **SETTINGS)
    assert prepare(TextFileCorpus(*sides), tmp_path / "run", **SETTINGS).settings == made.settings
    sides[1].write_text(sides[1].read_text().replace("zwei", "drei"))
    with pytest.raises(
        InputError, match=r"the text of words \(train.*\) is not what .*run was prepared from"
    ):
        prepare(TextFileCorpus(*sides), tmp_path / "run", **SETTINGS)


@pytest.mark.parametrize("name", ["tokenizer.model", "valid.source", "text.json"])
@pytest.mark.parametrize("also_fails", [False, True])
def test_files_that_are_there_are_never_replaced(tmp_path, name, also_fails):
    (tmp_path / name).write_text("somebody's own")
    corpus = WordCorpus({"train": 0 if also_fails else 50, "valid": 2})
    with pytest.raises(InputError, match=f"{name} exists already, .* choose another directory"):
        prepare(corpus, tmp_path, **SETTINGS)
    assert (tmp_path / name).read_text() == "somebody's own"
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_what_was_not_moved_to_its_place_before_a_kill_is_moved_there(tmp_path, corpus, directory):
    """Nothing is made again."""
    shutil.copytree(directory, tmp_path / "run" / ".prepared")
    (tmp_path / "run" / ".prepared" / "valid.source").rename(tmp_path / "run" / "valid.source")
    (tmp_path / "run" / "test.target").write_text("somebody's own")
    with pytest.raises(InputError, match="test.target exists already"):
        prepare(corpus, tmp_path / "run", **SETTINGS)
    (tmp_path / "run" / "test.target").unlink()
    prepare(corpus, tmp_path / "run", **SETTINGS)
    assert content_of(tmp_path / "run") == content_of(directory)


def test_interrupted_work_is_begun_again(tmp_path):
    class Broken(WordCorpus):
        readings = 0

        def pairs(self, split):
            yield from super().pairs(split)
            Broken.readings += 1
            if Broken.readings == 2:  # while tokenizing, after the subwords are learnt
                raise InputError("line 332 is missing")

    with pytest.raises(InputError, match="^line 332 is missing$"):
        prepare(Broken({"train": 331}), tmp_path / "run", **SETTINGS)
    assert not any(tmp_path.iterdir())
    with pytest.raises(InputError, match="no tokenized corpus"):
        open_prepared(tmp_path / "run")
    assert len(prepare(WordCorpus({"train": 331}), tmp_path / "run", **SETTINGS).train) == 331


def test_a_given_tokenizer_is_used(corpus, directory, tmp_path):
    given = directory / "tokenizer.model"
    small = WordCorpus({"train": 20})
    prepared = prepare(small, tmp_path / "run", tokenizer=given, **SETTINGS)
    assert prepared.tokenizer_path.read_bytes() == given.read_bytes()
    assert decoded(prepared) == sorted(small.pairs("train"))
    with pytest.raises(InputError, match="vocabulary_size must be that of the tokenizer .*, 288"):
        prepare(small, tmp_path / "other", tokenizer=given, vocabulary_size=300)
    with pytest.raises(InputError, match="cannot read"):
        prepare(small, tmp_path / "other", tokenizer=tmp_path / "absent", vocabulary_size=300)


@pytest.mark.parametrize("name", ["tokenizer.model", "valid.source", "valid.target"])
def test_exchanged_files_are_noticed(tmp_path, name):
    prepare(WordCorpus({"train": 50, "valid": 2}), tmp_path, **SETTINGS)
    (tmp_path / name).write_bytes(b"another")
    with pytest.raises(InputError, match=f"/{name} is not what .*/train was made with"):
        open_prepared(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=f"cannot read .*{name}"):
        open_prepared(tmp_path)


@pytest.mark.parametrize("name", [METADATA_FILE, "pairs.npy", "source_ids.npy"])
def test_a_flipped_bit_is_noticed(tmp_path, name):
    corpus = WordCorpus({"train": 50})
    path = prepare(corpus, tmp_path, **SETTINGS).train.directory / name
    content = bytearray(path.read_bytes())
    place = content.index(b'"empty": 0') + 9 if name == METADATA_FILE else -1
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"/{name} is damaged: its checksum does not match"):
        prepare(corpus, tmp_path, **SETTINGS)
    (tmp_path / "train" / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match="/SHA256SUMS cannot be read"):
        prepare(corpus, tmp_path, **SETTINGS)


def test_subwords_of_another_kind_are_another_preparation(tmp_path, corpus, directory):
    with pytest.raises(InputError, match="with subword_model 'unigram', got 'bpe': choose another"):
        prepare(corpus, directory, subword_model="bpe", **SETTINGS)
    # Where nothing is said of it, it is what was the only kind then.
    train = shutil.copytree(directory, tmp_path / "run") / "train"
    metadata = json.loads((train / METADATA_FILE).read_text())
    assert metadata["settings"].pop("subword_model") == "unigram"
    (train / METADATA_FILE).write_text(json.dumps(metadata))
    (train / "SHA256SUMS").unlink()
    write_checksums(train)
    assert prepare(corpus, tmp_path / "run", **SETTINGS).train.metadata == metadata


def test_two_preparations_in_one_directory(tmp_path):
    """The later one is told at once; when the first is done, it takes over what that has made."""
    corpus = WordCorpus({"train": 50})

    class Meanwhile(WordCorpus):
        def pairs(self, split):
            with pytest.raises(InputError, match="is in use by process .*: wait for it, or choose"):
                prepare(corpus, tmp_path, **SETTINGS)
            return super().pairs(split)

    first = prepare(Meanwhile({"train": 50}), tmp_path, **SETTINGS)
    second = prepare(corpus, tmp_path, **SETTINGS)
    assert second.train.metadata == first.train.metadata


def test_unusable_corpora_and_places_are_refused(tmp_path, directory):
    model = directory / "tokenizer.model"
    with pytest.raises(InputError, match="nothing to learn"):
        prepare(WordCorpus({"train": 0}), tmp_path / "a", **SETTINGS)
    with pytest.raises(InputError, match=r"no training pairs are left.*\(dropped: 2 empty, 0 too"):
        empty = WordCorpus({"train": 0}, odd=[("", "x"), ("y", " ")])
        prepare(empty, tmp_path / "b", tokenizer=model, **SETTINGS)
    with pytest.raises(InputError, match="has no training pairs"):
        prepare(WordCorpus({"valid": 3}), tmp_path / "c", **SETTINGS)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write to .*file"):
        prepare(WordCorpus({"train": 50}), tmp_path / "file", **SETTINGS)


def test_progress_is_shown_on_stderr(tmp_path, capsys, monkeypatch):
    show_log()
    monkeypatch.setattr(pipelines.progress, "_SHOWN_AFTER", 0.0)
    monkeypatch.setattr(pipelines.progress, "_LINE_EVERY", 0.0)
    prepare(WordCorpus({"train": 120}), tmp_path / "run", **SETTINGS)
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in ("learning 288 subwords", "learning subwords: ", "tokenized 120 pairs in"):
        assert part in captured.err


def test_tokenization_is_the_tokenizers_own(directory, corpus):
    prepared = open_prepared(directory)
    source, _ = next(iter(corpus.pairs("train")))
    expected = Tokenizer(prepared.tokenizer_path).encode(tf.constant([source])).to_list()[0]
    offsets = np.load(prepared.train.directory / "source_offsets.npy", mmap_mode="r")
    ids = np.load(prepared.train.directory / "source_ids.npy", mmap_mode="r")
    assert ids[offsets[0] : offsets[1]].tolist() == expected
