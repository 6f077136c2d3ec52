"""A user's mistake: one line on standard error that names it, exit status 2, no traceback."""

import gzip
import json
import re
import shutil

import pytest

from pipelines import evaluate, prepare, train_wmt, translate
from tests.support.refusals import message_of
from tests.support.runs import (
    call,
    content_of,
    flags,
    run_command,
    train_flags,
    write_corpus,
    write_pairs,
)

pytestmark = pytest.mark.tensorflow_only

# What may be told before an error that shows only after the work: progress of the preparation.
PROGRESS = r"learning [\d,]+ subwords from \w+|tokenized [\d,]+ pairs .*"


@pytest.fixture(scope="module")
def places(tmp_path_factory, trained_run):
    """A directory full of mistakes."""
    place = write_corpus(tmp_path_factory.mktemp("mistakes"), train=300)
    write_pairs(place, "short", 299, seed=9)
    text = (place / "train.en").read_bytes()
    (place / "latin1.en").write_bytes(text + b"caf\xe9\n")
    (place / "longer.de").write_bytes((place / "train.de").read_bytes() + b"1\n")
    (place / "empty").touch()
    (place / "blank").write_text("\n" * 300)
    (place / "cut.gz").write_bytes(gzip.compress(text)[:-20])
    (place / "folder").mkdir()
    (place / "started").mkdir()
    config = (trained_run / "config.json").read_text()
    (place / "started" / "config.json").write_text(config)
    (place / "started" / "tokenizer.model").write_bytes(
        (trained_run / "tokenizer.model").read_bytes()
    )
    (place / "damaged").mkdir()
    (place / "damaged" / "config.json").write_text(config[:-30])
    (place / "prepared" / "train").mkdir(parents=True)
    (place / "prepared" / "train" / "metadata.json").write_text(json.dumps({"format": 1}))
    return place


NO_TEXT = dict.fromkeys(("train_source", "train_target", "vocabulary_size"))

# What is wrong with the flags of a training run that would do otherwise, and the message.
TRAINING = {
    "file missing": ({"train_source": "absent.en"}, "train_source .*absent.en: No such file"),
    "source only": ({"train_target": None}, "train_source needs train_target"),
    "valid source only": ({"valid_source": "valid.en"}, "valid_source needs valid_target"),
    "another count of files": (
        {"train_source": ["train.en", "short.en"]},
        "train_source and train_target must have as many files .* 2 and 1",
    ),
    "another count of lines": (
        {"train_target": "longer.de"},
        "train.en has 300 .*longer.de has 301",
    ),
    "no UTF-8": (
        {"train_source": "latin1.en", "train_target": "longer.de"},
        "must be UTF-8, but line 301 of .*latin1.en",
    ),
    "empty text": ({"train_source": "empty", "train_target": "empty"}, "found none in .*empty"),
    "empty lines": ({"train_source": "blank", "train_target": "blank"}, "nothing to learn"),
    "one side of empty lines": (
        {"train_target": "blank", "vocabulary_size": 270},
        "no training pairs are left.*300 empty",
    ),
    "gzip cut short": ({"train_source": "cut.gz"}, "cut.gz is cut short"),
    "directory for a file": ({"train_source": "folder"}, "folder is a directory"),
    "vocabulary too large": (
        {"vocabulary_size": 9000},
        "vocabulary_size must be at most .*, got 9000",
    ),
    "vocabulary too small": (
        {"vocabulary_size": 100},
        "vocabulary_size must be at least .*, got 100",
    ),
    "preset": ({"preset": "huge"}, "preset must be one of tiny, .*, got huge"),
    "position": ({"position": "absolute"}, "position.*relative, sinusoidal.*absolute"),
    "k of sinusoids": (
        {"position": "sinusoidal", "max_relative_position": 8},
        "--max_relative_position must not be given with --position sinusoidal",
    ),
    "negative k": ({"max_relative_position": -1}, "max_relative_position.*-1"),
    "heads": ({"num_heads": 5}, "num_heads.*must divide.*num_heads=5, model_dim=32"),
    "no tables": (
        {"relative_keys": "false", "relative_values": "false"},
        "needs `relative_keys` or `relative_values`",
    ),
    "dropout": ({"dropout": 1.5}, "dropout.*below 1.*1.5"),
    "no number": ({"steps": "many"}, "steps: invalid int value: 'many'"),
    "steps": ({"steps": 10**20}, "steps must be below 2,147,483,648, got 1000"),
    "tokens": ({"tokens_per_step": 1 << 31}, "tokens_per_step must be below 2,147,483,648, got"),
    "fewer tokens a step than of a batch": (
        {"tokens_per_step": 100, "tokens_per_replica": 500},
        "tokens_per_step must be 0 or at least tokens_per_replica, 500, got 100",
    ),
    "virtual CPUs": ({"virtual_cpus": 100_000}, "virtual_cpus must be at most 64, got 100000"),
    "long": ({"max_length": 10**10}, "max_length must be at most 1,048,576, got 10000000000"),
    "many layers": ({"encoder_layers": 10**8}, "`encoder_layers` must be at most 1000.*=100000000"),
    "no files": (
        {"train_source": [], "train_target": []},
        "^train_source must have values, got none$",
    ),
    "no steps": ({"steps": 0}, "steps must be at least 1, got 0"),
    "negative seed": ({"seed": -1}, "seed must be at least 0, got -1"),
    "precision": ({"precision": "float8"}, "argument --precision: invalid choice: 'float8'"),
    "empty name of a run": ({"run_dir": ""}, "^run_dir must not be empty, got ''$"),
    "empty name of a preparation": ({"prepared": "", **NO_TEXT}, "^prepared must not be empty"),
    "empty name of a file": (
        {"train_source": ["train.en", ""]},
        "^train_source must not be empty, got ''$",
    ),
    "name that is no text": (
        {"train_source": "caf\udce9.en"},
        r"^train_source must be text in utf-8, got \['.*caf\\udce9.en'\]$",
    ),
    "long warm-up": ({"warmup_steps": 1 << 31}, "warmup_steps must be below 2,147,483,648, got"),
    "empty name of another run": ({"initialize_from": ""}, "^initialize_from must not be empty"),
    "R-Drop": ({"r_drop": 5, "dropout": 0}, "r_drop needs dropout, which is 0, got 5.0"),
    "label smoothing": ({"label_smoothing": 1}, "label_smoothing must be at least 0 and below 1"),
    "unknown flag": ({"layers": 3}, "unrecognized arguments: --layers 3"),
    "abbreviated flag": ({"step": 3}, "unrecognized arguments: --step 3"),
    "value missing": ({"seed": []}, "seed: expected one argument"),
    "max_length": ({"max_length": 1}, "max_length must be at least 2"),
    "num_shapes": ({"num_shapes": 0}, "num_shapes must be at least 1, got 0"),
    "too few pairs for a batch": ({"tokens_per_replica": 99_999}, "too small for the batch"),
    "nearly all pairs too long": (
        {"max_length": 2},
        "too small for the batch.*, or raise max_length, 2: [0-9]+ pairs are longer",
    ),
    "prepared text missing": (
        {"prepared": "absent", **NO_TEXT},
        "no tokenized corpus can be read from .*absent",
    ),
    "prepared text damaged": (
        {"prepared": "prepared", **NO_TEXT},
        "no tokenized corpus can be read from .*prepared",
    ),
    "run directory is a file": (
        {"run_dir": "empty"},
        "cannot write to run_dir .*empty: File exists",
    ),
    "run directory below a file": (
        {"run_dir": "empty/run"},
        "cannot write to run_dir .*empty/run: Not a directory",
    ),
    "configuration damaged": ({"run_dir": "damaged"}, "damaged/config.json cannot be read"),
}
WITHOUT_FILES = {
    "dataset": ({"dataset": "wmt99"}, "dataset must be one of .*wmt99"),
    "languages of the demo": ({"source_language": "fr"}, "demo corpus goes from en to de, got fr"),
    "languages of the data set": (
        {"dataset": "wmt14_translate/fr-en", "source_language": "de"},
        "source_language and target_language must be fr and en",
    ),
}


def in_place(place, values):
    """Names of files as paths in the place; the other values as they are."""
    paths = {"train_source", "train_target", "valid_source", "prepared", "run_dir", "source"}
    paths |= {"reference", "output", "model"}

    def path(value):
        if isinstance(value, list):
            return [path(item) for item in value]
        return place / value if value else value

    return {name: path(v) if name in paths else v for name, v in values.items()}


@pytest.mark.parametrize("values, message", TRAINING.values(), ids=TRAINING)
def test_train(places, tmp_path, refusal, values, message):
    changed = {"run_dir": tmp_path / "run", "steps": 3, **in_place(places, values)}
    arguments = train_flags(places, splits=["train"], **changed)
    before = content_of(places)
    assert re.search(message, refusal(train_wmt.main, arguments, progress=PROGRESS))
    assert content_of(places) == before
    # Arrays stay where they were completed: another batch size does not need others.
    assert (tmp_path / "run").exists() == ("batch" in message)


@pytest.mark.parametrize("values, message", WITHOUT_FILES.values(), ids=WITHOUT_FILES)
def test_train_on_data_sets(tmp_path, refusal, values, message):
    arguments = flags(run_dir=tmp_path / "run", **values)
    assert re.search(message, refusal(train_wmt.main, arguments))


def test_another_configuration_is_refused_before_text_is_prepared(
    corpus, trained_run, tmp_path, refusal
):
    run_dir = shutil.copytree(trained_run, tmp_path / "run")
    shutil.rmtree(run_dir / "prepared")
    arguments = train_flags(corpus, run_dir, model_dim=64)
    message = "was started with model_dim 32, not 64: choose another --run_dir or the same flags"
    assert message in refusal(train_wmt.main, arguments)
    assert not (run_dir / "prepared").exists()


def test_resuming_with_another_configuration(corpus, trained_run, refusal):
    before = (trained_run / "config.json").read_bytes()
    arguments = train_flags(corpus, trained_run, steps=600, warmup_steps=100, dropout=0.3)
    told = refusal(train_wmt.main, arguments)
    assert "was started with dropout 0.0, not 0.3: choose another --run_dir" in told
    assert (trained_run / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    "more, message",
    [
        (["--steps", "3", "--steps", "4"], "--steps must be given once, got it 2 times"),
        (["--train-source", "other.en"], "--train_source must be given once, got it 2 times"),
        (["--dataset", "wmt14_translate/de-en"], "dataset must not be given with train_source"),
    ],
)
def test_flags_that_contradict_each_other(places, tmp_path, refusal, more, message):
    arguments = [*train_flags(places, tmp_path / "run"), *more]
    assert re.search(message, refusal(train_wmt.main, arguments))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"vocabulary_size": 300},
        {"max_length": 100},
        {"num_shapes": 3},
        {"train_source": "train.en", "train_target": "train.de"},
        {"dataset": "demo"},
        {"target_language": "fr"},
        {"tokenizer": "absent"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_what_a_preparation_has_decided_is_no_flag(tmp_path, refusal, values):
    arguments = flags(prepared=tmp_path / "prepared", run_dir=tmp_path / "run", **values)
    message = f"--{next(iter(values))} must not be given with --prepared, which decides it"
    assert refusal(train_wmt.main, arguments) == message


@pytest.mark.parametrize(
    "values, message",
    [
        ({"output": None}, "required: --output"),
        ({"output": "empty/made"}, "cannot write to .*empty/made: Not a directory"),
        ({"vocabulary_size": 9000}, "vocabulary_size must be at most .*, got 9000"),
        ({"tokens_per_replica": 0}, "tokens_per_replica must be at least 1, got 0"),
    ],
)
def test_prepare(places, tmp_path, refusal, values, message):
    files = {"train_source": "train.en", "train_target": "train.de", "output": tmp_path / "made"}
    arguments = flags(**in_place(places, {**files, "vocabulary_size": 288, **values}))
    assert re.search(message, refusal(prepare.main, arguments, progress=PROGRESS))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"run_dir": "absent"}, "there is no run directory .*absent"),
        ({"run_dir": "empty"}, "there is no run directory .*empty"),
        ({"run_dir": "folder"}, "folder is not a run directory: no config.json"),
        ({"run_dir": "damaged"}, "damaged/config.json cannot be read"),
        ({"run_dir": "started"}, "started has no checkpoints yet"),
        ({"source": "absent"}, "cannot read .*absent: No such file"),
        ({"source": "folder"}, "cannot read .*folder: Is a directory"),
        ({"source": "short.en"}, "short.en has 299 lines, but .*train.de has 300"),
        ({"source": "latin1.en"}, "must be UTF-8, but line 301"),
        ({"source": "empty", "reference": "empty"}, "nothing to score"),
        ({"checkpoint": "first"}, "argument --checkpoint: invalid choice: 'first'"),
        ({"beam_size": 0}, "beam_size must be from 1 to 100, got 0"),
        ({"beam_size": 5000}, "beam_size must be from 1 to 100, got 5000"),
        ({"alpha": "nan"}, "alpha must be from 0 to 10, got nan"),
        ({"alpha": "inf"}, "alpha must be from 0 to 10, got inf"),
        ({"alpha": -3}, "alpha must be from 0 to 10, got -3.0"),
        ({"by_length": -1}, "by_length must be 0 or more, got -1"),
        ({"output": "short.en/new"}, "^output must be in a directory that can be written, got"),
        ({"source": None}, "required: --source"),
    ],
)
def test_evaluate(places, trained_run, refusal, values, message):
    good = {"run_dir": trained_run, "source": "train.en", "reference": "train.de"}
    arguments = flags(**in_place(places, {**good, **values}))
    assert re.search(message, refusal(evaluate.main, arguments))


@pytest.mark.parametrize("checkpoint", ["best", "average"])
def test_checkpoints_that_a_run_does_not_have(corpus, places, monkeypatch, refusal, checkpoint):
    """A run without validation and averaging."""
    arguments = train_flags(corpus, places / "short run", splits=["train"], steps=1)
    assert call(train_wmt.main, arguments, monkeypatch) == 0
    arguments = flags(
        run_dir=places / "short run",
        source=corpus / "test.en",
        reference=corpus / "test.de",
        checkpoint=checkpoint,
    )
    assert f"has no {checkpoint}" in refusal(evaluate.main, arguments)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"model": None}, "required: --model"),
        ({"model": []}, "^model must have values, got none$"),
        ({"model": "absent"}, "there is no model .*absent: a model must be"),
        ({"model": "folder"}, "folder is a directory that holds nothing: a model must be"),
        ({"model": "damaged"}, "damaged/config.json cannot be read"),
        ({"nbest": 5, "beam_size": 4}, "nbest must be at most beam_size, got nbest 5"),
        ({"nbest": 0}, "nbest must be at least 1, got 0"),
        ({"beam_size": 0}, "beam_size must be from 1 to 100, got 0"),
        ({"beam_size": 5000}, "beam_size must be from 1 to 100, got 5000"),
        ({"alpha": "nan"}, "alpha must be from 0 to 10, got nan"),
        ({"alpha": "inf"}, "alpha must be from 0 to 10, got inf"),
        ({"alpha": -3}, "alpha must be from 0 to 10, got -3.0"),
        ({"checkpoint": "first"}, "argument --checkpoint: invalid choice: 'first'"),
    ],
)
def test_translate(places, refusal, values, message):
    arguments = flags(**in_place(places, {"model": "started", **values}))
    assert re.search(message, refusal(translate.main, arguments))


@pytest.mark.parametrize(
    "module, values, message",
    [
        ("train_wmt", {"preset": "huge"}, "preset must be one of"),
        ("train_wmt", {"train_source": "absent", "train_target": "train.de"}, "absent"),
        ("train_wmt", {"train_source": "cut.gz", "train_target": "train.de"}, "cut short"),
        ("evaluate", {"run_dir": "folder", "source": "test.en", "reference": "test.de"}, "folder"),
        ("translate", {"model": "absent"}, "absent"),
    ],
)
def test_a_process_says_one_line_alone(places, tmp_path, module, values, message):
    """What TensorFlow writes to standard error when it is loaded must not bury the message."""
    values = in_place(places, values)
    if module == "train_wmt":
        values |= {"run_dir": tmp_path / "run", "vocabulary_size": 288}
    result = run_command(module, flags(**values), stdin="")
    assert result.stdout == ""
    assert re.search(message, message_of(result.returncode, result.stderr, PROGRESS))
