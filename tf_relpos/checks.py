"""Checks of arguments, whose messages name the argument, the rule and the value.

Like `tf_relpos.config`, which checks its fields with it, this module needs the standard library
alone.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number, NumPy's or a tensor's too, as an int.

    Raises:
        ValueError: it is none, a bool, or below `least`.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool) or whole < least:
        raise ValueError(f"`{name}` must be a whole number >= {least}. Received: {name}={value!r}")
    return whole


def check_number(name: str, value: Any, rule: str, holds: Callable[[Any], bool]) -> float:
    """Returns a number, NumPy's too, as a float.

    Args:
        name: of the argument.
        value: what was given.
        rule: what it must be, for the message.
        holds: whether the number is; NaN must fail it.

    Raises:
        ValueError: it is no number, or the rule does not hold.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and holds(value)):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return float(value)


def check_rate(name: str, value: Any) -> float:
    """Returns a share that is dropped, or smoothed away: at least 0 and below 1.

    Raises:
        ValueError: it is no such number.
    """
    return check_number(name, value, "a number at least 0 and below 1", lambda x: 0 <= x < 1)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns one of `choices`.

    Raises:
        ValueError: it is none of them.
    """
    if not (isinstance(value, str) and value in choices):
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}"
        )
    return str(value)


def check_boolean(name: str, value: Any) -> bool:
    """Returns True or False; strings and numbers, which Python would take, are neither.

    Raises:
        ValueError: it is neither.
    """
    # NumPy's own type is no subclass of bool, and NumPy is not imported here.
    if type(value).__name__ not in ("bool", "bool_"):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def fits(shape: Sequence, expected: Sequence) -> bool:
    """Whether the axes that both shapes know, those not None, are the same."""
    axes = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(None in pair or pair[0] == pair[1] for pair in axes)


def broadcasts(shape: Sequence, expected: Sequence) -> bool:
    """The same, but any axis of the first may be 1."""
    axes = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(None in (n, m) or n in (1, m) for n, m in axes)


def check_shape(name: str, shape: Sequence, expected: Sequence) -> None:
    """Raises ValueError unless the shape `fits`."""
    if not fits(shape, expected):
        rule = ", ".join("any" if axis is None else str(axis) for axis in expected)
        raise ValueError(
            f"`{name}` must have the shape [{rule}]. Received: {name} of shape {tuple(shape)}"
        )


def check_distance(name: str, value: Any) -> int | None:
    """Returns a number of positions, or None for no bound.

    Raises:
        ValueError: it is neither None nor a whole number of at least 0.
    """
    return None if value is None else check_whole(name, value, least=0)


def check_window(name: str, value: Any) -> int | None:
    """Returns a number of positions that are compared with others, or None for no bound.

    Raises:
        ValueError: it is neither None nor a whole number of at least 0 with room in int32.
    """
    window = check_distance(name, value)
    if window is not None and window >= (1 << 31) - 1:
        raise ValueError(f"`{name}` must be below 2^31 - 1. Received: {name}={value!r}")
    return window
