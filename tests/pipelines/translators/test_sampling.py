"""Translations that are drawn: the same for the same seed, however sentences come."""

import pytest

from pipelines.translators.base import Sampling
from pipelines.translators.open import open_translator
from tests.support.exported_forms import forms
from tests.support.refusals import refused
from tests.support.serving_model import exported, sentences

pytestmark = pytest.mark.tensorflow_only

SOURCES = sentences(16, seed=17)


def drawn(group, **settings):
    """The translations of `SOURCES`, given in groups of this size."""
    translator = open_translator(forms()["run"], sample=Sampling(**settings))
    return [t.text for (t,) in translator.stream(SOURCES, group)]


def test_a_seed_draws_the_same_however_sentences_are_grouped():
    together = drawn(16, seed=3)
    assert drawn(5, seed=3) == together
    assert sum(a != b for a, b in zip(together, drawn(16, seed=4), strict=True)) > 8


def test_no_more_subwords_than_there_are_can_be_drawn_from():
    size = exported()[0].model.config.vocabulary_size
    rule = f"top_k must be at most the {size} subwords of the model"
    with refused(f"^{rule}, got {size + 1}$"):
        drawn(16, top_k=size + 1)
    assert len(drawn(16, top_k=size)) == len(SOURCES)


@pytest.mark.parametrize("temperature", [0, -1, 1e300, float("inf"), float("nan")])
def test_a_temperature_that_cannot_be_computed_with_is_refused(temperature):
    with refused("^temperature must be above 0 and at most 1,000,000, got"):
        Sampling(temperature=temperature)


def test_the_same_sentence_is_drawn_anew():
    translator = open_translator(forms()["run"], sample=Sampling(temperature=2.0))
    assert len(set(translator.translate(SOURCES[:1] * 20))) > 10


def test_the_likeliest_alone_is_greedy_search():
    greedy = open_translator(forms()["run"], beam_size=1).translate(SOURCES)
    assert drawn(16, temperature=1e-4, top_k=5) == greedy
    assert drawn(16, top_p=1e-4) == greedy
