r"""The exported page, in a real browser: it finds what Python finds with the same file.

    pytest -m slow tests/pipelines/exporters/test_web.py --run_dir runs/mine --source test.en

compares 500 sentences on a run of one's own.
"""

import os
import random
import shutil
import time
from itertools import islice
from urllib.parse import urlsplit

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from sentencepiece import SentencePieceProcessor

from pipelines import export
from pipelines.corpora.text_files import read_lines
from pipelines.exporters.quantization import LEAST_NUMBERS, rounded_rows
from pipelines.translators.alignment import aligning_weights
from pipelines.translators.packed_model import unpack
from pipelines.translators.tflite import read_metadata
from tests.support.browser import need_browser, run_node, served
from tests.support.exported_forms import write_run
from tests.support.layer_checks import assert_close
from tests.support.random_model import WORDS, make_model, write_tokenizer
from tests.support.runs import flags

pytestmark = pytest.mark.tensorflow_only

FOLDER = "some/folder"
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LINES = [
    *(" ".join(random.Random(i).choices(WORDS, k=i)) for i in range(1, 10)),
    *("日本語 and 😀", "ﬁve  Å\u3000½", MARKUP),
]
SPACES = ["", " \t", "\x85", "\x1c\u3000", "\ufeff", LINES[0]]
HOSTILE = ["lone \ud800 surrogate \udfff", "a\0b\u202e", "eins " * 20_000, "&lt;b&gt;"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    need_browser()
    directory = tmp_path_factory.mktemp("web")
    tokenizer = write_tokenizer(directory / "tokenizer.model")
    languages = {"source_language": "en", "target_language": "de"}
    run = write_run(directory / "run", rounded_model(), tokenizer, **languages)
    output = directory / "served" / FOLDER
    export.main(flags(run_dir=run, format="web", output=output))
    return output


def rounded_model():
    """The random model with weights that integers of 8 bits hold exactly, as the page's are."""
    model = make_model()
    matrices = [w for w in model.weights if len(w.shape) == 2 and np.prod(w.shape) >= LEAST_NUMBERS]
    assert matrices
    for matrix in matrices:
        integers, scales = rounded_rows(matrix.numpy())
        matrix.assign(integers * scales[:, None])
    return model


@pytest.fixture(scope="module")
def seen(site):
    """What the script saw, and the paths that were asked for `before` and `after` loading."""
    with served(site.parents[FOLDER.count("/")]) as (url, paths):
        given = {"url": f"{url}{FOLDER}/", "lines": LINES, "hostile": HOSTILE, "spaces": SPACES}
        found = run_node("page.mjs", given)
    loaded, offline = (paths.index(f"/{FOLDER}/{name}") for name in ("loaded", "offline"))
    host = urlsplit(url).netloc
    return {**found, "host": host, "before": paths[:loaded], "after": paths[loaded + 1 : offline]}


def subword_model(site):
    return SentencePieceProcessor(model_file=str(site / "model.tokenizer.model"))


def candidates(site, lines):
    """The beam of each line as Python finds it: texts once, scores, ids without padding and end."""
    subwords = subword_model(site)
    (model,) = (path for path in site.iterdir() if path.suffix in (".tflite", ".packed"))
    metadata = read_metadata(model)
    interpreter = Interpreter(model_content=unpack(model.read_bytes()), num_threads=1)
    search = interpreter.get_signature_runner("serving_default")
    for line in lines:
        row = np.full((1, metadata["max_source_length"]), metadata["pad_id"], np.int32)
        ids = [*subwords.encode(line), metadata["end_id"]][: row.size]
        row[0, : len(ids)] = ids
        found = search(source_ids=row)
        beam = {}
        for ids, score in zip(found["target_ids"].tolist(), found["score"].tolist(), strict=True):
            ids = [i for i in ids if i not in (metadata["pad_id"], metadata["end_id"])]
            beam.setdefault(subwords.decode(ids), (score, ids))
        yield [{"text": text, "score": score, "ids": ids} for text, (score, ids) in beam.items()]


def without_scores(beam):
    return [(candidate["text"], candidate["ids"]) for candidate in beam]


def scores(beam):
    return [candidate["score"] for candidate in beam]


def test_ids_and_scores_are_those_of_python(site, seen):
    """Of all candidates, the best of which is shown as the translation."""
    assert not seen["errors"]
    found = [item["hypotheses"] for item in seen["translations"]]
    for expected, beam in zip(candidates(site, LINES), found, strict=True):
        assert without_scores(beam) == without_scores(expected)
        assert scores(beam) == pytest.approx(scores(expected), rel=1e-4)
    assert max(map(len, found)) == read_metadata(site / "model.packed")["beam_size"]
    assert [item["text"] for item in seen["translations"]] == [beam[0]["text"] for beam in found]


def test_attention_is_that_of_python(site, seen):
    """Of the weights that alignments are read from, and of what heads score distances."""
    model, subwords = rounded_model(), subword_model(site)
    assert [look["text"] for look in seen["looks"]] == LINES
    for look in seen["looks"]:
        source = [*subwords.encode(look["text"]), model.config.end_id]
        target = [model.config.start_id, *look["ids"]]
        attentions = model.attention_inputs(
            {"source_ids": np.array([source]), "target_ids": np.array([target])}
        )
        assert_close(look["weights"], aligning_weights(attentions)[0], tolerance=1e-4)
        expected = [
            head
            for name, inputs in attentions.items()
            if name.endswith("self_attention")
            for head in np.mean(inputs.layer.distance_scores(inputs.query)[0], axis=1)
        ]
        assert_close(look["distances"], expected, tolerance=1e-4)


def test_tells_what_a_subword_looked_at(site, seen):
    """By click and by keyboard, in words."""
    look, model = seen["looks"][1], make_model()
    subwords = subword_model(site)
    source, target = (
        [piece.lstrip("\u2581") or "\u2581" for piece in subwords.id_to_piece(ids)] + ["end"]
        for ids in (subwords.encode(look["text"]), look["ids"])
    )
    for said, name, weights in zip(seen["told"]["said"], target, look["weights"], strict=False):
        best = int(np.argmax(weights))
        assert said.startswith(f"“{name}” looked at “{source[best]}” {weights[best]:.0%}")
    layers = model.config.encoder_layers + model.config.decoder_layers
    assert len(seen["told"]["labels"]) == layers
    heads = look["distances"][: model.config.num_heads]
    best = [int(np.argmax(head)) - model.config.max_relative_position for head in heads]
    told = ", ".join(f"head {i + 1} {b:+d}" for i, b in enumerate(best))
    told = told.replace("-", "−").replace("+0", "0")
    label = f"encoder layer 1, the distance with the highest score: {told}"
    assert seen["told"]["labels"][0] == label


def test_nothing_is_asked_of_a_server_after_loading(seen):
    """Nor of any other than its own, from its own folder, before."""
    assert set(seen["hosts"]) == {seen["host"]}
    assert all(path.startswith(f"/{FOLDER}/") for path in seen["before"])
    assert not seen["after"]


def test_opens_without_a_network(seen):
    assert seen["offline"] == seen["translations"]


def test_another_export_takes_the_place_of_the_one_before(site, tmp_path):
    """Whatever the browser still holds of that; and other pages remain as they are."""
    directory = shutil.copytree(site, tmp_path / "served")
    (directory / "other").mkdir()
    (directory / "other" / "index.html").write_text("<!doctype html><title>other</title>")
    long_ago = time.time() - 1e7  # for which a browser takes what it has to be fresh for days
    for path in directory.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    with served(directory) as (url, _):
        found = run_node("update.mjs", {"url": url, "directory": str(directory)})
    assert found == {"isolated": [True, False], "kept": [True, True, True]}


def test_takes_threads_where_it_is_isolated(seen):
    """From the second visit on, by what the service worker says; the translations are the same."""
    assert seen["threads"] == [1, min(2, len(os.sched_getaffinity(0)))]


def test_what_comes_from_outside_is_text(seen):
    """And a line that is too long says so."""
    of_attention = {"fieldset", "legend", "label", "input", "span", "ul", "figure", "canvas"}
    of_the_page = {"li", "p", "details", "summary", "div", "table", "caption", "tr", "th", "td"}
    assert set(seen["elements"]) <= of_the_page | of_attention | {"figcaption"}
    assert [bool(item["note"]) for item in seen["hostile"]] == [
        len(text) == 100_000 for text in HOSTILE
    ]
    assert seen["widest"] <= 0  # nothing sticks out of a phone


def test_lines_are_blank_that_are_so_to_python(seen):
    assert len(seen["spaces"]) == sum(bool(line.strip()) for line in SPACES) == 2
    assert seen["spaces"][-1] == seen["translations"][0]


def test_a_new_request_ends_the_one_before(seen):
    assert seen["ended"]["numbers"] == [1002]
    assert 1 <= seen["ended"]["lines"] < 300


def test_works_by_keyboard(seen):
    assert seen["title"] == "English to German"
    assert seen["typed"]["isOpen"]
    assert seen["typed"]["translations"] == seen["translations"][:1]


def test_a_file_that_does_not_arrive_is_told(seen):
    assert seen["failure"].startswith("The translator cannot be started: model.packed")
    assert seen["failure"].endswith("503")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(seen, scheme):
    assert not seen["violations"][scheme]


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "none"])
def test_500_sentences(request, tmp_path, quantization):
    need_browser()
    run, source = (request.config.getoption(name) for name in ("--run_dir", "--source"))
    if not (run and source):
        pytest.skip("needs --run_dir and --source")
    lines = [line for line in islice(read_lines(source), 500) if line.strip()]
    site = tmp_path / "site"
    given = {"run_dir": run, "format": "web", "quantization": quantization, "output": site}
    export.main(flags(**given))
    with served(site) as (url, _):
        found = run_node("speed.mjs", {"url": url, "lines": lines})
    pairs = [
        (beam[0], item["hypotheses"][0])
        for beam, item in zip(candidates(site, lines), found["translations"], strict=True)
    ]
    different = [(e, f) for e, f in pairs if e["ids"] != f["ids"]]
    worst = max(abs(e["score"] - f["score"]) for e, f in pairs)
    alike = f"{len(pairs) - len(different)} of {len(pairs)} alike"
    print(f"{alike}, scores to {worst:.1g}, {found['seconds']}, {found['megabytes']}")
    assert found["megabytes"][1] - found["megabytes"][0] < 30  # after 500 sentences, and 100
    assert not different
    assert worst <= 1e-4
