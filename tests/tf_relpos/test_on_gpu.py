"""What a GPU computes, on the processor at hand: nothing but the choices depends on the device."""

import keras
import pytest

from tests.support.attention_checks import (
    check_against_oracle,
    oracle,
    random_inputs,
    random_mask,
    randomize,
)
from tests.support.layer_checks import MODES, compile_function, compile_runner
from tests.support.reference import position_labels
from tf_relpos import (
    RelativeMultiHeadAttention,
    attention_at_once,
    bands,
    edge_attention,
    execution,
    label_sums,
    query_blocks,
    relation_ops,
    transpose_reshape,
)
from tf_relpos.relation_ops import choose_implementation
from tf_relpos.relative_positions import RelativePositions

B, T, S, N, H, D, K = 2, 19, 23, 3, 11, 13, 2


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    for module in (bands, execution, query_blocks, relation_ops, transpose_reshape):
        monkeypatch.setattr(module, "has_gpu", lambda: True)


def lengths_known(arrays):
    return {name: x.shape for name, x in arrays.items()}


def lengths_unknown(arrays):
    return {
        name: x.shape if x.ndim < 3 else (None, None, *(() if "mask" in name else x.shape[2:]))
        for name, x in arrays.items()
    } | {"attention_mask": (None, None, None)}


def check(rng, mode, shapes, tolerance=1e-5, **options):
    arrays = random_inputs(rng, B, T, S, D)
    arrays["attention_mask"] = random_mask(rng, B, T, S)
    layer = RelativeMultiHeadAttention(N, H, K, **options)
    layer.build((None, None, D), (None, None, D))
    randomize(layer, rng)
    expected = oracle(layer, arrays, position_labels(T, S, K), arrays["attention_mask"])
    runner = compile_runner(layer, mode, arrays, shapes(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner, tolerance)


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("shapes", [lengths_known, lengths_unknown])
@pytest.mark.parametrize("mode", MODES)
def test_values_and_gradients_equal_the_oracle(rng, mode, shapes, shared, implementation):
    options = {"heads_share_relative_embedding": shared, "implementation": implementation}
    check(rng, mode, shapes, **options)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("mode", MODES)
def test_in_blocks(rng, monkeypatch, mode, shared):
    monkeypatch.setattr(query_blocks, "MOST_ON_GPU", 1)
    monkeypatch.setattr(query_blocks, "BLOCK_ON_GPU", B * N * S * 5)
    check(
        rng,
        mode,
        lengths_known,
        heads_share_relative_embedding=shared,
        implementation="bucketed",
    )


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
def test_half_precision(rng, mode, implementation):
    check(rng, mode, lengths_known, 0.03, dtype="mixed_bfloat16", implementation=implementation)


def test_what_is_chosen():
    def heads(B, T, S):
        return keras.KerasTensor((8, B, T, 64)), keras.KerasTensor((8, B, S, 64))

    assert query_blocks.are_in_blocks(*heads(2, 8192, 8192), True) is False
    assert query_blocks.are_in_blocks(*heads(4, 8192, 8192), True) is True
    assert query_blocks.are_in_blocks(*heads(2, 4096, 4096), False) is False
    assert query_blocks.are_in_blocks(*heads(2, 8192, 8192), False) is True
    assert query_blocks._block_size(*heads(2, 8192, 8192)) == 512
    assert bands.bands_of(RelativePositions(2048, 2048, 16), *heads(1, 2048, 2048), True) == []
    table, longest = keras.KerasTensor((8, 33, 64)), relation_ops.LONGEST_ON_GPU
    for length, expected in ((longest, "transpose_reshape"), (longest + 1, "bucketed")):
        positions = RelativePositions(length, length, 16)
        assert choose_implementation("auto", positions, table) == expected
    assert label_sums.picks_in_place()
    labels = keras.KerasTensor((5, 7), dtype="int32")
    assert choose_implementation("auto", labels, table) == "bucketed"


def test_nothing_in_a_batch_of_none(rng):
    layer = RelativeMultiHeadAttention(2, 4, 3, implementation="bucketed")
    x = keras.ops.zeros((0, 9, 8))
    assert tuple(layer(x, x, training=True).shape) == (0, 9, 8)


@pytest.mark.tensorflow_only
@pytest.mark.tensorflow_only
def test_what_xla_compiles_has_no_gradient_of_its_own(rng, monkeypatch):
    monkeypatch.setattr(attention_at_once, "FEWEST_IN_XLA", 1)
    calls, known = [], edge_attention.attend_at_once
    monkeypatch.setattr(
        edge_attention, "attend_at_once", lambda own: calls.append(own) or known(own)
    )
    layer = RelativeMultiHeadAttention(N, H, K, implementation="bucketed")
    arrays = {"x": rng.normal(size=(B, T, D)).astype("float32")}

    def made_for(has_gpu):
        monkeypatch.setattr(execution, "has_gpu", lambda: has_gpu)
        call = lambda a: layer(a["x"], a["x"], training=True)  # noqa: E731
        compile_function(call, "xla", arrays, lengths_known(arrays))(arrays)
        return len(calls)

    assert (made_for(True), made_for(False)) == (0, 1)


def test_training_leaves_the_choice_to_the_layers(monkeypatch):
    from pipelines.data.buckets import Bucket
    from pipelines.run import models
    from tf_relpos import TransformerConfig

    config = TransformerConfig.preset("tiny", vocabulary_size=9)
    buckets = [Bucket(8, 8, 4, 32, 32)]
    for has_gpu, expected in ((True, "auto"), (False, "transpose_reshape")):
        monkeypatch.setattr(models, "has_gpu", lambda has_gpu=has_gpu: has_gpu)
        model = models.build_model(config, buckets=buckets)
        assert model.config.implementation == expected


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="what PyTorch tells")
def test_what_a_symbolic_call_computes_on_is_not_the_device(monkeypatch):
    import torch

    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    execution.has_gpu.cache_clear()
    try:
        with keras.device("meta"):
            assert execution.has_gpu()
    finally:
        execution.has_gpu.cache_clear()
