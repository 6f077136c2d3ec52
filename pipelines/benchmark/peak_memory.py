"""How much more memory a process holds at its peak while something is called. Linux alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pipelines.errors import InputError

_PROC = Path("/proc")

Number = TypeVar("Number", float, list[float])


def check_can_be_measured() -> None:
    """Raises InputError where there is no /proc."""
    if not (_PROC / "self" / "status").exists():
        raise InputError("memory can be measured on Linux alone, where there is a /proc")


def in_a_process(function: Callable[..., Number], *arguments: object) -> Number:
    """What a function of a module returns in a process of its own: a peak never falls.

    Args:
        function: gives a number or a list of them, and prints nothing after it has been made.
        arguments: whose `repr` is Python that the module of the function understands.

    Raises:
        InputError: it fails; the message is the last line of its error.
    """
    spec = sys.modules[function.__module__].__spec__  # which knows the name of "__main__", too
    assert spec
    code = f"from {spec.name} import *; print({function.__name__}(*{arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        raise InputError(f"measuring {arguments} failed: {last}")
    result: Number = json.loads(done.stdout.splitlines()[-1])
    return result


def megabytes_more(call: Callable[[], object]) -> float:
    """How many megabytes more the process has held at its peak, after a call than before."""
    before = peak_megabytes()
    call()
    return peak_megabytes() - before


def peak_megabytes(process: int | str = "self") -> float:
    """The most that a process has held so far; 0 of one that has ended and is not waited for yet.

    Raises:
        OSError: there is no such process.
    """
    status = (_PROC / str(process) / "status").read_text(encoding="utf-8", errors="replace")
    _, found, rest = status.partition("VmHWM:")
    return int(rest.split()[0]) / 1000 if found else 0.0
