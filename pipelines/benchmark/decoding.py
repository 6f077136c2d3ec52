"""Decoding beside CTranslate2: python -m pipelines.benchmark.decoding --run_dir DIR --source F

The same weights as a SavedModel and in CTranslate2, both in this process and with one thread each,
take turns over the same sentences: by batches, sorted by length, and one by one. CTranslate2
searches as all other forms do, with a patience of 2.
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines import export
from pipelines.benchmark.measuring import ratios, seconds_in_turns, take_one_thread, write_results
from pipelines.command_line import parse_flags, run
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError
from pipelines.translators.base import BATCH_SIZE, TextTranslator

FORMS = ("ctranslate2", "saved_model")


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    run_dir: str
    """the directory of a training run"""
    source: str
    """text to translate, a sentence a line"""
    sentences: int = 128
    """of the text; an eighth of them one by one"""
    turns: int = 7
    """times that each form translates them"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        if self.sentences < 8:
            raise InputError(f"sentences must be at least 8, got {self.sentences}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.decoding", arguments)
    sources = list(read_lines(flags.source))[: flags.sentences]
    take_one_thread()
    records = []
    with tempfile.TemporaryDirectory() as directory:
        forms = {form: _open(form, flags.run_dir, Path(directory) / form) for form in FORMS}
        for size, some in ((BATCH_SIZE, sources), (1, sources[: len(sources) // 8])):
            some = sorted(some, key=len)
            batches = [some[i : i + size] for i in range(0, len(some), size)]
            tasks = {name: _task(translator, batches) for name, translator in forms.items()}
            turns = seconds_in_turns(tasks, flags.turns)
            share = 1 / ratios(turns, "ctranslate2")["saved_model"]
            rates = {n: len(some) / statistics.median(turn[n] for turn in turns) for n in FORMS}
            records.append({"batch": size, "per_s": rates, "over_ctranslate2": share})
            told = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
            print(f"batches of {size}: {told} sentences a second, {share:.2f} of CTranslate2's")
    write_results(flags.output, sentences=len(sources), turns=flags.turns, decoding=records)


def _open(form: str, run_dir: str, path: Path) -> TextTranslator:
    from pipelines.translators.ctranslate2 import CTranslate2Translator
    from pipelines.translators.open import open_translator

    export.main(["--run_dir", run_dir, "--format", form, "--output", str(path)])
    if form == "ctranslate2":
        return CTranslate2Translator(path, threads=1)
    return open_translator(path)


def _task(translator: TextTranslator, batches: Sequence[list[str]]) -> Callable[[], object]:
    return lambda: [translator.translate(batch) for batch in batches]


if __name__ == "__main__":
    run(main)
