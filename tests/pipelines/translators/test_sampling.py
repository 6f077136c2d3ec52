"""Translations that are drawn: the same for the same seed, however sentences come."""

import pytest

from pipelines.translators.base import Sampling
from pipelines.translators.open import open_translator
from tests.support.exported_forms import forms
from tests.support.serving_model import sentences

pytestmark = pytest.mark.tensorflow_only

SOURCES = sentences(40, seed=17)


def drawn(group, **settings):
    """The translations of `SOURCES`, given in groups of this size."""
    translator = open_translator(forms()["run"], sample=Sampling(**settings))
    return [t.text for (t,) in translator.stream(SOURCES, group)]


def test_a_seed_draws_the_same_however_sentences_are_grouped():
    together = drawn(40, seed=3)
    assert drawn(7, seed=3) == together
    assert drawn(1, seed=3) == together
    assert sum(a != b for a, b in zip(together, drawn(40, seed=4), strict=True)) > 20


def test_the_same_sentence_is_drawn_anew():
    translator = open_translator(forms()["run"], sample=Sampling(temperature=2.0))
    assert len(set(translator.translate(SOURCES[:1] * 20))) > 10


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"temperature": 1e-4}])
def test_the_likeliest_alone_is_greedy_search(settings):
    assert drawn(40, **settings) == open_translator(forms()["run"], beam_size=1).translate(SOURCES)
