"""Scores are sacreBLEU's."""

import pytest
from sacrebleu.metrics import BLEU

from pipelines.errors import InputError
from pipelines.evaluate import TOKENIZERS
from pipelines.run.comet import Comet
from pipelines.run.metrics import bleu, check_tokenizer, compute, sacrebleu_metrics, tokenizer_for
from pipelines.run.significance import paired_bootstrap
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


def test_chrf_and_ter_stand_beside_bleu():
    metrics = sacrebleu_metrics("en")
    scores = compute(metrics, ["the cat is on a mat", REFERENCES[1]], [REFERENCES])
    assert [score.name for score in scores.values()] == ["BLEU", "chrF2", "TER"]
    assert scores["bleu"] == bleu(["the cat is on a mat", REFERENCES[1]], REFERENCES, "en")
    assert scores["ter"].score == pytest.approx(100 * 1 / 14)  # one word of 14
    assert 80 < scores["chrf"].score < 100


def test_the_nearest_of_several_references_counts():
    translations, far = ["a cat is on the mat"], ["there lies some cat on a mat"]
    metrics = sacrebleu_metrics("en")
    both = compute(metrics, translations, [far, translations])
    assert both["bleu"].score == pytest.approx(100) and both["ter"].score == 0
    assert "nrefs:2" in both["bleu"].signature
    assert compute(metrics, translations, [far])["bleu"].score < 50


def test_lowercase_and_tokenizer_are_sacrebleus():
    shouted = [line.upper() for line in REFERENCES]
    scores = compute(sacrebleu_metrics("en", lowercase=True), shouted, [REFERENCES])
    assert scores["bleu"].score == pytest.approx(100) == scores["chrf"].score
    assert "case:lc" in scores["bleu"].signature
    assert compute(sacrebleu_metrics("en"), shouted, [REFERENCES])["bleu"].score < 1
    by_character = compute(sacrebleu_metrics("en", tokenize="char"), shouted, [REFERENCES])
    assert "tok:char" in by_character["bleu"].signature


def test_ter_of_chinese_counts_characters():
    scores = compute(sacrebleu_metrics("zh"), ["一只猫坐在"], [["一只狗坐在"]])
    assert scores["ter"].score == pytest.approx(100 / 5)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokenizers_of_the_flag_are_sacrebleus(name):
    assert name in BLEU.TOKENIZERS
    if not name.startswith("flores"):  # which are downloaded
        check_tokenizer(name)


def test_a_difference_is_told_from_chance():
    metrics = sacrebleu_metrics("en")
    references = [f"the {word} cat number {n} is on the mat" for n in range(40) for word in "abc"]
    good = [line.replace("mat", "hat") if n % 9 == 0 else line for n, line in enumerate(references)]
    bad = [line.replace("cat", "dog") if n % 2 == 0 else line for n, line in enumerate(references)]
    found = paired_bootstrap(metrics, bad, good, [references])["bleu"]
    scores = [compute(metrics, text, [references])["bleu"].score for text in (bad, good)]
    assert found.baseline == scores[0]
    assert found.difference == pytest.approx(scores[1] - scores[0])
    assert found.p_value < 0.01 and "bs:1000" in found.signature
    # As many mistakes elsewhere; and the same text, of which sacreBLEU itself says p = 0.001.
    as_good = [
        line.replace("mat", "hat") if n % 9 == 1 else line for n, line in enumerate(references)
    ]
    assert paired_bootstrap(metrics, good, as_good, [references])["bleu"].p_value > 0.3
    assert {c.p_value for c in paired_bootstrap(metrics, good, good, [references]).values()} == {
        1.0
    }


def test_comet_is_refused_where_it_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="needs the program comet-score.*pipx install"):
        Comet("Unbabel/wmt22-comet-da")
    (tmp_path / "comet-score").write_text("#!/bin/sh\necho no such model >&2\nexit 1\n")
    (tmp_path / "comet-score").chmod(0o755)
    with pytest.raises(InputError, match="failed with comet absent: no such model"):
        Comet("absent")(["a"], ["b"], ["c"])
