"""A translator from whatever form of a model there is."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import InputError
from pipelines.translators.base import Sampling, TextTranslator, check_nbest
from pipelines.translators.forms import FORMS, RUN_DIRECTORY, Form, open_runs


def open_translator(
    model: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    nbest: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
    checkpoint: str | None = None,
    sample: Sampling | None = None,
    alignment: bool = False,
) -> TextTranslator:
    """Opens a model in any form, which it recognizes by what is there.

    Args:
        model: a run directory, a SavedModel (the directory of a version, or that of the model for
            its newest version), a TFLite file, a CTranslate2 directory, or a served model's URL.
            Several run directories are an ensemble.
        nbest: hypotheses of each sentence that will be wanted, at most `beam_size`.
        beam_size: hypotheses kept; 4 unless given. A SavedModel, served or not, keeps what it was
            exported with where none of `nbest`, `beam_size` and `alpha` is given.
        alpha: length penalty; 0.6 unless given, and as `beam_size`.
        checkpoint: of a run directory; what `RunDirectory.choose` names unless given.
        sample: draw from a run directory's model instead of searching.
        alignment: whether the translator is to have `align`, which that of one run directory can.

    Raises:
        InputError: there is no such model, it cannot be read, or something is given that cannot be
            chosen for its form.
    """
    models = [model] if isinstance(model, str | os.PathLike) else model
    names = [os.fspath(each) for each in models]
    found = [_recognize(name) for name in names]
    for name, (form, _) in zip(names, found, strict=True):
        if len(names) > 1 and form is not RUN_DIRECTORY:
            raise InputError(f"several models must be run directories, but {name} is {form.name}")
    given = {"beam_size": beam_size, "alpha": alpha, "checkpoint": checkpoint, "sample": sample}
    settings = {name: value for name, value in given.items() if value is not None}
    check_nbest(nbest, max(nbest, 1) if beam_size is None else beam_size)
    if nbest > 1:
        settings["nbest"] = nbest
    if alignment:
        settings["alignment"] = True
        if len(names) > 1:
            raise InputError(f"alignment takes one model, got {len(names)}")
    if not found:
        raise InputError("model must name at least one, got none")
    form, where = found[0]
    for name, value in settings.items():
        if name not in form.settings:
            raise InputError(_refusal(name, value, form, where))
    return open_runs(names, settings) if len(names) > 1 else form.open(where, settings)


def _refusal(name: str, value: object, form: Form, where: str) -> str:
    """Why something that was given cannot be chosen."""
    if name not in ("checkpoint", "sample", "alignment"):
        return f"{name} cannot be chosen for {form.name}, got {value}: {where}"
    flag = f"--{name} {value}" if name == "checkpoint" else f"--{name}"
    return f"{flag} needs a run directory, but {where} is {form.name}"


def _recognize(model: str) -> tuple[Form, str]:
    """The form of a model, and the path or URL to open."""
    for form in FORMS:
        if (where := form.find(model)) is not None:
            return form, where
    raise InputError(f"{_what_is_there(model)}: a model must be {_known_forms()}")


def _what_is_there(model: str) -> str:
    path = Path(model)
    if path.is_file():
        return f"{model} is a file of another kind"
    if not path.is_dir():
        return f"there is no model {model}"
    names = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    more = ", ..." if len(names) > 5 else ""
    held = ", ".join(names[:5]) + more if names else "nothing"
    return f"{model} is a directory that holds {held}"


def _known_forms() -> str:
    *others, last = (f"{form.name} ({form.known_by})" for form in FORMS)
    return f"{', '.join(others)} or {last}"
