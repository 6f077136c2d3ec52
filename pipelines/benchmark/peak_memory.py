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

Measured = TypeVar("Measured", float, dict[str, float])


def check_can_be_measured() -> None:
    """Raises InputError where there is no /proc."""
    if not (_PROC / "self" / "status").exists():
        raise InputError("memory can be measured on Linux alone, where there is a /proc")


def in_a_process(function: Callable[..., Measured], *arguments: object) -> Measured:
    """What a function of a module returns in a process of its own: a peak never falls.

    Args:
        function: prints nothing after its result has been made.
        arguments: whose `repr` is Python that the module of the function understands.

    Raises:
        InputError: it fails; the message is the last line of its error.
    """
    spec = sys.modules[function.__module__].__spec__  # which knows the name of "__main__", too
    assert spec
    call = f"{function.__name__}(*{arguments!r})"
    code = f"import json; from {spec.name} import *; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        raise InputError(f"measuring {arguments} failed: {last}")
    result: Measured = json.loads(done.stdout.splitlines()[-1])
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


def peak_tensor_megabytes() -> float | None:
    """The most that this process's tensors of 256 KiB and more have taken so far, by oneDNN's
    allocator, which counts them; None where TensorFlow's own one hands them out, which does not."""
    import tensorflow as tf

    try:
        peak: int = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    except ValueError:
        return None
    return peak / 1e6
