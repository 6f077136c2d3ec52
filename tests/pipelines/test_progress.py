"""What is told of work that takes a while: on a terminal, and where there is none."""

import functools
import io
import itertools
import logging
import os
import threading
import time
from types import SimpleNamespace

import pytest

import pipelines.progress
from pipelines.command_line import show_log
from pipelines.progress import Work, duration, lines_above, phases, phases_so_far, progress


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Nothing here waits for seconds."""
    for name in ("_SHOWN_AFTER", "_REDRAWN_EVERY", "_LINE_EVERY"):
        monkeypatch.setattr(pipelines.progress, name, 0.001)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal in place of standard error; gives a function that reads what stands there."""
    master, slave = os.openpty()
    stream = os.fdopen(slave, "w", encoding="utf-8")
    monkeypatch.setattr(pipelines.progress, "on_terminal", lambda: True)
    monkeypatch.setattr(pipelines.progress, "_terminal", functools.cache(lambda: stream))

    def read_until(text):
        """Reads until this has been drawn."""
        shown = ""
        while text not in shown:
            shown += os.read(master, 4096).decode(errors="replace")
        return shown

    yield read_until
    stream.close()
    os.close(master)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "pipelines")
    return caplog


def wait_for(condition):
    while not condition():
        time.sleep(0.001)


def progress_threads():
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_on_a_terminal_one_line_redraws(terminal, log, capfd):
    show_log()
    with progress("counting", "things", 40) as work:
        list(work.counted(range(30)))
        drawn = terminal("counting:  75%")
        assert "30/40" in drawn and "things/s]" in drawn and "\n" not in drawn
        logging.getLogger("pipelines.x").info("a line of the log")
        work.what, work.unit = "thinking", ""
        terminal("thinking: 00:0")
    assert capfd.readouterr().out == "a line of the log\n"
    assert not log.messages  # nothing of it is in the log
    assert not progress_threads()


def test_lines_stand_above_the_line_that_redraws(terminal, log):
    with progress("counting", "things", 40):
        terminal("counting:   0%")
        with lines_above():
            cleared = terminal("\r" + 70 * " ")
        assert cleared.endswith(" ") or cleared.endswith("\r")
        terminal("counting:   0%")


def test_elsewhere_lines_tell_now_and_then(log):
    with progress("counting", "things", 40) as work:
        wait_for(lambda: log.messages)
        work.advance(10)
        wait_for(lambda: "counting: 10 of 40 things, " in log.messages[-1])
        assert log.messages[-1].endswith(" left")
        work.is_logged = False
        count = len(log.messages)
    assert len(log.messages) <= count + 1
    assert not progress_threads()


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("thinking", "", None, 0), "thinking: 50 s"),
        (("reading", "lines", None, 0), "reading: 5,000 lines, 100/s, 50 s"),
        (("reading", "lines", 0, 4990), "reading: 9,990 lines, 100/s, 50 s"),
        (("reading", "lines", 20_000, 0), "reading: 5,000 of 20,000 lines, 100/s, 2 min left"),
        (("reading", "lines", 10_990, 4990), "reading: 9,990 of 10,990 lines, 100/s, 10 s left"),
    ],
)
def test_what_a_line_says(arguments, told, monkeypatch):
    clock = iter((7.0, 57.0))
    monkeypatch.setattr(pipelines.progress, "time", SimpleNamespace(monotonic=clock.__next__))
    work = Work(*arguments)
    work.advance(5000)
    assert str(work) == told


@pytest.mark.parametrize("is_shown", [True, False])
def test_who_does_not_show_the_log_is_told_nothing(is_shown, caplog, monkeypatch):
    """A library does not print, and starts no threads for nothing."""
    caplog.set_level(logging.INFO if not is_shown else logging.WARNING, "pipelines")
    with progress("counting", "things", 3, is_shown=is_shown) as work:
        assert list(work.counted("abc")) == ["a", "b", "c"]
        assert not progress_threads()
    assert work.done == 3


def test_an_exception_ends_it(log):
    with pytest.raises(io.UnsupportedOperation), progress("counting"):
        raise io.UnsupportedOperation
    assert not progress_threads()


def test_phases_are_the_outermost_blocks(monkeypatch):
    """By the last name of each; what failed has taken its time as well."""
    clock = itertools.count()
    monkeypatch.setattr(pipelines.progress, "time", SimpleNamespace(monotonic=clock.__next__))
    with progress("before", is_shown=False):
        assert not phases_so_far().seconds
    with phases() as found:
        for _ in range(2):
            with progress("reading", is_shown=False) as work:
                with progress("unpacking", is_shown=False):
                    pass
                assert phases_so_far() is found
                work.what = "learning"
        with pytest.raises(ZeroDivisionError), progress("dividing", is_shown=False):
            raise ZeroDivisionError
    # The inner block looks at the clock three times, one of them for its work.
    assert found.seconds == {"learning": 2 * 3, "dividing": 1}
    assert not phases_so_far().seconds


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (99, "99 s"), (100, "2 min"), (3540, "59 min"), (11_100, "3 h 05 min")],
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text
