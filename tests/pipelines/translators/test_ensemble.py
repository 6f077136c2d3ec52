"""Several runs that translate as one."""

import errno
import io
import os
import re
import sys

import numpy as np
import pytest

from pipelines import evaluate, translate
from pipelines.errors import InputError
from pipelines.run.directory import RunDirectory
from pipelines.translators.base import Sampling
from pipelines.translators.ensemble import Ensemble, combined
from pipelines.translators.keras_model import load_run
from pipelines.translators.open import open_translator
from tests.support.exported_forms import forms, write_run
from tests.support.runs import call
from tests.support.serving_model import exported, sentences
from tf_relpos import Transformer

pytestmark = pytest.mark.tensorflow_only

SOURCES = sentences(20, seed=29)


def test_a_model_with_itself_translates_as_alone():
    run = forms()["run"]
    alone = list(open_translator(run).stream(SOURCES))
    twice = list(open_translator([run, run]).stream(SOURCES))
    assert [[t.text for t in row] for row in twice] == [[t.text for t in row] for row in alone]
    scores = [[[t.score for t in row] for row in found] for found in (twice, alone)]
    np.testing.assert_allclose(*scores, rtol=1e-4)
    drawn = [open_translator(m, sample=Sampling()).translate(SOURCES) for m in (run, [run, run])]
    assert drawn[0] == drawn[1]


def test_probabilities_are_averaged(rng):
    """Also of models of other sizes."""
    first = exported()[0].model
    config = first.config
    second = Transformer(type(config)(**{**vars(config), "model_dim": 8, "decoder_layers": 1}))
    second.build()
    sources = rng.integers(4, 99, (3, 5)).astype("int32")
    ensemble = Ensemble([first, second])

    def probabilities(model):
        memory = model.encode(sources)
        cache = model.initial_cache(memory, 2, 4)
        logits, _ = model.step(np.full((3, 2), config.start_id, "int32"), cache, 0, memory)
        weights = np.exp(np.asarray(logits, "float64"))
        return weights / weights.sum(axis=-1, keepdims=True)

    expected = (probabilities(first) + probabilities(second)) / 2
    np.testing.assert_allclose(probabilities(ensemble), expected, rtol=1e-4, atol=1e-7)


def test_an_ensemble_reads_as_much_as_the_least_of_its_runs(tmp_path):
    paths = forms()["run"], write_run(tmp_path / "short", max_length=9)
    assert combined([load_run(RunDirectory(path)) for path in paths]).max_source_length == 9


def test_what_cannot_be_an_ensemble(trained_run):
    with pytest.raises(InputError, match="tokenizer.model of .* is not that of"):
        open_translator([forms()["run"], trained_run])
    with pytest.raises(InputError, match="models must be run directories, but .* is a TFLite"):
        open_translator([forms()["run"], forms()["tflite"]])


def test_the_commands(corpus, trained_run, monkeypatch, capfd, refusal):
    before = RunDirectory(trained_run).scores()
    text = ["--source", corpus / "test.en", "--reference", corpus / "test.de", "--beam_size", 1]
    assert call(evaluate.main, ["--run_dir", trained_run, trained_run, *text], monkeypatch) == 0
    (line, *_) = capfd.readouterr().out.splitlines()
    assert re.match(r"BLEU \d+.*\|step:600\|ensemble:2\)$", line)
    assert RunDirectory(trained_run).scores() == before  # they are not those of this run
    told = refusal(translate.main, ["--model", trained_run, "absent"])
    assert "there is no model absent" in told


def test_scores_that_nobody_can_read_are_an_error(corpus, trained_run, monkeypatch, refusal):
    """They stand nowhere else, as those of one run do."""
    text = ["--source", corpus / "test.en", "--reference", corpus / "test.de", "--beam_size", 1]
    monkeypatch.setattr(sys, "stdout", _Full())
    told = refusal(evaluate.main, ["--run_dir", trained_run, trained_run, *text], progress=".*")
    assert told.endswith("No space left on device")


class _Full(io.StringIO):
    """Standard output on a disk without room."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
