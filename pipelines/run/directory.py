"""The run directory: configuration, checkpoints, and what else a run leaves behind.

    runs/demo/
      config.json         the resolved configuration
      config.toml         the same, as flags for `train_wmt --config`
      tokenizer.model     SentencePiece
      prepared/           the tokenized corpus, unless the run was given one
      buckets.txt         the report on batch shapes
      id                  what exported versions call the run, wherever it is moved
      checkpoints/        see `pipelines.run.checkpoints`
      events/             for TensorBoard
      history.jsonl       a line for each log interval and validation
      scores.json         a list of test scores
      translations.txt    of the text that was scored at the end of training, line by line
      lock                of the process that trains, meanwhile

`RunDirectory` reads. What trains holds the lock and opens the directory as a `TrainingRun`, which
writes; there is no other way to a checkpoint.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config import RunConfig
from pipelines.config_file import as_toml
from pipelines.errors import InputError, first_line
from pipelines.files.atomic import new_file, remove_leftovers, write_text
from pipelines.files.checksums import sha256
from pipelines.files.locks import exclusive, one_at_a_time
from pipelines.files.records import append_line, read_json, rewind, write_json
from pipelines.run.checkpoint_writer import CheckpointWriter
from pipelines.run.checkpoints import Checkpoints
from pipelines.run.provenance import Provenance, check_config_continues

if TYPE_CHECKING:
    from tf_relpos import Transformer

_LOG = logging.getLogger(__name__)

_FLAGS_COMMENT = (
    "# python -m pipelines.train_wmt --config THIS_FILE --run_dir ANOTHER_DIRECTORY\n\n"
)


class RunDirectory:
    """What a run has left so far. Making the object touches nothing on disk."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.tokenizer_path = self.path / "tokenizer.model"
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.events_path = self.path / "events"
        self.history_path = self.path / "history.jsonl"
        self.scores_path = self.path / "scores.json"
        self.flags_path = self.path / "config.toml"
        self.translations_path = self.path / "translations.txt"
        self.id_path = self.path / "id"

    def id(self) -> str | None:
        """A name that no other run has; None before it has begun, or begun again of late.

        Raises:
            InputError: it cannot be read.
        """
        try:
            return self.id_path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.id_path} cannot be read: {first_line(error)}") from error

    def check_steps(self, steps: int) -> None:
        """Checks that a run of so many updates would go on with this one, or be it.

        Raises:
            InputError: it was trained for more.
        """
        trained = max(self.checkpoints.steps(), default=0)
        if trained > steps:
            raise InputError(
                f"steps must be at least {trained}, up to which {self.path} was trained, "
                f"got {steps}"
            )

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
        except KeyError as error:  # CTranslate2 models have such a file as well
            raise InputError(
                f"{self.path} is not a run directory: its config.json has no {error.args[0]}"
            ) from error
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{self.config_path} cannot be read: {first_line(error)}") from error

    def check_unchanged(self) -> None:
        """Checks that configuration and tokenizer are those of the checkpoints.

        Raises:
            InputError: `config.json` or `tokenizer.model` has been changed.
        """
        trained_with = self.checkpoints.provenance()
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

    def choose(self) -> str:
        """The name of the checkpoint that is used where none is asked for, after training as well.

        That is the average, where the run was to end with one and has ended; else the best by
        validation; and without validations the last.

        Raises:
            InputError: the run directory cannot be read.
        """
        is_averaged = self.config().training.average_checkpoints > 1
        if is_averaged and self.checkpoints.average_is_of_the_end():
            return "average"
        return "best" if self.checkpoints.best() else "last"

    def load_weights(self, model: Transformer, checkpoint: str = "last") -> int:
        """Loads the weights of a checkpoint, once configuration and tokenizer are known to be its.

        Args:
            model: built from `config().model`.
            checkpoint: "last", "best" or "average".

        Returns:
            The step that the weights are from.

        Raises:
            InputError: `config.json` or `tokenizer.model` has been changed, or there is no such
                checkpoint, or it is damaged.
        """
        self.check_unchanged()
        return self.checkpoints.load(model, checkpoint)

    def scores(self) -> list[dict[str, Any]]:
        """The records of `scores.json`.

        Raises:
            InputError: it cannot be read.
        """
        remedy = "correct it or remove it"
        try:
            scores = read_json(self.scores_path)
        except InputError as error:
            raise InputError(f"{error}: {remedy}") from error
        if scores is None:
            return []
        if not (isinstance(scores, list) and all(isinstance(record, dict) for record in scores)):
            raise InputError(
                f"{self.scores_path} cannot be read: it must have a list of records: {remedy}"
            )
        return scores

    def add_score(self, record: dict[str, Any]) -> None:
        """Makes it the last of `scores.json`, which has it once: a run may be killed after scoring.

        Raises:
            InputError: it cannot be read or written.
        """
        with one_at_a_time(self.path):
            others = [score for score in self.scores() if score != record]
            write_json(self.scores_path, [*others, record])

    @contextmanager
    def locked(self) -> Iterator[LockedRun]:
        """Makes the directory, and keeps other training runs out of it until the block ends.

        Raises:
            InputError: another process trains here, the directory holds something else or is
                damaged, or it cannot be written.
        """
        with exclusive(self.path, "run_dir"):
            remove_leftovers(self.path)
            remove_leftovers(self.checkpoints.path)
            self._check_readable()
            yield LockedRun(self)

    def _check_readable(self) -> None:
        """Tells of damage before hours of training, not after them."""
        if self.config_path.exists():
            self.config()
        elif self.checkpoints.path.exists():
            raise InputError(f"run_dir {self.path} has checkpoints, but no config.json")
        else:
            self._check_nothing_is_replaced()
        self.scores()

    def _check_nothing_is_replaced(self) -> None:
        """Of somebody's own, in a directory that is none of a run yet."""
        owned = [self.tokenizer_path] if self.tokenizer_path.exists() else []
        if self.flags_path.exists() and not _is_written_here(self.flags_path):
            owned.append(self.flags_path)
        if owned:
            raise InputError(
                f"run_dir {self.path} has a {owned[0].name}, which would be replaced, but no "
                "config.json: choose another --run_dir"
            )


def _is_written_here(flags: Path) -> bool:
    try:
        return flags.read_bytes().startswith(_FLAGS_COMMENT.encode())
    except OSError:  # a directory, say
        return False


class LockedRun:
    """A run directory whose lock this process holds; `RunDirectory.locked` gives it."""

    def __init__(self, directory: RunDirectory):
        self.path = directory.path
        self._directory = directory

    def check_continues(self, config: RunConfig) -> None:
        """Checks that the checkpoints, if there are any, were trained with this configuration.

        `open` does so as well. Between the two there may be hours of preparing text.

        Raises:
            InputError: they were trained with another, or for more updates.
        """
        if earlier := self._earlier():
            check_config_continues(config, earlier, self.path)
            self._directory.check_steps(config.training.steps)

    def _earlier(self) -> dict[str, Any]:
        """What the checkpoints were trained with. Empty before the first: the flags may change."""
        directory = self._directory
        if not directory.checkpoints.steps():
            return {}
        return {"config": directory.config().to_dict(), **directory.checkpoints.provenance()}

    def open(self, provenance: Provenance, tokenizer: Path) -> TrainingRun:
        """The run, to start it or to go on with it.

        Writes the configuration and the tokenizer; it has an `id` from here on.

        Args:
            provenance: what it is trained with.
            tokenizer: the SentencePiece model, which the directory keeps a copy of.

        Raises:
            InputError: its checkpoints were trained with something else, or it cannot be written.
        """
        directory, earlier = self._directory, self._earlier()
        provenance.check_continues(earlier, self.path)
        if earlier and RunConfig.from_dict(earlier["config"]).difference(directory.config()):
            _LOG.warning("%s has been changed: written again as it was", directory.config_path)
        write_json(directory.config_path, provenance.config.to_dict())
        if directory.id() is None:
            write_text(directory.id_path, f"{uuid.uuid4().hex}\n")
        with new_file(directory.tokenizer_path) as file:
            file.write_bytes(tokenizer.read_bytes())
        return TrainingRun(self.path, provenance)


class TrainingRun(RunDirectory):
    """A run directory that is trained in; `LockedRun.open` gives it.

    Attributes:
        provenance: what the run is trained with.
    """

    checkpoints: CheckpointWriter

    def __init__(self, path: str | Path, provenance: Provenance):
        super().__init__(path)
        self.provenance = provenance
        self.checkpoints = CheckpointWriter(self.checkpoints.path, provenance)

    def write_flags(self, prepared: str | Path | None) -> None:
        """Writes `config.toml`, with which another run trains the same.

        Args:
            prepared: the preparation that is trained on, if it is one.

        Raises:
            InputError: it cannot be written.
        """
        flags = self.provenance.config.flags(None if prepared is None else str(prepared))
        write_text(self.flags_path, _FLAGS_COMMENT + as_toml(flags))

    def add_history(self, record: dict[str, Any]) -> None:
        """Appends a line to `history.jsonl`.

        Raises:
            InputError: it cannot be written.
        """
        append_line(self.history_path, record)

    def rewind_history(self, step: int) -> None:
        """Drops what `history.jsonl` says of steps after the one that is resumed from.

        Raises:
            InputError: it cannot be read or written.
        """
        rewind(self.history_path, step)
