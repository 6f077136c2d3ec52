"""Parallel text files: lines stay aligned whatever is in them; bad input is named in one line."""

import gzip
import lzma
import os
import queue
import sys
import threading
import time

import pytest

from pipelines.corpora.text_files import TextFileCorpus, read_lines, read_standard_input
from tests.support.refusals import refused


@pytest.fixture
def write(tmp_path):
    def write_file(name: str, content: bytes | str) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


def error_of(action) -> str:
    with refused() as told:
        action()
    return str(told.value)


def all_pairs(corpus, split="train"):
    return list(corpus.pairs(split))


def test_splits_names_and_languages(write):
    source, target = write("news.en", "a\nb\n"), write("news.de", "A\nB\n")
    corpus = TextFileCorpus(source, target, test_source=[target], test_target=[source])
    assert corpus.name == "news"
    assert corpus.splits == ("train", "test")
    assert (corpus.source_language, corpus.target_language) == ("en", "de")
    assert all_pairs(corpus) == [("a", "A"), ("b", "B")]
    assert all_pairs(corpus) == [("a", "A"), ("b", "B")]  # starts again
    assert all_pairs(corpus, "test") == [("A", "a"), ("B", "b")]
    assert corpus.text_bytes == 4 * 4


@pytest.mark.parametrize(
    ("file", "name"),
    [("train.en.gz", "train"), ("a.b.txt", "a.b"), ("corpus", "corpus"), ("x.de", "x.de")],
)
def test_name(write, file, name):
    path = write(file, "a\n")
    assert TextFileCorpus(path, path).name == name


def test_several_files_on_each_side(write, tmp_path):
    sources = [write("1.en", "a\n"), tmp_path / "2.en"]
    targets = [write("1.de", "A"), tmp_path / "2.de"]
    write("2.en", "b\nc")
    write("2.de", "B\nC\n")
    corpus = TextFileCorpus(sources, targets)
    assert all_pairs(corpus) == [("a", "A"), ("b", "B"), ("c", "C")]


def test_gzip_is_told_by_content(write):
    source = write("zipped.en", gzip.compress(b"a\nb\n") + gzip.compress(b"c\n"))
    target = write("plain.gz", "A\nB\nC\n")
    assert all_pairs(TextFileCorpus(source, target)) == [("a", "A"), ("b", "B"), ("c", "C")]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n", ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"]),
        ("a\rb\r\nc\r\n", ["a\rb", "c"]),
        ("a\r\r\n", ["a\r"]),
        ("\ufeffa\n\ufeffb\n", ["a", "\ufeffb"]),
        ("\ufeff", []),
        ("\ufeff\n", [""]),
        ("a\n\n \nb", ["a", "", " ", "b"]),
        ("\n", [""]),
        ("", []),
        ("a\x00b\n", ["a\x00b"]),
        ("Grüße 🙂\n", ["Grüße 🙂"]),
    ],
)
def test_lines(write, content, lines):
    assert list(read_lines(write("plain", content))) == lines
    assert list(read_lines(write("zipped", gzip.compress(content.encode())))) == lines


@pytest.mark.parametrize("packed", [bytes, gzip.compress, lzma.compress])
def test_read_standard_input_may_come_byte_by_byte(packed, monkeypatch):
    """What it is packed with is told by its first bytes, which a pipe may give one at a time."""
    content = packed("Grüße\nb\n".encode())
    read_end, write_end = os.pipe()

    def write_slowly():
        for byte in content:
            os.write(write_end, bytes([byte]))
            time.sleep(0.01)
        os.close(write_end)

    writer = threading.Thread(target=write_slowly)
    with open(read_end, "rb") as file:
        monkeypatch.setattr(sys, "stdin", file)
        writer.start()
        assert list(read_standard_input()) == ["Grüße", "b"]
        writer.join()


def test_a_short_line_does_not_wait_for_the_next(monkeypatch):
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as file, open(write_end, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", file)
        read = queue.SimpleQueue()
        lines = read_standard_input()
        threading.Thread(target=lambda: [read.put(next(lines)) for _ in "ab"], daemon=True).start()
        for line in "ab":
            pipe.write(f"{line}\n".encode())
            assert read.get(timeout=30) == line


def test_empty_lines_keep_their_place(write):
    corpus = TextFileCorpus(write("s", "a\n\nc\n"), write("t", "\nB\nC\n"))
    assert all_pairs(corpus) == [("a", ""), ("", "B"), ("c", "C")]


def test_streams(write):
    """The first pairs come before an error further down is met."""
    corpus = TextFileCorpus(write("s", b"a\nb\n\xff\n"), write("t", "A\nB\nC\n"))
    pairs = corpus.pairs("train")
    assert [next(pairs), next(pairs)] == [("a", "A"), ("b", "B")]


@pytest.mark.parametrize(("left", "right"), [(2, 5), (5, 2), (0, 3)])
def test_unequal_line_counts(write, left, right):
    source, target = write("s", "a\n" * left), write("t", "b\n" * right)
    corpus = TextFileCorpus(source, target)
    message = error_of(lambda: all_pairs(corpus))
    assert f"{source} has {left} and {target} has {right}" in message


def test_each_pair_of_files_must_match(write):
    """Equal totals do not make up for two files that are shifted against each other."""
    sources = [write("1.en", "a\nb\n"), write("2.en", "c\n")]
    targets = [write("1.de", "A\n"), write("2.de", "B\nC\n")]
    message = error_of(lambda: all_pairs(TextFileCorpus(sources, targets)))
    assert "1.en has 2" in message and "1.de has 1" in message


def test_invalid_utf8(write):
    path = write("s", b"good\nna\xefve\n")
    message = error_of(lambda: list(read_lines(path)))
    assert f"line 2 of {path}" in message and "UTF-8" in message


def test_truncated_gzip(write):
    whole = gzip.compress(b"some text that is long enough\n" * 100)
    path = write("s.gz", whole[:-12])
    assert path in error_of(lambda: list(read_lines(path)))


def test_corrupt_gzip(write):
    damaged = bytearray(gzip.compress(bytes(range(32, 127)) * 50, mtime=0))
    damaged[15:40] = b"\xff" * 25
    path = write("s.gz", bytes(damaged))
    message = error_of(lambda: list(read_lines(path)))
    assert path in message and "damaged" in message


def test_no_pairs(write):
    corpus = TextFileCorpus(write("s", ""), write("t", ""))
    assert "at least one sentence pair" in error_of(lambda: all_pairs(corpus))


def test_missing_file(write, tmp_path):
    good, missing = write("s", "a\n"), tmp_path / "missing"
    message = error_of(lambda: TextFileCorpus(good, good, good, missing))
    assert "valid_target" in message and str(missing) in message
    assert str(missing) in error_of(lambda: list(read_lines(missing)))


def test_directory(write, tmp_path):
    good = write("s", "a\n")
    message = error_of(lambda: TextFileCorpus(tmp_path, good))
    assert "train_source" in message and f"{tmp_path} is a directory" in message
    assert str(tmp_path) in error_of(lambda: list(read_lines(tmp_path)))


def test_not_a_regular_file(write):
    good = write("s", "a\n")
    assert "/dev/null is a pipe or a device" in error_of(lambda: TextFileCorpus(good, "/dev/null"))


def test_one_side_only(write):
    good = write("s", "a\n")
    message = error_of(lambda: TextFileCorpus(good, good, valid_source=good))
    assert "valid_source needs valid_target" in message
    message = error_of(lambda: TextFileCorpus(good, good, test_target=good))
    assert "test_target needs test_source" in message
    assert "train_source" in error_of(lambda: TextFileCorpus([], []))


def test_different_numbers_of_files(write):
    good = write("s", "a\n")
    message = error_of(lambda: TextFileCorpus([good, good], good))
    assert "train_source and train_target" in message and "got 2 and 1" in message


def test_unknown_split(write):
    good = write("s", "a\n")
    corpus = TextFileCorpus(good, good)
    assert error_of(lambda: corpus.pairs("valid")) == "split must be one of train, got 'valid'"


def test_two_columns_in_one_file(write):
    corpus = TextFileCorpus(
        (),
        (),
        valid_source=write("v.en", "c\n"),
        valid_target=write("v.de", "C\n"),
        train_tsv=[write("news.tsv", "a b\tA B\n\tx\n"), write("2.tsv.gz", gzip.compress(b"d\tD"))],
        test_tsv=write("test.tsv", "e\tE\r\n"),
    )
    assert (corpus.name, corpus.splits) == ("news", ("train", "valid", "test"))
    assert all_pairs(corpus) == [("a b", "A B"), ("", "x"), ("d", "D")]
    assert all_pairs(corpus, "test") == [("e", "E")]


@pytest.mark.parametrize("line, tabs", [("c", 0), ("c\tC\t0.9", 2)])
def test_another_count_of_columns_is_refused(write, line, tabs):
    corpus = TextFileCorpus((), (), train_tsv=write("x.tsv", f"a\tA\n{line}\n"))
    message = error_of(lambda: all_pairs(corpus))
    assert "a source, a tab and a target" in message
    assert f"line 2 of {corpus.files[0]} has {tabs} tabs" in message


def test_weights_repeat_the_files_to_train_on(write):
    one, two = write("1.tsv", "a\tA\nb\tB\n"), write("2.tsv", "c\tC\n")
    corpus = TextFileCorpus((), (), train_tsv=[one, two], test_tsv=two, weights=[1, 3])
    assert all_pairs(corpus) == [("a", "A"), ("b", "B")] + 3 * [("c", "C")]
    assert all_pairs(corpus, "test") == [("c", "C")]
    # What was prepared with other weights is noticed by the files that were read.
    assert corpus.files == (one, two, two, two, two)


@pytest.mark.parametrize(
    "files, arguments, message",
    [
        (1, {"train_source": ["x"], "train_target": ["x"]}, "train_tsv must not be given with"),
        (1, {"weights": [2]}, "corpus_weights needs several files to train on, got one"),
        (2, {"weights": [2]}, "corpus_weights must have a weight for each of the 2 files .*got 1"),
        (2, {"weights": [2, 0]}, "corpus_weights must be whole numbers of at least 1, got 0"),
        (2, {"weights": [2, 10**12]}, "corpus_weights must be at most 1,000, got 1000000000000"),
        (2, {"valid_tsv": "absent"}, "valid_tsv must name files that exist, got absent"),
    ],
)
def test_contradictions_of_columns_and_weights(write, files, arguments, message):
    several = [write(f"{number}.tsv", "a\tA\n") for number in range(files)]
    with refused(message):
        TextFileCorpus(**{"train_source": (), "train_target": (), **arguments}, train_tsv=several)
