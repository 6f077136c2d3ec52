"""One small trained model in the forms that command lines read."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import keras

from pipelines.config import CorpusConfig, RunConfig, TrainingConfig
from pipelines.exporters.ctranslate2 import export_ctranslate2
from pipelines.exporters.tflite import export_tflite
from pipelines.files.checksums import sha256
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import TrainingRun
from tests.support.runs import open_run, provenance
from tests.support.serving_model import exported

STEP = 7


def tokenizer_path() -> Path:
    """The SentencePiece model of `serving_model.exported()`."""
    return exported()[1].parent.parent / "tokenizer.model"


def write_run(path: Path) -> Path:
    """A run directory with a checkpoint of the model at `STEP`."""
    model = exported()[0].model
    run = start_run(path)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    run.checkpoints.save(model, optimizer, RunState(STEP), keep=1)
    return path


def start_run(path: Path) -> TrainingRun:
    """A run directory that has no checkpoint yet."""
    config = RunConfig("tiny", exported()[0].model.config, CorpusConfig(), TrainingConfig())
    digest = sha256(tokenizer_path())
    return open_run(path, provenance(config, tokenizer=digest), tokenizer_path())


@functools.cache
def forms() -> dict[str, Path]:
    """A path to the model in each form; the SavedModel's is that of all versions."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    translator, version = exported()
    return {
        "run": write_run(directory / "run"),
        "saved_model": version.parent,
        "ctranslate2": export_ctranslate2(
            translator.model, tokenizer_path(), directory / "ctranslate2"
        ),
        "tflite": export_tflite(translator.model, tokenizer_path(), directory / "tflite"),
    }
