"""Time of a training step by kind of position: python -m pipelines.benchmark.training_step

A whole update of a preset with relative positions over one with sinusoids, as Shaw et al. 2018
compare them in section 3.3: 7% fewer steps per second.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.benchmark.measuring import ratios, seconds_in_turns, settings_of, write_results
from pipelines.command_line import run
from pipelines.config import TrainingConfig, default_config
from pipelines.errors import InputError
from pipelines.flag_parser import parse_flags

CONTESTANTS = ("sinusoidal", "relative")  # positions of `TransformerConfig`


@dataclass(frozen=True)
class Step:
    """An update to measure."""

    preset: str = "base"
    """tiny, base, big, ..."""
    vocabulary_size: int = 32_768
    """V"""
    tokens: int = 4096
    """target tokens in a batch, and as many source tokens"""
    length: int = 32
    """of each side of a pair"""
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "auto"
    """float32, mixed_bfloat16, mixed_float16 or auto"""

    def __post_init__(self):
        default_config(self.preset, demo=False)  # refuses one that there is not
        if not 1 <= self.length <= self.tokens:
            raise InputError(f"length must be from 1 to tokens, {self.tokens}, got {self.length}")


@dataclass(frozen=True)
class Benchmark(Step):
    """What to measure."""

    turns: int = 5
    """times that each contestant takes a step"""
    output: str | None = None
    """a JSON file to write"""


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(
        Benchmark, __doc__, "python -m pipelines.benchmark.training_step", arguments
    )
    from pipelines.importing import load_keras

    load_keras()

    steps = {position: update_of(flags, position) for position in CONTESTANTS}
    turns = seconds_in_turns(steps, flags.turns)
    over_sinusoidal = ratios(turns, "sinusoidal")
    rate = flags.tokens / min(turn["sinusoidal"] for turn in turns)
    print(f"sinusoidal: {rate:,.0f} target tokens a second at best")
    ratio = over_sinusoidal["relative"]
    print(f"relative: {ratio:.3f} times its time, {100 / ratio - 100:+.1f}% steps per second")
    settings = settings_of(flags)
    write_results(flags.output, settings=settings, seconds=turns, ratios=over_sinusoidal)


def update_of(flags: Step, position: str) -> Callable[[], float]:
    """An update of a model with such positions, on the same batch each time; it gives the loss."""
    import tensorflow as tf

    from pipelines.benchmark.synthetic_text import random_batch
    from pipelines.data.buckets import Bucket
    from pipelines.run.models import build_model
    from pipelines.training import devices
    from pipelines.training.adam import Adam
    from pipelines.training.trainer import TranslationTrainer

    training = TrainingConfig(precision=flags.precision)
    preset = default_config(flags.preset, demo=False).model
    config = dataclasses.replace(preset, vocabulary_size=flags.vocabulary_size, position=position)
    dtype = devices.precision(training)
    pairs = flags.tokens // flags.length
    bucket = Bucket(flags.length, flags.length, pairs, flags.tokens, flags.tokens)
    model = build_model(config, dtype=dtype, buckets=[bucket])  # as in training
    trainer = TranslationTrainer(model, longest=flags.length, xla=devices.xla_scope(training))
    trainer.compile(optimizer=Adam(1e-4), jit_compile=False)
    trainer.optimizer.build(model.trainable_variables)
    trainer.make_train_function()
    batch = random_batch(pairs, flags.length, flags.vocabulary_size)
    unknown = {name: tf.TensorSpec([None, None], tf.int32) for name in batch}  # as in training
    dataset = tf.data.Dataset.from_generator(
        lambda: itertools.repeat(batch), output_signature=unknown
    )
    batches = iter(dataset)
    return lambda: float(trainer.train_function(batches)["loss"])


if __name__ == "__main__":
    run(main)
