"""What the benchmarks share: contestants that take turns, forms to measure, files of results."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pipelines import export
from pipelines.errors import InputError
from pipelines.importing import silence


def seconds_in_turns(
    contestants: Mapping[str, Callable[[], object]], turns: int
) -> list[dict[str, float]]:
    """Seconds of each contestant in each turn, after a turn that does not count.

    Raises:
        InputError: no turns.
    """
    if turns < 1:
        raise InputError(f"turns must be at least 1, got {turns}")
    for contestant in contestants.values():
        contestant()
    return [{name: _seconds(c) for name, c in contestants.items()} for _ in range(turns)]


def ratios(turns: list[dict[str, float]], over: str) -> dict[str, float]:
    """Time of each other contestant over that of one: the median of the ratios within a turn.

    A machine that slows down or is shared slows all contestants of a turn.
    """
    return {
        name: statistics.median(turn[name] / turn[over] for turn in turns)
        for name in turns[0]
        if name != over
    }


def forward_and_backward(
    function: Callable[..., Any], variables: Sequence[Any]
) -> Callable[..., list[Any]]:
    """`(*inputs)` to the gradients, by the variables, of the sum of squares of what `function`
    gives."""
    import tensorflow as tf

    def step(*inputs: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(function(*inputs)))
        return tape.gradient(loss, variables)

    return step


def compiled_step(
    function: Callable[[], Any], variables: Sequence[Any], xla: bool = False
) -> Callable[[], list[float]]:
    """A forward and a backward pass, as a graph: what it gives back is little, and needs all."""
    import tensorflow as tf

    step = forward_and_backward(function, variables)

    @tf.function(jit_compile=xla, autograph=False)
    def sums() -> list[Any]:
        return [tf.reduce_sum(tf.convert_to_tensor(gradient)) for gradient in step()]

    compiled = sums.get_concrete_function()
    return lambda: [float(gradient) for gradient in compiled()]


def settings_of(flags: object) -> dict[str, object]:
    """The flags of a benchmark but for its output."""
    return {name: value for name, value in vars(flags).items() if name != "output"}


def write_results(path: str | None, device: str | None = None, /, **results: object) -> None:
    """Writes a JSON file with the date, the device and the results, if a path is given.

    Args:
        path: of the file.
        device: what was measured on; TensorFlow's unless given.
        **results: what was measured.
    """
    if path:
        if device is None:
            from pipelines.training.devices import description  # TensorFlow, which is slow

            device = description()
        record = {"date": str(date.today()), "device": device, **results}
        Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def export_silently(run_dir: str, form: str, output: Path, quantization: str = "none") -> None:
    """Exports a run, without TensorFlow's warnings that what was exported has no gradients."""
    flags = ["--run_dir", run_dir, "--format", form, "--quantization", quantization]
    with silence():
        export.main([*flags, "--output", str(output)])


def take_one_thread(operations_at_once: int = 1) -> None:
    """For each operation of TensorFlow, which otherwise takes all cores.

    Args:
        operations_at_once: 0 for one on each core.

    Raises:
        InputError: TensorFlow runs already in this process.
    """
    with silence():
        import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(operations_at_once)
    except RuntimeError as error:
        raise InputError(f"this needs a process of its own: {error}") from error


def _seconds(contestant: Callable[[], object]) -> float:
    began = time.perf_counter()
    contestant()
    return time.perf_counter() - began
