"""What is measured through Keras's JAX backend: steps compiled ahead, their memory, the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from pipelines.benchmark.measuring import seconds_in_turns
from pipelines.config import TrainingConfig


def compiled_together(steps: Mapping[str, tuple[Any, Sequence[Any]]]) -> dict[str, Any]:
    """Compiles what `jax.jit` has made, for its arguments; as many at a time as there are cores."""
    lowered = {name: step.lower(*arguments) for name, (step, arguments) in steps.items()}
    with ThreadPoolExecutor() as pool:
        waiting = {name: pool.submit(each.compile) for name, each in lowered.items()}
        return {name: future.result() for name, future in waiting.items()}


def forward_and_backward(function: Callable[..., Any], count: int) -> Any:
    """The gradients of the sum of squares of what a function of so many arguments gives, by all."""

    def loss(*inputs: Any) -> Any:
        return jnp.sum(jnp.square(function(*inputs).astype("float32")))

    return jax.jit(jax.grad(loss, argnums=tuple(range(count))))


def repeated(
    step: Callable[[], Any], calls: int, wait: Callable[[Any], Any] = jax.block_until_ready
) -> Callable[[], None]:
    """Several calls, until `wait` says that the last one's results are there."""

    def several() -> None:
        for _ in range(calls):
            results = step()
        wait(results)

    return several


def megabytes_of(executable: Any) -> float:
    """What it holds at most on the device, inputs and results included, as XLA plans it."""
    plan = executable.memory_analysis()
    held = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return (held + plan.temp_size_in_bytes) / 1e6


def product_peak(dtype: str) -> float:
    """Operations a second of a product of 8192 x 8192 matrices in a dtype: the fastest of five."""
    size = 8192
    a, b = (jax.random.normal(jax.random.key(side), (size, size), dtype) for side in range(2))
    product = repeated(lambda: jnp.matmul(a, b), 1)
    product()
    turns = seconds_in_turns({"product": product}, 5)
    return 2 * size**3 / min(turn["product"] for turn in turns)


def device() -> str:
    """The device and the versions that decide how fast it is."""
    return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"


class Training:
    """Updates of a `Transformer` outside of Keras's `fit`, each compiled for its shape.

        loss = sum of token losses / number of target tokens

    Args:
        model: with all its variables, whose values stay what they were.
        optimizer: Keras's.
    """

    def __init__(self, model: Any, optimizer: Any):
        optimizer.build(model.trainable_variables)
        self.model, self.optimizer = model, optimizer
        variables = (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
        )
        # Copies, since each update takes over the memory of what it is given.
        self.state = tuple([jnp.array(each.value) for each in part] for part in variables)
        self.update = jax.jit(self._update, donate_argnums=0)

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """An update; returns the loss in nats a target token, a scalar on the device."""
        self.state, loss = self.update(self.state, batch)
        return loss

    def _update(self, state: Any, batch: Mapping[str, Any]) -> Any:
        from tf_relpos import smoothed_cross_entropy

        trainable, others, of_optimizer = state
        labels = batch["labels"]
        inputs = {name: batch[name] for name in ("source_ids", "target_ids")}

        def loss(trainable: Any, others: Any) -> Any:
            logits, others = self.model.stateless_call(trainable, others, inputs, training=True)
            losses = smoothed_cross_entropy(labels, logits, TrainingConfig.label_smoothing)
            is_token = (labels != self.model.config.pad_id).astype("float32")
            return jnp.sum(losses) / jnp.maximum(jnp.sum(is_token), 1.0), others

        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, others)
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
        return (trainable, others, of_optimizer), value
