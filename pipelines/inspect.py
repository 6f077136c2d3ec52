"""Shows what a model attends to: python -m pipelines.inspect --run_dir DIR --sentence "..." """

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.files.atomic import check_files_writable
from pipelines.files.pictures import check_can_draw
from pipelines.flag_checks import check_files
from pipelines.flag_parser import checkpoint_flag, parse_flags
from pipelines.importing import load_keras

DESCRIPTION = """Show what a trained model attends to in a sentence and its translation: the
attention of every layer and head, which part of each score is content and which is position (the
two terms of Eq. 5), and the learnt tables of relative positions. Writes one page of HTML that needs
nothing else, and its pictures as PNG files into a directory of the page's name."""


@dataclass(frozen=True)
class InspectFlags:
    """What to look at."""

    run_dir: str
    """the directory of a training run"""
    sentence: str
    """text to translate"""
    target: str | None = None
    """its translation; the model's own unless given"""
    checkpoint: str | None = checkpoint_flag()
    output: str = "attention.html"
    """the page, whose name ends in .html; one that is there is replaced"""

    def __post_init__(self) -> None:
        if Path(self.output).suffix.lower() not in (".html", ".htm"):
            raise InputError(f"output must be a name that ends in .html, got {self.output}")
        check_files(self, "output")
        pictures = Path(self.output).with_suffix("")
        if pictures.exists() and not pictures.is_dir():
            raise InputError(f"output needs a directory {pictures} for its pictures, got a file")
        for name in ("sentence", "target"):
            text = getattr(self, name)
            if text is not None and not text.strip():
                raise InputError(f"{name} must not be empty, got {text!r}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(InspectFlags, DESCRIPTION, "python -m pipelines.inspect", arguments)
    check_can_draw()
    check_files_writable(flags, "output")
    load_keras()
    from pipelines.inspection.attention import check_has_two_terms, check_lengths, look, tables
    from pipelines.inspection.page import Told, write_page
    from pipelines.run.directory import RunDirectory
    from pipelines.translators.base import CutSources
    from pipelines.translators.keras_model import Translator, load_run

    loaded = load_run(RunDirectory(flags.run_dir), flags.checkpoint)
    check_has_two_terms(loaded)
    translator = Translator.of(loaded)
    target = flags.target
    check_lengths(loaded, sentence=flags.sentence, target=target)
    CutSources(translator).tell([flags.sentence])
    if target is None:
        (target,) = translator.translate([flags.sentence])
        if not target:
            raise InputError("target must be given where a model translates to nothing")
        print(target)
    facts = {"checkpoint": f"{loaded.checkpoint}, step {loaded.step:,}"}
    told = Told(flags.run_dir, flags.sentence, target, flags.target is None, facts)
    page = Path(flags.output)
    pictures = write_page(page, told, look(loaded, flags.sentence, target), tables(loaded))
    print(f"wrote {page} and {len(pictures)} pictures in {page.with_suffix('')}")


if __name__ == "__main__":
    run(main)
