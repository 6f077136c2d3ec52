"""Exports a trained model: python -m pipelines.export --run_dir DIR --format F --output PATH"""

from collections.abc import Sequence
from dataclasses import dataclass

from simple_parsing import choice

from pipelines.command_line import run
from pipelines.exporters.registry import FORMATS, SEARCH_OPTIONS, ExportOptions, check_options
from pipelines.flag_parser import Parser, checkpoint_flag
from pipelines.importing import load_keras

DESCRIPTION = """Export a trained model in a form to deploy. It appears complete or not at all, and
nothing is overwritten."""


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """What to export."""

    run_dir: str
    """the directory of a training run"""
    format: str = choice(*FORMATS)
    """for TensorFlow Serving, for devices, for fast serving on CPUs, or a page for browsers"""
    output: str
    """saved_model: the model's directory, which gets another numbered version; tflite: the file,
    or a directory for model.tflite; ctranslate2, web: the directory"""
    checkpoint: str | None = checkpoint_flag()


def main(arguments: Sequence[str]) -> None:
    flags, options = parse(arguments)
    form = FORMATS[flags.format]
    form.check_here()
    # A wrong flag should not wait for what takes seconds to import.
    load_keras()
    from pipelines.exporters.exportable import Exportable
    from pipelines.run.directory import RunDirectory
    from pipelines.translators.keras_model import Translator, load_run

    given = {name: value for name, value in options.given().items() if name in form.options}
    search = {name: given.pop(name) for name in SEARCH_OPTIONS if name in given}
    run_directory = RunDirectory(flags.run_dir)
    loaded = load_run(run_directory, flags.checkpoint)
    exportable = Exportable.from_run(Translator.of(loaded, **search), run_directory)
    path = form.load()(exportable, flags.output, **given)
    print(f"exported {path}, checkpoint {loaded.checkpoint}, step {loaded.step:,}")


def parse(arguments: Sequence[str]) -> tuple[ExportFlags, ExportOptions]:
    """What the flags ask for.

    Raises:
        InputError: a value out of its range, or an option that the format does not take.
    """
    parser = Parser(DESCRIPTION, "python -m pipelines.export")
    parser.add_section(ExportFlags, "flags")
    parser.add_section(ExportOptions, "options")
    parsed = parser.parse(arguments)
    check_options(parsed.flags.format, parsed.options)
    return parsed.flags, parsed.options


if __name__ == "__main__":
    run(main)
