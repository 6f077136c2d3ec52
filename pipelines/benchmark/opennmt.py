"""Training beside OpenNMT-tf: python -m pipelines.benchmark.opennmt --environment DIR ...

Both train a preset with relative positions from the first update on: the same sentence pairs in the
same subwords, as many of them in a batch (as fit in `tokens_per_replica` ids of the longer side),
the same sizes, dropout, loss and Adam, on the CPU. OpenNMT-tf, which is installed in an environment
of its own, does so in float32, and its heads share their tables of relative positions. Each is a
process of its own, as from its command line, and runs for some updates when it is its turn; the
others stand still, but keep their memory.

What counts are tokens a second, of both sides, with end marks and without padding, by this
process's clock. OpenNMT-tf tells them of each update; ours are those of the pairs that the update
takes. Not counted are the updates before the first turn, the one that a turn begins in the middle
of, and the first of each shape of batch, for which ours compiles. Operations a second are those
that the model needs for so many tokens of this text (`pipelines.benchmark.flops`), and their share
is that of a matrix product in the same precision, measured in each turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.benchmark import opennmt_peer as peer
from pipelines.benchmark.contestants import Contestant, OurTokens, our_command
from pipelines.benchmark.measuring import ratios, settings_of, write_results
from pipelines.benchmark.paused_process import PausedProcess
from pipelines.command_line import run
from pipelines.config import CorpusConfig, RunConfig, default_config
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
from pipelines.importing import load_keras

if TYPE_CHECKING:
    from pipelines.data.preparation import Prepared

PRECISIONS = ("float32", "mixed_bfloat16")


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    source: str
    """text to train on, a sentence a line"""
    target: str
    """its translations, line by line"""
    environment: str
    """where OpenNMT-tf is: a virtual environment, made with 2 GB unless it is there"""
    python: str = "python3.11"
    """the interpreter to make it with, 3.11 at most"""
    preset: str = "tiny"
    """tiny, base, big, ..., of those with relative positions"""
    vocabulary_size: int = 8000
    """V"""
    tokens_per_replica: int = 4096
    """source and target tokens, each, of a batch"""
    precisions: list[str] = field(default_factory=lambda: list(PRECISIONS))
    """of ours: float32, mixed_bfloat16 or both"""
    warm_up: int = 12
    """updates of each before the first turn"""
    updates: int = 20
    """updates of each in a turn that count"""
    turns: int = 3
    """times that each trains"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        names = ("vocabulary_size", "tokens_per_replica", "warm_up", "updates", "turns")
        check_positive(self, *names)
        if not self.precisions or not set(self.precisions) <= set(PRECISIONS):
            raise InputError(
                f"precisions must be of {', '.join(PRECISIONS)}, got {self.precisions}"
            )
        if default_config(self.preset, demo=False).model.position != "relative":
            raise InputError(f"preset must be one with relative positions, got {self.preset}")

    def config(self) -> RunConfig:
        """Of our run: each update is reported, and training ends by itself, if a bit later."""
        preset = default_config(self.preset, demo=False)
        updates = self.warm_up + self.turns * (self.updates + 1) + CorpusConfig.num_shapes
        training = dataclasses.replace(
            preset.training,
            steps=updates,
            tokens_per_replica=self.tokens_per_replica,
            log_every=1,
        )
        model = dataclasses.replace(preset.model, vocabulary_size=self.vocabulary_size)
        corpus = CorpusConfig(train_source=[self.source], train_target=[self.target])
        return dataclasses.replace(preset, model=model, corpus=corpus, training=training)


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.opennmt", arguments)
    config = flags.config()
    config.corpus.corpus()  # is there before minutes of installing
    peer.install(Path(flags.environment), flags.python)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow 2.13 would need a CUDA of its own
    load_keras()
    # Told to end, it ends the trainers, too, by leaving the block.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        prepared = _prepare(config, Path(directory))
        operations = _operations_per_token(prepared, config)
        contestants = _contestants(flags, config, prepared, Path(directory))
        for contestant in contestants:
            stack.enter_context(contestant.process)
            contestant.warm_up(flags.warm_up)
        turns = [_turn(contestants, flags.updates) for _ in range(flags.turns)]
    records = _records(contestants, turns, operations)
    for record in records:
        print(_line(record))
    text = {side: Path(getattr(flags, side)).name for side in ("source", "target")}
    write_results(
        flags.output,
        settings={**settings_of(flags), **text, "environment": None, "python": None},
        versions={name: version(name) for name in ("tensorflow", "keras")},
        versions_of_peer=peer.PACKAGES,
        operations_per_token=operations,
        training=records,
        turns=turns,
    )


def _prepare(config: RunConfig, directory: Path) -> Prepared:
    from pipelines.training.job import prepare_text

    prepared = prepare_text(config, config.corpus.corpus(), directory / "prepared")
    peer.write_files(prepared, config, directory)
    return prepared


def _operations_per_token(prepared: Prepared, config: RunConfig) -> float:
    import numpy as np

    from pipelines.benchmark.flops import flops_of_pairs

    arrays = prepared.train.directory
    lengths = [np.diff(np.load(arrays / f"{side}_offsets.npy")) for side in ("source", "target")]
    return float(flops_of_pairs(config.model, *lengths).sum() / np.sum(lengths))


def _contestants(
    flags: Benchmark, config: RunConfig, prepared: Prepared, directory: Path
) -> list[Contestant]:
    command = peer.command(Path(flags.environment), directory)
    process = PausedProcess(peer.NAME, command, directory)
    contestants = [Contestant(peer.NAME, "float32", process, peer.tokens_of)]
    for precision in flags.precisions:
        name = f"tf_relpos {precision}"
        command = our_command(config, prepared, directory / precision, precision)
        process = PausedProcess(name, command, directory)
        dtype = precision.removeprefix("mixed_")
        contestants.append(Contestant(name, dtype, process, OurTokens(prepared, config)))
    return contestants


def _turn(contestants: Sequence[Contestant], updates: int) -> dict[str, dict[str, float]]:
    from pipelines.benchmark.flops import measured_peak

    precisions = sorted({contestant.precision for contestant in contestants})
    peak = {precision: measured_peak(precision) for precision in precisions}
    rates = {contestant.name: contestant.tokens_per_second(updates) for contestant in contestants}
    print("  ".join(f"{name} {rate:,.0f} tokens/s" for name, rate in rates.items()), flush=True)
    return {"tokens_per_second": rates, "peak": peak}


def _records(
    contestants: Sequence[Contestant], turns: Sequence[dict[str, Any]], operations: float
) -> list[dict[str, Any]]:
    """What to tell of each contestant: medians over the turns."""
    rates = [turn["tokens_per_second"] for turn in turns]
    times = ratios([{name: 1 / rate for name, rate in turn.items()} for turn in rates], peer.NAME)
    records = []
    for contestant in contestants:
        own = [turn[contestant.name] for turn in rates]
        peaks = [turn["peak"][contestant.precision] for turn in turns]
        shares = [operations * rate / peak for rate, peak in zip(own, peaks, strict=True)]
        rate = statistics.median(own)
        records.append(
            {
                "name": contestant.name,
                "tokens_per_second": rate,
                "over_opennmt_tf": 1 / times.get(contestant.name, 1.0),
                "operations_per_second": operations * rate,
                "share_of_peak": statistics.median(shares),
            }
        )
    return records


def _line(record: dict[str, Any]) -> str:
    return (
        f"{record['name']:24} {record['tokens_per_second']:8,.0f} tokens/s  "
        f"{record['over_opennmt_tf']:5.2f} of {peer.NAME}'s  "
        f"{record['operations_per_second'] / 1e9:7.1f} GFLOP/s  "
        f"{record['share_of_peak']:4.0%} of a matrix product's"
    )


if __name__ == "__main__":
    run(main)
