"""Trains a translator: python -m pipelines.train_wmt"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import abspath
from pathlib import Path
from typing import NamedTuple

from pipelines.command_line import lasting_output, run
from pipelines.config import RunConfig
from pipelines.corpora.corpus import Corpus
from pipelines.importing import load_keras
from pipelines.interruption import EndedEarly
from pipelines.progress import phases
from pipelines.training.flags import Asked, StartFlags
from pipelines.training.flags import parse as parse_flags

DESCRIPTION = """Train a Transformer with relative position representations to translate.

With no flags it trains the preset `tiny`, with two layers instead of four, on a built-in demo
corpus, English to German, prints test BLEU, chrF and three translations, and exports
saved_models/demo/1. The same command again resumes an interrupted run."""


@dataclass(frozen=True)
class RunFlags(StartFlags):
    """Which run."""

    run_dir: str | None = None
    """where the run keeps its state; runs/<corpus> unless given"""
    export_dir: str | None = None
    """where to export a SavedModel; saved_models/<name of run_dir> unless given, or none"""


def main(arguments: Sequence[str]) -> int:
    with lasting_output(), phases():
        config, corpus, places = parse(arguments)
        load_keras()
        from pipelines.training.job import run_job

        try:
            run_job(
                config,
                places.run_dir,
                corpus=corpus,
                prepared_directory=places.prepared,
                export_dir=places.export_dir,
            )
        except EndedEarly as end:
            return end.told(places.run_dir)
        return 0


class Places(NamedTuple):
    prepared: str | None
    run_dir: str
    export_dir: str | None


def parse(arguments: Sequence[str]) -> tuple[RunConfig, Corpus | None, Places]:
    """What the flags ask for; nothing is read, downloaded or imported for it.

    Returns:
        The configuration, the corpus unless a preparation takes its place, and the directories.

    Raises:
        InputError: a value out of its range.
    """
    asked = parse_flags(arguments, RunFlags, DESCRIPTION, "python -m pipelines.train_wmt")
    return asked.config, asked.corpus, _places(asked)


def _places(asked: Asked) -> Places:
    flags = asked.flags
    run_dir = flags.run_dir
    if run_dir is None:
        run_dir = str(Path("runs") / asked.text_name)
    export_dir = flags.export_dir
    if export_dir is None:
        export_dir = str(Path("saved_models") / Path(abspath(run_dir)).name)
    return Places(flags.prepared, run_dir, None if export_dir == "none" else export_dir)


if __name__ == "__main__":
    run(main)
