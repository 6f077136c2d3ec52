"""Memory, time and disk of preparing and reading a corpus: python -m pipelines.benchmark.data

Made-up text is prepared by `pipelines.prepare` in a process of its own, and read as training reads
it in others. The memory that counts is the anonymous one (RssAnon): a process's resident set also
has the pages of the files that it maps, which the system takes back when it needs them. Rates are
given by CPU second beside those by the clock; on a machine that others share, shown by the load
average, both are too low.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.benchmark.measuring import write_results
from pipelines.benchmark.synthetic_text import write_parallel_text
from pipelines.command_line import run
from pipelines.data.dataset import TokenizedCorpus
from pipelines.errors import InputError
from pipelines.flag_parser import parse_flags

TOKENS_PER_REPLICA = 4096
READINGS = ((0, False), (0, True), (4_000_000, True))  # first step, files in the page cache
_SECONDS_BETWEEN_SAMPLES = 0.1


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    pairs: list[int]
    """sizes of the corpora, such as 250000 5000000"""
    directory: str | None = None
    """where text and arrays lie meanwhile, 300 bytes a pair; among temporary files unless given"""
    vocabulary_size: int = 32_768
    """subwords to learn"""
    seconds: float = 10.0
    """how long to read training batches, each time"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        if not all(pairs >= 1 for pairs in self.pairs):
            raise InputError(f"pairs must be at least 1, got {self.pairs}")
        needed = [self.directory, self.output and (os.path.dirname(self.output) or ".")]
        for directory in filter(None, needed):
            if not os.path.isdir(directory):
                raise InputError(
                    f"directory and output need directories that exist, not {directory}"
                )


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.data", arguments)
    records = [_measure(flags, pairs) for pairs in flags.pairs]
    write_results(flags.output, corpora=records)


def _measure(flags: Benchmark, pairs: int) -> dict:
    with tempfile.TemporaryDirectory(dir=flags.directory) as scratch:
        text = write_parallel_text(Path(scratch), pairs)
        arrays = Path(scratch) / "prepared"
        prepared = _prepare(text, arrays, flags.vocabulary_size)
        text_bytes = sum(path.stat().st_size for path in text)
        record: dict[str, Any] = {
            "pairs": pairs,
            "text_bytes": text_bytes,
            "prepare": prepared,
            "read": [],
        }
        print(json.dumps(record), flush=True)
        for first_step, cached in READINGS:
            if not cached:
                _drop_from_page_cache(arrays / "train")
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=spawn) as process:
                read = process.submit(_read, arrays, first_step, flags.seconds).result()
            record["read"].append({"first_step": first_step, "from_page_cache": cached, **read})
            print(json.dumps(record["read"][-1]), flush=True)
        record["load_average"] = [round(load, 1) for load in os.getloadavg()]
        return record


def _prepare(text: Sequence[Path], directory: Path, vocabulary_size: int) -> dict:
    """Runs `pipelines.prepare` and looks at it from outside."""
    flags = ["--train_source", text[0], "--train_target", text[1], "--output", directory]
    flags += ["--vocabulary_size", str(vocabulary_size)]
    command = [sys.executable, "-m", "pipelines.prepare", *map(str, flags)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    phases = _watch(process, directory)
    if process.returncode:
        raise InputError(f"pipelines.prepare failed with exit status {process.returncode}")

    metadata = json.loads((directory / "train" / "metadata.json").read_text(encoding="utf-8"))
    tokens = metadata["source_tokens"] + metadata["target_tokens"]
    seconds = sum(phase["seconds"] for phase in phases.values())
    disk = sum(path.stat().st_size for path in (directory / "train").iterdir())
    tokenizing = phases.get("tokenizing", {}).get("cpu_seconds")  # none if over between two samples
    began = time.monotonic()
    TokenizedCorpus.open(directory / "train").verify()
    verify_seconds = time.monotonic() - began
    return {
        "minutes": round(seconds / 60, 2),
        "cpu_minutes": round(sum(phase["cpu_seconds"] for phase in phases.values()) / 60, 2),
        "pairs_per_second": round(metadata["pairs"] / seconds),
        "tokens": tokens,
        "tokens_per_cpu_second": round(tokens / tokenizing) if tokenizing else None,
        "disk_bytes_per_pair": round(disk / metadata["pairs"], 1),
        "verify_seconds": round(verify_seconds, 2),
        "dropped": metadata["dropped"],
        "phases": {
            name: {field: round(value, 1) for field, value in phase.items()}
            for name, phase in phases.items()
        },
    }


def _watch(process: subprocess.Popen, directory: Path) -> dict[str, dict[str, float]]:
    """Time and memory of each phase of a preparation, until it ends."""
    phases: dict[str, dict[str, float]] = {}
    began, cpu_began = time.monotonic(), 0.0
    while process.poll() is None:
        time.sleep(_SECONDS_BETWEEN_SAMPLES)
        try:
            memory, cpu = _memory(process.pid), _cpu_seconds(process.pid)
        except (OSError, KeyError):  # it has ended just now
            continue
        now = time.monotonic()
        phase = phases.setdefault(_phase(directory), {"seconds": 0.0, "cpu_seconds": 0.0})
        phase["seconds"] += now - began
        phase["cpu_seconds"] += cpu - cpu_began
        for name, megabytes in memory.items():
            phase[f"peak_{name}_mb"] = max(phase.get(f"peak_{name}_mb", 0), megabytes)
        phase.setdefault("first_anonymous_mb", memory["anonymous"])
        phase["last_anonymous_mb"] = memory["anonymous"]
        began, cpu_began = now, cpu
    return phases


def _phase(directory: Path) -> str:
    """What a preparation is at, by the files that are there."""
    for phase, name in (("sorting", "pairs.npy"), ("tokenizing", "tokenizer.model")):
        if any(directory.rglob(name)):  # in a hidden directory, until all is there
            return phase
    return "learning subwords"


def _read(directory: Path, first_step: int, seconds: float) -> dict:
    """Reads training batches for some seconds; the first one by itself, as after resuming."""
    from pipelines.importing import load_keras

    load_keras()
    from pipelines.data.buckets import batch_sizes
    from pipelines.data.epoch_plan import EpochPlan
    from pipelines.data.input import training_dataset

    before = _memory(os.getpid())
    began, cpu_began = time.monotonic(), time.process_time()
    corpus = TokenizedCorpus.open(directory / "train")
    plan = EpochPlan(
        corpus.pairs_per_bucket, batch_sizes(corpus.buckets, TOKENS_PER_REPLICA, 1), seed=1
    )
    dataset = training_dataset(corpus, plan, first_step=first_step, num_steps=10**9)
    batches = dataset.as_numpy_iterator()
    next(batches)
    first_batch, first_batch_cpu = time.monotonic() - began, time.process_time() - cpu_began

    began, cpu_began = time.monotonic(), time.process_time()
    steps = tokens = 0
    peak = _memory(os.getpid())
    while time.monotonic() - began < seconds:
        batch = next(batches)
        steps += 1
        tokens += int((batch["source_ids"] != 0).sum() + (batch["labels"] != 0).sum())
        if steps % 100 == 0:
            now = _memory(os.getpid())
            peak = {name: max(peak[name], now[name]) for name in peak}
    elapsed, cpu = time.monotonic() - began, time.process_time() - cpu_began
    return {
        "first_batch_seconds": round(first_batch, 2),
        "first_batch_cpu_seconds": round(first_batch_cpu, 2),
        "steps": steps,
        "tokens_per_second": round(tokens / elapsed),
        "tokens_per_cpu_second": round(tokens / cpu),
        "anonymous_mb_before": before["anonymous"],
        **{f"peak_{name}_mb": megabytes for name, megabytes in peak.items()},
    }


def _drop_from_page_cache(directory: Path) -> None:
    """Makes the next reader wait for the disk, as where a corpus is larger than the memory."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _memory(pid: int) -> dict[str, float]:
    """Megabytes that a process has in memory now: all of them, its own, and of mapped files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    names = {"resident": "VmRSS", "anonymous": "RssAnon", "mapped": "RssFile"}
    return {name: int(kilobytes[field][0]) // 1000 for name, field in names.items()}


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run(main)
