"""What JAX and PyTorch make of functions: shards, exports, gradients and maps of a layer's call."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import BACKEND, assert_close
from tests.support.layer_checks import to_numpy as numpy
from tf_relpos import EncoderBlock, RelationAwareAttention, RelativeMultiHeadAttention

B, T, N, H, D, R = 2, 6, 2, 4, 8, 3
LONG = 600  # whose queries are attended in blocks


def relative(**options):
    return RelativeMultiHeadAttention(N, H, 2, **options)


CALLS = {
    "relative": (relative, T),
    "bucketed, per head": (
        lambda: relative(implementation="bucketed", heads_share_relative_embedding=False),
        T,
    ),
    "blocks": (relative, LONG),
    "window": (lambda: relative(attention_window=2), T),
    "additive": (lambda: relative(compatibility="additive"), T),
    "encoder": (lambda: EncoderBlock(D, 16, N, 2), T),
    "edges in blocks": (lambda: RelationAwareAttention(N, H, R), LONG),
}
pytestmark = pytest.mark.parametrize("make, length", CALLS.values(), ids=CALLS)
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="a transform of JAX's")
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="a transform of PyTorch's")


def made(rng, make, length):
    """The call of a layer as a function of its input alone, and an input."""
    layer = make()
    x = rng.normal(size=(B, length, D)).astype("float32")
    arguments = [x] if isinstance(layer, EncoderBlock) else [x, x]
    options = {}
    if isinstance(layer, RelationAwareAttention):
        options["relations"] = rng.integers(-1, R, (length, length), dtype="int32")
    layer(*arguments, **options)
    return (lambda x: layer(*[x] * len(arguments), **options)), keras.ops.convert_to_tensor(x)


def cubes(call):
    """Their sum; that of squares is the same for all that is normalized."""
    return lambda x: keras.ops.sum(call(x) ** 3)


@on_jax
def test_sentences_on_several_devices(rng, make, length):
    """The types of `jax.shard_map` are those of many devices, also on one."""
    import jax

    call, x = made(rng, make, length)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("batch",))
    rows = jax.sharding.PartitionSpec("batch")

    def sharded(function):
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows))

    assert_close(sharded(call)(x), numpy(call(x)))
    assert_close(sharded(jax.grad(cubes(call)))(x), numpy(jax.grad(cubes(call))(x)))


@on_jax
def test_second_derivatives(rng, make, length):
    """Against the difference of gradients, along a direction."""
    import jax

    if isinstance(make(), EncoderBlock):
        pytest.skip("its rectifier has kinks, which differences see")
    call, x = made(rng, make, length)
    direction = rng.normal(size=x.shape).astype("float32")
    gradient = jax.grad(cubes(call))
    along = jax.jit(lambda x: keras.ops.sum(gradient(x) * direction))
    found = float(keras.ops.sum(jax.grad(along)(x) * direction))
    step = 3e-3 * direction
    expected = float(along(x + step) - along(x - step)) / 6e-3
    assert found == pytest.approx(expected, rel=0.02)


@on_jax
def test_an_export_for_any_size(rng, make, length):
    import jax

    call, x = made(rng, make, length)
    if isinstance(make(), RelationAwareAttention):
        pytest.skip("its labels have a length")
    shape = jax.export.symbolic_shape(f"batch, length, {D}")
    exported = jax.export.export(jax.jit(call))(jax.ShapeDtypeStruct(shape, "float32"))
    for sizes in ((B, T), (1, 1), (3, 40)):
        x = rng.normal(size=(*sizes, D)).astype("float32")
        assert_close(exported.call(x), numpy(call(x)))


@on_torch
def test_an_export(rng, make, length):
    import torch

    call, x = made(rng, make, length)

    class Module(torch.nn.Module):
        def forward(self, x):
            return call(x)

    exported = torch.export.export(Module(), (x,), strict=False)
    assert_close(exported.module()(x), numpy(call(x)))


@on_torch
def test_gradients_and_maps_of_functions(rng, make, length):
    import torch

    call, x = made(rng, make, length)
    with_gradient = x.clone().requires_grad_()
    cubes(call)(with_gradient).backward()
    expected = numpy(with_gradient.grad)
    assert_close(torch.func.grad(cubes(call))(x), expected)
    of_one = torch.func.grad(lambda row: cubes(call)(row[None]))
    assert_close(torch.func.vmap(of_one)(x), expected)
    assert_close(torch.func.vmap(lambda row: call(row[None])[0])(x), numpy(call(x)))
