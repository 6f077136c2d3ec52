"""One small trained model in the forms that command lines read."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import keras

from pipelines.config import CorpusConfig, RunConfig, TrainingConfig
from pipelines.exporters.ctranslate2 import export_ctranslate2
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.tflite import export_tflite
from pipelines.files.checksums import sha256
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import TrainingRun
from pipelines.translators.keras_model import Translator
from tests.support.runs import open_run, provenance
from tests.support.serving_model import exported, tokenizer_path
from tf_relpos import Transformer

STEP = 7


def write_run(
    path: Path, model: Transformer | None = None, tokenizer: Path | None = None, **corpus: Any
) -> Path:
    """A run directory with a checkpoint at `STEP`: of the trained model unless another is given."""
    model = model or exported()[0].model
    run = start_run(path, model, tokenizer, **corpus)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    run.checkpoints.save(model, optimizer, RunState(STEP), keep=1)
    return path


def start_run(
    path: Path, model: Transformer | None = None, tokenizer: Path | None = None, **corpus: Any
) -> TrainingRun:
    """A run directory that has no checkpoint yet; `corpus` are fields of its `CorpusConfig`."""
    model, tokenizer = model or exported()[0].model, tokenizer or tokenizer_path()
    config = RunConfig("tiny", model.config, CorpusConfig(**corpus), TrainingConfig())
    return open_run(path, provenance(config, tokenizer=sha256(tokenizer)), tokenizer)


@functools.cache
def forms() -> dict[str, Path]:
    """A path to the model in each form; the SavedModel's is that of all versions."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    translator, version = exported()
    # A TFLite file is to search as a run directory does that is opened without settings.
    exportable = Exportable(Translator(translator.model, translator.tokenizer), tokenizer_path())
    return {
        "run": write_run(directory / "run"),
        "saved_model": version.parent,
        "ctranslate2": export_ctranslate2(exportable, directory / "ctranslate2"),
        "tflite": export_tflite(exportable, directory / "tflite"),
    }
