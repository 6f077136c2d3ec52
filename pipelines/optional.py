"""Packages that only some forms of a model need."""

import importlib
from types import ModuleType

from pipelines.errors import InputError


def import_optional(module: str, package: str) -> ModuleType:
    """A module of a package that the extra `export` brings along.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"this needs {package} ({error}): pip install 'tf_relpos[export]'"
        ) from error
