"""Trains a translator: python -m pipelines.train_wmt"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.command_line import Parser, early_flags, lasting_output, run
from pipelines.config import CorpusConfig, RunConfig, TrainingConfig, default_config
from pipelines.errors import InputError
from tf_relpos import TransformerConfig

DESCRIPTION = """Train a Transformer with relative position representations to translate.

With no flags it trains the preset `tiny` on a built-in demo corpus, English to German, prints test
BLEU and three translations, and exports saved_models/demo/1. The same command again resumes an
interrupted run."""


@dataclass(frozen=True)
class Paths:
    """Where things lie."""

    preset: str = "tiny"
    """tiny, base, big, vaswani_base, vaswani_big, t2t_relative_base or t2t_relative_big"""
    prepared: str | None = None
    """a directory made by pipelines.prepare, instead of a corpus"""
    run_dir: str | None = None
    """where the run keeps its state; runs/<corpus> unless given"""
    export_dir: str | None = None
    """where to export a SavedModel; saved_models/<name of run_dir> unless given, or none"""


@lasting_output()
def main(arguments: Sequence[str]) -> int:
    config, paths = parse(arguments)
    # A wrong flag should not wait for what takes seconds to import.
    from pipelines.run.directory import RunDirectory
    from pipelines.training import devices
    from pipelines.training.finish import finish
    from pipelines.training.loop import train
    from pipelines.training.workers import Workers

    run_directory = RunDirectory(paths.run_dir)
    if config.training.strategy == "multi_worker" and not paths.prepared:
        raise InputError(
            "strategy multi_worker needs --prepared, a directory made by pipelines.prepare that "
            "every worker can read"
        )
    strategy = devices.make_strategy(config.training)
    workers = Workers.of(strategy)
    with run_directory.locked() if workers.is_chief else contextlib.nullcontext():
        config, prepared = prepare_run(config, paths, run_directory if workers.is_chief else None)
        with workers.noticing_losses():
            signal = train(config, prepared, run_directory, strategy)
        if workers.is_chief and not signal:
            finish(config, prepared, run_directory, paths.export_dir)
        workers.wait_for_all()
    if signal:
        print(f"stopped; the same command resumes from {run_directory.path}")
        return 128 + signal  # what a shell reports of a program that a signal has ended
    return 0


def parse(arguments: Sequence[str]) -> tuple[RunConfig, Paths]:
    """The configuration and the paths that the flags ask for.

    Raises:
        InputError: a value out of its range.
    """
    early = early_flags(arguments, preset="tiny", dataset="demo", train_source=None, prepared=None)
    is_demo = early.dataset == "demo" and not early.train_source and not early.prepared
    defaults = default_config(early.preset, demo=is_demo)
    parser = Parser(DESCRIPTION, prog="python -m pipelines.train_wmt")
    parser.add_section(Paths, "paths")
    parser.add_section(CorpusConfig, "corpus")
    parser.add_section(TransformerConfig, "model", default=defaults.model)
    parser.add_section(TrainingConfig, "training", default=defaults.training)
    flags = parser.parse(arguments)
    config = RunConfig(flags.paths.preset, flags.model, flags.corpus, flags.training)
    return config, _with_defaults(flags.paths, config)


def _with_defaults(paths: Paths, config: RunConfig) -> Paths:
    run_dir = paths.run_dir
    if run_dir is None:
        name = Path(paths.prepared).name if paths.prepared else config.corpus.corpus().name
        run_dir = str(Path("runs") / name.replace("/", "-"))
    export_dir = paths.export_dir
    if export_dir is None:
        export_dir = str(Path("saved_models") / Path(run_dir).name)
    return dataclasses.replace(
        paths, run_dir=run_dir, export_dir=None if export_dir == "none" else export_dir
    )


def prepare_run(config: RunConfig, paths: Paths, run_directory):
    """Opens or makes the tokenized corpus, and starts the run directory if one is given."""
    from pipelines.data.preparation import open_prepared, prepare
    from pipelines.files.checksums import CHECKSUMS

    if paths.prepared:
        prepared = open_prepared(paths.prepared)
        config = _as_prepared(config, prepared.settings)
        if run_directory is None:
            return config, prepared
        run_directory.start(config)
    else:
        corpus = config.corpus.corpus()
        run_directory.start(config)
        prepared = prepare(
            corpus,
            run_directory.path / "prepared",
            vocabulary_size=config.model.vocabulary_size,
            max_length=config.corpus.max_length,
            num_shapes=config.corpus.num_shapes,
        )
    run_directory.use_data(prepared.tokenizer_path, prepared.train.directory / CHECKSUMS)
    return config, prepared


def _as_prepared(config: RunConfig, settings: Mapping) -> RunConfig:
    """The configuration with what was decided when the corpus was prepared."""
    names = ("source_language", "target_language", "max_length", "num_shapes")
    decided = {name: settings[name] for name in names}
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocabulary_size=settings["vocabulary_size"]),
        corpus=dataclasses.replace(config.corpus, dataset=settings["corpus"], **decided),
    )


if __name__ == "__main__":
    run(main)
