"""Which source word each word of a translation comes from."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.tokenizer import Tokenizer
from pipelines.errors import InputError
from pipelines.run.directory import RunDirectory
from pipelines.translators.alignment import Aligner, _links, _overlaps
from pipelines.translators.keras_model import LoadedRun
from pipelines.translators.open import open_translator
from tests.support.exported_forms import forms
from tests.support.layer_checks import assert_close
from tests.support.random_model import V, make_model
from tests.support.runs import run_command

pytestmark = pytest.mark.tensorflow_only


def overlaps(text):
    encoded = Tokenizer(RunDirectory(forms()["run"]).tokenizer_path).encode_with_offsets(
        tf.constant([text])
    )
    return _overlaps(text, *(tensor.to_list()[0] for tensor in encoded))


@pytest.mark.parametrize(
    ("text", "words"),
    [("the dog", 2), ("  the \u3000 dog  ", 2), ("日本 x", 2), ("ﬁ´x y", 2), ("", 0), (" ", 0)],
)
def test_every_word_has_its_subwords(text, words):
    found = overlaps(text)
    assert found.shape[0] == words
    assert found.any(axis=1).all()
    assert (found.sum(axis=0) <= 1).all()  # no subword is of two words here
    assert not found[:, -1].any()  # the end mark


def test_subwords_of_a_word_add_up():
    source = np.array([[1, 1, 0, 0], [0, 0, 1, 0]], bool)  # two words of 2 and 1, and the end
    target = np.array([[1, 0, 0, 0], [0, 1, 1, 0]], bool)
    weights = np.array(
        [[0.3, 0.3, 0.4, 0.0], [0.0, 0.2, 0.7, 0.1], [0.1, 0.4, 0.2, 0.3], [0, 0, 0, 1]]
    )
    assert _links(weights, source, target) == [(0, 0), (1, 1)]
    # The second word of the source is not read, and padding follows the target.
    assert _links(np.pad(weights[:, :2], [(0, 1), (0, 0)]), source, target) == [(0, 0), (0, 1)]
    assert _links(weights, source[:0], target) == [] == _links(weights, source, target[:0])


@pytest.mark.parametrize(("layers", "block"), [(1, 0), (2, 0), (3, 1)])
def test_the_weights_are_those_of_the_last_block_but_one(rng, tmp_path, layers, block):
    model = make_model(decoder_layers=layers)
    inputs = {
        name: rng.integers(4, V, (2, 5), dtype="int32") for name in ("source_ids", "target_ids")
    }
    expected = model.attention_inputs(inputs)[f"decoder_{block}/cross_attention"].weights()
    found = Aligner(LoadedRun(tmp_path, model, None, "", 9, "last", 1))._weights(inputs)
    assert_close(found, np.mean(expected, axis=1))


def test_a_pair_aligns_alike_alone_and_in_any_batch():
    translator = open_translator(forms()["run"], alignment=True)
    sources = ["the old dog", "", "sees a small house today near the water", "der Hund"]
    texts = translator.translate(sources)
    together = translator.align(sources, texts)
    assert together == [translator.align([s], [t])[0] for s, t in zip(sources, texts, strict=True)]
    for source, text, line in zip(sources, texts, together, strict=True):
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        targets = sorted(target for _, target in links)
        assert targets == (list(range(len(text.split()))) if source else [])
        assert all(place < len(source.split()) for place, _ in links)


def test_the_model_that_reverses_aligns_in_reverse(trained_run):
    """Through real pipes: letters become numbers, in the opposite order."""
    sources = ["a b c", "d c b a", "h g f e d", "c a", "b d f h a c", ""]
    text = "".join(f"{source}\n" for source in sources)
    result = run_command("translate", ["--model", trained_run, "--alignment"], stdin=text)
    assert result.returncode == 0, result.stderr
    right = total = 0
    for source, line in zip(sources, result.stdout.split("\n"), strict=False):
        links = set(line.split("\t")[1].split())
        expected = {f"{len(source.split()) - 1 - n}-{n}" for n in range(len(source.split()))}
        right, total = right + len(links & expected), total + len(expected)
    assert right > 0.6 * total


def test_an_ensemble_does_not_align():
    with pytest.raises(InputError, match="alignment takes one model, got 2"):
        open_translator([forms()["run"]] * 2, alignment=True)
