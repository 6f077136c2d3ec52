"""A user's mistake is told in one line that names it: by a command line, and in Python."""

import contextlib
import re
from collections.abc import Iterator

import pytest

from pipelines.errors import InputError


def message_of(status: int, errors: str, progress: str = "(?!)") -> str:
    """The message of a command line that has refused: exit status 2 and one line of error.

    Lines that match `progress` may come before it; unless given, there must be none.
    """
    told = re.fullmatch(rf"(?:(?:{progress})\n)*error: (?P<message>[^\n]+)\n", errors)
    assert status == 2 and told, f"exit status {status}\n{errors}"
    return told["message"]


@contextlib.contextmanager
def refused(pattern: str = "") -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expects an `InputError` of one line in which the pattern is found."""
    with pytest.raises(InputError, match=pattern) as caught:
        yield caught
    assert "\n" not in str(caught.value)
