"""Time and memory of an update on a GPU: python -m pipelines.benchmark.gpu_training_step

A whole update of a preset with relative positions over one with sinusoids, in mixed bfloat16,
compiled by XLA through Keras's JAX backend (section 3.3 of Shaw et al. 2018: 7% fewer steps per
second).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pipelines.benchmark.flops import flops_of_pairs
from pipelines.benchmark.measuring import ratios, seconds_in_turns, settings_of, write_results
from pipelines.benchmark.training_step import CONTESTANTS
from pipelines.command_line import run
from pipelines.config import default_config
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
from pipelines.importing import load_jax
from tf_relpos.config import TransformerConfig

if TYPE_CHECKING:
    from pipelines.benchmark.jax_steps import Training


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    presets: list[str] = field(default_factory=lambda: ["base", "big"])
    """base, big, tiny, ..."""
    vocabulary_size: int = 32_768
    """V"""
    tokens: int = 16_384
    """target tokens in a batch, and as many source tokens"""
    length: int = 64
    """of each side of a pair"""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "mixed_bfloat16"
    """float32, mixed_bfloat16 or mixed_float16"""
    calls: int = 10
    """updates of a contestant in each turn"""
    turns: int = 7
    """times that each contestant runs"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self) -> None:
        for preset in self.presets:
            default_config(preset, demo=False)  # refuses one that there is not
        check_positive(self, "calls", "turns")
        if not 1 <= self.length <= self.tokens:
            raise InputError(f"length must be from 1 to tokens, {self.tokens}, got {self.length}")


def main(arguments: Sequence[str]) -> None:
    command = "python -m pipelines.benchmark.gpu_training_step"
    flags = parse_flags(Benchmark, __doc__, command, arguments)
    load_jax()
    from pipelines.benchmark.jax_steps import device, product_peak

    peak = product_peak(flags.precision.removeprefix("mixed_"))
    records: list[dict[str, Any]] = []
    for preset in flags.presets:
        record = {"preset": preset, **_measured(flags, preset)}
        record["share_of_peak"] = record["operations_per_second"] / peak
        records.append(record)
        sizes = "  ".join(f"{name} {size:,.0f} MB" for name, size in record["megabytes"].items())
        print(
            f"{preset}: relative {record['tokens_per_second']:,.0f} target tokens a second, "
            f"{record['share_of_peak']:.0%} of a matrix product's operations, "
            f"{record['over_sinusoidal']['relative']:.3f} times sinusoidal's time; {sizes}",
            flush=True,
        )
        write_results(
            flags.output, device(), settings=settings_of(flags), peak=peak, training=records
        )


def _measured(flags: Benchmark, preset: str) -> dict[str, Any]:
    import jax
    import numpy as np

    from pipelines.benchmark.jax_steps import compiled_together, megabytes_of, repeated
    from pipelines.benchmark.synthetic_text import random_batch

    pairs = flags.tokens // flags.length
    batch = random_batch(pairs, flags.length, flags.vocabulary_size)
    batch = jax.device_put(batch)
    trainings = {position: _training(flags, preset, position) for position in CONTESTANTS}
    compiled = compiled_together({n: (t.update, (t.state, batch)) for n, t in trainings.items()})
    for name, training in trainings.items():
        training.update = compiled[name]
    contestants = {
        name: repeated(functools.partial(training, batch), flags.calls)
        for name, training in trainings.items()
    }
    turns = seconds_in_turns(contestants, flags.turns)
    best = {name: min(turn[name] for turn in turns) / flags.calls for name in contestants}
    config = trainings["relative"].model.config
    operations = flops_of_pairs(config, *np.full((2, pairs), flags.length)).sum()
    return {
        "over_sinusoidal": ratios(turns, "sinusoidal"),
        "seconds": best,
        "tokens_per_second": pairs * flags.length / best["relative"],
        "operations_per_second": operations / best["relative"],
        "megabytes": {name: megabytes_of(executable) for name, executable in compiled.items()},
    }


def _training(flags: Benchmark, preset: str, position: str) -> Training:
    import keras

    from pipelines.benchmark.jax_steps import Training
    from tf_relpos import Transformer

    config = TransformerConfig.preset(
        preset, vocabulary_size=flags.vocabulary_size, position=position
    )
    model = Transformer(config, dtype=flags.precision)
    model.build()
    return Training(model, keras.optimizers.Adam(1e-4))


if __name__ == "__main__":
    run(main)
