"""The flags of the command lines that train: which text, which model, how.

Nothing is read, downloaded or imported for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from pipelines.flag_parser import Parser, early_flags, given_flags, underscored
from pipelines.run.freezing import frozen_layers
from tf_relpos.config import RELATIVE_FIELDS, TransformerConfig

if TYPE_CHECKING:
    from pipelines.run.directory import RunDirectory


@dataclass(frozen=True)
class StartFlags:
    """What training starts from; the command's own flags are added to it."""

    preset: str = "tiny"
    """tiny, base, big, vaswani_base, vaswani_big, t2t_relative_base or t2t_relative_big"""
    prepared: str | None = None
    """a directory made by pipelines.prepare, instead of a corpus"""

    @classmethod
    def defaults(cls, arguments: Sequence[str], preset: str, *, demo: bool) -> RunConfig:
        """What flags that are not given stand for; a command may have others.

        Raises:
            InputError: unknown preset.
        """
        return default_config(preset, demo=demo)


class Asked(NamedTuple):
    """What the flags ask for.

    Attributes:
        flags: the command's own.
        config: of a run.
        corpus: the text, unless a preparation takes its place.
    """

    flags: Any
    config: RunConfig
    corpus: Corpus | None

    @property
    def text_name(self) -> str:
        """Of the corpus or its preparation, as a directory may be called."""
        if self.corpus:
            return self.corpus.name.replace("/", "-")
        return Path(abspath(self.flags.prepared)).name


def parse(
    arguments: Sequence[str],
    own: type[StartFlags],
    description: str,
    prog: str,
    decided: Collection[str] = (),
) -> Asked:
    """Parses the flags of a command that trains.

    Args:
        arguments: of the command line.
        own: the dataclass of the command's own flags.
        description, prog: see `Parser`.
        decided: flags that would do nothing, as the command decides what they say.

    Raises:
        InputError: a value out of its range, or a flag that would do nothing.
    """
    # The file comes first: the defaults of most flags depend on --preset, which may stand in it.
    sections = (own, CorpusConfig, TransformerConfig, TrainingConfig)
    with flags_of_file(underscored(arguments), *sections) as words:
        refuse(given_flags(words), decided, ", the command decides it")
        defaults, origin = _defaults(words, own)
        parser = Parser(description, prog)
        parser.add_section(own, "own")
        parser.add_section(CorpusConfig, "corpus", default=defaults.corpus)
        parser.add_section(TransformerConfig, "model", default=defaults.model)
        parser.add_section(TrainingConfig, "training", default=defaults.training)
        found = parser.parse(words)
        # Those of a file are left alone: a run's config.toml names every flag.
        refuse_without_effect(given_flags(arguments), found.model)
        config = RunConfig(defaults.preset, found.model, found.corpus, found.training)
        return Asked(found.own, config, _corpus(config, found.own.prepared, origin))


def _corpus(config: RunConfig, prepared: str | None, origin: RunDirectory | None) -> Corpus | None:
    """The text, once all that the flags name is known to fit together."""
    if origin:
        from pipelines.run.origin import check_fits

        check_fits(config.model, origin)
        if config.training.subword_sampling:
            from pipelines.data.subword_model import check_can_sample

            check_can_sample(origin.tokenizer_path)
    check_fits_together(config, prepared)
    corpus = None if prepared else config.corpus.corpus()
    if corpus:
        config.training.check_splits(corpus.splits)
    return corpus


def check_fits_together(config: RunConfig, prepared: str | None) -> None:
    """Raises InputError if flags contradict each other, or files that they name."""
    if config.corpus.tokenizer:
        from pipelines.data.subword_model import adapted_model, check_can_sample

        tokenizer = Path(config.corpus.tokenizer)
        adapted_model(tokenizer, config.model.vocabulary_size)
        if config.training.subword_sampling:
            check_can_sample(tokenizer)
    frozen_layers(config.model, config.training.freeze)
    if config.training.strategy == "multi_worker" and not prepared:
        raise InputError(
            "strategy multi_worker needs --prepared, a directory made by pipelines.prepare that "
            "every worker can read"
        )


def refuse(names: Collection[str], decided: Collection[str], why: str) -> None:
    """Raises InputError for a flag that would do nothing."""
    for name in names:
        if name in decided:
            raise InputError(f"--{name} must not be given{why}")


def refuse_without_effect(names: Collection[str], model: TransformerConfig) -> None:
    """Raises InputError for a flag of relative positions where there are none."""
    if not model.uses_relative:
        refuse(names, RELATIVE_FIELDS, f" with --position {model.position}")


def _defaults(
    arguments: Sequence[str], own: type[StartFlags]
) -> tuple[RunConfig, RunDirectory | None]:
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
        refuse(given_flags(arguments), DECIDED_BY_PREPARATION, " with --prepared, which decides it")
    has_text = early.train_source or early.train_tsv or early.prepared
    is_demo = early.dataset == "demo" and not has_text
    if not early.initialize_from:
        defaults = own.defaults(arguments, early.preset or "tiny", demo=is_demo)
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
    corpus = dataclasses.replace(
        defaults.corpus,
        source_language=theirs.corpus.source_language,
        target_language=theirs.corpus.target_language,
    )
    return dataclasses.replace(defaults, model=model, corpus=corpus), origin


def _with_vocabulary_of(tokenizer: str | None, defaults: RunConfig) -> RunConfig:
    """The defaults with as many subwords as a given tokenizer has."""
    if tokenizer is None:
        return defaults
    from pipelines.data.subword_model import vocabulary_size_of  # NumPy, which is slow

    size = vocabulary_size_of(Path(tokenizer))
    model = dataclasses.replace(defaults.model, vocabulary_size=size)
    return dataclasses.replace(defaults, model=model)
