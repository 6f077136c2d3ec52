"""OpenNMT-tf beside us: an environment of its own, what it reads, and what it prints.

Its last version, 2.32, runs on TensorFlow up to 2.13, and that on Python up to 3.11.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.config import RunConfig
from pipelines.errors import InputError, quoted
from pipelines.progress import progress
from tf_relpos.config import TransformerConfig

if TYPE_CHECKING:
    from pipelines.data.preparation import Prepared

NAME = "OpenNMT-tf"
PACKAGES = {"tensorflow": "2.13.1", "tensorflow-addons": "0.21.0", NAME: "2.32.0"}

_MODEL = """\
from opennmt.models import EmbeddingsSharingLevel, Transformer


def model():
    return Transformer(share_embeddings=EmbeddingsSharingLevel.ALL, **{arguments})
"""
_REPORT = re.compile(r"Step = \d+ ; .*\((\d+) source, (\d+) target\)")


def install(environment: Path, python: str) -> None:
    """Makes the virtual environment unless it is there, and installs what it lacks of `PACKAGES`.

    Args:
        environment: its directory.
        python: the interpreter to make it with.

    Raises:
        InputError: the directory is something else, or making or installing fails; the message has
            the last line of the error.
    """
    if environment.exists() and not (environment / "pyvenv.cfg").is_file():
        raise InputError(
            "environment must be a virtual environment, or a directory that is not there yet, got "
            f"{environment}"
        )
    with progress(f"installing {NAME}"):
        if not _python(environment).exists():
            _run(f"making {environment} with {python}", python, "-m", "venv", str(environment))
        pins = [f"{name}=={version}" for name, version in PACKAGES.items()]
        pip = (str(_python(environment)), "-I", "-m", "pip", "--disable-pip-version-check")
        _run(f"installing {' '.join(pins)} in {environment}", *pip, "install", "--quiet", *pins)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _run(what: str, *command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise InputError(f"{what} has failed: {error.strerror or error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["without a word"]
        raise InputError(f"{what} has failed: {quoted(said[-1])}")


def write_files(prepared: Prepared, config: RunConfig, directory: Path) -> None:
    """Writes all that it trains with to a directory.

    Its sentences are those of the preparation, as subwords with spaces between, a sentence a line.

    Args:
        prepared: the text.
        config: of our run.
        directory: holds nothing yet.
    """
    from pipelines.data.subword_model import read_model

    model = read_model(prepared.tokenizer_path)
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    _write_lines(directory / "vocabulary", vocabulary(pieces))
    for side in ("source", "target"):
        arrays = prepared.train.directory
        ids, offsets = (np.load(arrays / f"{side}_{name}.npy") for name in ("ids", "offsets"))
        # Without the end id, which OpenNMT-tf adds by itself.
        sentences = (ids[begin : end - 1] for begin, end in pairwise(offsets))
        _write_lines(directory / side, (" ".join(pieces[i] for i in ids) for ids in sentences))
    arguments = model_arguments(config.model)
    (directory / "model.py").write_text(_MODEL.format(arguments=arguments), encoding="utf-8")
    text = json.dumps(settings(config, directory, len(prepared.train)), indent=2)
    (directory / "settings.yml").write_text(text, encoding="utf-8")


def command(environment: Path, directory: Path) -> list[str]:
    """What trains with the files in a directory."""
    files = ("--model", directory / "model.py", "--config", directory / "settings.yml")
    start = (_python(environment), "-I", "-m", "opennmt.bin.main", *files)
    return [*map(str, start), "--seed", str(1), "train"]


def tokens_of(line: str, seconds: float) -> float | None:
    """The tokens of the update that a line tells of, end marks included and padding not.

    Args:
        line: that it has printed, "... Step = 3 ; steps/s = 0.84, tokens/s = 6249 (3041 source,
            3208 target) ; ...", in whole tokens a second since the line before; they are 0 in the
            first two.
        seconds: since the line before.

    Returns:
        None if the line tells of something else.
    """
    found = _REPORT.search(line)
    return (int(found[1]) + int(found[2])) * seconds if found else None


def vocabulary(pieces: list[str]) -> list[str]:
    """Its vocabulary of our subwords, which begin with our four special ones.

    It has three at the beginning, and adds a fourth, `<unk>`, at the end by itself.
    """
    return ["<blank>", "<s>", "</s>", *pieces[4:]]


def model_arguments(config: TransformerConfig) -> dict[str, Any]:
    """The arguments of its `Transformer` that make our model of it.

    The heads of a layer always share the tables of relative positions: of the presets that have
    one for each head it does a little less.
    """
    return {
        "num_layers": (config.encoder_layers, config.decoder_layers),
        "num_units": config.model_dim,
        "num_heads": config.num_heads,
        "ffn_inner_dim": config.inner_dim,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "ffn_dropout": config.inner_dropout,
        "mha_bias": False,
        "output_layer_bias": False,
        "position_encoder_class": None,
        "maximum_relative_position": config.max_relative_position,
        "pre_norm": config.norm == "pre",
    }


def settings(config: RunConfig, directory: Path, pairs: int) -> dict[str, Any]:
    """Its settings, which make batches and updates like ours. As JSON they are YAML as well.

    Args:
        config: of our run.
        directory: where its files are.
        pairs: how many sentence pairs the text has.
    """
    model, training = config.model, config.training
    vocabulary, source, target = (
        str(directory / name) for name in ("vocabulary", "source", "target")
    )
    return {
        "model_dir": str(directory / "run"),
        "data": {
            # Of several files the sentences are drawn without end, so that all batches are full.
            # Of a single one, each epoch ends with what is left in every bucket.
            "train_features_file": [source, source],
            "train_labels_file": [target, target],
            "train_files_weights": [1, 1],
            "source_vocabulary": vocabulary,
            "target_vocabulary": vocabulary,
            "source_sequence_controls": {"end": True},
        },
        "params": {
            "optimizer": "Adam",
            "optimizer_params": {"beta_1": training.beta_1, "beta_2": training.beta_2},
            "learning_rate": training.learning_rate_scale,
            "decay_type": "NoamDecay",
            "decay_params": {"model_dim": model.model_dim, "warmup_steps": training.warmup_steps},
            "label_smoothing": training.label_smoothing,
            "average_loss_in_time": True,
        },
        "train": {
            # Tokens of the longer side of a batch, padded, as in ours. The buckets are narrow:
            # no shape is compiled for.
            "batch_type": "tokens",
            "batch_size": training.tokens_per_replica,
            "length_bucket_width": 2,
            "sample_buffer_size": pairs,
            "maximum_features_length": config.corpus.max_length,
            "maximum_labels_length": config.corpus.max_length,
            "max_step": training.steps,
            "save_summary_steps": training.log_every,
            "save_checkpoints_steps": None,
        },
    }


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
