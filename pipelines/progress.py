"""How far work has come that takes more than two seconds.

On a terminal one line below the log, which redraws; elsewhere a line in the log now and then.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

_LOG = logging.getLogger(__name__)

_SHOWN_AFTER = 2.0  # seconds
_REDRAWN_EVERY = 0.2
# Elsewhere: the first line comes after so many seconds, the next after as many, or after a tenth of
# the time that has passed, so that the work of a day leaves no thousands of lines.
_LINE_EVERY = 60.0

T = TypeVar("T")


class Work:
    """Work that is told of; `progress` makes it.

    Attributes:
        what: it is, "tokenizing"; may change.
        unit: what is counted, in the plural; nothing if empty, and may become so.
        total: how many there are, if that is known.
        done: how many are done.
        is_logged: whether lines of the log tell of it where there is no terminal.
    """

    def __init__(self, what: str, unit: str, total: int | None, done: int):
        self.what = what
        self.unit = unit
        self.total = total
        self.done = self._before = done
        self.is_logged = True
        self._began = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count

    def counted(self, items: Iterable[T]) -> Iterator[T]:
        """The items, each of which counts as done when the next one is asked for."""
        for item in items:
            yield item
            self.advance()

    def __str__(self) -> str:
        seconds = time.monotonic() - self._began
        rate = (self.done - self._before) / seconds if seconds else 0.0
        if not self.unit:
            return f"{self.what}: {duration(seconds)}"
        count = f"{self.what}: {self.done:,}"
        speed = f"{rate:,.{0 if rate >= 10 else 1}f}/s"
        if not self.total:
            return f"{count} {self.unit}, {speed}, {duration(seconds)}"
        left = f", {duration((self.total - self.done) / rate)} left" if rate else ""
        return f"{count} of {self.total:,} {self.unit}, {speed}{left}"

    def show_until(self, is_over: threading.Event, terminal: TextIO | None) -> None:
        """Shows how far it is, until it is over. It knows nothing of it: a thread does this."""
        if is_over.wait(_SHOWN_AFTER):
            return
        if terminal:
            bar = self._bar(terminal)
            while not is_over.wait(_REDRAWN_EVERY):
                bar.n = self.done
                bar.bar_format = None if self.unit else "{desc}: {elapsed}"
                bar.set_description_str(self.what)  # draws it
            bar.close()
            return
        wait = _LINE_EVERY - _SHOWN_AFTER
        while not is_over.wait(wait):
            if self.is_logged:
                _LOG.info("%s", self)
            wait = max(_LINE_EVERY, (time.monotonic() - self._began) / 10)

    def _bar(self, terminal: TextIO) -> tqdm:
        from tqdm import tqdm

        bar = tqdm(
            desc=self.what,
            total=self.total,
            initial=self._before,
            unit=f" {self.unit}",
            unit_scale=not self.total or self.total >= 10_000,  # 1.2M, but 99
            file=terminal,
            leave=False,
            delay=1e-9,  # not before it is told how far
            ncols=80,
            dynamic_ncols=os.get_terminal_size(terminal.fileno()).columns > 0,  # where it is known
        )
        bar.start_t -= time.monotonic() - self._began
        return bar


class Phases:
    """How long the blocks of `progress` took inside of a block of `phases`, so far.

    Attributes:
        began: when that was, of the monotonic clock.
        seconds: by what the work was in the end; blocks inside of others are parts of those.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self._depth = 0

    @contextlib.contextmanager
    def measuring(self, work: Work) -> Iterator[None]:
        """Adds the time of the block."""
        began = time.monotonic()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                spent = time.monotonic() - began
                self.seconds[work.what] = self.seconds.get(work.what, 0.0) + spent


_PHASES: ContextVar[Phases | None] = ContextVar("phases", default=None)


@contextlib.contextmanager
def phases() -> Iterator[Phases]:
    """Measures the blocks of `progress` inside of this one, whether they are shown or not."""
    found = Phases()
    token = _PHASES.set(found)
    try:
        yield found
    finally:
        _PHASES.reset(token)


def phases_so_far() -> Phases:
    """Those of the block of `phases` that this is in; none of them where it is in no such block."""
    return _PHASES.get() or Phases()


@contextlib.contextmanager
def progress(
    what: str, unit: str = "", total: int | None = None, *, done: int = 0, is_shown: bool = True
) -> Iterator[Work]:
    """Tells how far the work inside of the block is, once it has taken a while.

    Told of is what the log shows; a program that leaves out INFO sees nothing.

    Args:
        what: the work is, "tokenizing".
        unit: what `advance` counts, in the plural; without one, only the time is told.
        total: how many there are, if that is known.
        done: how many were done before.
        is_shown: False counts and tells nothing.
    """
    work = Work(what, unit, total, done)
    measured = _PHASES.get()
    with measured.measuring(work) if measured else contextlib.nullcontext():
        if is_shown and _LOG.isEnabledFor(logging.INFO):
            with _shown(work):
                yield work
        else:
            yield work


@contextlib.contextmanager
def _shown(work: Work) -> Iterator[None]:
    is_over = threading.Event()
    arguments = (is_over, _terminal() if on_terminal() else None)
    thread = threading.Thread(target=work.show_until, args=arguments, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def on_terminal() -> bool:
    """Whether what is told can redraw."""
    return os.isatty(2)


@functools.cache
def _terminal() -> TextIO:
    """Standard error by a number of its own: `importing.silence` closes the usual one."""
    return open(os.dup(2), "w", encoding="utf-8", errors="replace")  # noqa: SIM115


@contextlib.contextmanager
def lines_above() -> Iterator[None]:
    """What is printed inside of the block stands above the line that redraws, if there is one."""
    if not _terminal.cache_info().currsize:
        yield
        return
    from tqdm import tqdm

    with tqdm.external_write_mode(file=_terminal()):
        yield


def duration(seconds: float) -> str:
    """Time for people: 4 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
