"""Libraries that write to standard error on their own, kept silent while they load."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing that the process writes to standard error arrives, C++ included.

    Such lines would bury a one-line error message. What goes wrong is raised as an exception.
    """
    standard_error = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(nowhere)
