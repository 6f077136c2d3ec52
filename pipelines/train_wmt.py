"""Trains a translator: python -m pipelines.train_wmt"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import abspath
from pathlib import Path
from typing import NamedTuple

from pipelines.command_line import Parser, early_flags, given_flags, lasting_output, run
from pipelines.config import CorpusConfig, RunConfig, TrainingConfig, default_config
from pipelines.corpora.corpus import Corpus
from pipelines.errors import InputError
from pipelines.importing import load_tensorflow
from tf_relpos.config import TransformerConfig

DESCRIPTION = """Train a Transformer with relative position representations to translate.

With no flags it trains the preset `tiny` on a built-in demo corpus, English to German, prints test
BLEU and three translations, and exports saved_models/demo/1. The same command again resumes an
interrupted run."""


@dataclass(frozen=True)
class RunFlags:
    """Which run."""

    preset: str = "tiny"
    """tiny, base, big, vaswani_base, vaswani_big, t2t_relative_base or t2t_relative_big"""
    prepared: str | None = None
    """a directory made by pipelines.prepare, instead of a corpus"""
    run_dir: str | None = None
    """where the run keeps its state; runs/<corpus> unless given"""
    export_dir: str | None = None
    """where to export a SavedModel; saved_models/<name of run_dir> unless given, or none"""


def main(arguments: Sequence[str]) -> int:
    with lasting_output():
        config, corpus, places = parse(arguments)
        load_tensorflow()
        from pipelines.training.job import run_job

        signal = run_job(
            config,
            places.run_dir,
            corpus=corpus,
            prepared_directory=places.prepared,
            export_dir=places.export_dir,
        )
        if signal:
            print(f"stopped; the same command resumes from {places.run_dir}")
        return 128 + signal if signal else 0  # what a shell reports of a program ended by a signal


def _check_decided_by_preparation(arguments: Sequence[str]) -> None:
    """A flag that would do nothing is a mistake."""
    decided = {"vocabulary_size", *(field.name for field in dataclasses.fields(CorpusConfig))}
    for name in given_flags(arguments):
        if name in decided:
            raise InputError(f"--{name} must not be given with --prepared, which decides it")


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
    early = early_flags(arguments, preset="tiny", dataset="demo", train_source=None, prepared=None)
    is_demo = early.dataset == "demo" and not early.train_source and not early.prepared
    defaults = default_config(early.preset, demo=is_demo)
    parser = Parser(DESCRIPTION, prog="python -m pipelines.train_wmt")
    parser.add_section(RunFlags, "run")
    parser.add_section(CorpusConfig, "corpus")
    parser.add_section(TransformerConfig, "model", default=defaults.model)
    parser.add_section(TrainingConfig, "training", default=defaults.training)
    flags = parser.parse(arguments)
    if flags.run.prepared:
        _check_decided_by_preparation(arguments)
    config = RunConfig(flags.run.preset, flags.model, flags.corpus, flags.training)
    if config.training.strategy == "multi_worker" and not flags.run.prepared:
        raise InputError(
            "strategy multi_worker needs --prepared, a directory made by pipelines.prepare that "
            "every worker can read"
        )
    corpus = None if flags.run.prepared else config.corpus.corpus()
    return config, corpus, _places(flags.run, corpus)


def _places(flags: RunFlags, corpus: Corpus | None) -> Places:
    run_dir = flags.run_dir
    if run_dir is None:
        name = corpus.name if corpus else Path(abspath(flags.prepared or "")).name
        run_dir = str(Path("runs") / name.replace("/", "-"))
    export_dir = flags.export_dir
    if export_dir is None:
        export_dir = str(Path("saved_models") / Path(abspath(run_dir)).name)
    return Places(flags.prepared, run_dir, None if export_dir == "none" else export_dir)


if __name__ == "__main__":
    run(main)
