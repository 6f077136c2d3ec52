"""Compares translators with and without syntax: python -m pipelines.train_syntax"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipelines.command_line import lasting_output, run
from pipelines.files.atomic import check_files_writable
from pipelines.files.locks import exclusive_file
from pipelines.files.pictures import check_can_draw, check_picture, save_figure
from pipelines.flag_checks import check_files, check_positive
from pipelines.flag_parser import parse_sections
from pipelines.graphs.config import ModelConfig
from pipelines.importing import load_keras
from pipelines.syntax.config import MODEL, TrainingConfig

DESCRIPTION = """Train small translators on the demo corpus, whose grammar knows the dependency tree
of each sentence: half of them know the positions of a source's words, half of them the
dependencies as well, as labels on the edges of the encoder's attention, which has as many layers as
the decoder. Prints what they reach on the way."""


@dataclass(frozen=True)
class SyntaxFlags:
    """How often, and where to keep it."""

    seeds: int = 3
    """trainings of each kind, with the seeds 1, 2, ..."""
    output: str | None = None
    """a JSON file for the results; what it has is not trained again"""
    picture: str | None = None
    """draws the learning curves, PNG or SVG by the name"""

    def __post_init__(self) -> None:
        check_positive(self, "seeds")
        check_files(self, "output", "picture")
        if self.picture:
            check_picture("picture", self.picture)


def main(arguments: Sequence[str]) -> None:
    with lasting_output():
        prog, sections = "python -m pipelines.train_syntax", (SyntaxFlags, MODEL, TrainingConfig)
        flags, *configs = parse_sections(sections, DESCRIPTION, prog, arguments)
        if flags.picture:
            check_can_draw()
        check_files_writable(flags, "output", "picture")
        with exclusive_file(Path(flags.output), "output") if flags.output else nullcontext():
            load_keras()
            print(compared(flags, *configs), end="")


def compared(flags: SyntaxFlags, model_config: ModelConfig, config: TrainingConfig) -> str:
    """Trains what is left to train; the table."""
    from pipelines.progress import progress
    from pipelines.syntax.data import read
    from pipelines.syntax.report import draw, markdown
    from pipelines.syntax.training import compare

    with progress("making sentences"):
        text = read(config.train_pairs, config.valid_pairs, seed=1)
    output = Path(flags.output) if flags.output else None
    found = compare(model_config, config, text, range(1, flags.seeds + 1), output)
    if flags.picture:
        save_figure(draw(found), Path(flags.picture))
    return markdown(found)


if __name__ == "__main__":
    run(main)
