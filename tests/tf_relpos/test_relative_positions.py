"""Section 3.2: which label joins query i to key j."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import MODES, compile_function, to_numpy
from tests.support.reference import position_labels
from tf_relpos import relative_position_ids


def test_four_by_four_clipped_at_two():
    expected = [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]
    labels = relative_position_ids(4, 4, 2)
    np.testing.assert_array_equal(to_numpy(labels), expected)
    assert keras.backend.standardize_dtype(labels.dtype) == "int32"


@pytest.mark.parametrize("k", [0, 1, 3, 16])
@pytest.mark.parametrize("offset", [0, 4, 23])
@pytest.mark.parametrize("lengths", [(7, 7), (5, 7), (7, 5), (1, 1), (1, 11), (11, 1), (37, 41)])
def test_equals_the_definition(lengths, offset, k):
    labels = relative_position_ids(*lengths, k, query_offset=offset)
    np.testing.assert_array_equal(to_numpy(labels), position_labels(*lengths, k, offset))


def test_zero_clipping_has_one_label():
    assert not to_numpy(relative_position_ids(5, 7, 0)).any()


def test_labels_are_translation_invariant():
    labels = to_numpy(relative_position_ids(11, 13, 4))
    np.testing.assert_array_equal(labels[1:, 1:], labels[:-1, :-1])


def test_offset_is_a_later_row():
    whole = to_numpy(relative_position_ids(13, 13, 3))
    for step in range(13):
        row = to_numpy(relative_position_ids(1, 13, 3, query_offset=step))
        np.testing.assert_array_equal(row, whole[step : step + 1])


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "xla"])
def test_lengths_and_offset_may_be_tensors(mode):
    def labels(tensors):
        return relative_position_ids(tensors["t"], tensors["s"], 3, query_offset=tensors["at"])

    scalars = {"t": np.int32(5), "s": np.int32(7), "at": np.int32(2)}
    run = compile_function(labels, mode, scalars)
    np.testing.assert_array_equal(run(scalars), position_labels(5, 7, 3, 2))


@pytest.mark.parametrize("mode", MODES)
def test_offset_alone_may_be_a_tensor(mode):
    """The form of a decoding loop: known lengths, a step that is a tensor."""

    def labels(tensors):
        return relative_position_ids(1, 11, 3, query_offset=tensors["at"])

    run = compile_function(labels, mode, {"at": np.int32(0)})
    for step in (0, 4, 10):
        np.testing.assert_array_equal(run({"at": np.int32(step)}), position_labels(1, 11, 3, step))


@pytest.mark.parametrize("name", ["query_length", "max_relative_position", "query_offset"])
def test_what_int32_cannot_hold_is_refused(name):
    arguments = {"query_length": 3, "key_length": 3, "max_relative_position": 2, name: 2**31}
    with pytest.raises(
        ValueError, match=rf"`{name}` must be a whole number from .* to 1073741824.*2147483648"
    ):
        relative_position_ids(**arguments)


@pytest.mark.parametrize("k", [-1, 2.0, 1.5, "3", None])
def test_bad_clipping_distance_is_refused(k):
    with pytest.raises(ValueError, match="max_relative_position") as error:
        relative_position_ids(5, 7, k)
    assert str(k) in str(error.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((2.7, 3, 2), "`query_length` must be a whole number.*2.7"),
        ((2, -3, 2), "`key_length` must be a whole number from 0 .*-3"),
        ((2, 3, 2, 0.6), "`query_offset` must be a whole number.*0.6"),
        ((2, 3, 2, keras.ops.convert_to_tensor([0, 1])), "`query_offset` .* scalar .*"),
        (
            (keras.ops.convert_to_tensor(-2), 3, 2),
            "`query_length` must be a whole number from 0 .*-2",
        ),
    ],
)
def test_lengths_that_are_none_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        relative_position_ids(*arguments)
