"""Tests models on what is longer than all of training: python -m pipelines.generalize"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.command_line import lasting_output, run
from pipelines.config import HELD_OUT_TEXT, RunConfig
from pipelines.corpora.text_files import check_file
from pipelines.errors import InputError
from pipelines.files.pictures import check_can_draw
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import early_flags, given_flags
from pipelines.generalization.defaults import CUTOFFS, commands_config
from pipelines.importing import load_keras
from pipelines.interruption import EndedEarly
from pipelines.reproduction.command import tell_of_table
from pipelines.reproduction.tables import DECIDED, rows_named
from pipelines.training.flags import Asked, StartFlags, parse, refuse

DESCRIPTION = """Train models on short sentences, score them on longer ones, and write the scores by
length: Markdown, a picture and JSON.

With --commands and --actions (SCAN) on the commands with few actions, tested on all others by exact
match; with any other text on the shorter part of it, tested by BLEU on the test set, by length.

Every flag of train_wmt but those for positions and the seed is taken, for all the runs. What is
finished is not trained again; the same command resumes what is not."""

_TEXT = (
    *("dataset", "train_source", "train_target", "train_tsv", "corpus_weights", "tokenizer"),
    *HELD_OUT_TEXT,
)
_SHARE, _BINS = 0.75, 3


@dataclass(frozen=True)
class GeneralizeFlags(StartFlags):
    """Which lengths."""

    commands: str | None = None
    """a file with a command a line, plain or gzipped, instead of other text"""
    actions: str | None = None
    """their actions, line by line, with spaces between"""
    longest: list[int] | None = None
    """of commands, the most actions to train on, one or several; 22 24 26 28 32 unless given"""
    share: float | None = None
    """of other text, the share of the sentences to train on, the shorter ones; 0.75 unless given"""
    bins: int | None = None
    """of other text, the ranges of lengths with a score, on either side of the longest sentence
    trained on; 3 unless given"""
    rows: list[str] | None = None
    """the models: relative, sinusoidal, both, keys, values, neither, keys_and_values, or a clipping
    distance k; relative and sinusoidal unless given"""
    seeds: int = 1
    """runs of each model, with the seeds 1, 2, ..."""
    jobs: int = 1
    """runs that are trained at a time, each in a process with its share of the cores, or of the
    GPUs"""
    output: str | None = None
    """where texts, runs and scores go; generalization/<corpus> unless given"""

    def __post_init__(self) -> None:
        check_positive(self, "seeds", "jobs")
        rows_named(self.rows or [])
        unused = ("share", "bins") if self.commands else ("longest",)
        for name in unused:
            if getattr(self, name) is not None:
                where = "with" if self.commands else "without"
                raise InputError(
                    f"{name} must not be given {where} commands, got {getattr(self, name)}"
                )
        if self.share is not None and not 0 < self.share < 1:
            raise InputError(f"share must be above 0 and below 1, got {self.share}")
        if self.bins is not None:
            check_positive(self, "bins")
        for name in ("longest", "rows"):
            if getattr(self, name) == []:
                raise InputError(f"{name} must have values, got none")
        for longest in self.longest or []:
            if longest < 1:
                raise InputError(f"longest must be at least 1, got {longest}")
            if self.longest and self.longest.count(longest) > 1:
                raise InputError(f"longest must be different lengths, got {longest} twice")
        for name in ("commands", "actions"):
            if getattr(self, name):
                check_file(name, getattr(self, name))

    @classmethod
    def defaults(cls, arguments: Sequence[str], preset: str, *, demo: bool) -> RunConfig:
        early = early_flags(arguments, commands=None, actions=None, strategy=None)
        if early.strategy == "multi_worker":
            raise InputError("strategy must be auto, one or mirrored here, got multi_worker")
        if early.commands is None and early.actions is None:
            return super().defaults(arguments, preset, demo=demo)
        if not early.commands or not early.actions:
            raise InputError("commands and actions must be given together, a file each")
        refuse(given_flags(arguments), _TEXT, " with --commands, which are the text")
        return commands_config(preset, early.commands, early.actions)


def main(arguments: Sequence[str]) -> int:
    with lasting_output():
        asked = parse(
            arguments,
            GeneralizeFlags,
            DESCRIPTION,
            "python -m pipelines.generalize",
            (*DECIDED, "prepared"),
        )
        check_can_draw()  # what is missing should not show after hours
        load_keras()
        output = Path(asked.flags.output or Path("generalization") / asked.text_name)
        try:
            found = _generalize(asked, output)
        except EndedEarly as end:
            return end.told(output)
        tell_of_table(found)
        return 0


def _generalize(asked: Asked, output: Path) -> list[Path]:
    from pipelines.generalization.job import generalize
    from pipelines.generalization.tasks import (
        CommandsTask,
        Task,
        TextTask,
        check_cutoffs,
        check_words,
    )
    from pipelines.reproduction.parallel import Machine
    from pipelines.training.devices import make_strategy

    machine = Machine.of(asked.flags.jobs)
    make_strategy(asked.config.training)  # before TensorFlow reads the text
    flags, corpus = asked.flags, asked.corpus
    assert corpus  # since --prepared is refused
    task: Task
    if flags.commands:
        cutoffs = flags.longest or CUTOFFS
        check_cutoffs(corpus, cutoffs)
        if asked.config.corpus.subword_model == "word":
            check_words(corpus, asked.config.model.vocabulary_size, min(cutoffs))
        task = CommandsTask(corpus, cutoffs)
    else:
        task = TextTask(corpus, flags.share or _SHARE, flags.bins or _BINS)
    rows = rows_named(flags.rows or ["relative", "sinusoidal"])
    return generalize(
        task,
        rows,
        asked.config,
        seeds=flags.seeds,
        output=output,
        corpus=corpus.name,
        machine=machine,
    )


if __name__ == "__main__":
    run(main)
