"""The one exception that means "the user has to change something", what checks of flags raise it,
and what other errors say in one line."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """Input that cannot be used: a flag, a file, a run directory.

    The message is one line that names the argument, the rule and the value received. Command lines
    print it after `error: ` and exit with status 2; nothing has been written or lost by then.
    """


def check_positive(flags: object, *names: str) -> None:
    """Raises InputError unless the fields of these names are at least 1."""
    for name in names:
        if getattr(flags, name) < 1:
            raise InputError(f"{name} must be at least 1, got {getattr(flags, name)}")


def check_heads(flags: Any) -> None:
    """Raises InputError unless `num_heads` divides `model_dim`."""
    if flags.model_dim % flags.num_heads:
        raise InputError(
            f"model_dim must be a multiple of num_heads, {flags.num_heads}, got {flags.model_dim}"
        )


def check_dropout(rate: float) -> None:
    """Raises InputError unless it is a share that leaves something."""
    if not 0 <= rate < 1:
        raise InputError(f"dropout must be at least 0 and below 1, got {rate}")


def check_learning_rate(rate: float) -> None:
    """Raises InputError unless it is above 0 and finite."""
    if not 0 < rate < float("inf"):
        raise InputError(f"learning_rate must be above 0 and finite, got {rate}")


def check_finite(loss: float, rate: float) -> None:
    """Raises InputError if training at this rate has lost its loss to overflow."""
    if not math.isfinite(loss):
        raise InputError(f"loss is no longer finite: learning_rate must be smaller, got {rate}")


def check_seed(seed: int) -> None:
    """Raises InputError unless generators of random numbers take it."""
    for rule, holds in (("at least 0", seed >= 0), ("below 4,294,967,296", seed < 1 << 32)):
        if not holds:
            raise InputError(f"seed must be {rule}, got {seed}")


def check_files(flags: object, *names: str) -> None:
    """Raises InputError if a field of these names, which may be None, is there and no file."""
    for name in names:
        given = getattr(flags, name)
        if given is None:
            continue
        path = Path(given)
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "a pipe or a device"
            raise InputError(f"{name} must be a file, got {kind}, {path}")


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that is another, perhaps of a table inside: "name was a, got b"."""
    for name in dict.fromkeys([*now, *before]):
        known, value = before.get(name), now.get(name)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            if inner := difference(known, value):
                return inner
        elif known != value:
            return f"{name} was {known}, got {value}"
    return None


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def quoted(text: str, length: int = 300) -> str:
    """What somebody else says, fit for a message: one line, not too long, nothing but text.

    Terminals obey control characters, and none can show lone surrogates: both become U+FFFD.

    Args:
        text: anything.
        length: in characters, beyond which it is cut.
    """
    line = " ".join(text[: 2 * length].split())
    line = re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", line)
    return line if len(line) <= length and len(text) <= 2 * length else f"{line[:length]}..."


def reason_of(error: Exception) -> str:
    """What an error of TensorFlow says, in one line and without the node that it occurred in.

    Args:
        error: has a `message`, such as "{{function_node ...}} No space left on device", or one
            that ends with the reason: "Graph execution error: ... assertion failed: [...] [...]".
    """
    message = str(getattr(error, "message", "")).strip()
    if not message:
        return first_line(error)
    lines = [line for line in message.splitlines() if line and not line.lstrip().startswith("[[")]
    reason = lines[-1] if message.startswith("Graph execution error") else lines[0]
    if found := re.search(r"assertion failed: \[(.*)\]", reason):
        reason = found[1].replace("] [", " ")  # the values that were asserted, each in brackets
    return " ".join(reason.rpartition("}} ")[2].split())
