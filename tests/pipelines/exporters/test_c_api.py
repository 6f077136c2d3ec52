"""The loader that TensorFlow Serving uses, called from C: no Python, no Keras, nothing of ours."""

import numpy as np
import pytest

from tests.support import serving_model
from tests.support.c_program import compiled, needs_compiler, parse, run

pytestmark = [pytest.mark.tensorflow_only, needs_compiler]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("c_api"))


def test_a_c_program_translates_like_the_translator(program):
    translator, version = serving_model.exported()
    texts = [text.encode() for text in serving_model.sentences(13, seed=3)] + [b"", b"\xff dog"]
    result = run(program, version, texts)
    assert result.returncode == 0, result.stderr.decode()
    answers = parse(result.stdout)
    expected = [
        hypotheses[0]
        for hypotheses in translator.stream(text.decode(errors="replace") for text in texts)
    ]
    assert [translation.decode() for _, translation in answers] == [e.text for e in expected]
    assert len({translation for _, translation in answers}) > 9
    np.testing.assert_allclose(
        [score for score, _ in answers], [e.score for e in expected], rtol=1e-5, atol=2e-6
    )


def test_the_library_of_sentencepiece_is_needed(program):
    result = run(program, serving_model.exported()[1], [b"dog"], libraries=[])
    assert result.returncode == 1 and b"Sentencepiece" in result.stderr
