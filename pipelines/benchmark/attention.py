"""Time of relative attention over plain attention's: python -m pipelines.benchmark.attention

Forward and backward pass in the shapes of a training step, in graphs and under XLA: the attention
core (projected queries, keys and values; both relative terms), by implementation, over products and
softmax alone; and the whole layer, with its projections, over `keras.layers.MultiHeadAttention`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pipelines.benchmark.measuring import (
    compiled_step,
    ratios,
    seconds_in_turns,
    settings_of,
    write_results,
)
from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.files.markdown import table_of
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
from tf_relpos.config import IMPLEMENTATIONS

if TYPE_CHECKING:
    from tensorflow import Tensor

_TABLES = {"shared": True, "per head": False}
_MODES = {"graph": False, "XLA": True}


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    lengths: list[int] = field(default_factory=lambda: [32, 64, 128, 256, 512, 1024, 2048, 4096])
    """T"""
    tokens: int = 4096
    """B times T"""
    num_heads: int = 8
    """N"""
    head_dim: int = 64
    """H"""
    max_relative_positions: list[int] = field(default_factory=lambda: [8, 16, 64])
    """k"""
    tables: list[str] = field(default_factory=lambda: [*_TABLES])
    """of relative positions: shared by the heads, per head"""
    modes: list[str] = field(default_factory=lambda: [*_MODES])
    """how it is compiled: graph, XLA"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of everything but the softmax, which is float32"""
    turns: int = 7
    """times that each contestant runs"""
    memory_limit: float = 12.0
    """GiB; the paper's form is left out where its vectors of all pairs take more"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        if not all(1 <= length <= self.tokens for length in self.lengths):
            raise InputError(f"lengths must be from 1 to tokens, {self.tokens}, got {self.lengths}")
        check_positive(self, "num_heads", "head_dim")
        if not self.memory_limit > 0:
            raise InputError(f"memory_limit must be above 0, got {self.memory_limit}")
        if not all(k >= 1 for k in self.max_relative_positions):
            raise InputError(
                f"max_relative_positions must be at least 1, got {self.max_relative_positions}"
            )
        for flag, names, known in (("tables", self.tables, _TABLES), ("modes", self.modes, _MODES)):
            for name in names:
                if name not in known:
                    raise InputError(f"{flag} must be of {', '.join(known)}, got {name}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.attention", arguments)
    from pipelines.importing import load_keras

    load_keras()

    records = []
    for point in _points(flags):
        record = {
            **point,
            "over_plain": _attention_core(flags, **point),
            "over_keras": _layer(flags, **point),
        }
        records.append(record)
        columns = "  ".join(f"{name} {ratio:5.2f}" for name, ratio in record["over_plain"].items())
        if "transpose_reshape" not in record["over_plain"]:
            columns += f"  transpose_reshape left out, over {flags.memory_limit:g} GiB"
        where = f"{'XLA  ' if point['xla'] else 'graph'}  {point['table']:8}  k {point['k']:3}"
        print(f"{where}  T {point['T']:4}  {columns}  layer {record['over_keras']:.2f}", flush=True)
        write_results(flags.output, settings=settings_of(flags), ratios=records)


def markdown(results: Mapping[str, Any]) -> str:
    """`auto` over plain attention, and the whole layer over Keras's, by k and length."""
    by_place = {(r["xla"], r["table"], r["k"], r["T"]): r for r in results["ratios"]}
    columns = list(dict.fromkeys((xla, table) for xla, table, _, _ in by_place))
    names = [f"{table}{', XLA' if xla else ''}" for xla, table in columns]
    head = ["k", "T", *(f"core, {name}" for name in names), *(f"layer, {name}" for name in names)]
    rows = []
    for k, length in sorted({(k, length) for _, _, k, length in by_place}):
        records = [by_place[(*column, k, length)] for column in columns]
        core = [f"{record['over_plain']['auto']:.2f}" for record in records]
        layer = [f"{record['over_keras']:.2f}" for record in records]
        rows.append([str(k), f"{length:,}", *core, *layer])
    return table_of(head, rows)


def share_of_best(results: Mapping[str, Any]) -> float:
    """At which share of the points `auto` takes at most 1.1 times the time of the fastest."""
    ratios_ = [record["over_plain"] for record in results["ratios"]]
    return sum(r["auto"] <= 1.1 * min(r.values()) for r in ratios_) / len(ratios_)


def _points(flags: Benchmark) -> Iterator[dict[str, Any]]:
    places = itertools.product(
        flags.modes, flags.tables, flags.max_relative_positions, flags.lengths
    )
    for mode, table, k, length in places:
        yield {"xla": _MODES[mode], "table": table, "k": k, "T": length}


def _attention_core(flags: Benchmark, xla: bool, table: str, k: int, T: int) -> dict[str, float]:
    """Time of each implementation over that of plain attention."""
    import tensorflow as tf

    shape = (flags.tokens // T, T, flags.num_heads, flags.head_dim)
    query, key, value = inputs = [_random(shape, flags.dtype) for _ in range(3)]

    def plain() -> Tensor:
        q, k, v = (
            tf.transpose(x, (0, 2, 1, 3)) for x in (query * flags.head_dim**-0.5, key, value)
        )
        scores = tf.cast(tf.matmul(q, k, transpose_b=True), tf.float32)
        weights = tf.cast(tf.nn.softmax(scores), flags.dtype)
        return tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3))

    contestants = {"plain": compiled_step(plain, inputs, xla)}
    too_large = _paper_form_gib(flags, table, T) > flags.memory_limit
    for implementation in IMPLEMENTATIONS:
        if too_large and implementation == "transpose_reshape":
            continue
        layer = _built(flags, table, k, T, implementation)
        tables = [layer.relation_key_embeddings, layer.relation_value_embeddings]
        variables = [*inputs, *(table.value for table in tables)]
        contestants[implementation] = compiled_step(_attend(layer, inputs), variables, xla)
    return ratios(seconds_in_turns(contestants, flags.turns), "plain")


def _paper_form_gib(flags: Benchmark, table: str, T: int) -> float:
    """`a^K` and `a^V` of all pairs and their gradients, each `[T, T, H]` or `[N, T, T, H]`."""
    tables = 1 if _TABLES[table] else flags.num_heads
    itemsize = {"float32": 4, "bfloat16": 6}[flags.dtype]  # which is float32 in between
    return 4 * tables * T * T * flags.head_dim * itemsize / 2**30


def _attend(layer: Any, inputs: Sequence[Tensor]) -> Callable[[], Tensor]:
    return lambda: layer._compute_attention(*inputs, training=True)[0]


def _layer(flags: Benchmark, xla: bool, table: str, k: int, T: int) -> float:
    """Time of the whole layer over that of Keras's."""
    import keras

    x = _random((flags.tokens // T, T, flags.num_heads * flags.head_dim), flags.dtype)
    layers: Mapping[str, Any] = {
        "keras": keras.layers.MultiHeadAttention(
            flags.num_heads, flags.head_dim, dtype=flags.dtype
        ),
        "relative": _built(flags, table, k, T, "auto"),
    }
    layers["keras"].build(x.shape, x.shape)

    def call(layer: Any) -> Callable[[], Tensor]:
        return lambda: layer(x, x, training=True)

    contestants = {
        name: compiled_step(call(layer), [x, *(v.value for v in layer.trainable_variables)], xla)
        for name, layer in layers.items()
    }
    return ratios(seconds_in_turns(contestants, flags.turns), "keras")["relative"]


def _built(flags: Benchmark, table: str, k: int, T: int, implementation: str) -> Any:
    from tf_relpos import RelativeMultiHeadAttention

    layer = RelativeMultiHeadAttention(
        flags.num_heads,
        flags.head_dim,
        k,
        heads_share_relative_embedding=_TABLES[table],
        implementation=implementation,
        dtype=flags.dtype,
    )
    shape = (flags.tokens // T, T, flags.num_heads * flags.head_dim)
    layer.build(shape, shape)
    return layer


def _random(shape: Sequence[int], dtype: str) -> Any:
    import tensorflow as tf

    return tf.Variable(tf.cast(tf.random.normal(shape, stddev=0.1), dtype))


if __name__ == "__main__":
    run(main)
