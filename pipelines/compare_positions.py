"""Compares kinds of positions in plain Keras models: python -m pipelines.compare_positions"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipelines.classification.config import ModelConfig, TrainingConfig
from pipelines.command_line import lasting_output, run
from pipelines.errors import InputError
from pipelines.files.atomic import check_files_writable
from pipelines.files.locks import exclusive_file
from pipelines.flag_checks import check_files, check_positive
from pipelines.flag_parser import parse_sections
from pipelines.importing import import_optional, load_keras

DESCRIPTION = """Train small Keras models without positions, with sinusoidal, with learnt absolute
and with relative ones, on a generated task that only order decides: who does what to whom in a
text, or what comes next in a series that repeats itself. Prints what they reach, also on longer
inputs."""


@dataclass(frozen=True)
class ComparisonFlags:
    """How often, and where to keep it."""

    seeds: int = 3
    """trainings of each kind, with the seeds 1, 2, ..."""
    output: str | None = None
    """a JSON file for the results; what it has is not trained again"""

    def __post_init__(self) -> None:
        check_positive(self, "seeds")
        check_files(self, "output")


def main(arguments: Sequence[str]) -> None:
    with lasting_output():
        flags, model_config, config = parse(arguments)
        output = Path(flags.output) if flags.output else None
        check_files_writable(flags, "output")
        with exclusive_file(output, "output") if output else nullcontext():
            load_keras()
            if model_config.model == "keras_hub":
                import_optional("keras_hub", "keras-hub", extra="hub")
            from pipelines.classification.comparison import compare
            from pipelines.classification.report import markdown

            found = compare(model_config, config, range(1, flags.seeds + 1), output)
            print(markdown(found), end="")


def parse(arguments: Sequence[str]) -> tuple[ComparisonFlags, ModelConfig, TrainingConfig]:
    """The flags, which fit together."""
    prog = "python -m pipelines.compare_positions"
    sections = ComparisonFlags, ModelConfig, TrainingConfig
    flags, model_config, config = parse_sections(sections, DESCRIPTION, prog, arguments)
    if model_config.model == "keras_hub" and config.task != "text":
        raise InputError(f"model keras_hub needs task text, got {config.task}")
    return flags, model_config, config


if __name__ == "__main__":
    run(main)
