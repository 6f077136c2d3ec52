"""`pipelines.export`: each form from a run directory, and what it refuses."""

import pytest
import tensorflow as tf

from pipelines import export
from pipelines.translators.ctranslate2 import CTranslate2Translator
from pipelines.translators.open import open_translator
from pipelines.translators.tflite import read_metadata
from tests.support.exported_forms import STEP, forms, start_run
from tests.support.runs import call, flags


def run_export(monkeypatch, capsys, **values):
    """Exit status, standard output and standard error."""
    status = call(export.main, flags(**values), monkeypatch)
    return status, *capsys.readouterr()


def test_ctranslate2(tmp_path, monkeypatch, capsys):
    output = tmp_path / "new" / "model"
    status, printed, _ = run_export(
        monkeypatch,
        capsys,
        run_dir=forms()["run"],
        format="ctranslate2",
        quantization="int8",
        output=output,
    )
    assert (status, printed) == (0, f"exported {output}, checkpoint last, step {STEP}\n")
    assert CTranslate2Translator(output).translate(["the dog"])[0]
    assert [path.name for path in output.parent.iterdir()] == ["model"]


def test_saved_model_versions(tmp_path, monkeypatch, capsys):
    """The second one names its number; the search settings are those asked for."""
    for version, beam_size, alpha in ((None, None, None), (5, 1, 0.0)):
        status, printed, _ = run_export(
            monkeypatch,
            capsys,
            run_dir=forms()["run"],
            format="saved_model",
            output=tmp_path,
            version=version,
            beam_size=beam_size,
            alpha=alpha,
        )
        path = tmp_path / str(version or 1)
        assert (status, printed) == (0, f"exported {path}, checkpoint last, step {STEP}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "5"]
    text = tf.constant(["the old dog sees a house."])
    beam, greedy = (tf.saved_model.load(str(tmp_path / v)).signatures for v in ("1", "5"))
    for own, (beam_size, alpha) in ((beam, (4, 0.6)), (greedy, (1, 0.0))):
        search = {"beam_size": tf.constant(beam_size), "alpha": tf.constant(alpha)}
        expected = beam["nbest"](text=text, **search)["scores"][:, 0]
        tf.debugging.assert_near(own["serving_default"](text=text)["score"], expected, atol=1e-4)


def test_tflite(tmp_path, monkeypatch, capsys):
    output = tmp_path / "model.tflite"
    status, printed, _ = run_export(
        monkeypatch,
        capsys,
        run_dir=forms()["run"],
        format="tflite",
        output=output,
        max_source_length=31,
    )
    assert (status, printed) == (0, f"exported {output}, checkpoint last, step {STEP}\n")
    assert read_metadata(output)["max_source_length"] == 31
    assert read_metadata(output)["beam_size"] == 4
    assert open_translator(output).translate(["the dog"])[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"format": "saved_model", "quantization": "int8"},
            "quantization must be one of none, bfloat16, got int8 for saved_model",
        ),
        (
            {"format": "ctranslate2", "beam_size": 2},
            "beam_size is for saved_model, tflite and web, got",
        ),
        (
            {"format": "ctranslate2", "alpha": 0.0},
            "alpha is for saved_model, tflite and web, got 0.0",
        ),
        (
            {"format": "saved_model", "max_source_length": 9},
            "max_source_length is for tflite and web, got 9",
        ),
        ({"format": "tflite", "version": 2}, "version is for saved_model, got 2 for tflite"),
        ({"format": "tflite", "beam_size": 0}, "beam_size must be from 1 to 100, got 0"),
        ({"format": "saved_model", "beam_size": 5000}, "beam_size must be from 1 to 100, got 5000"),
        ({"format": "saved_model", "alpha": "nan"}, "alpha must be from 0 to 10, got nan"),
        ({"format": "tflite", "alpha": "inf"}, "alpha must be from 0 to 10, got inf"),
        ({"format": "tflite", "alpha": -3}, "alpha must be from 0 to 10, got -3.0"),
        ({"format": "onnx"}, "argument --format: invalid choice: 'onnx'"),
        (
            {"format": "tflite", "quantization": "int4"},
            "argument --quantization: invalid choice: 'int4'",
        ),
        ({"format": "ctranslate2", "checkpoint": "best"}, "no best checkpoint"),
        ({"format": "ctranslate2", "run_dir": "nowhere"}, "there is no run directory nowhere"),
        ({"format": "ctranslate2", "output": None}, "arguments are required: --output;"),
    ],
    ids=str,
)
def test_refusals(tmp_path, refusal, values, message):
    arguments = {"run_dir": forms()["run"], "output": tmp_path / "model", **values}
    assert message in refusal(export.main, flags(**arguments))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "ctranslate2"}, "exists already: choose another --output"),
        ({"format": "saved_model", "version": 1}, "another --version"),
    ],
    ids=str,
)
def test_nothing_is_overwritten(tmp_path, refusal, values, message):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "kept").write_text("as it was")
    arguments = flags(run_dir=forms()["run"], output=tmp_path, **values)
    assert message in refusal(export.main, arguments)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "1",
        "1/kept",
    ]


@pytest.mark.parametrize("form", ["saved_model", "tflite", "ctranslate2"])
def test_a_run_without_checkpoints(tmp_path, refusal, form):
    start_run(tmp_path / "run")
    arguments = flags(run_dir=tmp_path / "run", format=form, output=tmp_path / "model")
    told = refusal(export.main, arguments)
    assert f"run directory {tmp_path / 'run'} has no checkpoints yet" in told
    assert not (tmp_path / "model").exists()


def test_a_page_without_node(tmp_path, monkeypatch, refusal):
    """Told before the run is looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = flags(run_dir="nowhere", format="web", output=tmp_path / "site")
    hint = "install Node.js 20 or newer with npm"
    told = refusal(export.main, arguments)
    assert told == f"format web needs node, which is not installed: {hint}"
