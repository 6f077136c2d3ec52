"""Ctrl-C, heard while native code works and not lost in destructors, and the end of the process."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn, TextIO

_MOMENT = 0.05  # seconds


def in_a_thread(work: Callable[[], None]) -> None:
    """Runs native code that takes minutes, so that Ctrl-C is heard meanwhile.

    After an interruption the thread goes on for nothing, but does not keep the process alive.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="native code", daemon=True).start()
    done.result()


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
    """Has a Ctrl-C that Python drops come again, a moment later.

    Python reports what is raised in a destructor, and goes on; TensorFlow's objects have many.
    """
    before = sys.unraisablehook

    def again(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(_MOMENT, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
