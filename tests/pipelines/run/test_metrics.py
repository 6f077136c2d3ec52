"""Scores are sacreBLEU's."""

import pytest

from pipelines.errors import InputError
from pipelines.run.metrics import bleu, tokenizer_for
from tests.support.layer_checks import run_python

REFERENCES = ["the cat is on the mat", "there is a small dog in the garden"]


def test_score_and_signature_are_sacrebleus():
    perfect = bleu(REFERENCES, REFERENCES, "en")
    assert perfect.score == pytest.approx(100.0)
    assert "tok:13a" in perfect.signature and "version:" in perfect.signature
    # Precisions 13/14, 10/12, 8/10 and 6/8, lengths alike.
    one_word_off = bleu(["the cat is on a mat", REFERENCES[1]], REFERENCES, "en")
    expected = 100 * (13 / 14 * 10 / 12 * 8 / 10 * 6 / 8) ** 0.25
    assert one_word_off.score == pytest.approx(expected)


def test_other_counts_are_refused():
    with pytest.raises(InputError, match="the source has 1 lines, but the reference has 2"):
        bleu(REFERENCES[:1], REFERENCES, "en")
    with pytest.raises(InputError, match="nothing to score"):
        bleu([], [], "en")


@pytest.mark.parametrize(
    "language, tokenizer, near, exact",
    [
        ("zh", "zh", "一只猫坐在红色的垫子上。", "一只猫坐在蓝色的垫子上。"),
        ("zh_Hant-TW", "zh", "一隻貓坐在紅色的墊子上。", "一隻貓坐在藍色的墊子上。"),
        (
            "ja",
            "ja-mecab-",
            "猫は赤いマットの上に座っています。",
            "猫は青いマットの上に座っています。",
        ),
        (
            "ko",
            "ko-mecab-",
            "고양이가 빨간 매트 위에 앉아 있다.",
            "고양이가 파란 매트 위에 앉아 있다.",
        ),
        ("th", "char", "แมวนั่งอยู่บนเสื่อสีแดง", "แมวนั่งอยู่บนเสื่อสีฟ้า"),
    ],
)
def test_text_without_spaces_has_a_tokenizer_of_its_own(language, tokenizer, near, exact):
    score = bleu([near], [exact], language)
    assert f"|tok:{tokenizer}" in score.signature
    assert 30 < score.score < 95


def test_characters_are_counted_where_a_tokenizer_is_not_installed():
    output = run_python(
        """
import logging, sys
sys.modules["MeCab"] = None
logging.basicConfig(format="%(message)s", stream=sys.stdout)
from pipelines.run.metrics import bleu, tokenizer_for
for _ in range(2):
    print(bleu(["猫は赤い"], ["猫は赤い"], "ja").signature)
"""
    )
    told, *signatures = output.splitlines()
    assert told == (
        "BLEU's tokenizer ja-mecab needs packages: pip install 'sacrebleu[ja]'; BLEU counts "
        "characters instead (tok:char)"
    )
    assert len(signatures) == 2 and all("|tok:char|" in signature for signature in signatures)


def test_languages_with_spaces_are_scored_as_always():
    assert {tokenizer_for(language) for language in ("de", "pt-BR", "FR", "kok", "")} == {"13a"}
