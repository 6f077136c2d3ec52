"""Flags made from dataclasses, and what is refused of the words that are given for them."""

import argparse
import dataclasses
import inspect
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import simple_parsing
from simple_parsing.wrappers import DataclassWrapper, FieldWrapper

from pipelines.config_file import flags_of_file, several
from pipelines.errors import InputError, first_line


class _Flag(FieldWrapper):
    """One flag; `none` is a value of a number that need not be given. No flag but a switch stands
    without a value, as it does before a variable of a shell that is not set."""

    def get_arg_options(self) -> dict[str, Any]:
        options = super().get_arg_options()
        if options.get("nargs") == "?" and not self.is_bool:
            del options["nargs"]
            if options["type"] in (int, float):
                options["type"] = _Optional(options["type"])
        return options


class _Optional:
    """Reads a number, or `none`; argparse calls it by its name."""

    def __init__(self, kind: type):
        self._kind, self.__name__ = kind, kind.__name__

    def __call__(self, text: str) -> Any:
        return None if text.lower() == "none" else self._kind(text)


class _Section(DataclassWrapper):
    """The flags of one dataclass, under the first line of its docstring."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs, field_wrapper_class=_Flag)

    @property
    def title(self) -> str:
        return (inspect.getdoc(self.dataclass) or "").splitlines()[0].rstrip(".")

    @property
    def description(self) -> str:
        return ""


class _HelpFormatter(simple_parsing.SimpleHelpFormatter):
    """One spelling of each flag, and its default unless that is none."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or isinstance(action, argparse._HelpAction):
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else f" {self._format_args(action, '').strip('[]')}"
        return f"{action.option_strings[0]}{value}"

    def _get_help_string(self, action: argparse.Action) -> str:
        text = re.sub(r" \(default: \S+\)$", "", super()._get_help_string(action) or "")
        if action.required:
            return f"{text} (required)"
        is_none = action.default in (None, argparse.SUPPRESS, "", [])
        return text if is_none else f"{text} (default: %(default)s)"


def checkpoint_flag() -> Any:
    """The field `--checkpoint` of what reads a run directory."""
    return simple_parsing.choice(
        *("last", "best", "average"),
        default=None,
        help="which weights of a run directory; unless given, those that training scores and "
        "exports: the average of --average_checkpoints, else the best by validation, else the last",
    )


class Parser(simple_parsing.ArgumentParser):
    """Flags from dataclasses; dashes and underscores mean the same, no abbreviations.

    Flags may stand in a file, too: see `pipelines.config_file`.

    Args:
        description: what the command does.
        prog: "python -m pipelines." and the module; the help names the command as it was called.
    """

    def __init__(self, description: str, prog: str):
        super().__init__(
            prog=_as_called(prog),
            usage="%(prog)s [flags]",
            description=description,
            epilog="--version alone tells the versions.",
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            add_option_string_dash_variants=simple_parsing.DashVariant.UNDERSCORE,
        )
        self.add_argument(
            "--config",
            metavar="FILE",
            help="flags in a TOML file, `steps = 2000`; those on the command line come first",
        )
        self._dataclasses: list[type] = []

    def add_section(self, dataclass: type, dest: str, default: object = None) -> None:
        """Adds the fields of a dataclass as flags, with the values of `default`."""
        self._dataclasses.append(dataclass)
        self.add_arguments(dataclass, dest, default=default, dataclass_wrapper_class=_Section)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses; a value that a dataclass refuses is the user's mistake as well.

        Raises:
            InputError: see above, a flag is given twice, a text is empty, or the file of --config
                is wrong.
        """
        if list(arguments) == ["--version"]:  # `export` has a flag of that name, with a value
            print(version())
            sys.exit()
        given, booleans = given_flags(arguments), self._booleans()
        for name in given:
            if name.startswith("no") and name[2:] in booleans:
                raise InputError(f"--{name} is no flag: give --{name[2:]}=false")
            if given.count(name) > 1:
                raise InputError(f"--{name} must be given once, got it {given.count(name)} times")
        with flags_of_file(underscored(arguments), *self._dataclasses) as words:
            try:
                parsed = self.parse_args(words)
                self._check_texts(parsed)
                return parsed
            except InputError:
                raise
            except ValueError as error:
                raise InputError(first_line(error)) from error

    def _booleans(self) -> set[str]:
        """The switches, each of which simple_parsing gives a second spelling, `--no` before it."""
        fields = (field for each in self._dataclasses for field in dataclasses.fields(each))
        return {field.name for field in fields if field.type in (bool, "bool")}

    def _check_texts(self, parsed: argparse.Namespace) -> None:
        """Refuses texts without a character and lists without a value, such as a shell makes of a
        variable that is not set, NUL, which no path can have, and what is no text: much that takes
        paths takes UTF-8 alone."""
        for name, value in vars(parsed).items():
            if not dataclasses.is_dataclass(value):
                _check_characters(name, value)
                continue
            for field in dataclasses.fields(value):
                given = getattr(value, field.name)
                _check_characters(field.name, given)
                if field.default != "" and "" in several(given):
                    raise InputError(f"{field.name} must not be empty, got ''")
                if given == [] and field.default_factory is not list:
                    raise InputError(f"{field.name} must have values, got none")

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _check_characters(name: str, value: Any) -> None:
    """Refuses NUL, and the surrogates that Python has for bytes which it could not read."""
    for text in several(value):
        if isinstance(text, str) and "\0" in text:
            raise InputError(f"{name} must not have a NUL character, got {value!r}")
        if isinstance(text, str) and re.search("[\ud800-\udfff]", text):
            encoding = sys.getfilesystemencoding()
            raise InputError(f"{name} must be text in {encoding}, got {value!r}")


def _as_called(prog: str) -> str:
    """The command as the user has called it: "tf-relpos-train" or "python -m pipelines ..."."""
    program = Path(sys.argv[0])
    if program.stem.startswith("tf-relpos"):
        return program.stem
    return prog.replace("pipelines.", "pipelines ") if program.name == "__main__.py" else prog


def version() -> str:
    """The versions that a report of a fault needs, in a line; nothing is imported for it."""
    packages = ("tf_relpos", "tensorflow", "keras")
    return ", ".join([*map(_version, packages), f"python {platform.python_version()}"])


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} (not installed)"


def parse_flags(dataclass: type, description: str, prog: str, arguments: Sequence[str]) -> Any:
    """An instance of the dataclass whose fields are all the flags there are.

    Raises:
        InputError: see `Parser.parse`.
    """
    return parse_sections((dataclass,), description, prog, arguments)[0]


def parse_sections(
    sections: Sequence[Any], description: str, prog: str, arguments: Sequence[str]
) -> tuple[Any, ...]:
    """Instances of several dataclasses, whose fields together are all the flags there are.

    Args:
        sections: the dataclasses; or an instance, which has the values of what is not given.
        description, prog: see `Parser`.
        arguments: of the command line.

    Raises:
        InputError: see `Parser.parse`.
    """
    parser = Parser(description, prog)
    for number, section in enumerate(sections):
        is_type = isinstance(section, type)
        dataclass, default = (section, None) if is_type else (type(section), section)
        parser.add_section(dataclass, f"section_{number}", default)
    found = vars(parser.parse(arguments))
    return tuple(found[f"section_{number}"] for number in range(len(sections)))


def underscored(arguments: Sequence[str]) -> list[str]:
    """The arguments with the dashes inside of flags turned into underscores."""
    return [
        re.sub(r"^--[^=]+", lambda flag: "--" + flag[0][2:].replace("-", "_"), argument)
        for argument in arguments
    ]


def given_flags(arguments: Sequence[str]) -> list[str]:
    """The names of the flags among the arguments, without dashes in front."""
    return [
        argument[2:].partition("=")[0]
        for argument in underscored(arguments)
        if re.match(r"--\w", argument)
    ]


def early_flags(arguments: Sequence[str], **defaults: str | None) -> argparse.Namespace:
    """Reads the flags on which the defaults of others depend; leaves everything else alone."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", nargs="?", default=default)
    return parser.parse_known_args(underscored(arguments))[0]
