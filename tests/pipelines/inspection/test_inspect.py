"""A run looked into: the parts of the scores, the page and the pictures."""

import base64
import re
import struct
from html.parser import HTMLParser

import keras
import numpy as np
import pytest

from pipelines import inspect
from pipelines.config import CorpusConfig, RunConfig, TrainingConfig
from pipelines.data.tokenizer import train_tokenizer
from pipelines.files.checksums import sha256
from pipelines.inspection.attention import look, tables
from pipelines.inspection.pictures import draw_tables
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from pipelines.translators.keras_model import load_run
from tests.support.runs import call, flags, open_run, provenance
from tests.support.serving_model import sentences
from tf_relpos import Transformer, TransformerConfig

pytestmark = pytest.mark.tensorflow_only

VOID = {"meta", "br", "img"}
SENTENCE = "dog <script>alert('1')</script> & $x_1$"
SMALLEST = {"encoder_layers": 1, "num_heads": 2}


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes a run directory with a model that has learnt nothing."""
    tokenizer = tmp_path_factory.mktemp("subwords") / "tokenizer.model"
    train_tokenizer(sentences(400), 300, tokenizer)

    def make(path, **fields):
        model_config = TransformerConfig(
            **{
                "vocabulary_size": 300, "model_dim": 12, "inner_dim": 20, "num_heads": 3,
                "encoder_layers": 2, "decoder_layers": 1, "max_relative_position": 2, **fields,
            }
        )  # fmt: skip
        config = RunConfig("tiny", model_config, CorpusConfig(), TrainingConfig())
        run = open_run(path, provenance(config, tokenizer=sha256(tokenizer)), tokenizer)
        model = Transformer(model_config)
        model.build()
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        run.checkpoints.save(model, optimizer, RunState(7), keep=1)
        return path

    return make


def test_scores_that_are_no_sum_of_terms_are_refused(write, tmp_path, refusal):
    path = write(tmp_path / "run", **SMALLEST, compatibility="additive")
    output = tmp_path / "page.html"
    arguments = flags(run_dir=path, sentence="the dog", output=output)
    told = refusal(inspect.main, arguments)  # before a translation is printed
    assert "compatibility product, got compatibility additive" in told
    assert not output.exists()


def test_a_translation_to_nothing_asks_for_the_target(write, tmp_path, monkeypatch, refusal):
    path = write(tmp_path / "run", **SMALLEST)
    translate = "pipelines.translators.keras_model.Translator.translate"
    monkeypatch.setattr(translate, lambda self, sentences: [""])
    arguments = flags(run_dir=path, sentence="the dog", output=tmp_path / "page.html")
    told = refusal(inspect.main, arguments)
    assert told.startswith("target must be given where a model translates")
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("shared", [True, False])
def test_content_and_position_make_the_weights(write, tmp_path, shared):
    path = write(tmp_path / "run", heads_share_relative_embedding=shared)
    found = look(load_run(RunDirectory(path)), "the old dog sees", "der alte Hund")
    assert [attention.name for attention in found] == [
        "encoder_0/self_attention",
        "encoder_1/self_attention",
        "decoder_0/self_attention",
        "decoder_0/cross_attention",
    ]
    for attention in found:
        assert attention.weights.shape == (3, len(attention.rows), len(attention.columns))
        assert (attention.position is not None) == attention.is_self
        scores = attention.content + (0 if attention.position is None else attention.position)
        weights = np.exp(np.where(np.isnan(scores), -np.inf, scores))
        weights /= weights.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(attention.weights, weights, atol=1e-6)
    decoder, cross = found[2:]
    assert np.isnan(decoder.content[0, 0, 1]) and not np.isnan(decoder.content[0, 1, 0])
    assert (decoder.rows[0], cross.rows[-1], cross.columns[-1]) == ("<s>", "</s>", "</s>")
    assert decoder.rows[1:] == cross.rows[:-1]
    assert "".join(cross.rows).startswith("▁der▁alte") and "".join(cross.columns).startswith("▁the")
    held = tables(load_run(RunDirectory(path)))
    assert [layer.keys.shape for layer in held] == [(1 if shared else 3, 5, 4)] * 3
    if not shared:
        assert len(draw_tables(held[0]).axes) == 3 * (3 + 2)  # panels, and scales of colours


def test_tables_that_layers_share_are_shown_once(write, tmp_path):
    path = write(tmp_path / "run", share_layers=True)
    held = tables(load_run(RunDirectory(path)))
    assert [layer.name for layer in held] == ["encoder/self_attention", "decoder/self_attention"]


class Page(HTMLParser):
    """The text and the tags of a page; checks that they are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_needs_nothing_else(write, tmp_path, monkeypatch, capfd):
    run_dir, output = write(tmp_path / "run", **SMALLEST), tmp_path / "<page>.html"
    arguments = ["--run_dir", run_dir, "--sentence", SENTENCE, "--target", "der & <b>Hund</b>"]
    assert call(inspect.main, [*arguments, "--output", output], monkeypatch) == 0
    assert capfd.readouterr().out == f"wrote {output} and 7 pictures in {tmp_path}/<page>\n"
    text = output.read_text(encoding="utf-8")
    page = Page(text)
    assert SENTENCE in page.texts and "der & <b>Hund</b>" in page.texts
    assert {tag for tag, _ in page.tags} <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "br", "i", "sub",
        "sup", "span", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "img",
    }  # fmt: skip
    assert not re.search(r"https?:|//[a-z]", re.sub(r'src="data:[^"]*"', "", text))
    pictures = sorted((tmp_path / "<page>").iterdir())
    shown = [given["src"] for tag, given in page.tags if tag == "img"]
    contents = {base64.b64decode(src.removeprefix("data:image/png;base64,")) for src in shown}
    assert contents == {path.read_bytes() for path in pictures} and len(shown) == 7
    assert pictures[-1].name == "encoder_0-self_attention-tables.png"
    for content in contents:
        assert content.startswith(b"\x89PNG") and min(struct.unpack(">II", content[16:24])) > 200


def test_a_model_without_relative_positions(write, tmp_path, monkeypatch, capfd):
    run_dir = write(tmp_path / "run", position="sinusoidal", **SMALLEST)
    output = tmp_path / "page.html"
    arguments = ["--run_dir", run_dir, "--sentence", "the dog", "--target", "der Hund"]
    assert call(inspect.main, [*arguments, "--output", output], monkeypatch) == 0
    assert capfd.readouterr().out == f"wrote {output} and 3 pictures in {tmp_path}/page\n"
    assert " (as given)" in Page(output.read_text(encoding="utf-8")).texts


def test_the_translation_is_the_models_own_unless_given(trained_run, tmp_path, monkeypatch, capfd):
    output = tmp_path / "page.html"
    arguments = ["--run_dir", trained_run, "--sentence", "c a f", "--output", output]
    assert call(inspect.main, arguments, monkeypatch) == 0
    assert capfd.readouterr().out.splitlines()[0] == "6 1 3"
    texts = Page(output.read_text(encoding="utf-8")).texts
    assert "6 1 3" in texts and " (the model's own translation)" in texts


@pytest.mark.parametrize(
    "values, message",
    [
        ({"sentence": "dog"}, "the following arguments are required: --run_dir"),
        ({"run_dir": "x", "sentence": " "}, "sentence must not be empty, got ' '"),
        ({"run_dir": "x", "sentence": "a", "target": ""}, "target must not be empty, got ''"),
        ({"run_dir": "x", "sentence": "a", "output": "a.png"}, "ends in .html, got a.png"),
        ({"run_dir": "x", "sentence": "a", "output": ".html"}, "ends in .html, got .html"),
        (
            {"run_dir": "x", "sentence": "a", "output": "there.html"},
            "output must be a file, got a directory, there.html",
        ),
        (
            {"run_dir": "x", "sentence": "a", "output": "taken.html"},
            "output needs a directory taken for its pictures, got a file",
        ),
        (
            {"run_dir": "x", "sentence": "a", "output": "taken/a.html"},
            "output taken/a.html",
        ),
        ({"run_dir": "absent", "sentence": "a"}, "there is no run directory absent"),
        ({"sentence": "dog " * 130}, "sentence must have 1 to 127 subwords, got"),
        ({"sentence": "a", "target": "dog " * 130}, "target must have 1 to 127 subwords, got"),
    ],
)
def test_mistakes_are_one_line(write, tmp_path, monkeypatch, refusal, values, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.html").mkdir()
    (tmp_path / "taken").touch()
    if values["sentence"] != "dog" and "run_dir" not in values:
        values = {"run_dir": write(tmp_path / "run"), **values}
    assert message in refusal(inspect.main, flags(**values))
    assert {path.name for path in tmp_path.iterdir()} <= {"there.html", "taken", "run"}
