"""Time and memory of attention on a GPU: python -m pipelines.benchmark.gpu_attention

Forward and backward pass, compiled by XLA through Keras's JAX backend, in the shapes of `base` and
`big`: the attention core with both relative terms by implementation, and with the key term alone;
products and softmax alone; cuDNN's fused attention, without positions; and where PyTorch is
installed its FlexAttention with the key term as `score_mod`, which has no place for the value term.
Then the whole layer and `keras.layers.MultiHeadAttention`, which takes the fused kernel.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.benchmark.measuring import ratios, seconds_in_turns, settings_of, write_results
from pipelines.command_line import run
from pipelines.config import default_config
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
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
    from pipelines.benchmark import jax_steps

    config = TransformerConfig.preset(preset)
    shape = (flags.tokens // T, T, config.num_heads, config.model_dim // config.num_heads)
    steps = dict(_attention_cores(flags, config, shape)) | dict(_layers(flags, config, shape))
    compiled = jax_steps.compiled_together(
        {
            name: (jax_steps.forward_and_backward(function, len(inputs)), inputs)
            for name, (function, inputs) in steps.items()
        }
    )
    contestants = {
        name: jax_steps.repeated(functools.partial(compiled[name], *inputs), flags.calls)
        for name, (_, inputs) in steps.items()
    }
    memory = {name: jax_steps.megabytes_of(step) for name, step in compiled.items()}
    if _has_flex_attention():
        from pipelines.benchmark import flex_attention

        step, megabytes = flex_attention.step(
            shape, config.max_relative_position, config.heads_share_relative_embedding, flags.dtype
        )
        contestants["flex"] = jax_steps.repeated(step, flags.calls, flex_attention.wait)
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

    from tf_relpos.execution import has_gpu

    _, T, N, H = shape
    inputs = [_random(shape, flags.dtype, seed) for seed in range(3)]

    def plain(query: Any, key: Any, value: Any) -> Any:
        scores = jnp.einsum("btnh,bsnh->bnts", query * H**-0.5, key).astype("float32")
        weights = jax.nn.softmax(scores).astype(flags.dtype)
        return jnp.einsum("bnts,bsnh->btnh", weights, value)

    def fused(query: Any, key: Any, value: Any) -> Any:
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")

    yield "plain", (plain, inputs)
    if flags.dtype == "bfloat16" and has_gpu():
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
        attend = functools.partial(_attended, layer)
        yield name, (_with_weights(attend, tables, len(inputs)), [*inputs, *_values(tables)])


def _attended(layer: Any, query: Any, key: Any, value: Any) -> Any:
    return layer._compute_attention(query, key, value, training=True)[0]


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
        attend = functools.partial(_attended_itself, layer)
        yield name, (_with_weights(attend, variables, 1), [x, *_values(variables)])


def _attended_itself(layer: Any, x: Any) -> Any:
    return layer(x, x, training=True)


def _values(variables: Sequence[Any]) -> list[Any]:
    return [variable.value for variable in variables]


def _with_weights(
    function: Callable[..., Any], variables: Sequence[Any], count: int
) -> Callable[..., Any]:
    """A function of so many inputs as one of these and of the values of the variables."""
    import keras

    def call(*arguments: Any) -> Any:
        state = list(zip(variables, arguments[count:], strict=True))
        with keras.StatelessScope(state_mapping=state):
            return function(*arguments[:count])

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
