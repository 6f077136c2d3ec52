"""What a run is trained with, as its checkpoints say; and which code computed its scores."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.files.checksums import sha256

if TYPE_CHECKING:
    from pipelines.data.preparation import Prepared


@dataclass(frozen=True)
class Provenance:
    """All that decides what a run computes. Each checkpoint holds it.

    Attributes:
        config: the resolved configuration.
        tokenizer: SHA-256 of the SentencePiece model.
        arrays: SHA-256 of the checksums of the tokenized corpus.
        replicas: how many devices share a batch: a batch of more is another batch.
        precision: Keras's dtype policy, which is the machine's choice unless a flag says it.
    """

    config: RunConfig
    tokenizer: str
    arrays: str
    replicas: int
    precision: str

    @classmethod
    def of(
        cls, config: RunConfig, prepared: Prepared, *, replicas: int, precision: str
    ) -> Provenance:
        """That of a run on a prepared corpus."""
        return cls(
            config=config,
            tokenizer=sha256(prepared.tokenizer_path),
            arrays=sha256(prepared.checksums_path),
            replicas=replicas,
            precision=precision,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def check_continues(self, earlier: Mapping[str, Any], run_dir: Path) -> None:
        """Compares with the provenance of earlier checkpoints, as a dictionary.

        Raises:
            InputError: going on from them would not compute the same.
        """
        check_config_continues(self.config, earlier, run_dir)
        for name in ("tokenizer", "arrays"):
            if earlier.get(name, getattr(self, name)) != getattr(self, name):
                raise InputError(
                    f"run_dir {run_dir} was trained with another tokenized corpus, whose {name} "
                    "differs: choose another --run_dir or the same corpus"
                )
        known = earlier.get("replicas", self.replicas)
        if known != self.replicas:
            raise InputError(
                f"run_dir {run_dir} was trained on {known} replicas, not {self.replicas}: choose "
                "another --run_dir or as many devices and workers"
            )
        known = earlier.get("precision", self.precision)
        if known != self.precision:
            raise InputError(
                f"run_dir {run_dir} was trained in precision {known}, and here it would be "
                f"{self.precision}: choose another --run_dir or --precision {known}"
            )


def check_config_continues(config: RunConfig, earlier: Mapping[str, Any], run_dir: Path) -> None:
    """Compares a configuration with the provenance of earlier checkpoints, as a dictionary.

    Raises:
        InputError: training would differ.
    """
    if "config" in earlier:
        difference = RunConfig.from_dict(earlier["config"]).difference(config)
        if difference:
            raise InputError(
                f"run_dir {run_dir} was started with {difference}: "
                "choose another --run_dir or the same flags"
            )


@functools.cache
def code_version() -> dict[str, str | None]:
    """Which code computes.

    Returns:
        `commit`: that of the checkout that this file belongs to, with `-dirty` behind it where
        tracked files have been changed; None where the code is installed as a package, whatever
        repository the user stands in. `version`: of the package; None if it is not installed.
    """
    here = Path(__file__)
    commit = None
    if _git(here.parent, "ls-files", "--error-unmatch", here.name):
        commit = _git(here.parent, "describe", "--always", "--dirty", "--exclude", "*")
    try:
        version = metadata.version("tf_relpos")
    except metadata.PackageNotFoundError:
        version = None
    return {"commit": commit, "version": version}


def _git(directory: Path, *arguments: str) -> str | None:
    """What git prints; None if there is no git, it fails, or it takes too long."""
    # A hook or a rebase around this process names its own repository there.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        result = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (result.stdout.strip() or None) if result.returncode == 0 else None
