"""Several runs at a time, each in a process of its own with its share of the cores, or of the GPUs.

The process of a run is `pipelines.reproduction.one_run`. It is told on its standard input what to
train, and ends when that closes: whatever becomes of this process, no run goes on without it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

import tensorflow as tf

from pipelines.errors import InputError
from pipelines.interruption import EndedEarly
from pipelines.reproduction.runs import Run

_LOG = logging.getLogger(__name__)

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ERROR = "error: "


class Share(NamedTuple):
    """What of the machine a process of a run has.

    Attributes:
        cores: their numbers; none for all that there are.
        gpus: the value of CUDA_VISIBLE_DEVICES; None for that of this process.
    """

    cores: list[int]
    gpus: str | None


class Machine(NamedTuple):
    """What runs share.

    Attributes:
        jobs: how many are trained at a time.
        cores: the numbers of those that this process may use; none where the system does not tell.
        gpus: likewise, as CUDA_VISIBLE_DEVICES names them.
    """

    jobs: int
    cores: list[int]
    gpus: list[str]

    @classmethod
    def of(cls, jobs: int) -> Machine | None:
        """This one; None for one run at a time. Its GPUs are left to the runs: TensorFlow must not
        have used one before.

        Raises:
            InputError: there are fewer GPUs, or cores where there are no GPUs.
        """
        if jobs == 1:
            return None
        devices = tf.config.list_physical_devices("GPU")
        gpus = [device.name.rpartition(":")[2] for device in devices]
        if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
            gpus = named.split(",")[: len(gpus)]
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        have, what = (gpus, "GPUs") if gpus else (cores, "cores")
        if have and jobs > len(have):
            raise InputError(
                f"jobs must be at most {len(have)}, the {what} that may be used, got {jobs}"
            )
        tf.config.set_visible_devices([], "GPU")
        return cls(jobs, cores, gpus)

    def divided(self, count: int) -> list[Share]:
        """As many shares, each as large as the next or larger by one."""
        cores = self.cores if count <= len(self.cores) else []
        return [
            Share(cores[i::count], ",".join(self.gpus[i::count]) if self.gpus else None)
            for i in range(count)
        ]


def train_at_once(
    runs: Sequence[Run],
    names: Mapping[Path, str],
    shares: Sequence[Share],
    began: Callable[[Run], None],
) -> Iterator[Run]:
    """Trains runs, as many at a time as there are shares. Each line that one prints is
    logged, behind its name.

    SIGINT, SIGTERM and SIGHUP are passed on to them, as often as they come, and no other is begun.

    Args:
        runs: what to train.
        names: of their paths.
        shares: of the machine.
        began: told of each run before it begins.

    Yields:
        Each run when it is finished.

    Raises:
        EndedEarly: by a signal, once all have ended.
        InputError: a run cannot go on, or its process was killed; the others have been ended by
            SIGTERM then, and saved.
    """
    waiting, idle = list(runs), list(shares)
    ended: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    with _Processes() as processes:
        while processes.running or (waiting and not processes.signal):
            while waiting and idle and not processes.signal:
                run = waiting.pop(0)
                began(run)
                processes.add(_Process(run, names[run.path], idle.pop(), ended))
            process = ended.get()
            processes.running.remove(process)
            idle.append(process.share)
            if not process.status:
                yield process.run
            elif not processes.signal:
                raise InputError(process.failure())
        if processes.signal:
            raise EndedEarly(processes.signal)


class _Processes:
    """Those of the runs that are trained at the moment: signals are theirs, and none outlives the
    block."""

    def __init__(self) -> None:
        self.running: list[_Process] = []
        self.signal: signal.Signals | None = None
        self._stack = contextlib.ExitStack()

    def add(self, process: _Process) -> None:
        self.running.append(process)
        if self.signal and not process.is_told:  # it came while this one began
            process.send(self.signal)

    def __enter__(self) -> _Processes:
        for number in _HEARD:
            if signal.getsignal(number) != signal.SIG_IGN:  # as shells and `nohup` ask for
                self._stack.callback(signal.signal, number, signal.signal(number, self._receive))
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        for process in self.running:
            process.send(number)

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.send(signal.SIGTERM)
        for process in self.running:
            process.wait()
        self._stack.close()


class _Process:
    """That of a run, until it ends.

    Attributes:
        run: which.
        share: of the machine.
        status: how it ended, 0 if the run is finished; 128 and more, or below 0, by a signal.
        is_told: whether it was sent a signal.
    """

    def __init__(self, run: Run, name: str, share: Share, ended: queue.SimpleQueue[_Process]):
        self.run, self.share = run, share
        self.status: int | None = None
        self.is_told = False
        self._name, self._error = name, ""
        environment = dict(os.environ)
        if share.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = share.gpus
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.reproduction.one_run"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C comes from here alone
        )
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # its status will tell
            self._process.stdin.write(json.dumps({**run.to_dict(), "cores": share.cores}) + "\n")
            self._process.stdin.flush()
        self._thread = threading.Thread(
            target=self._follow, args=(self._process.stdout, ended), name=name, daemon=True
        )
        self._thread.start()

    def _follow(self, output: IO[str], ended: queue.SimpleQueue[_Process]) -> None:
        """Logs its lines until there are no more, and tells that it has ended."""
        for line in output:
            if line.startswith(_ERROR):  # told by who is told of its end
                self._error = line.removeprefix(_ERROR).strip()
            else:
                _LOG.info("%s: %s", self._name, line.rstrip("\n"))
        self.status = self._process.wait()
        ended.put(self)

    def send(self, number: int) -> None:
        """A signal, if it has not ended."""
        self.is_told = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self) -> None:
        self._thread.join()

    def failure(self) -> str:
        """Why it has not finished its run, in a line."""
        if self._error:
            return f"{self._name}: {self._error}"
        assert self.status is not None
        number = -self.status if self.status < 0 else self.status - 128
        with contextlib.suppress(ValueError):
            name = signal.Signals(number).name
            return f"{self._name}: its process was ended by {name}; the same command resumes"
        return f"{self._name}: its process ended with status {self.status}"


def names_of(runs: Sequence[Run]) -> dict[Path, str]:
    """What tells runs from each other: the ends of their paths."""
    shared = os.path.commonpath([run.path.parent for run in runs])
    return {run.path: os.path.relpath(run.path, shared) for run in runs}
