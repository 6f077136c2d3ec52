"""The run directory: configuration, checkpoints, and what else a run leaves behind.

    runs/demo/
      config.json         the resolved configuration
      tokenizer.model     SentencePiece
      checkpoints/        see `pipelines.run.checkpoints`
      history.jsonl       a line for each log interval and validation
      scores.json         a list of test scores
      lock                held by the process that trains

What `history.jsonl` says beyond the checkpoint that a run is resumed from is taken back.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.files.atomic import exclusive, new_file, one_at_a_time, remove_leftovers
from pipelines.files.checksums import sha256
from pipelines.files.records import append_line, first_line, read_json, rewind, write_json
from pipelines.run.checkpoints import Checkpoints


class RunDirectory:
    """Where a run keeps its state. Making the object touches nothing on disk."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.tokenizer_path = self.path / "tokenizer.model"
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.events_path = self.path / "events"
        self.history_path = self.path / "history.jsonl"
        self.scores_path = self.path / "scores.json"
        self.lock_path = self.path / "lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory, and keeps other training runs out of it until the block ends.

        Raises:
            InputError: another process trains here, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to run_dir {self.path}: {error.strerror}") from error
        with exclusive(self.lock_path):
            remove_leftovers(self.path)
            remove_leftovers(self.checkpoints.path)
            yield

    # What it trains

    def config(self) -> RunConfig:
        """The configuration of the run.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        if not self.path.is_dir():
            raise InputError(f"there is no run directory {self.path}")
        try:
            return RunConfig.from_dict(json.loads(self.config_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(f"{self.path} is not a run directory: no config.json") from None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.config_path} cannot be read: {first_line(error)}") from error

    def start(self, config: RunConfig) -> None:
        """Makes the directory, or checks that what is there was trained alike.

        Raises:
            InputError: the directory holds something else, is damaged, or cannot be written.
        """
        if self.config_path.exists():
            written = self.config()
            trained_with = self.checkpoints.were_trained_with().get("config")
            known = RunConfig.from_dict(trained_with) if trained_with else written
            difference = known.difference(config)
            # Before the first checkpoint nothing is trained: the flags may change.
            if difference and self.checkpoints.steps():
                raise InputError(
                    f"run_dir {self.path} was started with {difference}: "
                    "choose another --run_dir or the same flags"
                )
            if known.difference(written):
                print(
                    f"{self.config_path} has been changed: written again as it was",
                    file=sys.stderr,
                    flush=True,
                )
        elif self.checkpoints.path.exists():
            raise InputError(f"run_dir {self.path} has checkpoints, but no config.json")
        self.scores()
        write_json(self.config_path, config.to_dict())
        self.checkpoints.trained_with["config"] = config.to_dict()

    def use_data(self, tokenizer: Path, arrays: Path) -> None:
        """Takes over a tokenizer, or checks that it and the data are those of the checkpoints.

        Args:
            tokenizer: the SentencePiece model.
            arrays: a file that tells the tokenized corpus from others.

        Raises:
            InputError: the checkpoints were trained on other data.
        """
        found = {"tokenizer": tokenizer, "arrays": arrays}
        sums = {name: sha256(path) for name, path in found.items()}
        trained_with = self.checkpoints.were_trained_with()
        for name, path in found.items():
            if trained_with.get(name, sums[name]) != sums[name]:
                raise InputError(
                    f"run_dir {self.path} was trained with other {name} than {path}: choose "
                    "another --run_dir or the same corpus"
                )
        self.checkpoints.trained_with |= sums
        with new_file(self.tokenizer_path) as file:
            file.write_bytes(tokenizer.read_bytes())

    def use_devices(self, replicas: int, precision: str) -> None:
        """Checks that the devices compute as before: as many, for a batch of more is another batch,
        and in the same precision, which is the machine's choice unless a flag says it.

        Raises:
            InputError: the checkpoints were trained otherwise.
        """
        trained_with = self.checkpoints.were_trained_with()
        known = trained_with.get("replicas", replicas)
        if known != replicas:
            raise InputError(
                f"run_dir {self.path} was trained on {known} replicas, not {replicas}: choose "
                "another --run_dir or as many devices and workers"
            )
        known = trained_with.get("precision", precision)
        if known != precision:
            raise InputError(
                f"run_dir {self.path} was trained in precision {known}, and here it would be "
                f"{precision}: choose another --run_dir or --precision {known}"
            )
        self.checkpoints.trained_with |= {"replicas": replicas, "precision": precision}

    def check(self) -> None:
        """Checks that the configuration and the tokenizer are still those of the checkpoints.

        Raises:
            InputError: they are not, or the configuration cannot be read.
        """
        trained_with = self.checkpoints.were_trained_with()
        config = trained_with.get("config")
        difference = config and RunConfig.from_dict(config).difference(self.config())
        if difference:
            raise InputError(
                f"{self.config_path} has been changed: the checkpoints were trained with "
                f"{difference}"
            )
        tokenizer, path = trained_with.get("tokenizer"), self.tokenizer_path
        if tokenizer and not (path.exists() and sha256(path) == tokenizer):
            raise InputError(f"{path} is not what the checkpoints were trained with")

    # Records

    def scores(self) -> list[dict[str, Any]]:
        """The records of `scores.json`.

        Raises:
            InputError: it cannot be read.
        """
        scores = read_json(self.scores_path)
        if not isinstance(scores, list | None):
            raise InputError(f"{self.scores_path} cannot be read: it must have a list")
        return scores or []

    def add_score(self, record: dict[str, Any]) -> None:
        """Appends to `scores.json`, unless it is there: a run may be killed after its scoring.

        Raises:
            InputError: it cannot be read or written.
        """
        with one_at_a_time(self.path):
            scores = self.scores()
            if record not in scores:
                write_json(self.scores_path, [*scores, record])

    def add_history(self, record: dict[str, Any]) -> None:
        """Appends a line to `history.jsonl`.

        Raises:
            InputError: it cannot be written.
        """
        append_line(self.history_path, record)

    def rewind_history(self, step: int) -> None:
        """Drops what `history.jsonl` tells of steps after the one that is resumed from.

        Raises:
            InputError: it cannot be read or written.
        """
        rewind(self.history_path, step)
