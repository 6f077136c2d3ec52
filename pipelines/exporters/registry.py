"""The forms in which a model is deployed, and what can be chosen for each.

A new form is one more entry of `FORMATS`, and a new option one more field of `ExportOptions`; the
command line and the benchmark take both from here. Nothing is imported for a form before it is
written, so that a wrong flag is answered at once.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from simple_parsing import choice

from pipelines.errors import InputError
from pipelines.exporters.quantization import (
    QUANTIZATIONS,
    SAVED_MODEL_QUANTIZATIONS,
    check_quantization,
)
from pipelines.translators.base import check_search

if TYPE_CHECKING:
    from pipelines.exporters.exportable import Exporter

_QUANTIZATIONS = tuple(dict.fromkeys(QUANTIZATIONS + SAVED_MODEL_QUANTIZATIONS))


@dataclass(frozen=True)
class ExportOptions:
    """How to export."""

    quantization: str | None = choice(*_QUANTIZATIONS, default=None)
    """saved_model, tflite, ctranslate2, web: of the weights; none unless given, for web int8. A
    saved_model takes bfloat16, in which it then computes, the others float16 and int8"""
    version: int | None = None
    """saved_model: the version's number; one more than the largest unless given"""
    beam_size: int | None = None
    """saved_model, tflite, web: hypotheses kept; 1 is greedy search; 4 unless given"""
    alpha: float | None = None
    """saved_model, tflite, web: length penalty; 0.6 unless given"""
    max_source_length: int | None = None
    """tflite, web: subwords read of a source, at most those of training; 128, or those, unless
    given"""
    max_target_length: int | None = None
    """tflite, web: subwords of a translation; max_source_length + 50 unless given"""

    def __post_init__(self) -> None:
        if self.version is not None and self.version < 1:
            raise InputError(f"version must be at least 1, got {self.version}")
        check_search(beam_size=self.beam_size, alpha=self.alpha)

    def given(self) -> dict[str, Any]:
        """Those that are not as they are by default."""
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {field.name: value for field, value in values if value != field.default}


class Format(NamedTuple):
    """A form in which a model is deployed.

    Attributes:
        title: for people.
        exporter: the function that writes it, "module:function".
        options: fields of `ExportOptions` that it takes. Where a form keeps `SEARCH_OPTIONS`, they
            are those of the translator that is exported.
        quantizations: of the weights, those that it can hold; the first unless another is given.
        check: a function that tells, before anything is read, that it cannot be written here.
    """

    title: str
    exporter: str
    options: Sequence[str]
    quantizations: Sequence[str] = ("none",)
    check: str | None = None

    def load(self) -> "Exporter":
        """The function that writes it."""
        return _function(self.exporter)

    def check_here(self) -> None:
        """Checks that it can be written on this machine.

        Raises:
            InputError: something is missing.
        """
        if self.check:
            _function(self.check)()


def _function(name: str) -> Any:
    """A function by its module and name, "module:function"."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


SEARCH_OPTIONS = ("beam_size", "alpha")

FORMATS = {
    "saved_model": Format(
        "SavedModel",
        "pipelines.exporters.saved_model:export_saved_model",
        (*SEARCH_OPTIONS, "version", "quantization"),
        SAVED_MODEL_QUANTIZATIONS,
    ),
    "tflite": Format(
        "TFLite",
        "pipelines.exporters.tflite:export_tflite",
        (*SEARCH_OPTIONS, "quantization", "max_source_length", "max_target_length"),
        QUANTIZATIONS,
    ),
    # CTranslate2 gets the settings of the search when it translates.
    "ctranslate2": Format(
        "CTranslate2",
        "pipelines.exporters.ctranslate2:export_ctranslate2",
        ("quantization",),
        QUANTIZATIONS,
    ),
    "web": Format(
        "web page",
        "pipelines.exporters.web:export_web",
        (*SEARCH_OPTIONS, "quantization", "max_source_length", "max_target_length"),
        ("int8", "none", "float16"),
        check="pipelines.exporters.web_page:check_can_build",
    ),
}


def check_options(name: str, options: ExportOptions) -> None:
    """Checks that a form takes the options that are given.

    Raises:
        InputError: it does not.
    """
    form = FORMATS[name]
    quantization = options.quantization or form.quantizations[0]
    for option, value in options.given().items():
        takers = [taker for taker, other in FORMATS.items() if option in other.options]
        is_its_own = (option, value) == ("quantization", form.quantizations[0])
        if name not in takers and not is_its_own:
            *others, last = takers
            known = f"{', '.join(others)} and {last}" if others else last
            raise InputError(f"{option} is for {known}, got {value} for {name}")
    check_quantization(quantization, form.quantizations, name)
