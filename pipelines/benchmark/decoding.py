"""Decoding beside CTranslate2: python -m pipelines.benchmark.decoding --run_dir DIR --source F

The same weights as a SavedModel, as a TFLite file and in CTranslate2, all in this process and with
one thread each, take turns over the same sentences: by batches, sorted by length, and one by one,
as TFLite always does. CTranslate2 searches as all other forms do, with a patience of 2.

The run must have learnt where translations end. Those of one that has not are as long as may be,
and CTranslate2, which has one limit for a batch, searches again what is past its own. How long they
are stands beside the rates, how many of them are those of CTranslate2, and with --reference BLEU.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import sentencepiece

from pipelines.benchmark.measuring import (
    export_silently,
    ratios,
    seconds_in_turns,
    take_one_thread,
    write_results,
)
from pipelines.command_line import run
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
from pipelines.run.directory import RunDirectory
from pipelines.run.metrics import bleu
from pipelines.translators.base import BATCH_SIZE, TextTranslator

FORMS = {BATCH_SIZE: ("ctranslate2", "saved_model"), 1: ("ctranslate2", "saved_model", "tflite")}
IN_BFLOAT16 = "saved_model_bfloat16"


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
    bfloat16: bool = False
    """a SavedModel in bfloat16 as well"""
    reference: str | None = None
    """translations of the text, line by line, to tell BLEU by"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        if self.sentences < 8:
            raise InputError(f"sentences must be at least 8, got {self.sentences}")
        check_positive(self, "turns")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.decoding", arguments)
    sources = list(islice(read_lines(flags.source), flags.sentences))
    if len(sources) < 8:
        raise InputError(
            f"source must have at least 8 sentences, but {flags.source} has {len(sources)}"
        )
    references = list(islice(read_lines(flags.reference), len(sources))) if flags.reference else []
    if flags.reference and len(references) < len(sources):
        raise InputError(
            f"reference must have a line for each of {len(sources)} sentences, but "
            f"{flags.reference} has {len(references)}"
        )
    take_one_thread()
    records = []
    others = (IN_BFLOAT16,) if flags.bfloat16 else ()
    with tempfile.TemporaryDirectory() as directory:
        opened = {
            form: _open(form, flags.run_dir, Path(directory) / form)
            for form in (*FORMS[1], *others)
        }
        subwords = sentencepiece.SentencePieceProcessor(
            model_file=str(RunDirectory(flags.run_dir).tokenizer_path)
        )
        language = RunDirectory(flags.run_dir).config().corpus.target_language
        for size, forms in FORMS.items():
            number = len(sources) if size > 1 else len(sources) // 8
            order = sorted(range(number), key=lambda i: len(sources[i]))
            some = [sources[i] for i in order]
            translators = {form: opened[form] for form in (*forms, *others)}
            record, found = _measure(translators, some, size, flags.turns)
            record["subwords"] = {
                "source": _mean_length(subwords, some),
                "translation": _mean_length(subwords, found["ctranslate2"]),
            }
            if references:
                wanted = [references[i] for i in order]
                record["bleu"] = {
                    form: bleu(texts, wanted, language).score for form, texts in found.items()
                }
            records.append(record)
            print(_lines(record), flush=True)
    write_results(flags.output, sentences=len(sources), turns=flags.turns, decoding=records)


def _open(form: str, run_dir: str, path: Path) -> TextTranslator:
    from pipelines.translators.ctranslate2 import CTranslate2Translator
    from pipelines.translators.saved_model import LoadedModel
    from pipelines.translators.signatures import SignatureTranslator
    from pipelines.translators.tflite import TFLiteTranslator

    if form == IN_BFLOAT16:
        export_silently(run_dir, "saved_model", path, "bfloat16")
    else:
        export_silently(run_dir, form, path)
    if form == "ctranslate2":
        return CTranslate2Translator(path, threads=1)
    if form == "tflite":
        return TFLiteTranslator(path / "model.tflite", threads=1)
    model = LoadedModel(path / "1")
    model.at_once = 1  # batch, which is not divided among the cores
    return SignatureTranslator(model)


def _measure(
    translators: Mapping[str, TextTranslator], sentences: Sequence[str], size: int, turns: int
) -> tuple[dict, dict[str, list[str]]]:
    """The record of a batch size, and the translations of each form."""
    batches = [sentences[i : i + size] for i in range(0, len(sentences), size)]
    found: dict[str, list[str]] = {}

    def translate(form: str) -> None:
        found[form] = [text for batch in batches for text in translators[form].translate(batch)]

    tasks = {form: partial(translate, form) for form in translators}
    seconds = seconds_in_turns(tasks, turns)
    median = {form: statistics.median(turn[form] for turn in seconds) for form in tasks}
    over = ratios(seconds, "ctranslate2")
    theirs = found["ctranslate2"]
    record = {
        "batch": size,
        "sentences": len(sentences),
        "per_s": {form: len(sentences) / median[form] for form in tasks},
        "over_ctranslate2": {form: 1 / ratio for form, ratio in over.items()},
        "same": {
            form: sum(a == b for a, b in zip(found[form], theirs, strict=True)) for form in over
        },
    }
    return record, found


def _mean_length(subwords: sentencepiece.SentencePieceProcessor, texts: Sequence[str]) -> float:
    """In subwords, the end marks included."""
    return statistics.mean(len(ids) + 1 for ids in subwords.encode(list(texts)))


def _lines(record: dict) -> str:
    rates, sentences, lengths = record["per_s"], record["sentences"], record["subwords"]
    return "\n".join(
        [
            f"batches of {record['batch']}: {sentences} sentences of {lengths['source']:.1f} "
            f"subwords, translations of {lengths['translation']:.1f}",
            f"  ctranslate2 {rates['ctranslate2']:.1f} sentences a second",
            *(
                f"  {form} {rates[form]:.1f}, {share:.2f} of that, "
                f"{record['same'][form]} of {sentences} translations the same"
                for form, share in record["over_ctranslate2"].items()
            ),
            *(f"  {form} BLEU {score:.2f}" for form, score in record.get("bleu", {}).items()),
        ]
    )


if __name__ == "__main__":
    run(main)
