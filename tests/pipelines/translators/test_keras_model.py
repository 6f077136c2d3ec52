"""A translator around a model that has learnt something, and its SavedModel."""

import os

import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import InputError
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.saved_model import export_saved_model
from pipelines.run.directory import RunDirectory
from pipelines.translators.keras_model import Translator, load_run
from tests.support.runs import pairs

pytestmark = pytest.mark.tensorflow_only

SENTENCES = [source for source, _ in pairs(37, seed=7)]


@pytest.fixture(scope="module")
def translator(trained_run):
    return Translator.of(load_run(RunDirectory(trained_run), "average"))


@pytest.fixture(scope="module")
def exported(trained_run):
    return trained_run.parent / "export" / "1"


def test_it_translates(translator):
    expected = dict(pairs(37, seed=7))
    hits = [translator.translate([s])[0] == expected[s] for s in SENTENCES[:20]]
    assert np.mean(hits) > 0.6


def test_order_and_neighbours_do_not_matter(translator):
    together = translator.translate(SENTENCES)
    assert together == [translator.translate([sentence])[0] for sentence in SENTENCES]
    assert together[::-1] == translator.translate(SENTENCES[::-1])
    assert len(set(together)) > 20
    in_parts = [best.text for best, *_ in translator.stream(iter(SENTENCES), 5)]
    assert in_parts == together


def test_hypotheses_come_best_first(translator):
    several = Translator(translator.model, translator.tokenizer, nbest=3)
    best = translator.stream(SENTENCES)
    for sentence, hypotheses, alone in zip(SENTENCES, several.stream(SENTENCES), best, strict=True):
        assert len(hypotheses) == 3
        assert [hypotheses[0].text] == [text for text, _ in alone]
        # One by one both multiply the same rows. In batches they may be summed in another order,
        # which the logarithm of a probability near 1 shows more than the probability.
        (first, *_), (only,) = (next(x.stream([sentence])) for x in (several, translator))
        np.testing.assert_allclose(first.score, only.score, rtol=1e-5)
        scores = [score for _, score in hypotheses]
        np.testing.assert_allclose(np.exp(scores[0]), np.exp(alone[0].score), rtol=1e-5)
        assert scores == sorted(scores, reverse=True)
        assert all(np.isfinite(scores)) and scores[0] < 0
        assert len({text for text, _ in hypotheses}) > 1


def test_lines_are_answered_as_they_come(translator):
    read = []

    def lines():
        for sentence in SENTENCES[:4]:
            read.append(sentence)
            yield sentence

    stream = translator.stream(lines(), 2)
    assert next(stream)[0].text == translator.translate(SENTENCES[:1])[0]
    assert read == SENTENCES[:2]


@pytest.mark.parametrize(
    "text", ["", " ", "a " * 3000, "\x00", "😀 日本語", "x" * 5000, "\ud83d a"]
)
def test_odd_text_gets_an_answer_and_harms_no_neighbour(translator, text):
    answers = translator.translate([SENTENCES[0], text, SENTENCES[1]])
    assert len(answers) == 3 and isinstance(answers[1], str)
    assert answers[::2] == translator.translate(SENTENCES[:2])


@pytest.mark.parametrize(
    "sentences, message",
    [
        ("one two", "sentences must be a list of them, got one: 'one two'"),
        (["one", None], "sentences must be strings, got NoneType in place 1"),
    ],
)
def test_what_is_no_list_of_strings_is_refused(translator, sentences, message):
    for call in (translator.translate, translator.cut, lambda some: list(translator.stream(some))):
        with pytest.raises(InputError, match=message):
            call(sentences)


def test_any_iterable_is_translated(translator):
    assert translator.translate(iter(SENTENCES[:2])) == translator.translate(SENTENCES[:2])


def test_no_sentences_give_no_translations(translator):
    assert translator.translate([]) == []


def test_another_tokenizer_is_refused(trained_run, tmp_path):
    from pipelines.data.tokenizer import train_tokenizer

    run = RunDirectory(trained_run)
    other = RunDirectory(trained_run)
    other.tokenizer_path = tmp_path / "tokenizer.model"
    train_tokenizer((" ".join(pair) for pair in pairs(200, 1)), 280, other.tokenizer_path)
    with pytest.raises(InputError, match="model is not what the checkpoints were trained with"):
        load_run(other)
    other.tokenizer_path = tmp_path / "absent"
    with pytest.raises(InputError, match="absent is not what the checkpoints were trained"):
        load_run(other)
    assert load_run(run).step == 600


def test_a_version_appears_whole_or_not_at_all(translator, trained_run, tmp_path, monkeypatch):
    exportable = Exportable.from_run(translator, RunDirectory(trained_run))
    directory = tmp_path / "model"
    (directory / "7").mkdir(parents=True)

    def full(*_, **__):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(InputError, match="^cannot write .*/model/8: .*no space left"):
        export_saved_model(exportable, directory)
    assert os.listdir(directory) == ["7"]
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="^cannot write to the output directory .*/file: "):
        export_saved_model(exportable, tmp_path / "file")


def test_many_translators_cause_no_warning(translator, caplog):
    """TensorFlow would count the traces of all of them together."""
    for _ in range(6):
        other = Translator(translator.model, translator.tokenizer, beam_size=1)
        assert other.translate(SENTENCES[:1])
    assert "retracing" not in caplog.text
