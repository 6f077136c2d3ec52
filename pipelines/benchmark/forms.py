"""Size, speed and BLEU of a model in every form: python -m pipelines.benchmark.forms --run_dir DIR

Each form is exported and then used as people use it, by `pipelines.translate` in a process of its
own. The forms take turns, and the figures are medians over the turns, so that a machine that slows
down or is shared slows all of them. Memory is the most that a process holds which translates all,
on Linux.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, cast

from pipelines.benchmark.measuring import export_silently, write_results
from pipelines.benchmark.peak_memory import check_can_be_measured, peak_megabytes
from pipelines.command_line import run
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError, quoted
from pipelines.exporters.registry import FORMATS
from pipelines.files.markdown import table_of
from pipelines.flag_parser import parse_flags
from pipelines.run.directory import RunDirectory
from pipelines.run.metrics import bleu

# The format and the quantization of a form: "SavedModel", "TFLite float32", "TFLite int8", ...
# A web page translates in a browser; its model is a TFLite file.
FORMS = {
    f"{form.title} {quantization.replace('none', 'float32')}"
    if len(form.quantizations) > 1
    else form.title: (name, quantization)
    for name, form in FORMATS.items()
    if name != "web"
    for quantization in form.quantizations
}


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    run_dir: str
    """the directory of a training run"""
    source: str
    """text to translate, a sentence a line"""
    reference: str
    """its translation"""
    sentences: int = 500
    """of the text; a tenth of them one by one"""
    turns: int = 3
    """times that each form is measured"""
    output: str | None = None
    """a JSON file to write"""


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.forms", arguments)
    sources, references = (
        list(read_lines(path))[: flags.sentences] for path in (flags.source, flags.reference)
    )
    check_can_be_measured()
    if len(sources) < 20:
        raise InputError(f"source must have at least 20 sentences, but {flags.source} has fewer")
    with tempfile.TemporaryDirectory() as directory:
        models = {"run directory": Path(flags.run_dir), **_export(flags.run_dir, Path(directory))}
        measured: dict[str, list] = {name: [] for name in models}
        for turn in range(flags.turns):
            for name, path in models.items():
                measured[name].append(_measure(path, sources))
                print(f"turn {turn + 1} of {flags.turns}: {name}", file=sys.stderr, flush=True)
        sizes = {name: _megabytes(path) for name, path in models.items()}
    keras = measured["run directory"][0]["translations"]
    language = RunDirectory(flags.run_dir).config().corpus.target_language
    records = [
        {
            "form": name,
            "megabytes": sizes[name] if name != "run directory" else None,
            **{
                key: statistics.median(turn[key] for turn in turns)
                for key in ("start_up_s", "per_s_at_1", "per_s_at_32", "memory_megabytes")
            },
            "bleu": bleu(turns[0]["translations"], references, language).score,
            "same": sum(a == b for a, b in zip(turns[0]["translations"], keras, strict=True)),
        }
        for name, turns in measured.items()
    ]
    print(markdown(records, len(sources)), end="")
    write_results(flags.output, sentences=len(sources), turns=flags.turns, forms=records)


def _export(run_dir: str, directory: Path) -> dict[str, Path]:
    paths = {name: directory / name.replace(" ", "_") for name in FORMS}
    for name, (form, quantization) in FORMS.items():
        export_silently(run_dir, form, paths[name], quantization)
    return paths


def _measure(model: Path, sources: Sequence[str]) -> dict:
    """Start-up is from the command to its first translation; the rates are of the others."""
    start_up, per_s_at_1, *_ = _translate(model, sources[: len(sources) // 10], batch=1)
    _, per_s_at_32, memory, translations = _translate(model, sources, batch=32)
    return {
        "start_up_s": start_up,
        "per_s_at_1": per_s_at_1,
        "per_s_at_32": per_s_at_32,
        "memory_megabytes": memory,
        "translations": translations,
    }


def _translate(
    model: Path, sources: Sequence[str], batch: int
) -> tuple[float, float, float, list[str]]:
    """Seconds until the first translation, others a second, megabytes at most, translations."""
    command = [sys.executable, "-m", "pipelines.translate", "--model", model, "--batch", batch]
    first, *others = (f"{source}\n".encode() for source in sources)
    with tempfile.TemporaryFile() as errors, ThreadPoolExecutor() as threads:
        began = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        watched = threads.submit(_watch, process)
        given, printed = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        given.write(first)
        given.flush()
        lines = [printed.readline()]
        answered = time.perf_counter()
        threads.submit(_give, given, others)
        lines += islice(printed, len(others))
        seconds = time.perf_counter() - answered
        memory = watched.result()
        errors.seek(0)
        if process.returncode:
            told = quoted(errors.read().decode(errors="replace").strip())
            raise InputError(f"pipelines.translate failed: {told}")
        translations = [line.decode().removesuffix("\n") for line in lines]
        return answered - began, len(others) / seconds, memory, translations


def _give(pipe: IO[bytes], lines: Sequence[bytes]) -> None:
    with suppress(BrokenPipeError), pipe:  # of a process that has failed
        pipe.writelines(lines)


def _watch(process: subprocess.Popen) -> float:
    """The most megabytes that a process held, when it has ended.

    What the system tells of ended children includes the memory of the parent they were forked from.
    """
    megabytes = 0.0
    while process.poll() is None:
        with suppress(OSError):  # it has just ended
            megabytes = peak_megabytes(process.pid) or megabytes
        time.sleep(0.02)
    return megabytes


def _megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def markdown(records: Sequence[dict], sentences: int) -> str:
    """The table of the forms."""
    heads = ["form", "MB on disk", "MB of memory", "start-up, s", "sentences/s, one by one"]
    heads += ["in batches of 32", "BLEU", "alike"]
    rows = []
    for r in records:
        size = "" if r["megabytes"] is None else f"{r['megabytes']:.1f}"
        speeds = [f"{r[key]:.1f}" for key in ("start_up_s", "per_s_at_1", "per_s_at_32")]
        alike = f"{100 * r['same'] / sentences:.1f}%"
        memory = f"{r['memory_megabytes']:.0f}"
        rows.append([r["form"], size, memory, *speeds, f"{r['bleu']:.2f}", alike])
    return table_of(heads, rows)


if __name__ == "__main__":
    run(main)
