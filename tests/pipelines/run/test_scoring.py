"""BLEU is sacreBLEU's."""

import pytest

from pipelines.errors import InputError
from pipelines.run.scoring import bleu

REFERENCES = ["the cat is on the mat", "there is a small dog in the garden"]


def test_score_and_signature_are_sacrebleus():
    perfect = bleu(REFERENCES, REFERENCES)
    assert perfect.score == pytest.approx(100.0)
    assert "tok:13a" in perfect.signature and "version:" in perfect.signature
    # Precisions 13/14, 10/12, 8/10 and 6/8, lengths alike.
    one_word_off = bleu(["the cat is on a mat", REFERENCES[1]], REFERENCES)
    expected = 100 * (13 / 14 * 10 / 12 * 8 / 10 * 6 / 8) ** 0.25
    assert one_word_off.score == pytest.approx(expected)


def test_other_counts_are_refused():
    with pytest.raises(InputError, match="the source has 1 lines, but the reference has 2"):
        bleu(REFERENCES[:1], REFERENCES)
    with pytest.raises(InputError, match="nothing to score"):
        bleu([], [])
