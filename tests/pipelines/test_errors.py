"""Exceptions in one line."""

import pytest

from pipelines.errors import first_line, reason_of


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  one  \n"), "one"),
        (ValueError(), "ValueError"),
        (OSError(28, "No space"), "[Errno 28] No space"),
    ],
)
def test_first_line(error, line):
    assert first_line(error) == line


@pytest.mark.tensorflow_only
def test_reason_of_an_error_of_tensorflow():
    import tensorflow as tf

    with pytest.raises(tf.errors.OpError) as failed:
        tf.io.write_file("/dev/null/file", "text")
    assert "{{function_node" in failed.value.message
    assert reason_of(failed.value).startswith("/dev/null")
    assert (
        reason_of(tf.errors.UnknownError(None, None, "two  words\n\t[[{{node x}}]]")) == "two words"
    )

    @tf.function
    def fails(value):
        tf.debugging.Assert(value < 3, ["value must be below", 3, "got", value])

    with pytest.raises(tf.errors.InvalidArgumentError) as failed:
        fails(tf.constant(5))
    assert reason_of(failed.value) == "value must be below 3 got 5"
    assert reason_of(tf.errors.UnknownError(None, None, "")) != ""
    assert reason_of(OSError(28, "No space")) == "[Errno 28] No space"
