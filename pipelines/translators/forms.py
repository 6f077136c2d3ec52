"""The forms of a model that can be translated with: what each looks like, and how it is opened.

A new form is one more entry of `FORMS`. What it needs is imported when such a model is opened: each
has packages of its own, and those that start fast do so without TensorFlow.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.importing import load_keras, load_tensorflow
from pipelines.translators.base import TextTranslator
from pipelines.translators.packed_model import PACKED_NAME

_SEARCH = ("nbest", "beam_size", "alpha")


class Form(NamedTuple):
    """A form of a model.

    Attributes:
        name: in messages, such as "a SavedModel".
        known_by: what tells it from others, for messages.
        find: the path or URL to open in what a user names, if that is of this form, else None.
        open: opens that, with the settings that were given.
        settings: those that can be chosen when it is opened.
    """

    name: str
    known_by: str
    find: Callable[[str], str | None]
    open: Callable[[str, dict[str, Any]], TextTranslator]
    settings: Sequence[str] = ()


def _file_or_inside(*names: str) -> Callable[[str], str | None]:
    """Finds a file that has the suffix of one of these names, or such a name in a directory."""

    def find(model: str) -> str | None:
        path = Path(model)
        if path.is_file():
            return model if path.suffix in {Path(name).suffix for name in names} else None
        return next((str(path / name) for name in names if (path / name).exists()), None)

    return find


def _directory_with(*names: str) -> Callable[[str], str | None]:
    """Finds a directory by a file in it."""
    return lambda model: model if any(Path(model, name).exists() for name in names) else None


def _newest_version(model: str) -> str | None:
    """Of a directory of numbered SavedModels."""
    names = (file.parent.name for file in Path(model).glob("*/saved_model.pb"))
    versions = [name for name in names if name.isascii() and name.isdigit()]
    return str(Path(model, max(versions, key=int))) if versions else None


def open_runs(paths: Sequence[str], settings: dict[str, Any]) -> TextTranslator:
    """Opens a run directory, or several that translate together."""
    load_keras()
    from pipelines.run.directory import RunDirectory
    from pipelines.translators.alignment import Aligner
    from pipelines.translators.ensemble import combined
    from pipelines.translators.keras_model import Translator, load_run
    from pipelines.translators.sampling import SamplingTranslator

    checkpoint = settings.pop("checkpoint", None)
    loaded = combined([load_run(RunDirectory(path), checkpoint) for path in paths])
    aligner = Aligner(loaded) if settings.pop("alignment", False) else None
    translator: Translator
    if "sample" in settings:
        translator = SamplingTranslator(loaded, settings["sample"])
    else:
        translator = Translator.of(loaded, **settings)
    translator.align = aligner
    return translator


def _open_saved_model(path: str, settings: dict[str, Any]) -> TextTranslator:
    load_tensorflow()
    from pipelines.translators.saved_model import open_saved_model

    return open_saved_model(path, **settings)


def _open_tflite(path: str, settings: dict[str, Any]) -> TextTranslator:
    from pipelines.translators.tflite import TFLiteTranslator

    return TFLiteTranslator(path, **settings)


def _open_ctranslate2(path: str, settings: dict[str, Any]) -> TextTranslator:
    from pipelines.translators.ctranslate2 import CTranslate2Translator

    return CTranslate2Translator(path, **{"nbest": 1, **settings})


def _open_served(url: str, settings: dict[str, Any]) -> TextTranslator:
    from pipelines.translators.served import open_remote

    return open_remote(url, **settings)


RUN_DIRECTORY = Form(
    "a run directory",
    "a directory with config.json",
    _directory_with("config.json"),
    lambda path, settings: open_runs([path], settings),
    (*_SEARCH, "checkpoint", "sample", "alignment"),
)

# In this order: a CTranslate2 directory has a config.json as well, and a run directory may hold
# what was exported from it.
FORMS = (
    Form(
        "a served model",
        "an http://, https:// or grpc:// URL",
        lambda model: model if "://" in model else None,
        _open_served,
        _SEARCH,
    ),
    Form(
        "a SavedModel",
        "a directory with saved_model.pb",
        _directory_with("saved_model.pb"),
        _open_saved_model,
        _SEARCH,
    ),
    Form(
        "a CTranslate2 model",
        "a directory with model.bin",
        _directory_with("model.bin", "shared_vocabulary.json"),  # the former may be gone
        _open_ctranslate2,
        _SEARCH,
    ),
    RUN_DIRECTORY,
    Form(
        "a TFLite model",
        "a .tflite file, or a directory with model.tflite or model.packed",
        _file_or_inside("model.tflite", PACKED_NAME),
        _open_tflite,
    ),
    Form(
        "a SavedModel",
        "a directory with numbered versions of it",
        _newest_version,
        _open_saved_model,
        _SEARCH,
    ),
)
