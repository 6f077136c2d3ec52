"""Time of relative attention over plain attention's: python -m pipelines.benchmark.attention

Forward and backward pass of one attention core (projected queries, keys and values; both relative
terms), in the shapes of a training step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipelines.benchmark.measuring import ratios, seconds_in_turns, settings_of, write_results
from pipelines.command_line import parse_flags, run
from pipelines.errors import InputError, check_positive

IMPLEMENTATIONS = ("plain", "transpose_reshape", "bucketed")


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    lengths: list[int] = field(default_factory=lambda: [32, 64, 128, 512])
    """T"""
    tokens: int = 4096
    """B times T"""
    num_heads: int = 8
    """N"""
    head_dim: int = 64
    """H"""
    max_relative_position: int = 16
    """k"""
    heads_share_relative_embedding: bool = True
    """one table for all heads, or one for each"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of everything"""
    turns: int = 7
    """times that each contestant runs"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        if not all(1 <= length <= self.tokens for length in self.lengths):
            raise InputError(f"lengths must be from 1 to tokens, {self.tokens}, got {self.lengths}")
        check_positive(self, "num_heads", "head_dim", "max_relative_position")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.attention", arguments)
    from pipelines.importing import load_tensorflow

    load_tensorflow()

    records = []
    for xla in (False, True):
        for length in flags.lengths:
            steps = {name: _step(flags, name, length, xla) for name in IMPLEMENTATIONS}
            over_plain = ratios(seconds_in_turns(steps, flags.turns), "plain")
            records.append({"xla": xla, "T": length, **over_plain})
            columns = "  ".join(f"{name} {ratio:5.2f}" for name, ratio in over_plain.items())
            print(f"{'XLA  ' if xla else 'graph'}  T {length:4}  {columns}", flush=True)
    write_results(flags.output, settings=settings_of(flags), ratios=records)


def _step(
    flags: Benchmark, implementation: str, length: int, xla: bool
) -> Callable[[], list[float]]:
    import tensorflow as tf

    from tf_relpos.relation_ops import relation_scores, relation_values
    from tf_relpos.relations import RelativePositions

    def random(*shape):
        return tf.Variable(tf.cast(tf.random.normal(shape, stddev=0.1), flags.dtype))

    shape = (flags.tokens // length, length, flags.num_heads, flags.head_dim)
    inputs = [random(*shape) for _ in range(3)]
    labels = 2 * flags.max_relative_position + 1
    heads = () if flags.heads_share_relative_embedding else (flags.num_heads,)
    tables = [random(*heads, labels, flags.head_dim) for _ in range(2)]

    def attend():
        query, key, value = inputs
        scores = tf.einsum("btnh,bsnh->bnts", query, key)
        if implementation == "plain":
            return tf.einsum("bnts,bsnh->btnh", tf.nn.softmax(scores), value)
        positions = RelativePositions(length, length, flags.max_relative_position)
        scores += relation_scores(query, positions, tables[0], implementation)
        weights = tf.nn.softmax(scores)
        values = tf.einsum("bnts,bsnh->btnh", weights, value)
        return values + relation_values(weights, positions, tables[1], implementation)

    variables = inputs if implementation == "plain" else inputs + tables

    @tf.function(jit_compile=xla, autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(attend()))
        return [tf.reduce_sum(tf.convert_to_tensor(g)) for g in tape.gradient(loss, variables)]

    return lambda: [float(gradient) for gradient in step()]


if __name__ == "__main__":
    run(main)
