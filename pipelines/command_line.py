"""What the command lines share: flags made from dataclasses, errors in one line."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import simple_parsing

from pipelines.errors import InputError


def _import_tensorflow_quietly() -> None:
    """TensorFlow writes lines of its own to standard error when it is loaded, whatever its log
    level, which would bury a one-line error message."""
    standard_error = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        import tensorflow  # noqa: F401
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(nowhere)


_import_tensorflow_quietly()


class Parser(simple_parsing.ArgumentParser):
    """Flags from dataclasses; dashes and underscores alike, no abbreviations.

    A wrong flag is told in one line, with exit status 2.
    """

    def __init__(self, description: str, **kwargs):
        super().__init__(
            description=description,
            allow_abbrev=False,
            add_option_string_dash_variants=simple_parsing.DashVariant.UNDERSCORE_AND_DASH,
            **kwargs,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def early_flags(arguments: Sequence[str], **defaults: str) -> argparse.Namespace:
    """Reads the flags on which the defaults of others depend; leaves everything else alone."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", default=default)
    return parser.parse_known_args(arguments)[0]


def parse_flags(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses, with a value that a dataclass refuses told as the user's mistake."""
    try:
        return parser.parse_args(arguments)
    except ValueError as error:
        raise InputError(str(error).splitlines()[0]) from error


def run(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Runs a command line: a user's mistake is one line on standard error and exit status 2."""
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has had enough: nothing to tell
        sys.exit(0)
    sys.exit(0)
