"""Text that is cut into subwords already, from its files to every form of a model."""

import pytest

from pipelines import export, prepare, train_wmt
from pipelines.run.directory import RunDirectory
from pipelines.translators.open import open_translator
from tests.support.runs import WORDS, flags, pairs, train_flags

pytestmark = pytest.mark.tensorflow_only

FORMS = ("saved_model", "tflite", "ctranslate2")
SOURCES = [source.replace("a", "a@@") for source, _ in pairs(20, seed=4)] + ["a@@ unheard@@ of b"]
VOCABULARY_SIZE = 4 + 2 * len(WORDS)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run, `prepared` and the forms of its model, by name."""
    place = tmp_path_factory.mktemp("cut")
    text = {"en": [], "de": []}
    for source, target in pairs(500, seed=3):
        text["en"].append(source.replace("a", "a@@") + "\n")
        text["de"].append(target + "\n")
    for language, lines in text.items():
        (place / f"train.{language}").write_text("".join(lines))
    prepare.main(
        flags(
            train_source=place / "train.en",
            train_target=place / "train.de",
            subword_model="word",
            vocabulary_size=VOCABULARY_SIZE,
            output=place / "prepared",
        )
    )
    trained = {"steps": 60, "tokens_per_replica": 256, "warmup_steps": 30}
    decided = {"prepared": place / "prepared", "vocabulary_size": None}
    arguments = train_flags(place, place / "run", splits=(), **decided, **trained)
    assert train_wmt.main(arguments) == 0
    for form in FORMS:
        search = {} if form == "ctranslate2" else {"beam_size": 1}
        export.main(flags(run_dir=place / "run", format=form, output=place / form, **search))
    return place


def test_the_run_says_what_its_subwords_are(places):
    config = RunDirectory(places / "run").config()
    assert config.corpus.subword_model == "word"
    assert config.model.vocabulary_size == VOCABULARY_SIZE


@pytest.fixture(scope="module")
def expected(places):
    """What the run says."""
    run = open_translator(places / "run", beam_size=1)
    assert run.cut(["a@@ " * 300]) == [(0, 301, 256)]  # a subword each, and the end mark
    return run.translate(SOURCES)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reads_and_writes_words_as_they_are(places, form, expected):
    search = {"beam_size": 1} if form == "ctranslate2" else {}
    assert open_translator(places / form, **search).translate(SOURCES) == expected
    words = {word for text in expected for word in text.split()}
    assert words and words <= {*WORDS.values(), *WORDS, "a@@"}
