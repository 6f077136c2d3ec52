r"""Every form of one trained model translates real text alike.

    pytest -m slow tests/pipelines/exporters/test_parity.py
    pytest -m slow tests/pipelines/exporters/test_parity.py \
        --run_dir runs/mine --source test.en --reference test.de

The first trains the demo model, which takes minutes.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from pipelines import export, train_wmt
from pipelines.corpora.text_files import read_lines
from pipelines.run.directory import RunDirectory
from pipelines.run.metrics import bleu
from pipelines.translators.base import Translation
from pipelines.translators.ctranslate2 import CTranslate2Translator
from pipelines.translators.keras_model import Translator, load_run
from pipelines.translators.open import open_translator
from tests.support.c_program import compiled, needs_compiler, parse, run

SENTENCES = 500
TIE = 1e-4  # scores that are so near may change places

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@dataclass(frozen=True)
class Task:
    run: Path
    sources: list[str]
    references: list[str]


@pytest.fixture(scope="module")
def task(request, tmp_path_factory) -> Task:
    files = [request.config.getoption(name) for name in ("--source", "--reference")]
    if run_dir := request.config.getoption("--run_dir"):
        return Task(Path(run_dir), *(list(islice(read_lines(f), SENTENCES)) for f in files))
    directory = tmp_path_factory.mktemp("demo")
    assert train_wmt.main(["--run_dir", str(directory / "run"), "--export_dir", "none"]) == 0
    texts = [directory / "run" / "prepared" / f"test.{side}" for side in ("source", "target")]
    return Task(directory / "run", *(list(islice(read_lines(f), SENTENCES)) for f in texts))


@pytest.fixture(scope="module")
def exported(task, tmp_path_factory):
    """Path of a form by its format and quantization."""
    base, paths = tmp_path_factory.mktemp("forms"), {}

    def path(form, quantization="none"):
        if (form, quantization) not in paths:
            output = base / f"{form}-{quantization}"
            flags = ["--run_dir", task.run, "--format", form, "--output", output]
            export.main([*map(str, flags), "--quantization", quantization])
            paths[form, quantization] = output / "1" if form == "saved_model" else output
        return paths[form, quantization]

    return path


@pytest.fixture(scope="module")
def expected(task):
    """What the Keras model says."""
    translator = Translator.of(load_run(RunDirectory(task.run)))
    return [hypotheses[0] for hypotheses in translator.stream(task.sources)]


def check_same(expected, found):
    """The same text and score, so the same subwords: another way to cut a text scores otherwise."""
    differences = [(e, f) for e, f in zip(expected, found, strict=True) if e.text != f.text]
    ties = [(e, f) for e, f in differences if abs(e.score - f.score) <= TIE]
    print(f"{len(expected) - len(differences)} of {len(expected)} alike, {len(ties)} ties")
    assert differences == ties
    assert len(ties) <= len(expected) / 100
    assert max(abs(e.score - f.score) for e, f in zip(expected, found, strict=True)) <= TIE


@pytest.mark.parametrize("form", ["saved_model", "tflite"])
def test_same_translations(task, exported, expected, form):
    stream = open_translator(exported(form)).stream(task.sources, SENTENCES)
    check_same(expected, [hypotheses[0] for hypotheses in stream])


@needs_compiler
def test_a_c_program_gives_the_same_translations(task, exported, expected, tmp_path):
    texts = [text.encode() for text in task.sources]
    result = run(compiled(tmp_path), exported("saved_model"), texts)
    assert result.returncode == 0, result.stderr.decode()
    check_same(expected, [Translation(t.decode(), s) for s, t in parse(result.stdout)])


def test_ctranslate2_searches_greedily_alike(task, exported):
    greedy = Translator.of(load_run(RunDirectory(task.run)), beam_size=1)
    expected = greedy.translate(task.sources)
    found = CTranslate2Translator(exported("ctranslate2"), beam_size=1).translate(task.sources)
    same = sum(e == f for e, f in zip(expected, found, strict=True))
    print(f"{same} of {len(expected)} alike")
    assert same >= 0.99 * len(expected)


@pytest.mark.parametrize("form", ["tflite", "ctranslate2"])
@pytest.mark.parametrize("quantization", ["float16", "int8"])
def test_quantized_forms_score_alike(task, exported, expected, form, quantization):
    exact = bleu([e.text for e in expected], task.references, "de").score
    found = open_translator(exported(form, quantization)).translate(task.sources)
    score = bleu(found, task.references, "de").score
    print(f"BLEU {score:.2f}, of the Keras model {exact:.2f}")
    assert abs(score - exact) <= 1
