"""Batches side by side give what they give one after the other."""

import os
import threading

import pytest

from pipelines.translators import side_by_side as module
from pipelines.translators.side_by_side import batches_of, share_cores, side_by_side


def test_batches_are_translated_at_once_and_come_in_their_order():
    meeting = threading.Barrier(2, timeout=60)  # that none passes alone

    def translate(batch):
        meeting.wait()
        return batch * 10

    assert list(side_by_side(translate, range(6), at_once=2)) == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("sentences", "at_once", "sizes"),
    [
        (0, 2, []),
        (1, 2, [1]),
        (5, 1, [5]),
        (5, 2, [3, 2]),
        (40, 1, [32, 8]),
        (32, 2, [16, 16]),
        (128, 2, [32] * 4),
    ],
)
def test_batches_are_full_unless_some_threads_would_have_none(sentences, at_once, sizes):
    batches = batches_of(range(sentences), at_once)
    assert [len(batch) for batch in batches] == sizes
    assert [place for batch in batches for place in batch] == list(range(sentences))


@pytest.mark.parametrize(("batches", "at_once"), [(3, 1), (1, 4), (0, 4)])
def test_nothing_to_share_takes_no_threads(batches, at_once):
    threads = side_by_side(lambda _: threading.current_thread(), range(batches), at_once)
    assert list(threads) == [threading.current_thread()] * batches


def test_an_error_ends_it_and_what_has_not_begun_is_left():
    begun = []

    def translate(batch):
        begun.append(batch)
        raise ValueError(f"batch {batch}")

    with pytest.raises(ValueError, match="batch 0"):
        list(side_by_side(translate, range(1000), at_once=2))
    assert len(begun) < 1000


@pytest.mark.parametrize(
    ("cores", "threads"), [(1, "1"), (2, "1"), (4, "1"), (8, "2"), (64, "16"), (None, "1")]
)
def test_cores_are_shared_by_at_most_four_batches(cores, threads, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "to be restored")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
    share_cores()
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == threads
    assert module._batches_on_cores() == min(cores or 1, 4)


def test_the_environment_comes_first(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")
    share_cores()
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "7"
