"""The command lines: a row for each, from which `python -m pipelines` makes its list.

An installation gives them names of their own, `tf-relpos-train` and so on: the section
`options.entry_points` of `setup.cfg`.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import NoReturn

# The module, and what it does.
COMMANDS = {
    "prepare": "learn subwords from parallel text and make arrays of it",
    "train_wmt": "train a translator, score it and export it",
    "evaluate": "score a trained model on a text",
    "translate": "translate standard input, with a model in any form",
    "score": "tell how probable a trained model finds given translations",
    "export": "write a trained model in a form to deploy",
    "reproduce": "train what a table of the paper compares, and write the table",
    "ablate": "compare a configuration with changes to it, each by itself",
    "generalize": "score models on sentences longer than all that they were trained on",
    "inspect": "show what a trained model attends to in a sentence",
    "train_graph": "tell the nodes of labelled graphs apart, such as words of dependency trees",
    "train_syntax": "compare translators with and without the dependencies of words",
    "compare_positions": "compare kinds of positions in plain Keras models",
    "plot": "draw the training curves of runs in one picture",
}


def run_command(name: str) -> NoReturn:
    """Runs the command line of a module in `COMMANDS` on the arguments of the process."""
    try:
        from pipelines.command_line import run

        main = importlib.import_module(f"pipelines.{name}").main
    except ModuleNotFoundError as error:  # the layers alone are installed, and the commands as well
        hint = "pip install 'tf_relpos[pipelines]'"
        print(f"error: {error.name} is not installed, which this needs: {hint}", file=sys.stderr)
        sys.exit(2)
    run(main)


def __getattr__(name: str) -> Callable[[], NoReturn]:
    """The function behind a console command, which bears the name of its module."""
    if name not in COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(run_command, name)
