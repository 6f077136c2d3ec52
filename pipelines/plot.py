"""Draws the curves of runs in one picture: python -m pipelines.plot RUN ..."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.files.pictures import check_picture
from pipelines.flag_parser import Parser
from pipelines.run.curves import draw, read_curves

DESCRIPTION = """Draw the training curves of runs in one picture: loss, validation BLEU and whatever
else their histories hold. Runs in training can be drawn as well."""


@dataclass(frozen=True)
class PlotFlags:
    """What to draw."""

    runs: list[str] | None = None
    """the same as a flag, as in a file of --config"""
    output: str = "curves.png"
    """the picture, PNG or SVG by its ending; one that is there is replaced"""

    def __post_init__(self) -> None:
        check_picture("output", self.output)


def main(arguments: Sequence[str]) -> None:
    parser = Parser(DESCRIPTION, prog="python -m pipelines.plot")
    parser.usage = "%(prog)s RUN [RUN ...] [flags]"
    parser.add_argument("run", nargs="*", default=[], metavar="RUN", help="run directories")
    parser.add_section(PlotFlags, "flags")
    parsed = parser.parse(arguments)
    flags: PlotFlags = parsed.flags
    if parsed.run and flags.runs:
        raise InputError("run directories must be given with --runs or without it, not both")
    runs = parsed.run or flags.runs or []
    if not runs:
        raise InputError(f"give run directories: {parser.prog} runs/a runs/b")
    draw({name: read_curves(Path(name) / "history.jsonl") for name in runs}, Path(flags.output))
    print(f"drew {flags.output}")


if __name__ == "__main__":
    run(main)
