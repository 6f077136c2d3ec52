"""Signals: training that one ends, Ctrl-C that is heard while native code works and not lost in
destructors, and the end of the process."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

_MOMENT = 0.05  # seconds

_Result = TypeVar("_Result")


class EndedEarly(Exception):
    """Training was ended by a signal, after it had saved everything: the same command resumes.

    Attributes:
        signal: which.
        status: of the process, as a shell reports it of one that the signal has ended.
    """

    def __init__(self, ended_by: signal.Signals):
        super().__init__(ended_by)
        self.signal = ended_by
        self.status = 128 + ended_by

    def told(self, place: str | Path) -> int:
        """Prints from where the same command resumes, and returns its exit status."""
        print(f"stopped; the same command resumes from {place}")
        return self.status


def in_a_thread(work: Callable[[], _Result], seconds: float | None = None) -> _Result:
    """What `work` returns, while Ctrl-C is heard, and for no longer than so many seconds, if given,
    whatever native code it runs and wherever it waits.

    After either the thread goes on for nothing, but does not keep the process alive.

    Raises:
        TimeoutError: it takes longer.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="waited for", daemon=True).start()
    return done.result(seconds)


def end(status: int | None) -> NoReturn:
    """Ends the process with a status, at once if TensorFlow has been loaded.

    While Python takes itself apart it ends the threads that want to run it, such as those that read
    a dataset ahead, and the destructor of the dataset's iterator would wait for them for ever.
    """
    _flush()
    if "tensorflow" in sys.modules:
        os._exit(status or 0)
    sys.exit(status)


def end_interrupted() -> NoReturn:
    """Ends the process as shells expect of one that Ctrl-C has ended, and at once: native code that
    goes on in a thread would find Python gone, and abort."""
    _flush()
    os._exit(128 + signal.SIGINT)


def _flush() -> None:
    """What has been printed arrives, or is dropped where nobody reads it any more: Python, at its
    end, would try again, and make it the status of the process."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except ValueError:  # it is closed
            pass
        except OSError:
            lead_nowhere(stream)


def lead_nowhere(stream: TextIO) -> None:
    """Drops what is printed to a stream from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def never_lost() -> Iterator[None]:
    """Has a Ctrl-C that Python drops come again, a moment later, and end the block as itself.

    Python reports what is raised in a destructor, and goes on; TensorFlow's objects have many.
    TensorFlow's bindings and Keras's layers make other exceptions of what they are ended by.
    """
    before = sys.unraisablehook
    handler = signal.getsignal(signal.SIGINT)
    was_heard = False

    def hear(number: int, frame: Any) -> None:
        nonlocal was_heard
        was_heard = True
        signal.default_int_handler(number, frame)

    def again(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(_MOMENT, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, hear)
    try:
        yield
    except Exception:
        if was_heard:
            raise KeyboardInterrupt from None
        raise
    finally:
        sys.unraisablehook = before
        if signal.getsignal(signal.SIGINT) is hear:
            signal.signal(signal.SIGINT, handler)
