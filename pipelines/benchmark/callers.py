"""Several callers of one SavedModel: python -m pipelines.benchmark.callers --run_dir DIR --source F

Each caller sends a sentence, waits for its translation and sends another, until all sentences are
translated. Calls go straight to the signature, or are gathered into batches by `BatchFunction`,
which has the scheduler and the settings of TensorFlow Serving's `--enable_batching`. The two take
turns in this process, with one thread for each operation.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
from pipelines.importing import silence

if TYPE_CHECKING:
    import tensorflow as tf

    Translate = Callable[[tf.Tensor], Mapping[str, tf.Tensor]]  # of texts [B], to outputs [B]


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    run_dir: str
    """the directory of a training run"""
    source: str
    """text to translate, a sentence a line"""
    callers: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 32])
    """how many there are at a time"""
    sentences: int = 128
    """of the text, among which the callers share"""
    max_batch_size: int = 32
    """sentences in a batch"""
    batch_timeout_micros: int = 5000
    """how long a sentence waits for others"""
    num_batch_threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    """batches that are translated at a time; unless given, as many as there are cores"""
    turns: int = 5
    """times that the sentences are translated in either way"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        check_positive(self, "sentences", "max_batch_size", "num_batch_threads", "turns")
        if not all(1 <= number <= self.sentences for number in self.callers):
            raise InputError(
                f"callers must be from 1 to sentences, {self.sentences}, got {self.callers}"
            )
        if self.batch_timeout_micros < 0:
            raise InputError(
                f"batch_timeout_micros must be at least 0, got {self.batch_timeout_micros}"
            )


class Answer(NamedTuple):
    """What a caller gets.

    Attributes:
        translation: UTF-8.
        seconds: until it was there.
        batch: sentences that were translated with it, itself included.
    """

    translation: bytes
    seconds: float
    batch: int


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.callers", arguments)
    sentences = list(islice(read_lines(flags.source), flags.sentences))
    if len(sentences) < flags.sentences:
        raise InputError(
            f"source must have {flags.sentences} sentences, but {flags.source} has {len(sentences)}"
        )
    take_one_thread(operations_at_once=0)
    with tempfile.TemporaryDirectory() as directory:
        straight = _exported(flags.run_dir, Path(directory))
        ways = {"straight": straight, "gathered": gathered(straight, flags)}
        alone = [answer.translation for answer in Callers(1, straight, sentences)()]
        records = []
        for number in flags.callers:
            contestants = {way: Callers(number, ways[way], sentences) for way in ways}
            records.append({"callers": number, **_measure(contestants, alone, flags.turns)})
            print(_lines(records[-1], len(sentences)), flush=True)
    write_results(
        flags.output,
        sentences=flags.sentences,
        max_batch_size=flags.max_batch_size,
        batch_timeout_micros=flags.batch_timeout_micros,
        num_batch_threads=flags.num_batch_threads,
        turns=flags.turns,
        callers=records,
    )


def _exported(run_dir: str, directory: Path) -> Translate:
    """The signature of a run's SavedModel."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  the graph holds its operations

    export_silently(run_dir, "saved_model", directory)
    with silence():
        model = tf.saved_model.load(str(directory / "1"))
    return lambda text: model.signatures["serving_default"](text=text)


def gathered(translate: Translate, flags: Benchmark) -> Translate:
    """The function behind a scheduler that joins the texts of several calls, and takes the outputs
    apart again; another output, `batch`, is how many there were together."""
    import tensorflow as tf

    @tf.nondifferentiable_batch_function(
        flags.num_batch_threads,
        flags.max_batch_size,
        flags.batch_timeout_micros,
        max_enqueued_batches=max(flags.callers),  # none is refused
        autograph=False,
        enable_large_batch_splitting=False,
    )
    def batch(text: tf.Tensor) -> dict[str, tf.Tensor]:
        return {**translate(text), "batch": tf.fill(tf.shape(text), tf.size(text))}

    # Traced here and now: callers who all come first would trace it each.
    text = tf.TensorSpec([None], tf.string)
    return tf.function(batch, autograph=False).get_concrete_function(text)


class Callers:
    """Several at the same time, who share the sentences; a call is a turn.

    Args:
        number: of callers.
        translate: what they call.
        sentences: all that they send in a turn.

    Attributes:
        turns: the answers of each turn so far, in the order of the sentences.
    """

    def __init__(self, number: int, translate: Translate, sentences: Sequence[str]):
        self.turns: list[list[Answer]] = []
        self._number = number
        self._translate = translate
        self._sentences = sentences

    def __call__(self) -> list[Answer]:
        with ThreadPoolExecutor(self._number) as callers:
            self.turns.append(list(callers.map(self._ask, self._sentences)))
        return self.turns[-1]

    def _ask(self, sentence: str) -> Answer:
        import tensorflow as tf

        began = time.perf_counter()
        outputs = self._translate(tf.constant([sentence]))
        (translation,) = outputs["translation"].numpy()
        seconds = time.perf_counter() - began
        return Answer(translation, seconds, int(outputs["batch"][0]) if "batch" in outputs else 1)


def _measure(contestants: Mapping[str, Callers], alone: Sequence[bytes], turns: int) -> dict:
    seconds = seconds_in_turns(contestants, turns)
    record: dict = {}
    for way, callers in contestants.items():
        # The first turn does not count for anything but the translations.
        answers = [answer for turn in callers.turns[1:] for answer in turn]
        median, most = np.percentile([1000 * answer.seconds for answer in answers], [50, 95])
        record[way] = {
            "per_s": len(alone) / statistics.median(turn[way] for turn in seconds),
            "median_ms": float(median),
            "percentile_95_ms": float(most),
            "batch": len(answers) / sum(1 / answer.batch for answer in answers),
            "same": sum(
                {answer.translation for answer in found} == {own}
                for own, *found in zip(alone, *callers.turns, strict=True)
            ),
        }
    record["gathered_over_straight"] = 1 / ratios(seconds, "straight")["gathered"]
    return record


def _lines(record: dict, sentences: int) -> str:
    lines = [f"callers {record['callers']}"]
    for way in ("straight", "gathered"):
        found = record[way]
        lines.append(
            f"  {way} {found['per_s']:.1f} sentences a second, in batches of {found['batch']:.1f}; "
            f"median {found['median_ms']:.0f} ms, 95% within {found['percentile_95_ms']:.0f} ms; "
            f"{found['same']} of {sentences} as alone"
        )
    return "\n".join([*lines, f"  gathered {record['gathered_over_straight']:.2f} of straight"])


if __name__ == "__main__":
    run(main)
