"""Importing what is slow, talkative or perhaps not installed, when it is needed and not before."""

import contextlib
import gc
import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from types import ModuleType

from pipelines.allocator import keep_freed_memory
from pipelines.errors import InputError
from pipelines.progress import progress


def load_tensorflow() -> None:
    """Imports TensorFlow without a word.

    TensorFlow writes lines of its own when it is loaded and when it looks for GPUs, whatever its
    log level. Command lines call this, once their flags are known to be right, before they import
    anything that needs TensorFlow or Keras. What its tensors free is kept (`pipelines.allocator`),
    and its products are those of oneDNN unless `TF_ENABLE_ONEDNN_OPTS` is set: left to itself
    it takes them on processors with AVX-512 alone. TensorFlow and Keras would import JAX and
    Matplotlib where they are installed, for a converter from JAX to TFLite and for galleries of
    pictures, which this process has to do without.
    """
    keep_freed_memory()
    if platform.machine().lower() in ("x86_64", "amd64") and "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with (
        progress("loading TensorFlow"),
        silence(),
        _nothing_collected(),
        _without("jax", "matplotlib"),
    ):
        import tensorflow

        tensorflow.config.list_physical_devices()


def load_keras() -> None:
    """Imports TensorFlow, and Keras to compute on it, in float32 where nothing else is asked for,
    whatever the user's settings are.

    Raises:
        InputError: Keras has been imported with another one.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    load_tensorflow()
    import keras

    if (backend := keras.config.backend()) != "tensorflow":
        raise InputError(f"the backend of Keras must be tensorflow, got {backend}")
    keras.config.set_floatx("float32")  # the user's file of settings may say otherwise


def load_jax() -> None:
    """Makes JAX the backend of Keras, which nothing has imported yet.

    Raises:
        InputError: another one is asked for, or JAX is not installed.
    """
    backend = os.environ.setdefault("KERAS_BACKEND", "jax")
    if backend != "jax":
        raise InputError(f"KERAS_BACKEND must be jax for this command, got {backend}")
    # JAX would take most of a GPU at once, on which another framework is measured as well.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import_optional("jax", "jax", extra="test")


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Imports without looking for garbage, which takes time and finds none.

    What they have made is not looked through later either: it stays for as long as the process.
    """
    if "tensorflow" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextlib.contextmanager
def _without(*packages: str) -> Iterator[None]:
    """Imports as if packages were not installed, unless they have been imported before."""
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # Python's own sign for that
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def import_optional(module: str, package: str, extra: str = "export") -> ModuleType:
    """A module of a package that an extra brings along.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"this needs {package} ({error}), which the extra `{extra}` installs: "
            f"pip install -e '.[{extra}]'"
        ) from error


def import_alone(module: str) -> ModuleType:
    """A module of a package, without running the package's own `__init__` for it.

    `tf_relpos.config` has the flags of the model and needs the standard library alone, but the
    package around it imports Keras, and Keras TensorFlow: a mistyped flag would wait for seconds.
    Importing the package later runs its `__init__` as usual, with this very module in it.
    """
    package = module.rpartition(".")[0]
    if module in sys.modules or package in sys.modules:
        return importlib.import_module(module)
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(module)
    finally:
        del sys.modules[package]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing that the process writes to standard error arrives, C++ included.

    Such lines would bury a one-line error message. What goes wrong is raised as an exception.
    """
    standard_error = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(nowhere)
