"""A run that starts from the weights of another one, with parts of it frozen."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from pipelines import train_wmt
from pipelines.config import default_config
from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from pipelines.run.freezing import frozen_layers
from pipelines.run.models import build_model
from pipelines.run.origin import check_same_subwords
from tests.support.runs import MODEL, open_run, provenance, small_model, train_flags
from tf_relpos import TransformerConfig

pytestmark = pytest.mark.tensorflow_only

FROM_THE_ORIGIN = dict.fromkeys(MODEL.keys() - {"precision"})
TRAINING = {"tokens_per_replica": 512, "dropout": 0.2, "checkpoint_every": 2}


def fine_tuning_flags(corpus, run_dir, initialize_from, **values):
    values = {**FROM_THE_ORIGIN, **TRAINING, "initialize_from": initialize_from, **values}
    return train_flags(corpus, run_dir, splits=("train",), **values)


def weights(run_dir, checkpoint):
    """The weights of a checkpoint by their path in the model."""
    run = RunDirectory(run_dir)
    model = build_model(run.config().model)
    run.load_weights(model, checkpoint)
    return {weight.path.partition("/")[2]: weight.numpy() for weight in model.weights}


def state(run_dir, step):
    return json.loads((run_dir / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())


@pytest.fixture(scope="module")
def origin(trained_run, tmp_path_factory):
    """A copy, to be removed."""
    return shutil.copytree(trained_run, tmp_path_factory.mktemp("origin") / "run")


def test_it_goes_on_from_the_average_and_leaves_the_frozen_alone(corpus, origin, tmp_path, caplog):
    caplog.set_level("INFO", "pipelines")
    run, frozen = tmp_path / "whole", {"freeze": "embedding,encoder", "average_checkpoints": 2}
    before = weights(origin, "average")
    assert train_wmt.main(fine_tuning_flags(corpus, run, origin, steps=4, **frozen)) == 0
    config = RunDirectory(run).config()
    assert config.model.model_dim == MODEL["model_dim"] and config.model.dropout == 0.2
    assert (run / "tokenizer.model").read_bytes() == (origin / "tokenizer.model").read_bytes()
    started = {"run": str(origin), "checkpoint": "average", "step": 600}
    assert state(run, 4)["initialized_from"] == started
    assert f"starting from {origin}, checkpoint average, step 600" in caplog.messages
    assert "average of the checkpoints of step 2, 4" in caplog.messages

    for name in ("last", "average"):
        after = weights(run, name)
        for path, value in before.items():
            is_frozen = path.startswith(("embedding", "encoder"))
            assert np.array_equal(after[path], value) == is_frozen, (name, path)

    # The same, interrupted, and resumed when the origin has gone.
    again = tmp_path / "interrupted"
    train_wmt.main(fine_tuning_flags(corpus, again, origin, steps=2, **frozen))
    told = "average of the checkpoints of step 2 alone, where 2 were asked for"
    assert told in caplog.messages
    shutil.rmtree(origin)
    train_wmt.main(fine_tuning_flags(corpus, again, origin, steps=4, **frozen))
    assert state(again, 4)["initialized_from"] == started
    for path, value in weights(again, "last").items():
        np.testing.assert_array_equal(value, weights(run, "last")[path], err_msg=path)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"model_dim": 48}, "model_dim must be that of the run to start from, .*, 32, got 48"),
        ({"vocabulary_size": 290}, "vocabulary_size must be that .*, 288, got 290"),
        ({"preset": "big"}, "model_dim must be that .*, 32, got 1024"),
        ({"run_dir": None}, "initialize_from needs --run_dir"),
        ({"initialize_from": "absent"}, "there is no run directory absent"),
        ({"freeze": "encoder,embeding"}, "freeze must name parts of the model.*; got embeding"),
        ({"freeze": "encoder_1"}, "decoder_0, .*; got encoder_1"),
        ({"freeze": "decoder,embedding,encoder"}, "freeze must leave something to train"),
    ],
)
def test_what_does_not_fit_is_refused(corpus, trained_run, tmp_path, values, message):
    values = {"run_dir": tmp_path, "initialize_from": trained_run, **values}
    arguments = fine_tuning_flags(corpus, **values)
    with pytest.raises(InputError, match=message):
        train_wmt.parse(arguments)


def test_the_languages_are_those_of_the_origin(tmp_path):
    """By which scores are tokenized, unless others are given."""
    config = default_config("tiny", demo=True)
    languages = {"source_language": "ja", "target_language": "zh"}
    config = dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, **languages))
    run = open_run(tmp_path / "origin", provenance(config))
    model, optimizer = small_model()
    run.checkpoints.save(model, optimizer, RunState(1), keep=1)
    (tmp_path / "text").write_text("a line\n")
    arguments = ["--initialize_from", str(run.path), "--run_dir", str(tmp_path / "new")]
    for side in ("source", "target"):
        arguments += [f"--train_{side}", str(tmp_path / "text")]
    for given, expected in (([], ("ja", "zh")), (["--target_language", "ko"], ("ja", "ko"))):
        corpus = train_wmt.parse([*arguments, *given])[0].corpus
        assert (corpus.source_language, corpus.target_language) == expected


def test_a_run_is_not_started_from_itself(corpus, trained_run):
    with pytest.raises(InputError, match="must name another run than run_dir"):
        train_wmt.parse(fine_tuning_flags(corpus, trained_run, trained_run))


def test_prepared_text_needs_the_same_subwords(trained_run, tmp_path):
    check_same_subwords(trained_run / "prepared" / "tokenizer.model", RunDirectory(trained_run))
    (tmp_path / "tokenizer.model").write_bytes(b"others")
    with pytest.raises(InputError, match="must be prepared with the subwords of"):
        check_same_subwords(tmp_path / "tokenizer.model", RunDirectory(trained_run))


def test_the_layers_of_parts():
    config = TransformerConfig(encoder_layers=2, decoder_layers=1, norm="pre")
    assert frozen_layers(config, "") == set()
    assert frozen_layers(config, "encoder,decoder_norm") == {
        "encoder_0",
        "encoder_1",
        "encoder_norm",
        "decoder_norm",
    }
    shared = TransformerConfig(encoder_layers=2, decoder_layers=1, share_layers=True)
    assert frozen_layers(shared, "encoder") == {"encoder_0"}
