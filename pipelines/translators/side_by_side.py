"""Batches side by side, each on a share of the cores.

The products of one step of a search are small: threads that share one wait for each other, often
for longer than they compute.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pipelines.translators.base import BATCH_SIZE

_AT_MOST = 4  # batches, as what comes from a pipe is translated 128 sentences at a time

_Batch = TypeVar("_Batch")
_Result = TypeVar("_Result")


def share_cores() -> None:
    """Has TensorFlow compute each operation by one batch's share of the cores, if it has not been
    imported yet and `TF_NUM_INTRAOP_THREADS` of the environment does not say otherwise."""
    share = max(1, _cores() // _batches_on_cores())
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(share))


def batches_at_once() -> int:
    """How many TensorFlow is given at once: one where a GPU computes."""
    import tensorflow as tf

    return 1 if tf.config.get_visible_devices("GPU") else _batches_on_cores()


def by_length(
    lengths: Sequence[int], at_once: int, translate: Callable[[Sequence[int]], _Result]
) -> Iterator[tuple[Sequence[int], _Result]]:
    """Batches of sentences of similar length, so that little time is spent on padding.

    Args:
        lengths: of all sentences.
        at_once: how many batches are computed at a time.
        translate: makes a result for a batch, from the places of its sentences among all.

    Yields:
        The places of a batch, and its result.
    """
    places = sorted(range(len(lengths)), key=lambda i: lengths[i])
    batches = batches_of(places, at_once)
    yield from zip(batches, side_by_side(translate, batches, at_once), strict=True)


def batches_of(places: Sequence[int], at_once: int) -> list[Sequence[int]]:
    """Batches of them in their order, of as many as there may be in one, or of fewer, so that each
    of those that are computed at once has some."""
    size = max(1, min(BATCH_SIZE, math.ceil(len(places) / at_once)))
    return [places[i : i + size] for i in range(0, len(places), size)]


def side_by_side(
    translate: Callable[[_Batch], _Result], batches: Sequence[_Batch], at_once: int
) -> Iterator[_Result]:
    """The results for the batches, in their order; `at_once` of them are computed at a time."""
    if min(len(batches), at_once) <= 1:
        yield from map(translate, batches)
        return
    pool = ThreadPoolExecutor(at_once)
    try:
        yield from pool.map(translate, batches)
    finally:
        # After Ctrl-C nobody waits for what has begun.
        pool.shutdown(wait=False, cancel_futures=True)


def _batches_on_cores() -> int:
    return min(_cores(), _AT_MOST)


def _cores() -> int:
    return os.cpu_count() or 1
