"""The probability of given pairs: what the search says of those that it finds."""

import numpy as np
import pytest

from pipelines import score
from pipelines.run.directory import RunDirectory
from pipelines.translators.keras_model import Translator, load_run
from pipelines.translators.likelihood import LikelihoodModel
from tests.support.exported_forms import forms
from tests.support.runs import call
from tests.support.serving_model import sentences

pytestmark = pytest.mark.tensorflow_only

SOURCES = sentences(30, seed=23)


@pytest.fixture(scope="module")
def loaded():
    return load_run(RunDirectory(forms()["run"]))


def test_it_is_what_the_search_says(loaded):
    translator = Translator(loaded.model, loaded.tokenizer, beam_size=1, alpha=0.0)
    best = [hypotheses[0] for hypotheses in translator.stream(SOURCES)]
    found = LikelihoodModel(loaded)(SOURCES, [text for text, _ in best])
    # Where the search's subwords are those that its text is cut into, which is most of the time.
    subwords = [len(ids) for ids in loaded.tokenizer.encode([text for text, _ in best]).to_list()]
    same = np.isclose(found.log_probs, [score for _, score in best], rtol=1e-4)
    assert found.subwords.tolist() == subwords
    assert same.mean() > 0.5


def test_a_pair_scores_alike_alone_and_in_any_batch(loaded):
    """Also beside one that is longer than a batch may be."""
    likelihoods = LikelihoodModel(loaded)
    targets = [*SOURCES[1:], "dog " * 900]
    together = likelihoods(SOURCES, targets)
    alone = [likelihoods([s], [t]) for s, t in zip(SOURCES, targets, strict=True)]
    np.testing.assert_allclose(together.log_probs, [a.log_probs[0] for a in alone], rtol=1e-4)
    assert together.subwords.tolist() == [a.subwords[0] for a in alone]
    assert together.subwords[-1] > 900


def test_the_command(loaded, tmp_path, monkeypatch, capfd, refusal):
    paths = tmp_path / "source", tmp_path / "target"
    for path, lines in zip(paths, (SOURCES, SOURCES[::-1]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    flags = ["--model", forms()["run"], "--source", paths[0], "--target", paths[1]]
    assert call(score.main, flags, monkeypatch) == 0
    output, errors = capfd.readouterr()
    rows = np.array([line.split("\t") for line in output.splitlines()], float)
    expected = LikelihoodModel(loaded)(SOURCES, SOURCES[::-1])
    np.testing.assert_allclose(rows[:, 0], expected.log_probs, atol=1e-3)
    np.testing.assert_allclose(rows[:, 1], rows[:, 0] / rows[:, 2], atol=1e-3)
    assert rows[:, 2].tolist() == expected.subwords.tolist()
    perplexity = np.exp(-rows[:, 0].sum() / rows[:, 2].sum())
    assert float(errors.split()[1].strip(":")) == pytest.approx(perplexity, rel=1e-3)
    assert "30 pairs" in errors

    paths[1].write_text("only one\n")
    told = refusal(score.main, flags)
    assert "but" in told and "has 30 and" in told
