"""The comparison: what joins the words, what is trained, told, kept, and not trained again."""

import json
import re

import numpy as np
import pytest

from pipelines import train_syntax
from pipelines.corpora.demo.corpus import DemoCorpus
from pipelines.files.locks import exclusive_file
from pipelines.syntax import training
from pipelines.syntax.config import MODEL, TrainingConfig
from pipelines.syntax.data import END, PAD, START, UNKNOWN, batches, read
from pipelines.syntax.trees import LABELS, text_of
from tests.support.runs import call, flags
from tf_relpos import relative_position_ids

pytestmark = pytest.mark.tensorflow_only

SMALL = {"train_pairs": 60, "valid_pairs": 9, "steps": 4, "every": 2, "seeds": 1}
SMALL |= {"layers": 1, "model_dim": 8, "num_heads": 2, "batch_words": 200}
CURVES = ("step", "validation_loss", "validation_accuracy")
NUM_LABELS = len(LABELS)


@pytest.fixture(scope="module")
def text():
    return read(train=60, valid=9, seed=1)


def test_the_text_is_the_demo_corpus(text):
    for split, examples in (("train", text.train), ("valid", text.valid)):
        pairs = list(DemoCorpus(1, 60, 9, 0).pairs(split))
        assert [example.reference for example in examples] == [target for _, target in pairs]
        if split == "train":  # words that training does not have are unknown
            for example, (source, target) in zip(examples, pairs, strict=True):
                assert text_of([text.source_words[i] for i in example.source]) == source
                assert text_of([text.target_words[i] for i in example.target[1:-1]]) == target
    assert any(UNKNOWN in example.target for example in text.valid)


@pytest.mark.parametrize("relations", ["order", "both"])
def test_words_are_joined_by_positions_and_dependencies(text, relations):
    """A head is joined to its dependant by the label, and the dependant by its inverse."""
    found = 0
    for inputs, following, weights in batches(text.train, relations, 200).as_numpy_iterator():
        S = inputs["source"].shape[1]
        order = np.asarray(relative_position_ids(S, S, 8))
        if relations == "order":
            assert (inputs["relations"] == order).all()
        else:
            assert (inputs["relations"][..., 1] == order + 2 * NUM_LABELS + 1).all()
        for row, joined in zip(inputs["source"], inputs["relations"], strict=True):
            words = row[row != PAD]
            (example,) = [e for e in text.train if np.array_equal(e.source, words)]
            found += 1
            if relations == "both":
                for head, word, label in example.edges:
                    assert joined[head, word, 0] == label
                    assert joined[word, head, 0] == (label if head == word else label + NUM_LABELS)
        assert (inputs["target"][:, 0] == START).all()
        assert (inputs["target"][:, 1:] == np.where(following == END, PAD, following)[:, :-1])[
            weights[:, 1:] > 0
        ].all()
        assert ((following != PAD) == (weights > 0)).all()
    assert found == len(text.train)


def test_two_at_one_output_would_lose_what_one_has_trained(tmp_path, refusal):
    output = tmp_path / "result.json"
    with exclusive_file(output, "output"):
        told = refusal(train_syntax.main, flags(**SMALL, output=output))
    assert told.startswith(f"{output} is in use by process")


def test_means_are_over_the_seeds_that_are_asked_for(text, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_: {"bleu": 1.0, **dict.fromkeys(CURVES, [])})
    configs, output = (MODEL, TrainingConfig()), tmp_path / "result.json"
    assert len(training.compare(*configs, text, [1, 2, 3], output)["runs"]) == 6
    found = training.compare(*configs, text, [1, 2], output)
    assert [run["seed"] for run in found["runs"]] == [1, 1, 2, 2]
    assert len(json.loads(output.read_text())["runs"]) == 6


def test_a_loss_that_is_not_finite_ends_it(tmp_path, refusal):
    output = tmp_path / "result.json"
    values = {**SMALL, "learning_rate": 1e30, "output": output}
    told = refusal(train_syntax.main, flags(**values))
    assert told == "loss is no longer finite: learning_rate must be smaller, got 1e+30"
    assert not output.exists()


@pytest.mark.slow
def test_curves_are_kept_and_drawn(tmp_path, monkeypatch, capfd):
    output, picture = tmp_path / "result.json", tmp_path / "curves.svg"
    arguments = flags(**SMALL, output=output, picture=picture)
    assert call(train_syntax.main, arguments, monkeypatch) == 0
    told, found = capfd.readouterr().out, json.loads(output.read_text())
    assert [run["relations"] for run in found["runs"]] == ["order", "both"]
    for run in found["runs"]:
        assert run["step"] == [2, 4]
        assert all(0 < loss < 10 for loss in run["validation_loss"])
        assert run["validation_loss"][1] < run["validation_loss"][0]
        assert run["bleu"] > 0
    assert len(re.findall(r"^seed 1, (order|both): step \d ", told, re.MULTILINE)) == 4
    first = found["runs"][0]
    row = told.splitlines()[-2]
    assert row.startswith(f"| 4 | {first['validation_loss'][1]:.3f} |")
    assert "<svg" in picture.read_text()

    before = output.read_bytes()  # nothing is left to train
    assert call(train_syntax.main, arguments, monkeypatch) == 0
    assert output.read_bytes() == before
    assert "step 2" not in capfd.readouterr().out.replace("| step", "")

    assert call(train_syntax.main, flags(**SMALL, dropout=0.5, output=output), monkeypatch) == 2
    assert "is of another comparison: dropout was 0.1, got 0.5" in capfd.readouterr().err
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"every": 7, "steps": 20}, "steps must be a multiple of every, 7, got 20"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"model_dim": 10, "num_heads": 4}, "model_dim must be a multiple of num_heads, 4, got 10"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0 and finite, got 0.0"),
        ({"picture": "curves.pdf"}, "picture must end in .png or .svg, got curves.pdf"),
        ({"output": "."}, "output must be a file, got a directory, ."),
    ],
)
def test_wrong_flags_are_told(values, message, refusal):
    assert refusal(train_syntax.main, flags(**values)) == message
