"""The SavedModel that TensorFlow Serving loads: signatures, odd input, operations, versions."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import kernels

from pipelines.errors import InputError
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.saved_model import export_saved_model
from pipelines.exporters.versions import AlreadyExported
from pipelines.exporters.warmup import WARMUP_FILE
from pipelines.translators.base import MAX_ALPHA, MAX_BEAM_SIZE, MAX_SOURCE_LENGTH
from pipelines.translators.keras_model import Translator
from tests.support import serving_model
from tests.support.serving_model import ODD_TEXTS, nbest, translate
from tf_relpos import Transformer

pytestmark = pytest.mark.tensorflow_only


def test_signatures_are_the_contract():
    signatures = serving_model.loaded()
    assert set(signatures) == {"serving_default", "nbest", "source_length"}

    def described(specs):
        return {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in specs.items()}

    inputs = {"text": ([None], "string")}
    default = signatures["serving_default"]
    assert described(default.structured_input_signature[1]) == inputs
    assert described(default.structured_outputs) == {
        "translation": ([None], "string"),
        "score": ([None], "float32"),
    }
    nbest = signatures["nbest"]
    scalars = {"beam_size": ([], "int32"), "alpha": ([], "float32")}
    assert described(nbest.structured_input_signature[1]) == {**inputs, **scalars}
    outputs = described(nbest.structured_outputs)
    assert {name: dtype for name, (_, dtype) in outputs.items()} == {
        "translations": "string",
        "scores": "float32",
    }


def test_both_signatures_translate_like_the_translator():
    translator, _ = serving_model.exported()
    texts = serving_model.sentences(11, seed=2)
    expected = list(translator.stream(texts))
    translations, scores = translate(texts)
    assert [t.decode() for t in translations] == [h[0].text for h in expected]
    np.testing.assert_allclose(scores, [h[0].score for h in expected], rtol=1e-5)
    for K, alpha in ((3, 0.6), (5, 1.5)):
        other = Translator(
            translator.model, translator.tokenizer, beam_size=K, alpha=alpha, nbest=K
        )
        expected = list(other.stream(texts))
        translations, scores = nbest(texts, K, alpha)
        assert translations.shape == scores.shape == (11, K)
        assert [[t.decode() for t in row] for row in translations] == [
            [hypothesis.text for hypothesis in row] for row in expected
        ]
        np.testing.assert_allclose(scores, [[h.score for h in row] for row in expected], rtol=1e-5)
        assert np.all(np.diff(scores) <= 0)


def test_the_weights_of_steps_are_laid_out_once_for_all_requests():
    """And what they are made of is left out, but for the embedding, which is also looked up in."""
    translator, path = serving_model.exported()
    config = translator.model.config
    D, V, decoders = config.model_dim, config.vocabulary_size, config.decoder_layers
    inner, blocks = config.inner_dim, config.encoder_layers + decoders
    module = tf.saved_model.load(path)
    shapes = [tuple(variable.shape) for variable in module.variables_of_model]
    kernels = [shape for shape in shapes if shape == (D, config.num_heads, D // config.num_heads)]
    assert len(kernels) == 3 * config.encoder_layers + 2 * decoders  # of keys and values across
    assert shapes.count((D, 3 * D)) == decoders
    assert shapes.count((D, D)) == 3 * decoders  # of queries across, and two outputs
    assert shapes.count((D, inner)) == shapes.count((inner, D)) == blocks
    assert shapes.count((D, V)) == shapes.count((V, D)) == 1
    signature = module.signatures["serving_default"]
    assert set(map(id, signature.variables)) == set(map(id, module.variables_of_model))
    functions = signature.graph.as_graph_def().library.function
    bodies = [f for f in functions if "while_body" in f.signature.name]
    assert bodies
    assert not any(node.op == "ReadVariableOp" for body in bodies for node in body.node_def)


def changed(model):
    """The model with other weights, all of them, the same whatever was built before it, of a seed
    whose text has no control characters, which a stream of lines makes spaces."""
    for number, variable in enumerate(model.trainable_variables):
        variable.assign_add(tf.random.stateless_normal(variable.shape, (8, number)))
    return model


def additive():
    return of_config(compatibility="additive")


def sharing():
    return of_config(share_layers=True, decoder_layers=3)


def of_config(**fields):
    translator, _ = serving_model.exported()
    keras.utils.set_random_seed(3)
    model = Transformer(dataclasses.replace(translator.model.config, **fields))
    model.build()
    return changed(model)


def adapted():
    translator, _ = serving_model.exported()
    keras.utils.set_random_seed(3)
    model = Transformer(translator.model.config)
    model.build()
    model.set_weights(translator.model.get_weights())
    model.embedding.enable_lora(2)
    model.decoder_blocks[0].self_attention._query_dense.enable_lora(2)
    return changed(model)


def quantized():
    model = adapted()
    model.quantize("int8")
    return model


@pytest.mark.parametrize(
    "make",
    [
        additive,
        *(pytest.param(make, marks=pytest.mark.slow) for make in (sharing, adapted, quantized)),
    ],
)
def test_a_model_of_any_kind_is_translated_with(tmp_path, make):
    model, (translator, _) = make(), serving_model.exported()
    own = Translator(model, translator.tokenizer, beam_size=2, alpha=0.6)
    path = export_saved_model(Exportable(own, serving_model.tokenizer_path()), tmp_path)
    texts = serving_model.sentences(3)
    expected = [hypotheses[0] for hypotheses in own.stream(texts)]
    found = tf.saved_model.load(path).signatures["serving_default"](text=tf.constant(texts))
    assert [t.decode() for t in found["translation"].numpy()] == [h.text for h in expected]
    # What Keras rounds to 8 bits in each product may round to the next step on either side.
    tolerance = 5e-3 if make is quantized else 1e-4
    np.testing.assert_allclose(found["score"], [h.score for h in expected], rtol=tolerance)


def merged(model, directory):
    """The model with LoRA's part in its weights, if it has any."""
    model.save_weights(directory / "own.weights.h5")
    other = Transformer(model.config)
    other.build()
    other.load_weights(directory / "own.weights.h5")
    return other


@pytest.mark.parametrize(
    "make", [*(pytest.param(make, marks=pytest.mark.slow) for make in (additive, sharing)), adapted]
)
def test_a_model_in_bfloat16_has_its_weights_rounded_and_half_the_size(tmp_path, make):
    model, (translator, _) = make(), serving_model.exported()
    for variable in model.trainable_variables:
        variable.assign(0.3 * variable)  # of larger weights, roundings decide what is translated
    own, alike = (
        Translator(each, translator.tokenizer, beam_size=2, alpha=0.6)
        for each in (model, merged(model, tmp_path))
    )
    paths = [
        export_saved_model(
            Exportable(translator, serving_model.tokenizer_path()),
            tmp_path / quantization,
            quantization=quantization,
        )
        for translator, quantization in ((alike, "none"), (own, "bfloat16"))
    ]
    sizes = [(path / "variables/variables.data-00000-of-00001").stat().st_size for path in paths]
    assert sizes[1] < 0.6 * sizes[0]
    modules = [tf.saved_model.load(path) for path in paths]
    of_each = zip(*(module.variables_of_model for module in modules), strict=True)
    for exact, rounded in of_each:
        assert rounded.dtype == tf.bfloat16
        np.testing.assert_allclose(tf.cast(rounded, tf.float32), exact, rtol=2**-7)
    texts = tf.constant(serving_model.sentences(8))
    scores = [module.signatures["serving_default"](text=texts)["score"] for module in modules]
    assert all(scores[1] != scores[0])
    # Of a model that has learnt nothing, a rounding may decide which hypothesis lives on.
    np.testing.assert_allclose(scores[1], scores[0], rtol=0.25)
    # What was given is as it was.
    again = [hypotheses[0].score for hypotheses in own.stream(serving_model.sentences(8))]
    np.testing.assert_allclose(again, scores[0], rtol=1e-4)


def test_a_model_in_bfloat16_is_another_version(tmp_path):
    translator, _ = serving_model.exported()
    exportable = Exportable(translator, serving_model.tokenizer_path())
    for number, quantization in enumerate(("none", "bfloat16"), start=1):
        path = export_saved_model(exportable, tmp_path, quantization=quantization)
        assert path == tmp_path / str(number)
        with pytest.raises(AlreadyExported, match=f"^{path} holds this model"):
            export_saved_model(exportable, tmp_path, quantization=quantization)


def test_other_quantizations_are_refused(tmp_path):
    translator, _ = serving_model.exported()
    exportable = Exportable(translator, serving_model.tokenizer_path())
    with pytest.raises(
        InputError, match="^quantization must be one of none, bfloat16, got int8 for saved_model$"
    ):
        export_saved_model(exportable, tmp_path / "m", quantization="int8")
    model = of_config()
    model.decoder_blocks[-1].outer.quantize("int8")  # all of them take seconds
    exportable = Exportable(Translator(model, translator.tokenizer), serving_model.tokenizer_path())
    with pytest.raises(InputError, match="^the model must not be quantized by Keras"):
        export_saved_model(exportable, tmp_path / "m", quantization="bfloat16")
    assert not (tmp_path / "m").exists()


def test_layers_that_share_weights_have_them_once(tmp_path):
    translator, _ = serving_model.exported()
    sizes = []
    for number, layers in enumerate((1, 3)):
        model = of_config(share_layers=True, decoder_layers=layers)
        own = Translator(model, translator.tokenizer, beam_size=2, alpha=0.6)
        exportable = Exportable(own, serving_model.tokenizer_path())
        path = Path(export_saved_model(exportable, tmp_path / str(number)))
        sizes.append((path / "variables" / "variables.data-00000-of-00001").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 0.02 * sizes[0]


def test_blank_text_is_translated_to_nothing():
    blank = ["", "  ", *(c for c in map(chr, range(sys.maxunicode)) if c.isspace())]
    translations, scores = translate([*blank, "dog", "\u200b"])
    assert set(translations[:-2]) == {b""} and translations[-2] and translations[-1]
    assert not scores[:-2].any() and scores[-2] and scores[-1]
    translations, scores = nbest(blank, 2, 0.6)
    assert set(translations.flat) == {b""} and not scores.any()


def test_odd_text_gives_an_answer_the_same_as_alone():
    together, scores = translate(ODD_TEXTS)
    assert len(together) == len(ODD_TEXTS) and np.all(np.isfinite(scores))
    for text, translation, score in zip(ODD_TEXTS, together, scores, strict=True):
        translation.decode()
        ((alone,), (score_alone,)) = translate([text])
        assert alone == translation
        np.testing.assert_allclose(score_alone, score, rtol=2e-5)


def test_any_bytes_are_text(rng):
    texts = [rng.integers(0, 256, rng.integers(0, 23), dtype="uint8").tobytes() for _ in range(101)]
    translations, scores = translate(texts)
    assert all(isinstance(translation.decode(), str) for translation in translations)
    assert np.all(np.isfinite(scores))


def test_what_comes_after_the_limit_is_not_read():
    translator, _ = serving_model.exported()
    text = "the old dog sees a small house " * 100
    rows = translator.tokenizer.encode([text]).to_list()[0]
    assert len(rows) > MAX_SOURCE_LENGTH
    (one, other), scores = translate([text, text + "niemand weiß warum"])
    assert one == other
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)


def test_a_batch_may_be_empty():
    translations, scores = translate([])
    assert translations.shape == scores.shape == (0,)
    translations, scores = nbest([], 4, 0.6)
    assert translations.shape == scores.shape == (0, 4)


@pytest.mark.parametrize(
    "beam_size, alpha, message",
    [
        (0, 0.6, "beam_size must be from 1 to 100, got] [0]"),
        (-3, 0.6, "beam_size must be from 1 to 100, got] [-3]"),
        (MAX_BEAM_SIZE + 1, 0.6, "beam_size must be from 1 to 100, got] [101]"),
        (3, -0.5, "alpha must be from 0.0 to 10.0, got] [-0.5]"),
        (3, MAX_ALPHA + 1, "alpha must be from 0.0 to 10.0, got] [11]"),
        (3, float("nan"), "alpha must be from 0.0 to 10.0, got] [nan]"),
    ],
)
def test_the_graph_refuses_what_cannot_work(beam_size, alpha, message):
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        nbest(["the dog"], beam_size, alpha)
    assert message in str(refused.value)


def test_the_largest_beam_has_that_many_finite_hypotheses():
    translations, scores = nbest(["dog"], MAX_BEAM_SIZE, MAX_ALPHA)
    assert translations.shape == (1, MAX_BEAM_SIZE) and np.all(np.isfinite(scores))


def graph_def():
    path = serving_model.exported()[1] / "saved_model.pb"
    return saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs[0].graph_def


def operations():
    graph = graph_def()
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return {node.op for node in nodes} - functions


def test_no_operation_needs_a_compiler():
    graph = graph_def()
    assert operations() & {"While", "StatelessWhile"} and "SelectV2" in operations()
    assert not [op for op in operations() if op.startswith("Xla")]
    functions = graph.library.function
    nodes = [*graph.node, *(n for f in functions for n in f.node_def)]
    assert nodes and not any(n.attr["_XlaMustCompile"].b for n in nodes)
    assert functions and not any(f.attr["_XlaMustCompile"].b for f in functions)


LOOPS = {"While", "StatelessWhile"}


def test_loops_are_kept_and_one_device_could_run_each():
    """What TensorFlow does not take apart is placed as a whole, so that each operation of a loop
    must have a kernel for the device that it comes to, GPUs too."""
    functions = {f.signature.name: f for f in graph_def().library.function}
    loops = [n for f in functions.values() for n in f.node_def if n.op in LOOPS]
    assert loops and not any("_lower_using_switch_merge" in n.attr for n in loops)
    bodies = {n.attr[part].func.name for n in loops for part in ("cond", "body")}
    nodes = [n for name in bodies for n in functions[name].node_def]
    assert len(nodes) > 500
    for device in ("CPU", "GPU"):
        assert [n.op for n in nodes if not has_kernel(n, device)] == []
    tokenizes = next(n for f in functions.values() for n in f.node_def if "Sentencep" in n.op)
    assert has_kernel(tokenizes, "CPU") and not has_kernel(tokenizes, "GPU")


def has_kernel(node, device):
    """Whether TensorFlow has one of the node's types; the package for Linux has those of GPUs."""
    registered = kernels.get_registered_kernels_for_op(node.op).kernel
    return any(
        kernel.device_type in (device, "DEFAULT")
        and all(
            constraint.name not in node.attr  # has its default
            or node.attr[constraint.name].type in constraint.allowed_values.list.type
            for constraint in kernel.constraint
        )
        for kernel in registered
    )


# The Python package of tensorflow_text imports Keras, but its library of operations does not.
SENTENCEPIECE = Path(tensorflow_text.__file__).parent / "python/ops/_sentencepiece_tokenizer.so"
WITHOUT_KERAS = """
import sys
for name in ("keras", "tf_keras", "tf_relpos", "pipelines", "sentencepiece"):
    sys.modules[name] = None  # importing it fails
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

directory, library, *operations = sys.argv[1:]
foreign = [name for name in operations if op_def_registry.get(name) is None]
tf.load_op_library(library)
unknown = [name for name in foreign if op_def_registry.get(name) is None]
result = tf.saved_model.load(directory).signatures["serving_default"](text=tf.constant(["the dog"]))
print(*sorted(foreign), "|", *unknown, "|", result["translation"].numpy()[0].hex())
"""


def test_loads_with_tensorflow_and_tensorflow_text_alone(tmp_path):
    """No operation is of another library, and no package of Python need be there."""
    version = serving_model.exported()[1]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS, version, SENTENCEPIECE, *operations()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    foreign, unknown, translation = result.stdout.strip().split("|")
    assert foreign.split() and all("Sentencepiece" in name for name in foreign.split())
    assert unknown.split() == []
    assert bytes.fromhex(translation.strip()) == translate(["the dog"])[0][0]


def test_warm_up_requests_are_those_of_tensorflow_serving():
    prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    path = serving_model.exported()[1] / WARMUP_FILE
    assert WARMUP_FILE.as_posix() == "assets.extra/tf_serving_warmup_requests"
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
    assert 0 < len(records) <= 1000
    for record in records:
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.SerializeToString(deterministic=True) == record
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        assert request.model_spec.name == serving_model.NAME
        signature = serving_model.loaded()[request.model_spec.signature_name]
        inputs = {n: tf.constant(tf.make_ndarray(t)) for n, t in request.inputs.items()}
        assert signature(**inputs)["translation"].shape == inputs["text"].shape


def test_versions_count_upwards_and_stay(tmp_path):
    exportable = Exportable(serving_model.exported()[0], serving_model.tokenizer_path())
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "file").write_text("old")
    assert export_saved_model(exportable, str(tmp_path)) == tmp_path / "4"
    assert {path.name for path in tmp_path.iterdir()} == {"3", "4"}
    assert (tmp_path / "3" / "file").read_text() == "old"
    with pytest.raises(InputError, match=r"^version 3 exists in .* already: .*--version.*next, 5"):
        export_saved_model(exportable, tmp_path, version=3)
