"""What is told of attentions and tables, as numbers."""

import numpy as np
import pytest

from pipelines.inspection.attention import Attention, norms, similarities

# Of a causal head over three subwords: what it weighs, and both terms of its scores.
SEEN = np.tri(3, dtype=bool)
NAMES = ["a", "b", "c"]


def attention(weights, content, position=None):
    terms = [None if t is None else np.where(SEEN, t, np.nan)[None] for t in (content, position)]
    return Attention("decoder_0/self_attention", NAMES, NAMES, np.asarray(weights)[None], *terms)


def test_the_mean_weight_at_a_distance():
    """Of the second and third row: the first has one key, and no choice."""
    found = attention([[1, 0, 0], [0.75, 0.25, 0], [0.125, 0.5, 0.375]], np.zeros((3, 3)))
    expected = [0.125, (0.75 + 0.5) / 2, (0.25 + 0.375) / 2, np.nan, np.nan]
    np.testing.assert_allclose(found.near(), [expected])


def test_the_share_of_position():
    """The rows' variances are 0, 1 and 2/3 of the content, and thrice as much of the position."""
    content = np.array([[5.0, 0, 0], [1, -1, 0], [3, 2, 1]])
    found = attention(np.eye(3), content, content * np.sqrt(3) + 7)
    np.testing.assert_allclose(found.position_shares(), [0.75])
    assert attention(np.eye(3), content).position_shares() is None


def test_norms_and_cosines_of_a_table():
    table = np.array([[[3.0, 4.0], [-6.0, -8.0], [4.0, -3.0], [0.0, 0.0]]])
    np.testing.assert_allclose(norms(table), [[5, 10, 5, 0]])
    expected = [[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(similarities(table), [expected], atol=1e-12)


@pytest.mark.parametrize("distance", [-1, 0])
def test_a_head_that_always_looks_there(distance):
    weights = np.eye(3, k=distance)
    (found,) = attention(weights, np.zeros((3, 3))).near()
    assert found[2 + distance] == 1
