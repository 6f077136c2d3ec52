"""The TFLite file finds what `beam_search` finds, with built-in operations, and explains itself."""

import hashlib
import itertools
import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from pipelines.data.tokenizer import Tokenizer
from pipelines.exporters import tflite
from pipelines.exporters.flatbuffer import completed
from pipelines.exporters.quantization import QUANTIZATIONS
from pipelines.exporters.tflite import export_tflite, write_model
from pipelines.translators.base import MIN_LENGTH
from pipelines.translators.keras_model import Translator
from pipelines.translators.tflite import TFLiteTranslator, read_metadata
from tests.support.full_disk import largest_files
from tests.support.random_model import (
    V,
    make_exportable,
    make_model,
    make_model_that_ends_at_once,
    write_tokenizer,
)
from tests.support.refusals import refused
from tf_relpos import RelativeMultiHeadAttention, Transformer, TransformerConfig, beam_search

S, L = 19, 69


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model")


# One of each length, the end id included; the first has no other token.
SOURCES = [
    [*np.random.default_rng(0).integers(4, V, length - 1).tolist(), 3]
    for length in (1, 2, 3, 7, 13, S)
]


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def exportable(model, tokenizer_path):
    return make_exportable(model, tokenizer_path)


@pytest.fixture(scope="module")
def files(model, tokenizer_path, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tflite")
    lengths = {"max_source_length": S, "max_target_length": L}
    exportable = replace(make_exportable(model, tokenizer_path), source_language="en")
    return {
        quantization: export_tflite(
            exportable, directory / f"{quantization}.tflite", quantization=quantization, **lengths
        )
        for quantization in QUANTIZATIONS
    }


@pytest.fixture(scope="module")
def translators(files):
    return {quantization: TFLiteTranslator(path) for quantization, path in files.items()}


def test_a_quantized_model_is_refused(tokenizer_path, tmp_path):
    model = make_model()
    model.decoder_blocks[-1].outer.quantize("int8")  # all of them take a minute
    with refused("must not be quantized by Keras, but its .* in int8"):
        export_tflite(make_exportable(model, tokenizer_path), tmp_path)
    assert not list(tmp_path.iterdir())


def test_several_threads_share_a_translator(translators):
    """Its interpreter has one place for its tensors."""
    translator = translators["none"]
    expected = [translator.search(source) for source in SOURCES]
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(translator.search, SOURCES * 20)]
    assert found == expected * 20


def test_what_came_meanwhile_is_not_replaced(exportable, tmp_path, monkeypatch):
    output, convert = tmp_path / "x.tflite", tflite._convert

    def convert_slowly(*args, **kwargs):
        output.write_bytes(b"another")
        return convert(*args, **kwargs)

    monkeypatch.setattr(tflite, "_convert", convert_slowly)
    lengths = {"max_source_length": S, "max_target_length": L}
    with refused("x.tflite exists already"):
        export_tflite(exportable, output, **lengths)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"another"]


def trimmed(ids):
    return [int(i) for i in ids if i != 0]


def found_by_keras(model, sources, beam_size=4, alpha=0.6, min_length=MIN_LENGTH, **limit):
    """The best hypothesis and its score for each source."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([1, None], tf.int32)])
    def search(source_ids):
        return beam_search(model, source_ids, beam_size, alpha, min_length=min_length, **limit)

    found = (search(tf.constant([source])) for source in sources)
    return [(trimmed(ids.numpy()[0, 0]), float(scores[0, 0])) for ids, scores in found]


def check_same(translator, sources, expected, tolerance=1e-5):
    for source, (ids, score) in zip(sources, expected, strict=True):
        found_ids, found_score = translator.search(source)
        assert trimmed(found_ids) == ids
        assert found_score == pytest.approx(score, rel=tolerance)


def operations(content):
    """Names of the operations, and of those that are not built in."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    codes = [
        (max(c.builtinCode, c.deprecatedBuiltinCode), c.customCode) for c in model.operatorCodes
    ]
    return {names[code] for code, _ in codes}, [custom for _, custom in codes if custom]


@pytest.fixture(scope="module")
def expected(model):
    return found_by_keras(model, SOURCES)


def test_finds_what_beam_search_finds(translators, expected):
    at_limit = [len(ids) == len(s) + 50 for s, (ids, _) in zip(SOURCES, expected, strict=True)]
    assert any(at_limit)
    assert not all(at_limit)
    check_same(translators["none"], SOURCES, expected)


def test_no_translation_is_empty(tokenizer_path, tmp_path):
    model = make_model_that_ends_at_once()
    assert all(ids == [3] for ids, _ in found_by_keras(model, SOURCES, min_length=0))
    expected = found_by_keras(model, SOURCES)
    assert {len(ids) > 1 for ids, _ in expected} == {True}
    path = export_tflite(
        make_exportable(model, tokenizer_path),
        tmp_path / "model.tflite",
        max_source_length=S,
        max_target_length=L,
    )
    check_same(TFLiteTranslator(path), SOURCES, expected)


def test_half_precision_finds_it_too(translators, expected):
    """Constants that are no weights are rounded as well, so the scores differ a little."""
    check_same(translators["float16"], SOURCES, expected, tolerance=0.01)


def test_integers_score_most_sources_alike(translators, expected):
    """Random weights magnify the rounding: now and then another hypothesis wins."""
    found = [translators["int8"].search(source) for source in SOURCES]
    assert all(trimmed(ids)[-1] == 3 for ids, _ in found)
    scores, expected_scores = ([score for _, score in pairs] for pairs in (found, expected))
    assert np.median(np.abs(np.subtract(scores, expected_scores))) < 0.5


def test_integers_with_tables_of_each_head(tokenizer_path, tmp_path):
    """Of over a thousand numbers, which the converter would round, too: all calls find the same."""
    model = make_model(model_dim=64, num_heads=2, max_relative_position=16)
    scores = {}
    for quantization in ("none", "int8"):
        exportable = make_exportable(model, tokenizer_path)
        path = export_tflite(exportable, tmp_path / quantization, quantization=quantization)
        translators = [TFLiteTranslator(path) for _ in range(2)]
        scores[quantization] = [
            [translator.search(source)[1] for source in SOURCES] for translator in translators
        ]
    assert scores["int8"][0] == scores["int8"][1]
    assert np.median(np.abs(np.subtract(*scores.values()))) < 0.5


@pytest.mark.parametrize("quantization", [pytest.param("none", marks=pytest.mark.slow), "int8"])
def test_low_rank_updates_are_in_the_file(rng, tokenizer_path, tmp_path, quantization):
    """The file of a model with LoRA is that of one whose matrices are the sums, as it scores."""
    model, merged = make_model(), make_model()
    parts = [
        (each.embedding, each.decoder_blocks[0].self_attention._query_dense)
        for each in (model, merged)
    ]
    for layer, twin in zip(*parts, strict=True):
        layer.enable_lora(2)
        matrix = "embeddings" if layer is model.embedding else "kernel"
        update = getattr(layer, f"lora_{matrix}_b")
        update.assign(rng.normal(size=update.shape))
        getattr(twin, matrix).assign(getattr(layer, matrix))
    scores = []
    for number, each in enumerate((model, merged)):
        exportable = make_exportable(each, tokenizer_path)
        path = export_tflite(exportable, tmp_path / str(number), quantization=quantization)
        scores.append([TFLiteTranslator(path).search(source)[1] for source in SOURCES])
    np.testing.assert_allclose(*scores, rtol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"position": "both", "norm": "pre", "heads_share_relative_embedding": False},
        {"implementation": "transpose_reshape", "heads_share_relative_embedding": True},
        {"position": "sinusoidal", "attention_window": 1},
        {"compatibility": "additive"},
        {"share_layers": True, "decoder_layers": 2},
    ],
)
def test_other_models_and_settings(tokenizer_path, tmp_path, config):
    """The last source may take 55 tokens, of which the file has room for 5."""
    model = make_model(**{"decoder_layers": 1, **config})
    settings = {"beam_size": 2, "alpha": 0.0}
    path = export_tflite(
        make_exportable(model, tokenizer_path, **settings),
        tmp_path / "new" / "directory",
        max_source_length=5,
        max_target_length=5,
    )
    assert path == tmp_path / "new" / "directory" / "model.tflite"
    translator = TFLiteTranslator(path)
    sources = [[3], [7, 3], [11, 5, V - 1, 8, 3]]
    check_same(translator, sources, found_by_keras(model, sources, max_length=5, **settings))
    assert operations(path.read_bytes())[1] == []


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_operations_are_built_in(files, quantization):
    names, custom = operations(files[quantization].read_bytes())
    assert {"WHILE", "GATHER", "FULLY_CONNECTED"} <= names
    assert "CUSTOM" not in names
    assert custom == []


def test_signature_has_the_lengths(files):
    interpreter = Interpreter(model_path=str(files["none"]))
    runner = interpreter.get_signature_runner("serving_default")
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    assert {n: (d["shape"].tolist(), d["dtype"]) for n, d in inputs.items()} == {
        "source_ids": ([1, S], np.int32)
    }
    assert {n: (d["shape"].tolist(), d["dtype"]) for n, d in outputs.items()} == {
        "target_ids": ([1, L], np.int32),
        "score": ([1], np.float32),
    }


def test_weights_are_stored_once(model, files):
    for quantization, dtype in (("none", "float32"), ("float16", "float16")):
        content = files[quantization].read_bytes()
        table = model.embedding.embeddings.numpy().astype(dtype)
        assert content.count(table.tobytes()) == 1
        assert content.count(table.T.copy().tobytes()) == 0
    buffers = schema.ModelT.InitFromPackedBuf(files["int8"].read_bytes(), 0).buffers
    sizes = [len(buffer.data) for buffer in buffers if buffer.data is not None]
    assert sizes.count(model.embedding.embeddings.shape[0] * model.config.model_dim) == 1
    size = {quantization: files[quantization].stat().st_size for quantization in QUANTIZATIONS}
    parameters = model.count_params()
    assert size["none"] - size["float16"] == pytest.approx(2 * parameters, rel=0.3)
    assert size["int8"] < size["none"]


def test_file_says_what_a_caller_must_know(files, tokenizer_path):
    for quantization, path in files.items():
        metadata = read_metadata(path)
        assert len(metadata.pop("tokenizer_sha256")) == 64
        assert metadata == {
            "format": 1,
            "max_source_length": S,
            "max_target_length": L,
            "beam_size": 4,
            "alpha": 0.6,
            "quantization": quantization,
            "source_language": "en",
            "target_language": None,
            "vocabulary_size": V,
            "pad_id": 0,
            "unknown_id": 1,
            "start_id": 2,
            "end_id": 3,
            "tokenizer": f"{quantization}.tokenizer.model",
        }
        beside = path.with_name(f"{quantization}.tokenizer.model")
        assert beside.read_bytes() == tokenizer_path.read_bytes()
    left = {p.name for p in path.parent.iterdir()}
    assert left == {f"{q}.{end}" for q in QUANTIZATIONS for end in ("tflite", "tokenizer.model")}


def test_translates_text_like_the_model(model, translators, tokenizer_path):
    translator = Translator(model, Tokenizer(tokenizer_path))
    sentences = ["eins zwei", "", "  fünf   ﬁ 😀", "drei vier\tzehn", "\x00"]
    found = list(translators["none"].stream(sentences))
    for hypotheses, reference in zip(found, translator.stream(sentences), strict=True):
        (hypothesis,) = hypotheses
        assert hypothesis.text == reference[0].text
        assert hypothesis.score == pytest.approx(reference[0].score, rel=1e-5)
    texts = [hypotheses[0].text for hypotheses in found]
    assert translators["none"].translate(sentences) == texts
    assert len(set(texts)) == len(sentences)


def test_streams(translators):
    endless = itertools.cycle(["eins", "zwei"])
    first = list(itertools.islice(translators["none"].stream(endless, 128), 2))
    assert [[t.text for t in hypotheses] for hypotheses in first] == [
        [text] for text in translators["none"].translate(["eins", "zwei"])
    ]


def test_long_sources_are_cut(rng, translators):
    ids = rng.integers(4, V, 1009).tolist()
    whole = translators["none"].search([*ids, 3])
    assert whole == translators["none"].search(ids[:S])
    assert whole != translators["none"].search(ids[: S - 1])
    assert translators["none"].translate(["zehn " * 5003])[0]


def test_no_token_at_all_is_answered(translators):
    ids, score = translators["none"].search([])
    assert 3 in ids
    assert np.isfinite(score)


def test_a_longer_source_has_a_longer_translation(exportable, tmp_path):
    path = export_tflite(exportable, tmp_path / "model.tflite", max_source_length=200)
    assert read_metadata(path)["max_target_length"] == 250


BAD_ARGUMENTS = [
    ({"quantization": "int4"}, "quantization must be one of none, float16, int8, got int4"),
    ({"max_source_length": 1}, "max_source_length must be at least 2, got 1"),
    ({"max_source_length": 257}, "max_source_length must be at most 256, .*trained .*, got 257"),
    ({"max_target_length": 0}, "max_target_length must be at least 1, got 0"),
    ({"max_target_length": 179}, "max_target_length must be at most 178, .*got 179"),
]


def test_gradients_that_are_left_out_are_not_mentioned(exportable, tmp_path):
    """Which the converter does in a line for each of them."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log = logging.getLogger("absl")
    log.addHandler(handler)
    try:
        export_tflite(exportable, tmp_path / "model.tflite")
        log.warning("something else")
    finally:
        log.removeHandler(handler)
    assert [line for line in said if "gradient" in line] == []
    assert said[-1] == "something else"


@pytest.mark.parametrize("bad, message", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(exportable, tmp_path, bad, message):
    with refused(message):
        export_tflite(exportable, tmp_path / "x.tflite", **bad)
    assert list(tmp_path.iterdir()) == []


def test_a_beam_of_nothing_is_refused(model, tokenizer_path, tmp_path):
    with refused("beam_size must be from 1 to 100, got 0"):
        export_tflite(make_exportable(model, tokenizer_path, beam_size=0), tmp_path / "x.tflite")


def test_places_that_cannot_be_used_are_refused(exportable, files, tokenizer_path, tmp_path):
    before = files["none"].read_bytes()
    with refused(r"none\.tflite exists already: choose another --output"):
        export_tflite(exportable, files["none"])
    assert files["none"].read_bytes() == before
    (tmp_path / "file").touch()
    with refused("cannot write .*/file/x.*: Not a directory"):
        export_tflite(exportable, tmp_path / "file" / "x.tflite")
    with refused("cannot read the tokenizer"):
        absent = replace(exportable, tokenizer_path=tmp_path / "absent")
        export_tflite(absent, tmp_path / "x.tflite")
    other = Transformer(TransformerConfig.preset("tiny", vocabulary_size=V + 1))
    with refused(f"have the {V + 1} subwords of the model, got {V}"):
        export_tflite(make_exportable(other, tokenizer_path), tmp_path / "x.tflite")
    (tmp_path / "x.tokenizer.model").write_bytes(b"somebody's own")
    with refused(r"x\.tokenizer\.model, which holds another one: choose"):
        export_tflite(exportable, tmp_path / "x.tflite")
    assert (tmp_path / "x.tokenizer.model").read_bytes() == b"somebody's own"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "x.tokenizer.model"}


def test_on_a_full_disk_nothing_is_left(tokenizer_path, tmp_path):
    exportable = make_exportable(make_model(inner_dim=2003), tokenizer_path)  # the larger file
    size = tokenizer_path.stat().st_size
    with largest_files(size), refused(r"x\.tflite: File too large"):
        export_tflite(exportable, tmp_path / "x.tflite")
    assert list(tmp_path.iterdir()) == []
    shutil.copy(tokenizer_path, tmp_path / "x.tokenizer.model")  # the same is no obstacle
    path = export_tflite(exportable, tmp_path / "x.tflite")
    assert TFLiteTranslator(path).translate(["eins"])


@pytest.mark.slow
def test_on_a_full_disk_nothing_is_left_of_two_signatures(tokenizer_path, tmp_path):
    """Which are converted by way of temporary files."""
    exportable = make_exportable(make_model(), tokenizer_path)
    options = {"quantization": "none", "max_source_length": None, "attention": True}
    with largest_files(1000), refused("File too large.* temporary files"):
        write_model(exportable, tmp_path / "x.tflite", **options)
    assert list(tmp_path.iterdir()) == []


def test_unusable_files_are_refused(files, tokenizer_path, tmp_path):
    path = tmp_path / "x.tflite"
    with refused("cannot read the model .*x.tflite: No such file"):
        TFLiteTranslator(path)
    content = files["none"].read_bytes()
    for wrong in (b"", b"text", b"PK\x03\x04" * 100):
        path.write_bytes(wrong)
        with refused("is not a TFLite file"):
            TFLiteTranslator(path)
    path.write_bytes(content)
    with refused("cannot read the tokenizer .*none.tokenizer.model"):
        TFLiteTranslator(path)
    (tmp_path / "none.tokenizer.model").write_bytes(b"another")
    with refused("is not the tokenizer that the model was exported with"):
        TFLiteTranslator(path)
    (tmp_path / "none.tokenizer.model").write_bytes(tokenizer_path.read_bytes())
    for size in (9, 101, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:size])
        with refused("x.tflite (is damaged|cannot be read)"):
            TFLiteTranslator(path)


TAMPERED = [
    ({"max_source_length": 999_999_999_999}, r"of its input, of shape \[1, 19\], got 999999999999"),
    ({"max_source_length": -1}, "got -1"),
    ({"max_source_length": "19"}, "must have a max_source_length of type int"),
    ({"max_source_length": True}, "must have a max_source_length of type int"),
    ({"end_id": None}, "must have a end_id of type int"),
    ({"end_id": 7}, None),  # a translation that never ends
    ({"end_id": 10**12}, "its end_id must be a subword, got 1000000000000"),
    ({"pad_id": -1}, "its pad_id must be a subword, got -1"),
    ({"pad_id": [0]}, "must have a pad_id of type int"),
    ({"vocabulary_size": 10**13}, "must have the 10000000000000 subwords of the model, got 283"),
    ({"tokenizer": "../../x"}, "its tokenizer must be a file beside it"),
    ({"tokenizer": ""}, "its tokenizer must be a file beside it"),
    ({"tokenizer": ".."}, "its tokenizer must be a file beside it"),
    ({"tokenizer": "a\0b"}, "its tokenizer must be a file beside it"),
    ({"tokenizer_sha256": 1}, "must have a tokenizer_sha256 of type str"),
    ({"format": None}, "must have format 1, got None"),
    ({"format": {}}, "must have format 1, got {}"),
    ([], "is damaged"),
    (None, "is damaged"),
    ("[" * 100_000, "is damaged"),
    ("", "is damaged"),
]


@pytest.mark.parametrize(("change", "message"), TAMPERED)
def test_tampered_metadata_are_told(files, tmp_path, change, message):
    changed = {**read_metadata(files["none"]), **change} if isinstance(change, dict) else change
    text = changed if isinstance(changed, str) else json.dumps(changed)
    path = tmp_path / "none.tflite"
    content = completed(files["none"].read_bytes(), text, in_integers=False)
    path.write_bytes(content)  # the later entry is read
    beside = "none.tokenizer.model"
    (tmp_path / beside).write_bytes((files["none"].with_name(beside)).read_bytes())
    if message is None:
        assert TFLiteTranslator(path).translate(["eins"])
        return
    with refused(message):
        TFLiteTranslator(path).translate(["eins"])


@pytest.mark.parametrize("content", [b"", b"\0\0", b"not one", b"\n" * 99])
def test_a_tokenizer_that_is_none_is_told(files, tmp_path, content):
    metadata = read_metadata(files["none"])
    metadata["tokenizer_sha256"] = hashlib.sha256(content).hexdigest()
    path = tmp_path / "none.tflite"
    text = json.dumps(metadata)
    path.write_bytes(completed(files["none"].read_bytes(), text, in_integers=False))
    path.with_name("none.tokenizer.model").write_bytes(content)
    with refused("none.tokenizer.model is not a SentencePiece model"):
        TFLiteTranslator(path)


def convert(model):
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    return converter.convert()


@pytest.mark.parametrize("implementation", ["bucketed", "transpose_reshape"])
def test_a_model_of_ones_own_converts(rng, tmp_path, implementation):
    ids = keras.Input((19,), dtype="int32", name="ids")
    x = keras.layers.Embedding(101, 24)(ids)
    attention = RelativeMultiHeadAttention(
        num_heads=3, key_dim=8, max_relative_position=5, implementation=implementation
    )
    x = keras.layers.GlobalAveragePooling1D()(attention(x, x))
    classifier = keras.Model(ids, keras.layers.Dense(7, activation="softmax")(x))
    for weight in classifier.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    content = convert(classifier)
    assert operations(content)[1] == []

    run = Interpreter(model_content=content).get_signature_runner("serving_default")
    batch = rng.integers(0, 101, (11, 19)).astype("int32")
    found = np.concatenate([run(ids=row[None])["output_0"] for row in batch])
    reference = classifier(batch).numpy()
    np.testing.assert_allclose(found, reference, atol=1e-5)
    assert np.ptp(reference) > 0.1

    path = tmp_path / "classifier.tflite"
    path.write_bytes(content)
    with refused("has no tf_relpos metadata"):
        TFLiteTranslator(path)
