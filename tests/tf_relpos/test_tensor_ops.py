"""What `keras.ops` has no fast operation for."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import to_numpy
from tf_relpos.tensor_ops import own_rows_at, rows_at


def test_rows_by_their_indices(rng):
    table, per_head = rng.normal(size=(5, 3)), rng.normal(size=(2, 5, 3))
    indices = np.array([4, 0, 0, 2], "int32")
    for rows in (table, per_head):
        found = rows_at(keras.ops.convert_to_tensor(rows), indices)
        np.testing.assert_allclose(to_numpy(found), rows[..., indices, :], rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 5, 3, 1)])
def test_rows_of_each_sentence(rng, shape):
    x = rng.integers(0, 100, shape).astype("int32")
    indices = np.array([[4, 0, 0], [1, 2, 4]], "int32")
    expected = np.stack([own[rows] for own, rows in zip(x, indices, strict=True)])
    found = own_rows_at(*map(keras.ops.convert_to_tensor, (x, indices)))
    np.testing.assert_array_equal(to_numpy(found), expected)
