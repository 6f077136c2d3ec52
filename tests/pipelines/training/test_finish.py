"""The end of a training run."""

import logging

import pytest

pytestmark = pytest.mark.tensorflow_only


def test_samples_are_shown_as_what_a_terminal_does_not_obey(caplog):
    from pipelines.training.finish import show_samples

    with caplog.at_level(logging.INFO):
        show_samples(["a\0\x1b[2J b", "x"], ["c\x1b", "y"])
    assert caplog.messages == ["  a\ufffd\ufffd[2J b\n  -> c\ufffd", "  x\n  -> y"]
