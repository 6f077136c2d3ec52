"""Exports a trained model: python -m pipelines.export --run_dir DIR --format F --output PATH"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipelines.command_line import parse_flags, run
from pipelines.errors import InputError

if TYPE_CHECKING:
    from pipelines.run.directory import RunDirectory
    from pipelines.translators.keras_model import Translator

DESCRIPTION = """Export a trained model in a form to deploy. It appears complete or not at all, and
nothing is overwritten."""

# CTranslate2 is told how to search when it translates.
_FORMATS_OF_FLAGS = {
    "version": ("saved_model",),
    "beam_size": ("saved_model", "tflite"),
    "alpha": ("saved_model", "tflite"),
    "max_source_length": ("tflite",),
    "max_target_length": ("tflite",),
}


@dataclass(frozen=True)
class Exporting:
    """What to export."""

    run_dir: str
    """the directory of a training run"""
    format: Literal["saved_model", "tflite", "ctranslate2"]
    """for TensorFlow Serving, for devices, or for fast serving on CPUs"""
    output: str
    """saved_model: the model's directory, which gets another numbered version; tflite: the file,
    or a directory for model.tflite; ctranslate2: the directory"""
    checkpoint: Literal["last", "best", "average"] = "last"
    """which weights"""
    quantization: Literal["none", "float16", "int8"] = "none"
    """of the weights; a SavedModel is float32"""
    version: int | None = None
    """saved_model: the version's number; one more than the largest unless given"""
    beam_size: int | None = None
    """saved_model, tflite: hypotheses kept; 1 is greedy search; 4 unless given"""
    alpha: float | None = None
    """saved_model, tflite: length penalty; 0.6 unless given"""
    max_source_length: int | None = None
    """tflite: subwords read of a source; 128 unless given"""
    max_target_length: int | None = None
    """tflite: subwords of a translation; 178 unless given"""

    def __post_init__(self):
        for name in ("version", "beam_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if self.format == "saved_model" and self.quantization != "none":
            raise InputError(
                f"quantization must be none for a saved_model, got {self.quantization}: "
                "tflite and ctranslate2 can be quantized"
            )
        for name, formats in _FORMATS_OF_FLAGS.items():
            value = getattr(self, name)
            if value is not None and self.format not in formats:
                raise InputError(
                    f"{name} is for {' and '.join(formats)}, got {value} for {self.format}"
                )


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Exporting, DESCRIPTION, "python -m pipelines.export", arguments)
    # A wrong flag should not wait for what takes seconds to import.
    from pipelines.importing import load_tensorflow

    load_tensorflow()
    from pipelines.run.directory import RunDirectory
    from pipelines.translators.keras_model import load_translator

    run_directory = RunDirectory(flags.run_dir)
    translator, step = load_translator(
        run_directory,
        flags.checkpoint,
        beam_size=4 if flags.beam_size is None else flags.beam_size,
        alpha=0.6 if flags.alpha is None else flags.alpha,
    )
    path = export(translator, run_directory, flags)
    print(f"exported {path}, step {step:,}")


def export(translator: "Translator", run_directory: "RunDirectory", flags: Exporting) -> Path:
    """Writes `flags.output` in `flags.format`; returns the path of what is new.

    Raises:
        InputError: the form cannot hold the model, or the output exists or cannot be written.
    """
    if flags.format == "saved_model":
        from pipelines.exporters.saved_model import export_saved_model

        return export_saved_model(translator, flags.output, version=flags.version)
    what = (translator.model, run_directory.tokenizer_path, flags.output)
    if flags.format == "ctranslate2":
        from pipelines.exporters.ctranslate2 import export_ctranslate2

        return export_ctranslate2(*what, quantization=flags.quantization)
    from pipelines.exporters.tflite import export_tflite

    lengths = {name: getattr(flags, name) for name in ("max_source_length", "max_target_length")}
    corpus = run_directory.config().corpus
    return export_tflite(
        *what,
        quantization=flags.quantization,
        beam_size=translator.beam_size,
        alpha=translator.alpha,
        source_language=corpus.source_language,
        target_language=corpus.target_language,
        **{name: length for name, length in lengths.items() if length is not None},
    )


if __name__ == "__main__":
    run(main)
