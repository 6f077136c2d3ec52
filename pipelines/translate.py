"""Translates standard input: python -m pipelines.translate --model DIR < source > target"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.command_line import Parser, run
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError

DESCRIPTION = """Translate standard input to standard output, a sentence a line, in order. Lines go
out as soon as they are translated."""


@dataclass(frozen=True)
class Translating:
    """How to translate."""

    model: str
    """the directory of a training run"""
    checkpoint: Literal["last", "best", "average"] = "last"
    """which weights of the run"""
    nbest: int = 1
    """print this many hypotheses of each sentence: its number, the score and the text, by tabs"""
    beam_size: int = 4
    """hypotheses kept; 1 is greedy search"""
    alpha: float = 0.6
    """length penalty"""
    batch: int = 128
    """sentences read before they are translated; 1 to answer each line at once"""

    def __post_init__(self):
        for name in ("nbest", "beam_size", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.nbest > self.beam_size:
            raise InputError(
                f"nbest must be at most beam_size, got nbest {self.nbest} and "
                f"beam_size {self.beam_size}"
            )


def main(arguments: Sequence[str]) -> None:
    parser = Parser(DESCRIPTION, prog="python -m pipelines.translate")
    parser.add_section(Translating, "translating")
    flags = parser.parse(arguments).translating

    from pipelines.checkpoints import RunDirectory
    from pipelines.training import load_translator

    translator, step = load_translator(
        RunDirectory(flags.model), flags.checkpoint, beam_size=flags.beam_size, alpha=flags.alpha
    )
    print(f"{flags.model}, step {step:,}", file=sys.stderr, flush=True)
    started = time.monotonic()
    count = 0
    batch = 1 if sys.stdin.isatty() else flags.batch
    for hypotheses in translator.stream(read_lines("/dev/stdin"), batch):
        if flags.nbest == 1:
            print(hypotheses[0].text)
        else:
            for hypothesis in hypotheses[: flags.nbest]:
                print(f"{count}\t{hypothesis.score:.4f}\t{hypothesis.text}")
        sys.stdout.flush()
        count += 1
    seconds = time.monotonic() - started
    print(f"{count:,} sentences in {seconds:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    run(main)
