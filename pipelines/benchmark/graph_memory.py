"""Memory of attention with labels of each sentence: python -m pipelines.benchmark.graph_memory

`RelationAwareAttention` with labels `[B, T, T]` beside Keras's layer, in a graph, forward and, for
training, backward: how much more memory the process has held at its peak than before, in a process
of its own for each number. Linux alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.benchmark.measuring import forward_and_backward, settings_of, write_results
from pipelines.benchmark.peak_memory import check_can_be_measured, in_a_process, megabytes_more
from pipelines.command_line import run
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags

LAYERS = ("keras", "bucketed", "transpose_reshape")


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    batch: int = 16
    """B"""
    length: int = 512
    """T"""
    num_relations: int = 100
    """R"""
    num_heads: int = 8
    """N"""
    head_dim: int = 64
    """H"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        check_positive(self, "batch", "length", "num_relations", "num_heads", "head_dim")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.graph_memory", arguments)
    check_can_be_measured()
    pairs = flags.batch * flags.length**2 * 4 / 1e6
    sizes = {
        "[B, N, T, T]": pairs * flags.num_heads,
        "[B, T, T, H]": pairs * flags.head_dim,
        "[B, T, T, R]": pairs * flags.num_relations,
    }
    for name, size in sizes.items():
        print(f"one {name} of float32 would take {size:6.0f} MB")
    records = []
    for training in (False, True):
        megabytes = {
            name: in_a_process(measured, name, training, settings_of(flags)) for name in LAYERS
        }
        records.append({"training": training, **megabytes})
        columns = "  ".join(f"{name} {size:6.0f} MB" for name, size in megabytes.items())
        print(f"{'training' if training else 'forward '}  {columns}", flush=True)
    write_results(flags.output, settings=settings_of(flags), one_tensor=sizes, memory=records)


def measured(name: str, training: bool, settings: dict[str, int]) -> float:
    """What the process has held more at its peak, after a call than before."""
    import keras
    import tensorflow as tf

    from tf_relpos import RelationAwareAttention

    B, T, R, N, H = settings.values()
    more = {}
    if name == "keras":
        layer = keras.layers.MultiHeadAttention(N, H)
    else:
        layer = RelationAwareAttention(N, H, R, implementation=name)
    x = tf.random.normal((B, T, N * H))
    if name != "keras":
        more["relations"] = tf.random.uniform((B, T, T), -1, R, tf.int32)
    layer.build(x.shape, x.shape)

    def attend(x, more):
        return layer(x, x, training=training, **more)

    step = forward_and_backward(attend, layer.trainable_variables) if training else attend
    call = tf.function(step, autograph=False)
    # What a first call takes beside is not counted: a short one comes before it.
    call(x[:, :9], {name: labels[:, :9, :9] for name, labels in more.items()})
    graph = call.get_concrete_function(x, more)
    return megabytes_more(lambda: graph(x, more))


if __name__ == "__main__":
    run(main)
