"""What a run is made from: presets, ranges, and what may change when it is resumed."""

import dataclasses
import json
import re

import pytest

from pipelines.config import (
    MAY_CHANGE,
    TRAINING_PRESETS,
    CorpusConfig,
    RunConfig,
    TrainingConfig,
    default_config,
)
from pipelines.errors import InputError
from tf_relpos.config import PRESETS

# steps, warm-up, beta_2, checkpoints averaged
PUBLISHED = {
    "base": (100_000, 4000, 0.98, 1),
    "big": (300_000, 4000, 0.98, 20),
    "vaswani_base": (100_000, 4000, 0.98, 5),
    "vaswani_big": (300_000, 4000, 0.98, 20),
    "t2t_relative_base": (100_000, 8000, 0.997, 1),
    "t2t_relative_big": (300_000, 8000, 0.997, 20),
}


@pytest.mark.parametrize("preset, numbers", PUBLISHED.items())
def test_presets_train_as_published(preset, numbers):
    training = default_config(preset, demo=False).training
    assert (
        training.steps,
        training.warmup_steps,
        training.beta_2,
        training.average_checkpoints,
    ) == numbers
    assert (training.beta_1, training.epsilon, training.label_smoothing) == (0.9, 1e-9, 0.1)
    assert training.tokens_per_replica == 4096
    if training.average_checkpoints == 20:
        assert training.checkpoint_minutes == 10.0


def test_every_model_preset_can_be_trained():
    assert set(TRAINING_PRESETS) == set(PRESETS) == {*PUBLISHED, "tiny"}
    with pytest.raises(InputError, match="preset must be one of tiny, .*, got huge"):
        default_config("huge", demo=False)


def test_what_is_particular_to_the_demo_changes_nothing_for_other_text():
    text, demo = (default_config("tiny", demo=demo) for demo in (False, True))
    assert (text.model.encoder_layers, text.model.decoder_layers, text.model.dropout) == (4, 4, 0.1)
    assert (demo.model.encoder_layers, demo.model.decoder_layers, demo.model.dropout) == (2, 2, 0.0)
    training = text.training
    assert (training.steps, training.warmup_steps, training.cooldown) == (4000, 600, 0.0)
    assert default_config("base", demo=True).model.encoder_layers == 6


@pytest.mark.parametrize(
    "field, value, rule",
    [
        ("steps", 0, "at least 1"),
        ("tokens_per_replica", 0, "at least 1"),
        ("tokens_per_step", -1, "at least 0"),
        ("warmup_steps", 0, "at least 1"),
        ("learning_rate_scale", 0.0, "above 0"),
        ("learning_rate_scale", float("nan"), "above 0"),
        ("learning_rate_scale", float("inf"), "above 0 and at most 3e38"),
        ("learning_rate_scale", 1e39, "above 0 and at most 3e38"),
        ("epsilon", float("inf"), "from 1e-37 to 3e38"),
        ("cooldown", 1.1, "from 0 to 1"),
        ("cooldown", float("nan"), "from 0 to 1"),
        ("beta_1", 1.0, "at least 0 and below 1"),
        ("beta_2", -0.1, "at least 0 and below 1"),
        ("epsilon", 1e-38, "from 1e-37 to 3e38"),
        ("label_smoothing", 1.0, "at least 0 and below 1"),
        ("r_drop", -0.1, "from 0 to 3e38"),
        ("r_drop", float("inf"), "from 0 to 3e38"),
        ("r_drop", 1e39, "from 0 to 3e38"),
        ("subword_sampling", -0.1, "from 0 to 10"),
        ("subword_sampling", float("nan"), "from 0 to 10"),
        ("seed", -1, "at least 0"),
        ("seed", 1 << 32, "below 4,294,967,296"),
        ("virtual_cpus", -1, "at least 0"),
        ("valid_every", -1, "at least 0"),
        ("checkpoint_every", -1, "at least 0"),
        ("checkpoint_minutes", -0.5, "at least 0"),
        ("keep_checkpoints", 0, "at least 1"),
        ("average_checkpoints", 0, "at least 1"),
        ("log_every", 0, "at least 1"),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value, rule):
    shown = re.escape(str(value))
    with pytest.raises(InputError, match=f"^{field} must be {rule}.*, got {shown}$"):
        TrainingConfig(**{field: value})


def test_it_is_read_back_from_json():
    config = default_config("t2t_relative_big", demo=True)
    corpus = CorpusConfig(train_source=["a", "b"], train_target=["c", "d"], num_shapes=3)
    config = dataclasses.replace(config, corpus=corpus)
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_older_files_lack_fields_and_mean_what_they_meant():
    config = default_config("base", demo=True)
    values = config.to_dict()
    since = ("train_tsv", "valid_tsv", "test_tsv", "corpus_weights", "tokenizer", "subword_model")
    for name in since:
        del values["corpus"][name]
    for name in ("cooldown", "initialize_from", "freeze", "patience", "r_drop", "subword_sampling"):
        del values["training"][name]
    assert RunConfig.from_dict(values) == changed(config, "training", cooldown=0.0)


def changed(config, section, **fields):
    part = dataclasses.replace(getattr(config, section), **fields)
    return dataclasses.replace(config, **{section: part})


@pytest.mark.parametrize(
    "section, name, value, message",
    [
        ("model", "dropout", 0.25, "dropout 0.0, not 0.25"),
        ("model", "position", "both", "position 'relative', not 'both'"),
        ("corpus", "max_length", 99, "max_length 256, not 99"),
        ("training", "seed", 3, "seed 1, not 3"),
        ("training", "label_smoothing", 0.3, "label_smoothing 0.1, not 0.3"),
    ],
)
def test_a_difference_is_named(section, name, value, message):
    config = default_config("base", demo=True)
    assert config.difference(config) is None
    config = changed(config, "model", dropout=0.0)
    assert config.difference(changed(config, section, **{name: value})) == message


def test_text_that_is_gone_is_no_difference():
    """With `--prepared` in its place: what was made of it is compared by checksums."""
    config = default_config("tiny", demo=False)
    files = {"train_source": ["a.en", "b.en"], "train_target": ["a.de", "b.de"]}
    of_text = changed(config, "corpus", **files, corpus_weights=[1, 4], valid_source="v.en")
    assert of_text.difference(config) is config.difference(of_text) is None


def test_the_end_the_reports_and_the_remedies_may_change():
    config = default_config("tiny", demo=False)
    known = {field.name for field in dataclasses.fields(TrainingConfig)}
    assert known >= MAY_CHANGE
    values = {name: getattr(config.training, name) + 1 for name in MAY_CHANGE - {"precision"}}
    values |= {"precision": "float32"}
    assert config.difference(changed(config, "training", **values)) is None


def test_an_update_takes_a_batch_of_each_replica():
    TrainingConfig(tokens_per_replica=500).check_tokens_per_step(8)
    training = TrainingConfig(tokens_per_replica=500, tokens_per_step=1000)
    training.check_tokens_per_step(2)
    with pytest.raises(InputError, match="tokens_per_replica of 3 replicas together, 1,500, got"):
        training.check_tokens_per_step(3)


def test_a_cooldown_fixes_when_it_ends():
    config = changed(default_config("base", demo=False), "training", cooldown=0.2, steps=50)
    assert config.difference(changed(config, "training", steps=60)) == "steps 50, not 60"
    assert config.difference(changed(config, "training", cooldown=0.0)) == "cooldown 0.2, not 0.0"


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"dataset": "wmt99"}, "dataset must be one of"),
        ({"source_language": "fr"}, "the demo corpus goes from en to de, got fr to de"),
        ({"train_source": ["a"]}, "train_source needs train_target"),
        ({"valid_source": "a"}, "valid_source needs train_source and train_target"),
        ({"valid_tsv": "a"}, "valid_tsv needs train_source and train_target, or train_tsv"),
        ({"corpus_weights": [2, 1]}, "corpus_weights needs train_source and train_target, or"),
        ({"train_tsv": ["a"], "dataset": "wmt14_translate/de-en"}, "dataset must not be given"),
        ({"test_target": "a"}, "test_target needs train_source and train_target"),
    ],
)
def test_contradictory_corpora_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        CorpusConfig(**fields).corpus()
