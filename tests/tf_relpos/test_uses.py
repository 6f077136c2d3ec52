"""Every layer and model in every use that Keras has for them: a table, each cell a test.

`SUBJECTS` are the columns, `USES` the rows; `EXCEPTIONS` are the cells that are empty, and why. A
use is a function of a subject that has been called on data. Distribution is in `test_distribution`,
what the functions (searches, loss, schedule, ids) take is in the tests of their modules.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import pytest
from keras import ops

from tests.support.layer_checks import BACKEND, COMPILED_MODES, assert_close, compile_function
from tests.support.layer_checks import to_numpy as numpy
from tf_relpos import (
    DecoderBlock,
    EncoderBlock,
    RelationAwareAttention,
    RelativeMultiHeadAttention,
    SinusoidalPositionEncoding,
    Transformer,
    TransformerConfig,
)
from tf_relpos.query_blocks import FEWEST

B, T, D, V, R = 2, 5, 6, 23, 3
CONFIG = TransformerConfig(
    vocabulary_size=V,
    model_dim=D,
    inner_dim=11,
    num_heads=3,
    encoder_layers=1,
    decoder_layers=1,
    max_relative_position=2,
    position="both",
)
LONG = FEWEST + 6  # more than a block of queries, and no multiple of one


@dataclasses.dataclass
class Subject:
    make: Callable  # with the keyword arguments of any layer
    kinds: dict  # by name of an input: "floats" [B, T, D], "ids" [B, T] or "labels" [B, T, T]
    layer: keras.layers.Layer = None

    def arrays(self, length=T, batch=B):
        rng = np.random.default_rng(1)
        make = {
            "floats": lambda: rng.normal(size=(batch, length, D)).astype("float32"),
            "ids": lambda: rng.integers(4, V, (batch, length), dtype="int32"),
            "labels": lambda: rng.integers(-1, R, (batch, length, length), dtype="int32"),
        }
        return {name: make[kind]() for name, kind in self.kinds.items()}

    def call(self, tensors, layer=None, **arguments):
        layer = layer or self.layer
        if isinstance(layer, Transformer):
            return layer(tensors, **arguments)
        return layer(**tensors, **arguments)

    def functional(self, length=None, layer=None):
        """A functional model around the layer; lengths are unknown unless given."""
        shapes = {"floats": (length, D), "ids": (length,), "labels": (length, length)}
        dtypes = {"floats": "float32", "ids": "int32", "labels": "int32"}
        symbols = {
            name: keras.Input(shapes[kind], dtype=dtypes[kind], name=name)
            for name, kind in self.kinds.items()
        }
        return keras.Model(symbols, self.call(symbols, layer))


QUERY, X = {"query": "floats", "value": "floats"}, {"x": "floats"}
SUBJECTS = {
    "RelationAwareAttention": (
        lambda **kw: RelationAwareAttention(3, 2, R, **kw),
        {**QUERY, "relations": "labels"},
    ),
    "RelativeMultiHeadAttention": (lambda **kw: RelativeMultiHeadAttention(3, 2, 2, **kw), QUERY),
    "SinusoidalPositionEncoding": (SinusoidalPositionEncoding, {"inputs": "floats"}),
    "EncoderBlock": (lambda **kw: EncoderBlock(D, 11, 3, 2, **kw), X),
    "DecoderBlock": (
        lambda **kw: DecoderBlock(D, 11, 3, 2, norm="pre", **kw),
        {**X, "encoded": "floats"},
    ),
    "Transformer": (
        lambda **kw: Transformer(CONFIG, **kw),
        {"source_ids": "ids", "target_ids": "ids"},
    ),
}


def functional(subject, tmp_path):
    for length in (None, T):
        model = subject.functional(length)
        assert_close(model(subject.arrays()), subject.call(subject.arrays()), tolerance=1e-6)


def around(subject, layer):
    """A subclassed model around a layer like the subject's."""

    class Wrapper(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = layer

        def call(self, inputs):
            return subject.call(inputs, self.inner)

    return Wrapper()


def subclassed(subject, tmp_path):
    model = around(subject, subject.make())
    output = numpy(model(subject.arrays()))
    model.compile("sgd", "mean_squared_error")
    model.fit(subject.arrays(), np.zeros(output.shape), verbose=0)
    assert len(model.weights) == len(subject.layer.weights)


def summarized(subject, tmp_path):
    model = around(subject, subject.layer)
    model(subject.arrays())
    models = [model, subject.layer] if isinstance(subject.layer, keras.Model) else [model]
    for model in models:
        lines = []
        model.summary(print_fn=lines.append, expand_nested=True, line_length=160)
        names = [layer.name for layer in model.layers]
        assert names and all(name in "\n".join(lines) for name in names)


def cloned(subject, tmp_path):
    model = subject.functional()
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_close(clone(subject.arrays()), model(subject.arrays()), tolerance=1e-6)


def saved_and_loaded(subject, tmp_path):
    subject.functional().save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(subject.arrays()), subject.call(subject.arrays()), tolerance=1e-6)


def weights_only(subject, tmp_path):
    subject.functional().save_weights(tmp_path / "model.weights.h5")
    other = subject.functional(layer=subject.make(name=subject.layer.name))
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(other(subject.arrays()), subject.call(subject.arrays()), tolerance=1e-6)


def saved_model(subject, tmp_path):
    import tensorflow as tf

    model = subject.functional()
    model.export(tmp_path / "functional", verbose=False)
    models = {"functional": model}
    if isinstance(subject.layer, Transformer):
        subject.layer.export(tmp_path / "itself", verbose=False)
        tf.saved_model.save(subject.layer, str(tmp_path / "by_tensorflow"))
        served = tf.saved_model.load(tmp_path / "by_tensorflow").signatures["serving_default"]
        ids = (tf.constant(array) for _, array in sorted(subject.arrays().items()))
        (logits,) = served(**dict(zip(("inputs", "inputs_1"), ids, strict=True))).values()
        assert_close(logits, subject.call(subject.arrays()))
        models["itself"] = subject.layer
    for name in models:
        served = tf.saved_model.load(tmp_path / name)
        # Exported itself, a model takes lengths like those that it was called with.
        for length in (T, T + 3) if name == "functional" else (T,):
            arrays = subject.arrays(length)
            tensors = {key: tf.constant(array) for key, array in arrays.items()}
            assert_close(served.serve(tensors), subject.call(arrays))


def litert(subject, tmp_path):
    from ai_edge_litert.interpreter import Interpreter

    path = tmp_path / "model.tflite"
    subject.functional(T).export(path, format="litert", verbose=False)
    runner = Interpreter(str(path)).get_signature_runner()
    arrays = subject.arrays(batch=1)
    names = sorted(runner.get_input_details())
    inputs = dict(zip(names, (arrays[key] for key in sorted(arrays)), strict=True))
    (output,) = runner(**inputs).values()
    assert_close(output, subject.call(arrays))


def onnx(subject, tmp_path):
    from onnxruntime import InferenceSession

    path = str(tmp_path / "model.onnx")
    model = subject.functional()
    model(subject.arrays())
    model.export(path, format="onnx", verbose=False)
    session = InferenceSession(path)
    names = sorted(entry.name for entry in session.get_inputs())
    for length in (T, LONG):
        arrays = subject.arrays(length)
        inputs = dict(zip(names, (arrays[key] for key in sorted(arrays)), strict=True))
        assert_close(session.run(None, inputs)[0], subject.call(arrays))


def quantized(subject, tmp_path):
    expected = numpy(subject.call(subject.arrays()))
    model = subject.functional()
    model.quantize("int8")
    found = numpy(model(subject.arrays()))
    assert np.any(found != expected)
    assert_close(found, expected, tolerance=0.05)


def quantized_and_loaded(subject, tmp_path):
    model = subject.functional()
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert any(layer.quantization_mode == "int8" for layer in loaded._flatten_layers())
    assert_close(loaded(subject.arrays()), model(subject.arrays()), tolerance=1e-6)
    loaded.save(tmp_path / "again.keras")
    again = keras.saving.load_model(tmp_path / "again.keras")
    assert_close(again(subject.arrays()), model(subject.arrays()), tolerance=1e-6)
    with pytest.raises(ValueError, match="already quantized"):
        again.quantize("int8")


def frozen(subject, tmp_path):
    """By its config, before and after it is built, and when it is loaded."""
    layers = [subject.make(trainable=False), subject.make(), subject.make()]
    layers[1].trainable = False
    models = [subject.functional(layer=layer) for layer in layers]
    layers[2].trainable = False
    models[2].save(tmp_path / "model.keras")
    for model in (*models, keras.saving.load_model(tmp_path / "model.keras")):
        assert model.weights and not model.trainable_variables


def lora(subject, tmp_path):
    before = numpy(subject.call(subject.arrays()))
    dense = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)
    parts = [p for p in subject.layer._flatten_layers() if isinstance(p, dense)]
    for part in parts:
        part.enable_lora(2)
    assert_close(subject.call(subject.arrays()), before, tolerance=1e-6)
    for part in parts:
        weight = getattr(part, "lora_embeddings_b", None)
        weight = part.lora_kernel_b if weight is None else weight
        weight.assign_add(0.3 * np.ones(weight.shape))
    assert np.max(np.abs(numpy(subject.call(subject.arrays())) - before)) > 0.01


def mixed_precision_before(subject, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = subject.make()
    finally:
        keras.config.set_dtype_policy("float32")
    output = subject.call(subject.arrays(), half)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    half.set_weights(subject.layer.get_weights())
    output = ops.cast(subject.call(subject.arrays(), half), "float32")
    assert_close(output, subject.call(subject.arrays()), tolerance=0.1)


def mixed_precision_after(subject, tmp_path):
    """What has been made keeps its precision."""
    expected = numpy(subject.call(subject.arrays()))
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        found = numpy(subject.call(subject.arrays()))
        wrapped = numpy(subject.functional()(subject.arrays()))
    finally:
        keras.config.set_dtype_policy("float32")
    assert_close(found, expected, tolerance=1e-7)
    assert_close(wrapped, expected, tolerance=1e-6)


def float64(subject, tmp_path):
    layer = subject.make(dtype="float64")
    subject.call(subject.arrays(), layer)
    layer.set_weights(subject.layer.get_weights())
    output = subject.call(subject.arrays(), layer)
    assert keras.backend.standardize_dtype(output.dtype) == "float64"
    assert_close(output, subject.call(subject.arrays()))


def compiled(subject, tmp_path):
    expected = subject.call(subject.arrays())
    for mode in COMPILED_MODES:
        run = compile_function(lambda tensors: subject.call(tensors), mode, subject.arrays())
        assert_close(run(subject.arrays()), expected)


def rematerialized(subject, tmp_path):
    """TensorFlow's graphs refuse it of every layer that takes `training`, Keras's `Dropout` too."""
    with keras.RematScope(mode="full"):
        layer = subject.make()
    subject.call(subject.arrays(), layer)
    layer.set_weights(subject.layer.get_weights())
    assert_close(subject.call(subject.arrays(), layer), subject.call(subject.arrays()))
    if BACKEND == "jax":
        model = subject.functional(T, layer)
        model.compile("sgd", "mean_squared_error")
        model.fit(subject.arrays(), np.zeros(model.output_shape[1:])[None].repeat(B, 0), verbose=0)


def empty(subject, tmp_path):
    output = subject.call(subject.arrays(batch=0))
    assert output.shape == (0, *subject.call(subject.arrays()).shape[1:])


def one_element(subject, tmp_path):
    arrays = {name: array[:1, :1] for name, array in subject.arrays().items()}
    if "relations" in arrays:
        arrays["relations"] = arrays["relations"][:, :, :1]
    output = numpy(subject.call(arrays))
    assert output.shape[:2] == (1, 1)
    assert np.all(np.isfinite(output))


def longer_than_trained(subject, tmp_path):
    model = subject.functional()
    model.compile("sgd", "mean_squared_error")
    output = numpy(model(subject.arrays()))
    model.fit(subject.arrays(), np.zeros(output.shape), verbose=0)
    long = numpy(model(subject.arrays(8 * T)))
    assert long.shape[1] == 8 * T
    assert np.all(np.isfinite(long))


def hostile_dtypes(subject, tmp_path):
    """Integers where floats are expected are refused or computed with; ids may be of any kind."""
    expected = numpy(subject.call(subject.arrays()))
    for dtype in ("float64", "float16", "int64", "uint8", "int8"):
        arrays = {
            name: array.astype(dtype)
            if ("float" in dtype) == (kind == "floats") and (np.all(array >= 0) or "u" not in dtype)
            else array
            for (name, kind), array in zip(
                subject.kinds.items(), subject.arrays().values(), strict=True
            )
        }
        assert_close(subject.call(arrays), expected, tolerance=5e-3)


USES = {
    use.__name__: use
    for use in (
        functional,
        subclassed,
        summarized,
        cloned,
        saved_and_loaded,
        weights_only,
        saved_model,
        litert,
        onnx,
        quantized,
        quantized_and_loaded,
        frozen,
        lora,
        mixed_precision_before,
        mixed_precision_after,
        float64,
        compiled,
        rematerialized,
        empty,
        one_element,
        longer_than_trained,
        hostile_dtypes,
    )
}
NO_WEIGHTS = "it has no weights"
CHECKED = "`check_layer` does this in the tests of the layer"
EXCEPTIONS = {
    **{
        (use, name): CHECKED
        for use in ("functional", "saved_and_loaded", "compiled")
        for name in SUBJECTS
        if name != "Transformer"
    },
    **{
        (use, "SinusoidalPositionEncoding"): NO_WEIGHTS
        for use in ("quantized", "quantized_and_loaded", "frozen", "lora", "longer_than_trained")
    },
}
if BACKEND == "jax":
    remat = "Keras's own Dropout fails there inside of another layer that hands it `training`"
    for block in ("EncoderBlock", "DecoderBlock", "Transformer"):
        EXCEPTIONS["rematerialized", block] = remat
if BACKEND == "torch":
    EXCEPTIONS["float64", "Transformer"] = "Keras's matmul makes float32 of float64 there"
TENSORFLOW_ONLY = ("saved_model", "litert", "onnx")
if BACKEND == "jax":  # which knows no float64 unless a whole process is told to
    TENSORFLOW_ONLY += ("float64",)


def marks_of(use, name):
    marks = [pytest.mark.tensorflow_only] if use in TENSORFLOW_ONLY else []
    is_export = use in ("saved_model", "litert", "onnx")
    return [*marks, pytest.mark.slow] if is_export and name.endswith("Block") else marks


# Exports of blocks are slow: the Transformer has both.
CELLS = [
    pytest.param(use, name, marks=marks_of(use, name))
    for use in USES
    for name in SUBJECTS
    if (use, name) not in EXCEPTIONS
]


@pytest.mark.parametrize("use, name", CELLS)
def test_use(use, name, rng, tmp_path):
    subject = Subject(*SUBJECTS[name])
    subject.layer = subject.make()
    subject.call(subject.arrays())
    for variable in subject.layer.trainable_variables:  # norms and biases start at 1 and 0
        variable.assign_add(0.2 * rng.normal(size=variable.shape))
    USES[use](subject, tmp_path)
