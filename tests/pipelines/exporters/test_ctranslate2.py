"""A CTranslate2 directory computes what the Keras model does."""

import json
import resource
import shutil
import sys

import ctranslate2
import keras
import numpy as np
import pytest
import sacrebleu
import sentencepiece

from pipelines.data.tokenizer import Tokenizer, train_tokenizer
from pipelines.exporters.ctranslate2 import export_ctranslate2
from pipelines.translators.ctranslate2 import CTranslate2Translator
from pipelines.translators.keras_model import Translator
from tests.support.random_model import (
    make_exportable,
    make_model_that_ends_at_once,
    write_tokenizer,
)
from tests.support.refusals import refused
from tests.support.serving_model import exported, sentences
from tf_relpos import Transformer, TransformerConfig

START, END = 2, 3
VOCABULARY = 300


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer(sentences(400), VOCABULARY, path)
    return path


def random_model(rng, **changes):
    """Large weights, so that each of them shows in the output."""
    fields = {
        "vocabulary_size": VOCABULARY,
        "model_dim": 21,
        "inner_dim": 11,
        "num_heads": 3,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "max_relative_position": 5,
        "heads_share_relative_embedding": True,
    }
    model = Transformer(TransformerConfig(**{**fields, **changes}))
    model.build()
    for weight in model.weights:
        weight.assign(keras.ops.convert_to_numpy(weight) + 0.3 * rng.normal(size=weight.shape))
    return model


def log_probabilities(model, source, target):
    """Of the target's ids and the end, `[T + 1]`."""
    inputs = {
        "source_ids": np.array([[*source, END]], "int32"),
        "target_ids": np.array([[START, *target]], "int32"),
    }
    rows = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(inputs)))[0]
    return rows[np.arange(len(target) + 1), [*target, END]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"relative_values": False},
        {"relative_keys": False},
        {"share_layers": True},
        {"max_relative_position": 0},
        {"position": "sinusoidal", "heads_share_relative_embedding": False},
        {"position": "sinusoidal", "norm": "pre"},
        {"position": "none"},
    ],
    ids=str,
)
def test_probabilities(rng, tmp_path, tokenizer_path, changes):
    """Lengths on both sides of the clipping distance."""
    model = random_model(rng, **changes)
    directory = export_ctranslate2(make_exportable(model, tokenizer_path), tmp_path / "model")
    pieces = json.loads((directory / "shared_vocabulary.json").read_text(encoding="utf-8"))
    pairs = [
        [rng.integers(4, len(pieces), length) for length in lengths]
        for lengths in ((1, 7), (5, 2), (13, 31), (41, 19))
    ]
    results = ctranslate2.Translator(str(directory), intra_threads=1).score_batch(
        [[pieces[i] for i in [*source, END]] for source, _ in pairs],
        [[pieces[i] for i in target] for _, target in pairs],
    )
    for (source, target), result in zip(pairs, results, strict=True):
        expected = log_probabilities(model, source, target)
        np.testing.assert_allclose(result.log_probs, expected, atol=5e-5)


def test_sinusoids_reach_as_far_as_the_longest_source(rng, tmp_path, tokenizer_path):
    model = random_model(rng, position="sinusoidal", encoder_layers=1, decoder_layers=1)
    trained_long = make_exportable(model, tokenizer_path, max_source_length=1100, beam_size=1)
    directory = export_ctranslate2(trained_long, tmp_path / "model")
    source = "x " * 1200
    found = CTranslate2Translator(directory, beam_size=1).translate([source])
    assert found == trained_long.translator.translate([source])


def test_greedy_search_gives_the_same_text_up_to_the_limit_of_each_sentence(
    rng, tmp_path, tokenizer_path
):
    """A random model never ends a sentence, so all are cut: where, depends on the source."""
    model = random_model(rng)
    directory = export_ctranslate2(make_exportable(model, tokenizer_path), tmp_path / "model")
    sources = sentences(7)
    expected = Translator(model, Tokenizer(tokenizer_path), beam_size=1).translate(sources)
    assert len({len(text) for text in expected}) > 1
    assert CTranslate2Translator(directory, beam_size=1).translate(sources) == expected


@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_translation_is_empty(tmp_path, beam_size):
    tokenizer_path = write_tokenizer(tmp_path / "tokenizer.model")
    model = make_model_that_ends_at_once(heads_share_relative_embedding=True)
    directory = export_ctranslate2(make_exportable(model, tokenizer_path), tmp_path / "model")
    ours = Translator(model, Tokenizer(tokenizer_path), beam_size=beam_size)
    expected, found = (
        x.translate(sentences(20))
        for x in (ours, CTranslate2Translator(directory, beam_size=beam_size))
    )
    assert "" not in expected and "" not in found
    assert sum(e == f for e, f in zip(expected, found, strict=True)) >= 18


@pytest.fixture(scope="module")
def model():
    """It has learnt to end its sentences, most of them."""
    return exported()[0].model


@pytest.fixture(scope="module")
def directories(model, tmp_path_factory, tokenizer_path):
    """The model by quantization."""
    base = tmp_path_factory.mktemp("ctranslate2")
    return {
        quantization: export_ctranslate2(
            make_exportable(model, tokenizer_path), base / quantization, quantization=quantization
        )
        for quantization in ("none", "float16", "int8")
    }


@pytest.mark.parametrize(("beam_size", "same_best"), [(1, 0.99), (4, 0.8)])
def test_translations_and_scores(model, directories, tokenizer_path, beam_size, same_best):
    sources, settings = sentences(60, seed=3), {"beam_size": beam_size, "alpha": 0.6}
    ours = Translator(model, Tokenizer(tokenizer_path), **settings, nbest=beam_size)
    expected = list(ours.stream(sources))
    found = list(CTranslate2Translator(directories["none"], **settings).stream(sources))
    assert all(len(f) == beam_size for f in found)
    assert all(f == sorted(f, key=lambda t: -t.score) for f in found)
    same = [(e[0], f[0]) for e, f in zip(expected, found, strict=True) if e[0].text == f[0].text]
    assert len(same) >= same_best * len(sources)
    ended = [(e, f) for e, f in same if len(e.text) < 50]  # fewer tokens than any limit
    assert len({len(e.text) for e, _ in ended}) > 2
    for e, f in ended:
        # Padding and the start id are excluded before probabilities are taken, not after.
        assert e.score - 1e-4 < f.score < e.score + 0.1


@pytest.mark.parametrize(
    ("quantization", "size", "agreement"), [("float16", 0.55, 95), ("int8", 0.5, 20)]
)
def test_quantized_models_are_smaller_and_agree(directories, quantization, size, agreement):
    """The weights are random, whose translations hang by a hair: in int8 BLEU is 34 on a processor
    without AVX-512, and above 50 with it."""
    exact, quantized = directories["none"], directories[quantization]
    sizes = [(directory / "model.bin").stat().st_size for directory in (exact, quantized)]
    assert sizes[1] < size * sizes[0]
    sources = sentences(40)
    expected, found = (
        CTranslate2Translator(directory, beam_size=1).translate(sources)
        for directory in (exact, quantized)
    )
    assert sacrebleu.corpus_bleu(found, [expected]).score > agreement


def test_equal_tables_are_stored_once(model, directories):
    parameters = sum(int(np.prod(weight.shape)) for weight in model.weights)
    size = (directories["none"] / "model.bin").stat().st_size
    embeddings = 4 * int(np.prod(model.embedding.embeddings.shape))
    assert 4 * parameters < size < 4 * parameters + embeddings / 2


def test_any_text_gets_an_answer_the_same_as_alone(directories):
    odd = ["", "   ", "dog " * 1000, "x" * 5000, "😀 \x00 \ufeff日本語", "a\nb", *sentences(3)]
    translator = CTranslate2Translator(directories["none"])
    together = translator.translate(odd)
    assert together == [translator.translate([text])[0] for text in odd]
    assert together[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads_share_relative_embedding": False}, "for all heads.*heads_share_relative_embed"),
        ({"position": "both"}, "position both"),
        ({"attention_window": 4}, "all positions.*attention_window 4"),
        ({"compatibility": "additive"}, "product of queries and keys.*compatibility additive"),
        ({"vocabulary_size": 307}, "tokenizer .* 307 subwords .*got 300"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(rng, tmp_path, tokenizer_path, changes, message):
    with refused(message):
        export_ctranslate2(
            make_exportable(random_model(rng, **changes), tokenizer_path), tmp_path / "model"
        )
    assert not list(tmp_path.iterdir())


def test_a_quantized_model_is_refused(rng, tmp_path, tokenizer_path):
    model = random_model(rng)
    model.decoder_blocks[-1].outer.quantize("int8")  # all of them take a minute
    with refused("must not be quantized by Keras, but its .* in int8"):
        export_ctranslate2(make_exportable(model, tokenizer_path), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_bad_arguments(rng, tmp_path, tokenizer_path):
    small = make_exportable(random_model(rng), tokenizer_path)
    with refused("quantization must be one of .* got int4"):
        export_ctranslate2(small, tmp_path / "model", quantization="int4")
    with refused("exists already: choose another --output"):
        export_ctranslate2(small, tmp_path)
    (tmp_path / "file").write_text("")
    with refused("cannot write .*/file/model"):
        export_ctranslate2(small, tmp_path / "file" / "model")


def test_an_export_that_fails_leaves_nothing(rng, tmp_path, tokenizer_path):
    """The disk refuses files above a few kilobytes."""
    model = random_model(rng)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with refused("cannot write .*File too large"):
            export_ctranslate2(make_exportable(model, tokenizer_path), tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_without_ctranslate2(rng, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with refused(r"needs ctranslate2 .*pip install -e '\.\[export\]'$"):
        CTranslate2Translator(tmp_path)


def test_unreadable_directories(directories, tmp_path):
    with refused(f"{tmp_path} cannot be read"):
        CTranslate2Translator(tmp_path)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in directories["none"].iterdir():
        (damaged / file.name).write_bytes(file.read_bytes()[:5000])
    shutil.copyfile(directories["none"] / "tokenizer.model", damaged / "tokenizer.model")
    with refused("damaged cannot be read"):
        CTranslate2Translator(damaged)


def test_a_vocabulary_that_is_too_short_is_told(directories, tmp_path):
    damaged = shutil.copytree(directories["none"], tmp_path / "damaged")
    (vocabulary,) = damaged.glob("*vocabulary.json")
    vocabulary.write_text(json.dumps(json.loads(vocabulary.read_text())[:-1]))
    with refused("damaged cannot be (read|run): "):
        CTranslate2Translator(damaged).translate(["the dog"])


LIMITS = {"max_source_length": 20, "extra_length": 50}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_source_length": 10**13},
        {"max_source_length": "20"},
        {"extra_length": -1},
        {"extra_length": None},
        [],
        "[" * 100_000,
    ],
)
def test_tampered_limits_are_told(tmp_path, changes):
    config = {**LIMITS, **changes} if isinstance(changes, dict) else changes
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "config.json").write_text(text)
    with refused("max_source_length and extra_length, from 1 to"):
        CTranslate2Translator(tmp_path)


def test_a_tokenizer_of_another_model_is_told(directories, tmp_path):
    damaged = shutil.copytree(directories["none"], tmp_path / "damaged")
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["a b c"] * 99),
        model_prefix=str(damaged / "tokenizer"),
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with refused("tokenizer.model is of another model: .*shared_vocab"):
        CTranslate2Translator(damaged)
