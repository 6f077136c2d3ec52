"""What the command lines share: output that lasts, errors in one line, the end of the process."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from pipelines import interruption
from pipelines.errors import InputError, reason_of
from pipelines.progress import lines_above


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Printing never fails: once its reader has gone or its disk is full, output is dropped.

    Days of work must not end with the pipe that its progress was read from.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Lasting, before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = before


class _Lasting:
    """A text stream that falls silent instead of failing."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._silent_after_failure():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._silent_after_failure():
            self._stream.flush()

    @contextlib.contextmanager
    def _silent_after_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            interruption.lead_nowhere(self._stream)


class _StandardStreams(logging.Handler):
    """What the library logs, as lines.

    Warnings go to standard error, and so does the progress of preparing text, whose output is the
    report at its end. Training's progress is its output.
    """

    def emit(self, record: logging.LogRecord) -> None:
        asides = ("pipelines.data.", "pipelines.progress")
        is_aside = record.levelno >= logging.WARNING or record.name.startswith(asides)
        stream = sys.stderr if is_aside else sys.stdout
        # Work goes on when nobody reads about it.
        with lines_above(), contextlib.suppress(OSError):
            print(self.format(record), file=stream, flush=True)


def show_log() -> None:
    """Shows what the library logs; a command line does so, a program that imports it decides."""
    log = logging.getLogger("pipelines")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [_StandardStreams()]


def _open_closed_streams() -> None:
    """Output and errors that the caller has closed (`2>&-`) lead nowhere.

    Python has no streams for them, and the next files opened would get their numbers. Closed input
    is told by what wants to read it.
    """
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(nowhere)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))


def _print_anything() -> None:
    """What the terminal's encoding lacks is printed as an escape, instead of ending the work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(main: Callable[[Sequence[str]], int | None]) -> NoReturn:
    """Runs a command line and exits with the status that it returns.

    A user's mistake is one line on standard error and exit status 2.
    """
    _open_closed_streams()
    _print_anything()
    show_log()
    try:
        status = _status_of(main)
    except Exception:  # a defect, which is told in full, and must end as well
        sys.excepthook(*sys.exc_info())
        status = 1
    interruption.end(status)


def _status_of(main: Callable[[Sequence[str]], int | None]) -> int | None:
    try:
        with interruption.never_lost():
            status = main(sys.argv[1:])
            sys.stdout.flush()
            return status
    except InputError as error:
        return _told(f"{error}")
    except KeyboardInterrupt:
        interruption.end_interrupted()
    except BrokenPipeError:
        sys.stderr.close()  # the reader has had enough: nothing to report
        return 0
    except OSError as error:  # a full disk, a missing permission
        return _told(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except _exhausted() as error:
        return _told(f"there is not enough memory: {reason_of(error)}")


def _told(message: str) -> int:
    """The status after a user's mistake, who is told of it, if anybody can be."""
    with contextlib.suppress(OSError):
        print(f"error: {message}", file=sys.stderr)
    return 2


def _exhausted() -> tuple[type[Exception], ...]:
    """What is raised where memory does not suffice; TensorFlow is not imported for it."""
    if "tensorflow" not in sys.modules:
        return (MemoryError,)
    return MemoryError, sys.modules["tensorflow"].errors.ResourceExhaustedError
