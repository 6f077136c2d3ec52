"""Translates standard input: python -m pipelines.translate --model X < source > target"""

import contextlib
import io
import os
import queue
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from pipelines.command_line import run
from pipelines.corpora.text_files import read_standard_input
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import checkpoint_flag, parse_flags
from pipelines.progress import progress
from pipelines.translators.base import (
    CutSources,
    Sampling,
    TextTranslator,
    Translation,
    check_search,
)
from pipelines.translators.open import open_translator
from pipelines.translators.side_by_side import share_cores
from tf_relpos.config import BEAM_SIZE

DESCRIPTION = """Translate standard input to standard output, a sentence a line, in order. Lines
that have arrived are translated together, and written as soon as they are translated."""

# Seconds to wait for another line to translate along: too short to notice, long enough for a
# program that writes line after line.
_PAUSE = 0.01


@dataclass(frozen=True)
class TranslateFlags:
    """How to translate."""

    model: list[str]
    """a run directory, whatever pipelines.export has written, or the URL of a model in TensorFlow
    Serving, such as http://localhost:8501/v1/models/demo; several run directories translate
    together, as an ensemble"""
    nbest: int = 1
    """print this many hypotheses of each sentence: its number, the score and the text,
    separated by tabs"""
    beam_size: int | None = None
    """hypotheses kept; 1 is greedy search; 4 unless given. What has been exported as SavedModel
    keeps what it was exported with, where nbest, beam_size and alpha are all left out"""
    alpha: float | None = None
    """length penalty; 0.6 unless given, and see beam_size"""
    checkpoint: str | None = checkpoint_flag()
    sample: bool = False
    """draw translations from the model of a run directory instead of searching for the best, as
    for back-translation"""
    temperature: float | None = None
    """of --sample: below 1 likely words become likelier; 1 unless given"""
    top_k: int | None = None
    """of --sample: draw from this many of the most probable subwords; from all unless given"""
    top_p: float | None = None
    """of --sample: draw from the fewest most probable subwords that have this probability together
    (nucleus sampling), say 0.9; from all unless given"""
    seed: int | None = None
    """of --sample: the same for the same translations; 1 unless given"""
    alignment: bool = False
    """add to each translation, after a tab, which source word each of its words comes from, as
    "0-0 1-2": by the attention of a run directory's model"""
    batch: int = 128
    """at most this many sentences are translated together"""
    verbose: bool = False
    """report the throughput on standard error"""

    def __post_init__(self) -> None:
        check_positive(self, "nbest", "batch")
        check_search(beam_size=self.beam_size, alpha=self.alpha)
        if self.alignment and self.nbest > 1:
            raise InputError(f"nbest must not be given with --alignment, got {self.nbest}")
        _ = self.sampling  # checks it
        beam_size = BEAM_SIZE if self.beam_size is None else self.beam_size
        if self.nbest > beam_size:
            raise InputError(
                f"nbest must be at most beam_size, got nbest {self.nbest} and beam_size {beam_size}"
            )

    @property
    def sampling(self) -> Sampling | None:
        """How to sample, if at all."""
        names = ("temperature", "top_k", "top_p", "seed")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if not self.sample:
            for name, value in given.items():
                raise InputError(f"{name} needs --sample, got {value}")
            return None
        for name, default in (("nbest", 1), ("beam_size", None), ("alpha", None)):
            if getattr(self, name) != default:
                raise InputError(
                    f"{name} must not be given with --sample, got {getattr(self, name)}"
                )
        return Sampling(**given)


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(TranslateFlags, DESCRIPTION, "python -m pipelines.translate", arguments)
    share_cores()
    lines = read_standard_input()  # before anything else takes the place of a closed one
    translator = open_translator(
        flags.model,
        nbest=flags.nbest,
        beam_size=flags.beam_size,
        alpha=flags.alpha,
        checkpoint=flags.checkpoint,
        sample=flags.sampling,
        alignment=flags.alignment,
    )
    # Like the input, whatever the locale.
    cast(io.TextIOWrapper, sys.stdout).reconfigure(encoding="utf-8")
    cut_sources, count, began = CutSources(translator), 0, time.monotonic()
    lines_left = _lines_left()
    # Whoever sees the translations come, or sends line after line, needs no other sign of life.
    is_shown = lines_left is not None and not sys.stdout.isatty()
    with progress("translating", "sentences", lines_left, is_shown=is_shown) as work:
        for group in groups_as_they_come(lines, flags.batch):
            for hypotheses in _answers(translator, group):
                _print(count, hypotheses, flags)
                count += 1
                work.advance()
            cut_sources.tell(group)
    cut_sources.tell_number()
    if flags.verbose:
        seconds = time.monotonic() - began
        rate = f"{count:,} sentences in {seconds:.1f} s, {count / seconds:.1f} a second"
        with contextlib.suppress(OSError):  # all is translated
            print(f"{' '.join(flags.model)}: {rate}", file=sys.stderr)


def _lines_left() -> int | None:
    """The lines of standard input if it is a file, 0 if that is compressed; else None."""
    try:
        if not stat.S_ISREG(os.fstat(0).st_mode):
            return None
        place, lines = os.lseek(0, 0, os.SEEK_CUR), 0
        while block := os.pread(0, 1 << 20, place):
            if block.startswith((b"\x1f\x8b", b"\xfd7zXZ\0")):  # gzip, xz
                return 0
            place, lines = place + len(block), lines + block.count(b"\n")
    except OSError:  # a closed one
        return None
    return lines


def groups_as_they_come(lines: Iterable[str], at_most: int) -> Iterator[list[str]]:
    """Groups of the lines that are there: a full group, or what came before a pause.

    A thread reads ahead, by `at_most` lines. An exception of `lines` is raised after the group of
    the lines before it.
    """
    arrivals: queue.Queue[str | Exception | None] = queue.Queue(at_most)

    def read() -> None:
        try:
            for line in lines:
                arrivals.put(line)
        except Exception as error:
            arrivals.put(error)
        else:
            arrivals.put(None)

    threading.Thread(target=read, daemon=True).start()
    arrival: str | Exception | None = ""
    while isinstance(arrival, str):
        group = []
        arrival = arrivals.get()
        while isinstance(arrival, str):
            group.append(arrival)
            if len(group) == at_most:
                break
            try:
                arrival = arrivals.get(timeout=_PAUSE)
            except queue.Empty:
                break
        if group:
            yield group
    if arrival is not None:
        raise arrival


def _answers(translator: TextTranslator, sources: list[str]) -> Iterator[list[Translation]]:
    """The hypotheses for each source; where links are wanted, the best one with its own."""
    stream = translator.stream(sources, len(sources))
    if translator.align is None:
        yield from stream
        return
    best = [hypotheses[0] for hypotheses in stream]
    links = translator.align(sources, [translation.text for translation in best])
    for (text, score), of_text in zip(best, links, strict=True):
        yield [Translation(f"{text}\t{of_text}", score)]


def _print(number: int, hypotheses: list[Translation], flags: TranslateFlags) -> None:
    for text, score in hypotheses[: flags.nbest]:
        print(text if flags.nbest == 1 else f"{number}\t{score:.4f}\t{text}")
    sys.stdout.flush()


if __name__ == "__main__":
    run(main)
