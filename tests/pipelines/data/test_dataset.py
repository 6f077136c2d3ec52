"""The tokenized corpus on disk: what goes in comes out, and half a corpus is none."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import pipelines.data.dataset_writer
from pipelines.data.dataset import TokenizedCorpus, shift_right
from pipelines.data.dataset_writer import TokenizedCorpusWriter
from pipelines.errors import InputError
from tests.support.full_disk import largest_files


def random_pairs(count, vocabulary_size=50, longest=23, seed=0):
    """Pairs of id lists that end with the end id, 3."""
    rng = np.random.default_rng(seed)
    return [
        tuple(
            [*rng.integers(4, vocabulary_size, size=rng.integers(1, longest)).tolist(), 3]
            for _ in range(2)
        )
        for _ in range(count)
    ]


def append(writer, pairs):
    arrays = []
    for side in zip(*pairs, strict=True):
        arrays.append(np.array([i for ids in side for i in ids], dtype=np.int32))
        arrays.append(np.array([len(ids) for ids in side], dtype=np.int64))
    writer.append(*arrays)


def write(directory, pairs, batch=13, **settings):
    settings = {"vocabulary_size": 50, "max_length": 23, "num_shapes": 5, **settings}
    with TokenizedCorpusWriter(directory, **settings) as writer:
        for first in range(0, len(pairs), batch):
            append(writer, pairs[first : first + batch])
    return TokenizedCorpus.open(directory)


def read_back(corpus):
    """All pairs of a corpus, and the checks that hold for every bucket."""
    pairs = []
    for number, bucket in enumerate(corpus.buckets):
        source_ids, labels = corpus.gather(number, np.arange(bucket.pairs))
        assert source_ids.dtype == labels.dtype == np.int32
        assert source_ids.shape == (bucket.pairs, bucket.source_length)
        assert labels.shape == (bucket.pairs, bucket.target_length)
        assert np.count_nonzero(source_ids) == bucket.source_tokens
        assert np.count_nonzero(labels) == bucket.target_tokens
        assert source_ids[:, -1].any() and labels[:, -1].any()  # no longer than needed
        for sides in zip(source_ids.tolist(), labels.tolist(), strict=True):
            pairs.append(tuple(ids[: ids.index(3) + 1] for ids in sides))
            assert all(not any(ids[ids.index(3) + 1 :]) for ids in sides)
    return pairs


def test_every_pair_comes_back_once(tmp_path, monkeypatch):
    monkeypatch.setattr(pipelines.data.dataset_writer, "_CHUNK", 7)
    pairs = random_pairs(101)
    corpus = write(tmp_path / "train", pairs)
    assert sorted(read_back(corpus)) == sorted(pairs)
    assert len(corpus) == sum(corpus.pairs_per_bucket) == 101
    assert 1 < len(corpus.buckets) <= 5


def test_buckets_are_the_same_in_any_chunks(tmp_path, monkeypatch):
    pairs = random_pairs(53)
    whole = write(tmp_path / "whole", pairs)
    monkeypatch.setattr(pipelines.data.dataset_writer, "_CHUNK", 5)
    chunked = write(tmp_path / "chunked", pairs, batch=1)
    assert whole.metadata == chunked.metadata
    assert read_back(whole) == read_back(chunked)


def test_joined_buckets_hold_the_same_pairs(tmp_path):
    pairs = random_pairs(101)
    corpus = write(tmp_path / "train", pairs)
    joined = corpus.with_buckets_of(600)
    assert 1 < len(joined.buckets) < len(corpus.buckets)
    assert min(bucket.pairs * bucket.longest for bucket in joined.buckets) >= 600
    assert sorted(read_back(joined)) == sorted(pairs)
    assert read_back(joined) == read_back(corpus)  # in the same order


def test_gather_picks_rows_in_the_order_asked(tmp_path):
    corpus = write(tmp_path / "train", random_pairs(101))
    source_ids, labels = corpus.gather(1, np.arange(corpus.pairs_per_bucket[1]))
    some = corpus.gather(1, [3, 0, 3])
    np.testing.assert_array_equal(some[0], source_ids[[3, 0, 3]])
    np.testing.assert_array_equal(some[1], labels[[3, 0, 3]])
    for outside in (-1, corpus.pairs_per_bucket[1]):
        with pytest.raises(IndexError, match="numbers must be from 0"):
            corpus.gather(1, [outside])


@pytest.mark.parametrize("vocabulary_size, dtype", [(65536, np.uint16), (65537, np.int32)])
def test_ids_take_16_bits_where_they_fit(tmp_path, vocabulary_size, dtype):
    pairs = [([vocabulary_size - 1, 3], [4, 3])]
    corpus = write(tmp_path / "train", pairs, vocabulary_size=vocabulary_size)
    assert read_back(corpus) == pairs
    assert np.load(tmp_path / "train" / "source_ids.npy", mmap_mode="r").dtype == dtype


def test_pairs_are_dropped_and_counted_by_reason(tmp_path):
    fits = ([5] * 6 + [3], [6, 3])
    pairs = [
        fits,
        ([3], [5, 3]),
        ([5, 3], [3]),
        ([3], [3]),
        ([3], [5] * 7 + [3]),  # empty before too long
        ([5] * 7 + [3], [5, 3]),
        ([5, 3], [5] * 7 + [3]),
    ]
    corpus = write(tmp_path / "train", pairs, max_length=7)
    assert corpus.metadata["dropped"] == {"empty": 4, "too long": 2}
    assert read_back(corpus) == [fits]


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Half a million pairs are 60 MB on disk; NumPy alone writes them with far less memory."""
    program = f"""
import sys, tracemalloc
import numpy as np
from pipelines.data.dataset import TokenizedCorpus
from pipelines.data.dataset_writer import TokenizedCorpusWriter
assert not {{"tensorflow", "keras", "jax", "torch"}} & set(sys.modules)
tracemalloc.start()
lengths = np.arange(1000) % 19 + 2
ids = np.full(lengths.sum(), 70_000)
with TokenizedCorpusWriter({str(tmp_path / "train")!r}, vocabulary_size=100_000, max_length=20,
                           num_shapes=3) as writer:
    for _ in range(500):
        writer.append(ids, lengths, ids, lengths)
corpus = TokenizedCorpus.open({str(tmp_path / "train")!r})
assert len(corpus) == 500_000
peak = tracemalloc.get_traced_memory()[1]
assert peak < 25e6, peak
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    size = sum(path.stat().st_size for path in (tmp_path / "train").iterdir())
    assert size > 55e6


def test_the_decoder_reads_the_labels_one_place_later():
    labels = np.array([[7, 8, 3, 0], [9, 3, 0, 0]], np.int32)
    np.testing.assert_array_equal(shift_right(labels), [[2, 7, 8, 3], [2, 9, 3, 0]])
    assert shift_right(labels).dtype == np.int32


def test_metadata_is_kept(tmp_path):
    corpus = write(tmp_path / "train", random_pairs(5), metadata={"languages": "süß"})
    assert corpus.metadata["languages"] == "süß"
    assert corpus.metadata["vocabulary_size"] == 50


def test_an_error_while_writing_leaves_nothing(tmp_path):
    with (
        pytest.raises(RuntimeError, match="disk"),
        TokenizedCorpusWriter(
            tmp_path / "train", vocabulary_size=50, max_length=23, num_shapes=2
        ) as writer,
    ):
        append(writer, random_pairs(9))
        raise RuntimeError("disk")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [50, 40_000, 60_000, 80_130])
def test_a_full_disk_leaves_nothing(tmp_path, size):
    """While headers, ids, or offsets are written, or their last bytes at the end."""
    with largest_files(size), pytest.raises(InputError, match="File too large"):
        write(tmp_path / "train", [([5, 3], [6, 3])] * 10_000, batch=999)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_writing_leaves_nothing_that_looks_finished(tmp_path):
    program = f"""
import os, signal
from tests.pipelines.data.test_dataset import TokenizedCorpusWriter, append, random_pairs
with TokenizedCorpusWriter({str(tmp_path / "train")!r}, vocabulary_size=50, max_length=23,
                           num_shapes=2) as writer:
    append(writer, random_pairs(9))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": "."})
    assert run.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".incomplete")
    with pytest.raises(InputError, match="no tokenized corpus can be read from .*incomplete"):
        TokenizedCorpus.open(left)
    assert len(write(tmp_path / "train", random_pairs(9))) == 9
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_nothing_left_to_write_is_refused(tmp_path):
    with pytest.raises(InputError, match="no training pairs are left.*2 empty, 0 too long"):
        write(tmp_path / "train", [([3], [3]), ([3], [5, 3])])
    with pytest.raises(InputError, match="no training pairs are left"):
        write(tmp_path / "train", [])
    assert list(tmp_path.iterdir()) == []


def test_wrong_settings_are_refused(tmp_path):
    for wrong in ({"max_length": 1}, {"num_shapes": 0}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be at least"):
            write(tmp_path / "train", random_pairs(3), **wrong)
    write(tmp_path / "train", random_pairs(3))
    with pytest.raises(InputError, match="exists already"):
        write(tmp_path / "train", random_pairs(3))


@pytest.mark.parametrize(
    "name", ["metadata.json", "pairs.npy", "source_ids.npy", "target_offsets.npy"]
)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "archive"])
def test_a_damaged_corpus_is_refused(tmp_path, name, damage):
    write(tmp_path / "train", random_pairs(31))
    path = tmp_path / "train" / name
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        damaged = {"cut": content[: len(content) - 10], "empty": b"", "archive": b"PK\3\4"}
        path.write_bytes(damaged[damage])
    with pytest.raises(InputError, match="no tokenized corpus can be read from"):
        TokenizedCorpus.open(tmp_path / "train")


def test_arrays_of_another_corpus_or_format_are_refused(tmp_path):
    write(tmp_path / "train", random_pairs(31))
    other = write(tmp_path / "other", random_pairs(30)).directory
    (tmp_path / "train" / "pairs.npy").write_bytes((other / "pairs.npy").read_bytes())
    with pytest.raises(InputError, match=r"pairs.npy has shape \(30,\), expected \(31,\)"):
        TokenizedCorpus.open(tmp_path / "train")
    metadata = json.loads((other / "metadata.json").read_text())
    (other / "metadata.json").write_text(json.dumps({**metadata, "format": 99}))
    with pytest.raises(InputError, match="format 99, expected 1"):
        TokenizedCorpus.open(other)
