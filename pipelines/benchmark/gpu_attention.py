"""Time and memory of attention on a GPU: python -m pipelines.benchmark.gpu_attention

Forward and backward pass, compiled by XLA through Keras's JAX backend, in the shapes of `base` and
`big`: the attention core with both relative terms by implementation, and with the key term alone;
products and softmax alone; cuDNN's fused attention, without positions; and where PyTorch is
installed its FlexAttention with the key term as `score_mod`, which has no place for the value term.
Then the whole layer and `keras.layers.MultiHeadAttention`, which takes the fused kernel.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.benchmark.measuring import ratios, seconds_in_turns, settings_of, write_results
from pipelines.command_line import parse_flags, run
from pipelines.config import default_config
from pipelines.errors import InputError, check_positive
from pipelines.importing import load_jax
from tf_relpos.config import TransformerConfig

# T S H numbers for each table of all pairs' vectors: beyond, the paper's form is not asked for.
_MOST_VECTORS = 1 << 30


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    presets: list[str] = field(default_factory=lambda: ["base", "big"])
    """whose N, H, k and tables are taken"""
    lengths: list[int] = field(default_factory=lambda: [64, 1024, 8192])
    """T"""
    tokens: int = 16_384
    """B times T"""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """of everything but the softmax, which is float32"""
    calls: int = 10
    """of a contestant in each turn"""
    turns: int = 7
    """times that each contestant runs"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self) -> None:
        for preset in self.presets:
            default_config(preset, demo=False)  # refuses one that there is not
        check_positive(self, "calls", "turns")
        if not all(1 <= length <= self.tokens for length in self.lengths):
            raise InputError(f"lengths must be from 1 to tokens, {self.tokens}, got {self.lengths}")


def main(arguments: Sequence[str]) -> None:
    command = "python -m pipelines.benchmark.gpu_attention"
    flags = parse_flags(Benchmark, __doc__, command, arguments)
    load_jax()
    from pipelines.benchmark.jax_steps import device

    records: list[dict[str, Any]] = []
    for preset in flags.presets:
        for length in flags.lengths:
            record = {"preset": preset, "T": length, **_measured(flags, preset, length)}
            records.append(record)
            columns = "  ".join(f"{name} {x:5.2f}" for name, x in record["over_plain"].items())
            print(f"{preset:5} T {length:5}  {columns}", flush=True)
            write_results(flags.output, device(), settings=settings_of(flags), attention=records)


def _measured(flags: Benchmark, preset: str, T: int) -> dict[str, Any]:
    from pipelines.benchmark.jax_steps import compiled_together, megabytes_of, repeated

    config = TransformerConfig.preset(preset)
    shape = (flags.tokens // T, T, config.num_heads, config.model_dim // config.num_heads)
    steps = dict(_attention_cores(flags, config, shape)) | dict(_layers(flags, config, shape))
    compiled = compiled_together(steps)
    contestants = {name: repeated(step, flags.calls) for name, step in compiled.items()}
    memory = {name: megabytes_of(step.executable) for name, step in compiled.items()}
    if _has_flex_attention():
        from pipelines.benchmark import flex_attention

        step, megabytes = flex_attention.step(
            shape, config.max_relative_position, config.heads_share_relative_embedding, flags.dtype
        )
        contestants["flex"] = flex_attention.repeated(step, flags.calls)
        memory["flex"] = megabytes
    turns = seconds_in_turns(contestants, flags.turns)
    best = {name: min(turn[name] for turn in turns) / flags.calls for name in contestants}
    return {"over_plain": ratios(turns, "plain"), "seconds": best, "megabytes": memory}


def _attention_cores(
    flags: Benchmark, config: TransformerConfig, shape: tuple[int, ...]
) -> Iterator[tuple[str, tuple[Callable[..., Any], list[Any]]]]:
    """Each contestant by name: what is differentiated, and by what."""
    import jax
    import jax.numpy as jnp

    _, T, N, H = shape
    inputs = [_random(shape, flags.dtype, seed) for seed in range(3)]

    def plain(query: Any, key: Any, value: Any) -> Any:
        scores = jnp.einsum("btnh,bsnh->bnts", query * H**-0.5, key).astype("float32")
        weights = jax.nn.softmax(scores).astype(flags.dtype)
        return jnp.einsum("bnts,bsnh->btnh", weights, value)

    def fused(query: Any, key: Any, value: Any) -> Any:
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")

    yield "plain", (plain, inputs)
    if flags.dtype == "bfloat16" and jax.default_backend() == "gpu":
        yield "cudnn", (fused, inputs)
    heads = 1 if config.heads_share_relative_embedding else N
    for name, implementation, with_values in (
        ("auto", "auto", True),
        ("transpose_reshape", "transpose_reshape", True),
        ("keys", "auto", False),
    ):
        if implementation == "transpose_reshape" and heads * T * T * H > _MOST_VECTORS:
            continue
        layer = _built(flags, config, shape, implementation, relative_values=with_values)
        tables = [layer.relation_key_embeddings, layer.relation_value_embeddings][: 1 + with_values]
        yield name, (_attend(layer, tables), [*inputs, *(table.value for table in tables)])


def _attend(layer: Any, tables: Sequence[Any]) -> Callable[..., Any]:
    import keras

    def attend(query: Any, key: Any, value: Any, *vectors: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(tables, vectors, strict=True))):
            return layer._compute_attention(query, key, value, training=True)[0]

    return attend


def _layers(
    flags: Benchmark, config: TransformerConfig, shape: tuple[int, ...]
) -> Iterator[tuple[str, tuple[Callable[..., Any], list[Any]]]]:
    import keras

    B, T, N, H = shape
    x = _random((B, T, N * H), flags.dtype, 3)
    theirs = keras.layers.MultiHeadAttention(N, H, dtype=flags.dtype)
    theirs.build(x.shape, x.shape)
    for name, layer in (
        ("layer of Keras", theirs),
        ("layer", _built(flags, config, shape, "auto")),
    ):
        variables = layer.trainable_variables
        yield name, (_call(layer, variables), [x, *(variable.value for variable in variables)])


def _call(layer: Any, variables: Sequence[Any]) -> Callable[..., Any]:
    import keras

    def call(x: Any, *values: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return layer(x, x, training=True)

    return call


def _built(
    flags: Benchmark,
    config: TransformerConfig,
    shape: tuple[int, ...],
    implementation: str,
    relative_values: bool = True,
) -> Any:
    from tf_relpos import RelativeMultiHeadAttention

    B, T, N, H = shape
    layer = RelativeMultiHeadAttention(
        N,
        H,
        config.max_relative_position,
        relative_values=relative_values,
        heads_share_relative_embedding=config.heads_share_relative_embedding,
        implementation=implementation,
        dtype=flags.dtype,
    )
    layer.build((B, T, N * H), (B, T, N * H))
    return layer


def _random(shape: Sequence[int], dtype: str, seed: int) -> Any:
    import jax

    return jax.random.normal(jax.random.key(seed), shape, dtype)


def _has_flex_attention() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    run(main)
