"""A translator from whatever form of a model there is."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pipelines.errors import InputError
from pipelines.translators.base import TextTranslator

_KNOWN = (
    "a run directory, a SavedModel directory, a .tflite file, a CTranslate2 directory, or the "
    "http://, https:// or grpc:// URL of a served model"
)


def open_translator(
    model: str | os.PathLike,
    *,
    nbest: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
    checkpoint: str | None = None,
) -> TextTranslator:
    """Opens a model in any form, told by what is there.

    Args:
        model: a run directory, a SavedModel (the directory of a version, or that of the model for
            its newest version), a TFLite file, a CTranslate2 directory, or a served model's URL.
        nbest: hypotheses of each sentence that will be wanted, at most `beam_size`.
        beam_size: hypotheses kept; what the model was exported with unless given, or 4.
        alpha: length penalty; what the model was exported with unless given, or 0.6.
        checkpoint: of a run directory; "last" unless given.

    Raises:
        InputError: there is no such model, it cannot be read, or its form leaves no choice of
            something that is given.
    """
    form, where = _recognise(os.fspath(model))
    given = {"beam_size": beam_size, "alpha": alpha, "checkpoint": checkpoint}
    choices = {name: value for name, value in given.items() if value is not None}
    if nbest > 1:
        choices["nbest"] = nbest
    for name, value in choices.items():
        if name not in form.choices:
            raise InputError(f"{form.name} leaves no choice of {name}, got {name} {value}: {model}")
    return form.open(where, choices)


class _Form(NamedTuple):
    name: str
    open: Callable[[str, dict], TextTranslator]
    choices: Sequence[str]


def _recognise(model: str) -> tuple[_Form, str]:
    """The form of a model, and the path or URL to open."""
    path = Path(model)
    if "://" in model:
        return _SERVED, model
    if path.is_file():
        if path.suffix == ".tflite":
            return _TFLITE, model
        raise InputError(f"model {model} is a file, but no .tflite: it must be {_KNOWN}")
    if not path.is_dir():
        raise InputError(f"there is no model {model}: it must be {_KNOWN}")
    if (path / "saved_model.pb").exists():
        return _SAVED_MODEL, model
    if (path / "model.bin").exists():
        return _CTRANSLATE2, model
    if (path / "model.tflite").exists():
        return _TFLITE, str(path / "model.tflite")
    if (path / "config.json").exists():
        return _RUN, model
    names = (file.parent.name for file in path.glob("*/saved_model.pb"))
    versions = [name for name in names if name.isascii() and name.isdigit()]
    if versions:
        return _SAVED_MODEL, str(path / max(versions, key=int))
    raise InputError(
        f"model {model} is a directory without a config.json (a run directory), saved_model.pb or "
        f"numbered versions with one (SavedModel) or model.bin (CTranslate2); it holds "
        f"{_contents(path)}"
    )


def _contents(path: Path) -> str:
    names = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    more = ", ..." if len(names) > 5 else ""
    return ", ".join(names[:5]) + more if names else "nothing"


# What a form needs is imported when it is met: each has packages of its own.


def _open_run(path: str, choices: dict) -> TextTranslator:
    from pipelines.importing import load_tensorflow

    load_tensorflow()
    from pipelines.run.directory import RunDirectory
    from pipelines.translators.keras_model import load_translator

    choices.pop("nbest", None)  # it gives all that it keeps
    return load_translator(RunDirectory(path), choices.pop("checkpoint", "last"), **choices)[0]


def _open_saved_model(path: str, choices: dict) -> TextTranslator:
    from pipelines.importing import load_tensorflow

    load_tensorflow()
    from pipelines.translators.saved_model import open_saved_model

    return open_saved_model(path, **choices)


def _open_tflite(path: str, choices: dict) -> TextTranslator:
    from pipelines.translators.tflite import TFLiteTranslator

    return TFLiteTranslator(path, **choices)


def _open_ctranslate2(path: str, choices: dict) -> TextTranslator:
    from pipelines.translators.ctranslate2 import CTranslate2Translator

    choices.pop("nbest", None)  # it gives all that it keeps
    return CTranslate2Translator(path, **choices)


def _open_served(url: str, choices: dict) -> TextTranslator:
    from pipelines.translators.served import open_remote

    return open_remote(url, **choices)


_SEARCH = ("nbest", "beam_size", "alpha")
_RUN = _Form("a run directory", _open_run, (*_SEARCH, "checkpoint"))
_SAVED_MODEL = _Form("a SavedModel", _open_saved_model, _SEARCH)
_TFLITE = _Form("a TFLite file", _open_tflite, ())
_CTRANSLATE2 = _Form("a CTranslate2 model", _open_ctranslate2, _SEARCH)
_SERVED = _Form("a served model", _open_served, _SEARCH)
