"""What the forms have in common, and that one entry is all that names them."""

import inspect
from dataclasses import fields

import pytest
from simple_parsing.docstring import get_attribute_docstring

from pipelines import export
from pipelines.benchmark.forms import FORMS
from pipelines.errors import InputError
from pipelines.exporters.registry import (
    FORMATS,
    SEARCH_OPTIONS,
    ExportOptions,
    check_options,
)
from tests.support.layer_checks import run_python

pytestmark = pytest.mark.tensorflow_only


@pytest.mark.parametrize("name", FORMATS)
def test_exporters_have_one_signature(name):
    """Those of the search come with the translator."""
    form = FORMATS[name]
    first, second, *others = inspect.signature(form.load()).parameters.values()
    assert [first.name, second.name] == ["exportable", "output"]
    assert {p.name for p in others} == set(form.options) - set(SEARCH_OPTIONS)
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in others)


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if "quantization" in f.options])
def test_the_first_quantization_is_that_of_the_exporter(name):
    form = FORMATS[name]
    default = inspect.signature(form.load()).parameters["quantization"].default
    assert default == form.quantizations[0]


@pytest.mark.parametrize("option", [field.name for field in fields(ExportOptions)])
def test_the_help_of_an_option_names_the_forms_that_take_it(option):
    takers = [name for name, form in FORMATS.items() if option in form.options]
    text = get_attribute_docstring(ExportOptions, option).docstring_below
    assert text.startswith(f"{', '.join(takers)}: ")


def test_options_of_other_forms_are_refused():
    check_options("tflite", ExportOptions(quantization="int8", alpha=0.0))
    check_options("saved_model", ExportOptions(quantization="none", version=3))
    with pytest.raises(InputError, match="^version is for saved_model, got 3 for tflite"):
        check_options("tflite", ExportOptions(version=3))
    with pytest.raises(
        InputError, match="^quantization must be one of none, bfloat16, got int8 for saved_model$"
    ):
        check_options("saved_model", ExportOptions(quantization="int8"))
    with pytest.raises(InputError, match="must be one of none, float16, int8, got bfloat16"):
        check_options("ctranslate2", ExportOptions(quantization="bfloat16"))
    with pytest.raises(InputError, match="^quantization must be one of none, float16, int8, got 4"):
        check_options("tflite", ExportOptions(quantization="4"))


def test_the_benchmark_measures_every_form():
    assert list(FORMS) == [
        *(f"SavedModel {q}" for q in ("float32", "bfloat16")),
        *(f"TFLite {q}" for q in ("float32", "float16", "int8")),
        *(f"CTranslate2 {q}" for q in ("float32", "float16", "int8")),
    ]
    assert FORMS["TFLite float32"] == ("tflite", "none")


def test_wrong_flags_are_answered_without_tensorflow():
    wrong = [
        ["--nosuchflag"],
        ["--format", "onnx"],
        ["--run_dir", "x", "--format", "tflite", "--output", "y", "--version", "2"],
        ["--run_dir", "x", "--format", "tflite", "--output", "y", "--beam_size", "0"],
    ]
    loaded = run_python(
        f"""
import sys
from pipelines import export
from pipelines.errors import InputError
for arguments in {wrong}:
    try:
        export.main(arguments)
    except (InputError, SystemExit) as refused:
        assert getattr(refused, "code", 2) == 2
    else:
        raise AssertionError(arguments)
print(sorted({{"tensorflow", "keras", "jax", "torch"}} & set(sys.modules)))
"""
    )
    assert loaded == "[]"


def test_flags_become_what_they_ask_for():
    wanted = ["--run_dir", "x", "--format", "tflite", "--output", "y", "--max-source-length", "9"]
    flags, options = export.parse(wanted)
    assert (flags.format, flags.output, flags.checkpoint) == ("tflite", "y", None)
    assert options.given() == {"max_source_length": 9}
