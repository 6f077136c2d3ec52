"""The training runs behind a table."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pipelines.config import RunConfig
from pipelines.data.preparation import Prepared, open_prepared
from pipelines.errors import InputError, first_line
from pipelines.files.atomic import write_text
from pipelines.files.checksums import sha256
from pipelines.files.records import read_json, write_json
from pipelines.interruption import EndedEarly
from pipelines.reproduction.tables import Row
from pipelines.run.directory import RunDirectory


@dataclass(frozen=True)
class Run:
    """A training run of a row.

    Beside what every run leaves, its directory has `reproduction.json`: the configuration that was
    asked for, whether it is finished, and the minutes, date and device. Where it was scored on one
    split after another, the translations of those before the last are kept beside.

    Attributes:
        path: its directory.
        config: as it is asked for.
        prepared: the text that it reads.
        arrays: what tells this text, tokenized, from another: the checksum of its checksums.
        split: what is translated and scored at its end.
    """

    path: Path
    config: RunConfig
    prepared: Prepared
    arrays: str
    split: str

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """The inverse of `to_dict`.

        Raises:
            InputError: the text has gone or cannot be read.
        """
        return cls(
            Path(values["path"]),
            RunConfig.from_dict(values["config"]),
            open_prepared(values["prepared"]),
            values["arrays"],
            values["split"],
        )

    def to_dict(self) -> dict[str, Any]:
        """What JSON takes, for another process."""
        return {
            "path": str(self.path),
            "config": self.config.to_dict(),
            "prepared": str(self.prepared.directory),
            "arrays": self.arrays,
            "split": self.split,
        }

    @property
    def _record_path(self) -> Path:
        return self.path / "reproduction.json"

    def record(self) -> dict[str, Any]:
        """What `reproduction.json` says; nothing before the run has begun.

        Raises:
            InputError: it cannot be read.
        """
        record = read_json(self._record_path)
        if not isinstance(record, dict | None):
            raise InputError(f"{self.path}/reproduction.json cannot be read: it must have a table")
        return record or {}

    def is_finished(self) -> bool:
        """Whether it was trained to its end, with this configuration and this text, and its split
        has been translated: a table of the paper's may have another than the next."""
        record = self.record()
        return self._is_end(record) and self.split in {
            record.get("split", self.split),  # records of old lack it
            *record.get("kept", ()),
        }

    def translations_path(self) -> Path:
        """What it translated of its split, once it is finished."""
        if self.record().get("split", self.split) == self.split:
            return RunDirectory(self.path).translations_path
        return self._kept(self.split)

    def _kept(self, split: str) -> Path:
        return self.path / f"translations.{split}.txt"

    def _is_end(self, record: Mapping[str, Any]) -> bool:
        """Whether it was trained to its end, with this configuration and this text."""
        if not record.get("finished") or record.get("arrays") != self.arrays:
            return False
        try:  # by way of the dataclasses: a record of old lacks the fields of late
            known = RunConfig.from_dict(record["config"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.path}/reproduction.json cannot be read: {first_line(error)}"
            ) from error
        return _decided(known) == _decided(self.config)

    def check_continues(self) -> None:
        """Checks that training, what is asked for, loses nothing that the run's directory has.

        Raises:
            InputError: it was trained for longer or by other flags, it is the kept record of
                another run, or it cannot be trained with this text.
        """
        from pipelines.training.batches import batches_of
        from pipelines.training.devices import make_strategy
        from pipelines.training.job import as_prepared

        directory = RunDirectory(self.path)
        trained = bool(directory.checkpoints.steps())
        if not trained and self.record().get("finished"):
            raise InputError(
                f"{self.path} has the record of a finished run of other text or flags, and no "
                "checkpoint to go on from: choose another --output, or remove it"
            )
        directory.check_steps(self.config.training.steps)
        # What cannot be trained with this text is refused here as well.
        config = as_prepared(self.config, self.prepared.settings)
        replicas = make_strategy(config.training).num_replicas_in_sync
        batches_of(config, self.prepared, replicas)
        if not trained:
            config.training.check_tokens_per_step(replicas)
        # What a run may else be resumed with counts, or a row would not be what it says.
        if trained and (difference := directory.config().difference(config, with_remedies=True)):
            raise InputError(
                f"{self.path} was started with {difference}: choose another --output or the same "
                "flags"
            )

    def train(self) -> None:
        """Trains it to its end.

        Raises:
            EndedEarly: by a signal; everything is saved.
            InputError: the user has to change something; see `run_job`.
        """
        import keras

        from pipelines.training.job import run_job

        keras.backend.clear_session()
        gc.collect()  # the model of the run before
        began = time.monotonic()
        before = self._keep_translations()
        trained = RunDirectory(self.path).checkpoints.steps()
        try:
            run_job(
                self.config,
                self.path,
                prepared_directory=self.prepared.directory,
                splits=[self.split],
            )
        except EndedEarly:
            self._write_record(before, trained, began, is_over=False)
            raise
        except BaseException:  # an error, or Ctrl-C while it is scored: the minutes count as well
            if self._has_trained(before, trained):
                with contextlib.suppress(InputError):  # a full disk, say: the first error is told
                    self._write_record(before, trained, began, is_over=False)
            raise
        self._write_record(before, trained, began, is_over=True)

    def _has_trained(self, before: Mapping[str, Any], trained: list[int]) -> bool:
        """Whether there is more than before, or as much, but not finished: then it is scored."""
        steps = RunDirectory(self.path).checkpoints.steps()
        return bool(steps) and not (before.get("finished") and steps == trained)

    def _write_record(
        self, before: Mapping[str, Any], trained: list[int], began: float, *, is_over: bool
    ) -> None:
        """Writes `reproduction.json`.

        Args:
            before, trained: what it said, and the steps that had checkpoints, when training began.
            began: when that was, as `time.monotonic()` has it.
            is_over: whether the split has been translated.
        """
        from pipelines.training.devices import description, precision

        minutes = before.get("minutes", 0.0)
        if self._has_trained(before, trained):  # else it was only scored again
            minutes += (time.monotonic() - began) / 60
        record = {
            "config": self.config.to_dict(),
            "arrays": self.arrays,
            "split": self.split if is_over else None,
            "kept": before.get("kept", []),
            "finished": is_over or self._is_end(before),
            "minutes": round(minutes, 2),
            "date": str(date.today()),
            "device": f"{description()}, {precision(self.config.training)}",
        }
        write_json(self._record_path, record)

    def _keep_translations(self) -> dict[str, Any]:
        """Puts translations of another split aside, and tells the record, which says so from now
        on: whenever the process dies, it never takes those of one split for those of another."""
        record = self.record()
        if not self._is_end(record):
            return {**record, "kept": []}
        split, kept = record.get("split"), record.get("kept", [])
        with contextlib.suppress(FileNotFoundError):  # then they are made again when asked for
            text = RunDirectory(self.path).translations_path.read_text(encoding="utf-8")
            if split and split != self.split and text:
                write_text(self._kept(split), text)
                kept = [*(name for name in kept if name != split), split]
        record |= {"split": None, "kept": kept}
        write_json(self._record_path, record)
        return record


def _decided(config: RunConfig) -> tuple[Any, ...]:
    """What of a configuration decides on a run whose text is known by `arrays`: not where the text
    lies, nor how often a line tells of progress."""
    model, training = dataclasses.asdict(config.model), dataclasses.asdict(config.training)
    del model["vocabulary_size"], training["log_every"]
    return config.preset, model, training


def runs_of(
    row: Row, config: RunConfig, seeds: int, directory: Path, prepared: Prepared, split: str
) -> list[Run]:
    """The runs of a row on a text, one for each seed from 1 on, scored on one of its splits."""
    arrays = sha256(prepared.checksums_path)
    changed = row.config_of(config)
    return [
        Run(
            directory / row.run_name(config, seed),
            dataclasses.replace(changed, training=dataclasses.replace(changed.training, seed=seed)),
            prepared,
            arrays,
            split,
        )
        for seed in range(1, seeds + 1)
    ]


def finished_of(runs: Iterable[Run]) -> list[Run]:
    """Those of some runs that are finished."""
    return [run for run in runs if run.is_finished()]
