"""Trains a run in a process of its own, as `pipelines.reproduction.parallel` asks for."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence

from pipelines.command_line import lasting_output, run
from pipelines.importing import load_keras
from pipelines.interruption import EndedEarly


def main(arguments: Sequence[str]) -> int:
    """Reads what to train from the first line of standard input, and trains until it is finished,
    a signal comes, or standard input ends, as it does with the process that asked for it."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_standard_input, name="parent", daemon=True).start()
    if asked["cores"]:
        os.sched_setaffinity(0, asked["cores"])  # before TensorFlow has made its threads
    with lasting_output():
        load_keras()
        from pipelines.reproduction.runs import Run

        try:
            Run.from_dict(asked).train()
        except EndedEarly as end:
            return end.status
    return 0


def _end_with_standard_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    run(main)
