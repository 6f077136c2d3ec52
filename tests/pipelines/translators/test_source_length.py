"""Every form reads as much of a source as its model was trained with, and no more."""

from itertools import cycle

import pytest

from pipelines import export
from pipelines.run.directory import RunDirectory
from pipelines.translators.keras_model import Translator, load_run
from pipelines.translators.open import open_translator
from pipelines.translators.tflite import read_metadata
from tests.support import serving_model
from tests.support.exported_forms import write_run
from tests.support.refusals import refused
from tests.support.runs import flags

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture(scope="module", params=[12, 300])
def limit(request):
    """Below and above the default of `--max_length`, 256."""
    return request.param


@pytest.fixture(scope="module")
def run(limit, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("limited") / "run", max_length=limit)


def beginning(limit):
    """Words of `limit` subwords or a few more; the last but one is among them."""
    tokenizer, words, subwords = serving_model.exported()[0].tokenizer, [], 0
    repeated = cycle(serving_model.ENGLISH.split())
    while subwords < limit:
        words.append(next(repeated))
        subwords += len(tokenizer.encode(words[-1:]).to_list()[0]) - 1
    return words


@pytest.mark.parametrize("form", ["run", "saved_model", "tflite", "ctranslate2"])
def test_a_source_is_read_up_to_the_limit_of_training(run, limit, form, tmp_path):
    model = run
    if form != "run":
        model = tmp_path / "model"
        longest = limit if form == "tflite" else None
        arguments = {"run_dir": run, "format": form, "output": model, "max_source_length": longest}
        export.main(flags(**arguments))
    words = beginning(limit)
    translator = open_translator(model)
    whole, longer, other = (
        next(iter(translator.stream([" ".join(sentence)])))[0]
        for sentence in (words, [*words, "Hund", *words], [*words[:-2], "Hund", "Fluß", *words])
    )
    assert longer.text == whole.text
    assert longer.score == pytest.approx(whole.score, rel=1e-6)
    assert other.score != pytest.approx(whole.score, rel=1e-5)
    texts = ["dog", " ".join(words), " ".join([*words, "Hund", *words])]
    lengths = serving_model.exported()[0].tokenizer.encode(texts).row_lengths().numpy()
    assert translator.cut(texts) == [(1, lengths[1], limit), (2, lengths[2], limit)]


def test_a_tflite_file_reads_128_subwords_or_what_the_model_was_trained_with(run, limit, tmp_path):
    arguments = {"run_dir": run, "format": "tflite", "output": tmp_path / "x.tflite"}
    rule = f"max_source_length must be at most {limit}, the longest source that the model was "
    with refused(f"^{rule}trained with, got {limit + 1}$"):
        export.main(flags(**arguments, max_source_length=limit + 1))
    assert list(tmp_path.iterdir()) == []
    export.main(flags(**arguments))
    assert read_metadata(tmp_path / "x.tflite")["max_source_length"] == min(128, limit)


def test_a_translator_says_how_much_it_reads(run, limit):
    assert Translator.of(load_run(RunDirectory(run))).max_source_length == limit
