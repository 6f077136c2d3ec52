"""A disk that is full, as a process sees it that may not let its files grow."""

import contextlib
import resource


@contextlib.contextmanager
def largest_files(size):
    """No file can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
