"""Decoding beside CTranslate2: python -m pipelines.benchmark.decoding --run_dir DIR --source F

The same weights as a SavedModel, as a TFLite file and in CTranslate2, all in this process and with
one thread each, take turns over the same sentences: by batches, sorted by length, and one by one,
as TFLite always does. CTranslate2 searches as all other forms do, with a patience of 2.
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

FORMS = {BATCH_SIZE: ("ctranslate2", "saved_model"), 1: ("ctranslate2", "saved_model", "tflite")}


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
        opened = {form: _open(form, flags.run_dir, Path(directory) / form) for form in FORMS[1]}
        for size, forms in FORMS.items():
            some = sorted(sources if size > 1 else sources[: len(sources) // 8], key=len)
            batches = [some[i : i + size] for i in range(0, len(some), size)]
            tasks = {form: _task(opened[form], batches) for form in forms}
            turns = seconds_in_turns(tasks, flags.turns)
            rates = {f: len(some) / statistics.median(turn[f] for turn in turns) for f in forms}
            shares = {form: 1 / ratio for form, ratio in ratios(turns, "ctranslate2").items()}
            records.append({"batch": size, "per_s": rates, "over_ctranslate2": shares})
            print(f"batches of {size}: ctranslate2 {rates['ctranslate2']:.1f} sentences a second")
            for form, share in shares.items():
                print(f"  {form} {rates[form]:.1f}, {share:.2f} of that")
    write_results(flags.output, sentences=len(sources), turns=flags.turns, decoding=records)


def _open(form: str, run_dir: str, path: Path) -> TextTranslator:
    from pipelines.translators.ctranslate2 import CTranslate2Translator
    from pipelines.translators.open import open_translator
    from pipelines.translators.tflite import TFLiteTranslator

    export.main(["--run_dir", run_dir, "--format", form, "--output", str(path)])
    if form == "ctranslate2":
        return CTranslate2Translator(path, threads=1)
    if form == "tflite":
        return TFLiteTranslator(path / "model.tflite", threads=1)
    return open_translator(path)


def _task(translator: TextTranslator, batches: Sequence[list[str]]) -> Callable[[], object]:
    return lambda: [translator.translate(batch) for batch in batches]


if __name__ == "__main__":
    run(main)
