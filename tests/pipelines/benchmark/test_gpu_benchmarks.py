"""What is measured on a GPU runs on the processor at hand, through Keras's JAX backend."""

import json
import sys

import numpy as np
import pytest

from tests.support.reference import attention, position_labels
from tests.support.refusals import message_of
from tests.support.runs import ENVIRONMENT, run_process

ON_CPU = {**ENVIRONMENT, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


def run(*arguments, **environment):
    return run_process([sys.executable, *arguments], env={**ON_CPU, **environment})


@pytest.fixture
def measure(tmp_path):
    pytest.importorskip("jax")

    def measure(name, *flags):
        output = tmp_path / "results.json"
        result = run("-m", f"pipelines.benchmark.{name}", *flags, "--output", str(output))
        assert result.returncode == 0, result.stderr
        found = json.loads(output.read_text())
        assert "cpu, JAX" in found["device"]
        return found, result.stdout

    return measure


@pytest.mark.slow
def test_attention(measure):
    sizes = ["--lengths", "9", "--tokens", "18", "--turns", "1", "--calls", "1"]
    found, printed = measure("gpu_attention", "--presets", "base", *sizes)
    (record,) = found["attention"]
    assert record["preset"] == "base" and record["T"] == 9
    others = {"auto", "transpose_reshape", "keys", "layer", "layer of Keras"}
    assert others <= set(record["over_plain"])
    assert all(ratio > 0 for ratio in record["over_plain"].values())
    assert record["megabytes"].keys() == record["seconds"].keys() == others | {"plain"}
    assert "base  T     9  auto" in printed


@pytest.mark.slow
def test_training_step(measure):
    sizes = ["--vocabulary_size", "20", "--tokens", "12", "--length", "4", "--turns", "1"]
    precision = ["--precision", "float32", "--calls", "1"]
    found, printed = measure("gpu_training_step", "--presets", "tiny", *sizes, *precision)
    (record,) = found["training"]
    assert set(record["seconds"]) == set(record["megabytes"]) == {"sinusoidal", "relative"}
    assert record["tokens_per_second"] > 0 and 0 < record["share_of_peak"] < 1
    assert "target tokens a second" in printed


UPDATES = """
from pipelines.benchmark.jax_steps import Training
import keras, numpy as np
from tf_relpos import Transformer, TransformerConfig, smoothed_cross_entropy

config = TransformerConfig.preset("tiny", vocabulary_size=20, dropout=0.0)
model = Transformer(config)
model.build()
ids = np.random.default_rng(1).integers(4, 20, (3, 5), "int32")
labels = np.where(np.arange(5) < [[5], [3], [1]], ids, 0).astype("int32")
batch = {"source_ids": ids, "target_ids": np.roll(labels, 1, 1), "labels": labels}
losses = smoothed_cross_entropy(labels, model(batch))
training = Training(model, keras.optimizers.Adam(1e-2))
found = [float(training(batch)) for _ in range(30)]
assert abs(found[0] - float(keras.ops.sum(losses)) / 9) < 1e-5, (found[0], losses)
assert found[-1] < found[0] / 2, found
"""


@pytest.mark.slow
def test_updates_lower_the_loss_of_the_real_tokens():
    pytest.importorskip("jax")
    result = run("-c", UPDATES)
    assert result.returncode == 0, result.stderr


def test_another_backend_is_refused():
    result = run("-m", "pipelines.benchmark.gpu_training_step", KERAS_BACKEND="tensorflow")
    told = message_of(result.returncode, result.stderr)
    assert told == "KERAS_BACKEND must be jax for this command, got tensorflow"


@pytest.mark.parametrize("heads", [(), (3,)], ids=["shared", "per_head"])
def test_flex_attention_has_the_key_term(rng, heads):
    """FlexAttention itself, not compiled, beside the oracle without its value term."""
    torch = pytest.importorskip("torch")
    from pipelines.benchmark import flex_attention

    B, T, N, H, k = 2, 7, 3, 4, 2
    query, key, value = rng.normal(size=(3, B, T, N, H))
    table = rng.normal(size=(*heads, 2 * k + 1, H))
    labels = position_labels(T, T, k)
    expected, _ = attention(query, key, value, relations=labels, key_table=table)
    by_heads = [torch.tensor(x.transpose(0, 2, 1, 3)) for x in (query, key, value)]
    actual = flex_attention.attend(*by_heads, torch.tensor(table))
    np.testing.assert_allclose(actual.numpy().transpose(0, 2, 1, 3), expected, atol=1e-6)
