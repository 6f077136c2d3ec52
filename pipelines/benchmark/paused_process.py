"""Processes that take turns: each runs when it is its turn, and stands still meanwhile.

For what takes minutes to start and must not run beside the others. Linux and macOS.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import InputError, quoted


class PausedProcess:
    """A process that is ended when its block is; it starts in its first turn.

    Args:
        name: for messages.
        command: the program and its arguments.
        scratch: where its temporary files go, which it has no time to remove in the end.
    """

    def __init__(self, name: str, command: Sequence[str], scratch: Path):
        self.name = name
        self.command = command
        self.scratch = scratch
        self._process: subprocess.Popen[str] | None = None
        self._last_line = "it has printed nothing"

    def __enter__(self) -> PausedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._signal(signal.SIGKILL)
            self._process.communicate()

    @contextmanager
    def turn(self) -> Iterator[Iterator[str]]:
        """The lines that it prints; it runs until the block ends.

        Raises:
            InputError: it cannot be started; while iterating: it has ended. The message is the last
                line that it has printed.
        """
        if self._process is None:
            self._process = self._started()
        self._signal(signal.SIGCONT)
        try:
            yield self._lines(self._process)
        finally:
            self._signal(signal.SIGSTOP)

    def _started(self) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                self.command,
                env={**os.environ, "TMPDIR": str(self.scratch)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                # A group of its own is stopped with all its processes. In our session, so that the
                # system ends it, should this process be killed while it stands still.
                process_group=0,
            )
        except OSError as error:
            raise InputError(f"{self.name} cannot be started: {error}") from error

    def _lines(self, process: subprocess.Popen[str]) -> Iterator[str]:
        assert process.stdout
        for line in process.stdout:
            if line.strip():
                self._last_line = line
            yield line
        raise InputError(f"{self.name} has ended: {quoted(self._last_line)}")

    def _signal(self, number: signal.Signals) -> None:
        """Sends it to the process and those that it has started."""
        assert self._process
        os.killpg(self._process.pid, number)
