"""Memory of relative attention beside Keras's layer: python -m pipelines.benchmark.memory

The whole layer on one sequence, forward and, for training, backward: how much more memory the
process has held at its peak than before, in a process of its own for each number. Linux alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.benchmark.measuring import forward_and_backward, settings_of, write_results
from pipelines.benchmark.peak_memory import check_can_be_measured, in_a_process, megabytes_more
from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags

if TYPE_CHECKING:
    import keras

LAYERS = ("keras", "relative")
MODES = ("eager", "graph", "unknown lengths")


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    lengths: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096])
    """T"""
    num_heads: int = 8
    """N"""
    head_dim: int = 64
    """H"""
    max_relative_position: int = 16
    """k"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        check_positive(self, "num_heads", "head_dim", "max_relative_position")
        if not all(length >= 2 for length in self.lengths):
            raise InputError(f"lengths must be at least 2, got {self.lengths}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.memory", arguments)
    check_can_be_measured()
    sizes = (flags.num_heads, flags.head_dim, flags.max_relative_position)
    records = []
    for training in (False, True):
        for mode in MODES:
            for length in flags.lengths:
                megabytes = {
                    name: in_a_process(measured, name, length, mode, training, *sizes)
                    for name in LAYERS
                }
                ratio = megabytes["relative"] / max(megabytes["keras"], 0.1)
                records.append(
                    {"training": training, "mode": mode, "T": length, **megabytes, "ratio": ratio}
                )
                columns = "  ".join(f"{name} {size:6.0f} MB" for name, size in megabytes.items())
                pass_ = "training" if training else "forward "
                print(f"{pass_}  {mode:15}  T {length:4}  {columns}  {ratio:.2f}", flush=True)
    write_results(flags.output, settings=settings_of(flags), memory=records)


def measured(
    name: str, length: int, mode: str, training: bool, num_heads: int, head_dim: int, k: int
) -> float:
    """What the process has held more at its peak, after a call of a layer than before."""
    import keras

    from tf_relpos import RelativeMultiHeadAttention

    if name == "keras":
        layer = keras.layers.MultiHeadAttention(num_heads, head_dim)
    else:
        layer = RelativeMultiHeadAttention(num_heads, head_dim, k)
    return megabytes_of(layer, length, mode, training, head_dim)


def megabytes_of(
    layer: keras.Layer, length: int, mode: str, training: bool, head_dim: int
) -> float:
    """The same, of a layer that has not been built."""
    import tensorflow as tf

    x = tf.random.normal((1, length, head_dim))
    layer.build(x.shape, x.shape)

    def attend(x):
        return layer(x, x, training=training)

    step = forward_and_backward(attend, layer.trainable_variables) if training else attend
    lengths = None if mode == "unknown lengths" else length
    signature = [tf.TensorSpec((1, lengths, head_dim))]
    graph = tf.function(step, input_signature=signature, autograph=False)
    call = step if mode == "eager" else graph.get_concrete_function()
    # What a first call takes beside is not counted: short ones come before it, of which one is
    # long enough for blocks of queries.
    for short in (9, 272):
        (tf.function(step) if mode == "graph" else call)(x[:, :short])
    return megabytes_more(lambda: call(x))


if __name__ == "__main__":
    run(main)
