"""Trains a translator: python -m pipelines.train_wmt"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipelines.command_line import (
    Parser,
    early_flags,
    given_flags,
    lasting_output,
    run,
    underscored,
)
from pipelines.config import (
    DECIDED_BY_PREPARATION,
    CorpusConfig,
    RunConfig,
    TrainingConfig,
    default_config,
)
from pipelines.config_file import flags_of_file
from pipelines.corpora.corpus import Corpus
from pipelines.errors import InputError
from pipelines.importing import load_tensorflow
from pipelines.run.freezing import frozen_layers
from tf_relpos.config import TransformerConfig

if TYPE_CHECKING:
    from pipelines.run.directory import RunDirectory

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
    for name in given_flags(arguments):
        if name in DECIDED_BY_PREPARATION:
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
    # The file comes first: the defaults of most flags depend on --preset, which may stand in it.
    sections = (RunFlags, CorpusConfig, TransformerConfig, TrainingConfig)
    with flags_of_file(underscored(arguments), *sections) as words:
        return _parse(words)


def _parse(arguments: Sequence[str]) -> tuple[RunConfig, Corpus | None, Places]:
    defaults, origin = _defaults(arguments)
    parser = Parser(DESCRIPTION, prog="python -m pipelines.train_wmt")
    parser.add_section(RunFlags, "run")
    parser.add_section(CorpusConfig, "corpus")
    parser.add_section(TransformerConfig, "model", default=defaults.model)
    parser.add_section(TrainingConfig, "training", default=defaults.training)
    flags = parser.parse(arguments)
    config = RunConfig(defaults.preset, flags.model, flags.corpus, flags.training)
    if origin:
        from pipelines.run.origin import check_fits

        check_fits(config.model, origin)
    if config.corpus.tokenizer:
        from pipelines.data.subword_model import adapted_model, check_can_sample

        tokenizer = Path(config.corpus.tokenizer)
        adapted_model(tokenizer, config.model.vocabulary_size)
        if config.training.subword_sampling:
            check_can_sample(tokenizer)
    frozen_layers(config.model, config.training.freeze)
    if config.training.strategy == "multi_worker" and not flags.run.prepared:
        raise InputError(
            "strategy multi_worker needs --prepared, a directory made by pipelines.prepare that "
            "every worker can read"
        )
    corpus = None if flags.run.prepared else config.corpus.corpus()
    if corpus:
        config.training.check_splits(corpus.splits)
    return config, corpus, _places(flags.run, corpus)


def _defaults(arguments: Sequence[str]) -> tuple[RunConfig, RunDirectory | None]:
    """What flags that are not given stand for, and the run to start from, if any.

    The model is that of this run, and so is the preset.
    """
    early = early_flags(
        arguments,
        preset=None,
        dataset="demo",
        train_source=None,
        train_tsv=None,
        prepared=None,
        initialize_from=None,
        run_dir=None,
        tokenizer=None,
        subword_model=None,
    )
    if early.prepared:
        _check_decided_by_preparation(arguments)
    has_text = early.train_source or early.train_tsv or early.prepared
    is_demo = early.dataset == "demo" and not has_text
    if not early.initialize_from:
        defaults = default_config(early.preset or "tiny", demo=is_demo)
        return _with_vocabulary_of(early.tokenizer, defaults), None
    from pipelines.run.origin import origin_of  # NumPy, which is slow

    for name in ("tokenizer", "subword_model"):
        if value := getattr(early, name):
            raise InputError(
                f"{name} must not be given with --initialize_from, whose subwords are used; got "
                f"{value}"
            )
    if not early.run_dir:
        raise InputError("initialize_from needs --run_dir, the directory of the new run")
    origin = origin_of(early.initialize_from, early.run_dir)
    theirs = origin.config()
    defaults = default_config(early.preset or theirs.preset, demo=is_demo)
    model = theirs.model
    if defaults.preset != theirs.preset:
        size = theirs.model.vocabulary_size
        model = dataclasses.replace(defaults.model, vocabulary_size=size)
    return dataclasses.replace(defaults, model=model), origin


def _with_vocabulary_of(tokenizer: str | None, defaults: RunConfig) -> RunConfig:
    """The defaults with as many subwords as a given tokenizer has."""
    if tokenizer is None:
        return defaults
    from pipelines.data.subword_model import vocabulary_size_of  # NumPy, which is slow

    size = vocabulary_size_of(Path(tokenizer))
    model = dataclasses.replace(defaults.model, vocabulary_size=size)
    return dataclasses.replace(defaults, model=model)


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
