"""A whole training job: prepare the text, train, score, export."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.config import RunConfig
from pipelines.corpora.corpus import Corpus
from pipelines.data.preparation import Prepared, open_prepared, prepare
from pipelines.errors import InputError
from pipelines.exporters.registry import FORMATS
from pipelines.exporters.versions import check_place
from pipelines.interruption import EndedEarly
from pipelines.run.directory import RunDirectory
from pipelines.run.origin import check_fits, check_same_subwords, origin_of
from pipelines.run.provenance import Provenance, code_version
from pipelines.training import devices
from pipelines.training.batches import batches_of
from pipelines.training.finish import finish
from pipelines.training.loop import train
from pipelines.training.workers import Workers


def run_job(
    config: RunConfig,
    run_dir: str | Path,
    *,
    corpus: Corpus | None = None,
    prepared_directory: str | Path | None = None,
    export_dir: str | Path | None = None,
    splits: Sequence[str] = ("test", "valid"),
) -> None:
    """Trains from the last checkpoint of a run directory, or from the beginning, to the end.

    Of several workers, the chief alone writes.

    Args:
        config: what to train, and how.
        run_dir: the run directory, made if need be.
        corpus: the text, whose arrays the run directory then keeps, or
        prepared_directory: what `prepare` made of it.
        export_dir: where a SavedModel goes in the end, if anywhere.
        splits: of the text, what may be scored in the end: the first of them that there is.

    Raises:
        EndedEarly: by a signal; everything is saved.
        InputError: the user has to change something; see the functions called here.
    """
    if (corpus is None) == (prepared_directory is None):
        raise ValueError("give either corpus or prepared_directory")
    if config.training.strategy == "multi_worker" and corpus is not None:
        raise InputError("several workers need a prepared directory that all of them can read")
    code_version()  # of the code that trains, should it change meanwhile
    if export_dir is not None:
        FORMATS["saved_model"].load()  # what is missing should not show after days
    strategy = devices.make_strategy(config.training)
    workers = Workers.of(strategy)
    directory = RunDirectory(run_dir)
    if export_dir is not None and workers.is_chief:
        check_place(export_dir, directory.id())
    with contextlib.ExitStack() as stack:
        locked = stack.enter_context(directory.locked()) if workers.is_chief else None
        if prepared_directory is not None:
            prepared = open_prepared(prepared_directory)
            config = as_prepared(config, prepared.settings)
            config.training.check_splits(prepared.splits)
        origin = _origin(config, run_dir)
        if origin and prepared_directory is not None:
            check_same_subwords(prepared.tokenizer_path, origin)
        if locked:
            locked.check_continues(config)
            if not directory.checkpoints.steps():
                config.training.check_tokens_per_step(strategy.num_replicas_in_sync)
        if corpus is not None:
            prepared = prepare_text(config, corpus, directory.path / "prepared", origin)
        batches = batches_of(config, prepared, strategy.num_replicas_in_sync)
        provenance = Provenance.of(
            config,
            prepared,
            replicas=strategy.num_replicas_in_sync,
            precision=devices.precision(config.training),
        )
        run = locked.open(provenance, prepared.tokenizer_path) if locked else None
        if run:
            run.write_flags(prepared_directory)
        with workers.reporting_loss_of_others():
            ended_by = train(provenance, prepared, batches, run, workers)
        if run and not ended_by:
            finish(prepared, run, export_dir, splits)
        workers.wait_for_all()
    if ended_by:
        raise EndedEarly(ended_by)


def _origin(config: RunConfig, run_dir: str | Path) -> RunDirectory | None:
    """The run to take the subwords from, if any."""
    if not config.training.initialize_from:
        return None
    origin = origin_of(config.training.initialize_from, run_dir)
    check_fits(config.model, origin)
    return origin


def prepare_text(
    config: RunConfig,
    corpus: Corpus,
    directory: Path,
    origin: RunDirectory | None = None,
) -> Prepared:
    """What a run with this configuration reads of a corpus, made or opened.

    Args:
        config: of the run.
        corpus: the text.
        directory: where the preparation lies.
        origin: the run whose subwords are taken, if any.

    Raises:
        InputError: see `prepare`.
    """
    return prepare(
        corpus,
        directory,
        vocabulary_size=config.model.vocabulary_size,
        max_length=config.corpus.max_length,
        num_shapes=config.corpus.num_shapes,
        tokenizer=origin.tokenizer_path if origin else config.corpus.tokenizer,
        subword_model=config.corpus.subword_model or "unigram",
    )


def as_prepared(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The configuration with what was decided when the corpus was prepared."""
    names = ("source_language", "target_language", "max_length", "num_shapes")
    decided = {name: settings[name] for name in names}
    if not config.corpus.tokenizer:
        decided["subword_model"] = settings.get("subword_model")  # of late
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocabulary_size=settings["vocabulary_size"]),
        corpus=dataclasses.replace(config.corpus, dataset=settings["corpus"], **decided),
    )
