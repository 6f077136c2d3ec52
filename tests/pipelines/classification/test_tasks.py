"""The tasks are what they are said to be: order alone decides."""

import numpy as np
import pytest

from pipelines.classification.tasks import (
    MORE_WEEKS,
    PADDING,
    WEEK,
    WEEKS,
    explained,
    series_task,
    text_task,
)


def test_texts_are_pairs_of_the_same_words_with_two_answers():
    task = text_task(train=101, test=53)
    for examples, count in ((task.train, 101), (task.test, 53), (task.longer, 53)):
        assert len(examples.inputs) == len(examples.targets) == 2 * count
        one, other = examples.inputs[::2], examples.inputs[1::2]
        np.testing.assert_array_equal(np.sort(one), np.sort(other))
        assert np.all(np.any(one != other, axis=1))
        np.testing.assert_array_equal(examples.targets[::2], 1 - examples.targets[1::2])
        assert examples.inputs.max() < task.words
    lengths = [np.sum(e.inputs != PADDING, axis=1).mean() for e in (task.test, task.longer)]
    assert lengths[1] > 2 * lengths[0]
    assert len({row.tobytes() for row in task.train.inputs}) == 202


def test_a_series_is_a_week_that_repeats_itself():
    task = series_task(train=211, test=97)
    for examples, weeks in ((task.train, WEEKS), (task.longer, MORE_WEEKS)):
        assert examples.inputs.shape[1:] == examples.targets.shape[1:] == (weeks * WEEK, 1)
        np.testing.assert_array_equal(examples.inputs[:, 1:], examples.targets[:, :-1])
        for days, share in ((WEEK, 0.6), (1, -1.0)):  # of the day a week ago, and of today
            known = np.roll(examples.inputs, days - 1, axis=1)
            assert explained(examples, known) == pytest.approx(share, abs=0.15)
        # No position tells what comes.
        of_positions = examples.targets.mean(axis=0, keepdims=True)
        assert abs(explained(examples, np.broadcast_to(of_positions, known.shape))) < 0.05
    assert explained(task.test, task.test.targets) == 1.0
