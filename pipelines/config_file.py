"""Flags in a file: `--config FILE`, in TOML.

    preset = "tiny"
    train_source = ["a.en", "b.en"]

    [training]
    steps = 2_000

Keys are the names of flags; tables group them, and their names mean nothing. A flag on the command
line takes the place of the file's. In everything else a flag of the file is one that was given.
"""

import contextlib
import dataclasses
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple

from pipelines.errors import InputError, first_line

# What a value of a flag must be, and several of them.
_KINDS: dict[type, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("text in quotes", "texts in quotes"),
}


@contextlib.contextmanager
def flags_of_file(arguments: Sequence[str], *dataclasses_: type) -> Iterator[list[str]]:
    """The arguments of a command line with the flags of the file of `--config` in its place.

    What is found wrong with one of those inside of the block is told with the name of the file.

    Args:
        arguments: of the command line, flags spelt with underscores.
        dataclasses_: whose fields are the flags that there are.

    Raises:
        InputError: the file cannot be read, or a key is no flag, stands there twice, or has a
            value of another type.
    """
    path, arguments = _take_config(arguments)
    if path is None:
        yield arguments
        return
    kinds = {name: kind for each in dataclasses_ for name, kind in _kinds(each).items()}
    given = {argument.partition("=")[0] for argument in arguments}
    words: list[str] = []
    used = set()
    for name, value in _read(path).items():
        if name not in kinds:
            raise InputError(f"{path}: {name} is not a flag of this command")
        as_words = _words(path, name, value, kinds[name])
        if f"--{name}" not in given:
            words += as_words
            used.add(name)
    try:
        # Behind what stands without a flag in front, and before what can be no flag.
        end = arguments.index("--") if "--" in arguments else len(arguments)
        yield [*arguments[:end], *words, *arguments[end:]]
    except InputError as error:
        subject = re.match(r"(?:argument )?\W*(\w*)", str(error))
        if subject and subject[1] in used:
            raise InputError(f"{path}: {error}") from error
        raise


def _take_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file, and the other arguments; without a file or with several, all as they are."""
    places = [i for i, word in enumerate(arguments) if word.partition("=")[0] == "--config"]
    if len(places) != 1:
        return None, list(arguments)
    (place,) = places
    _, is_joined, path = arguments[place].partition("=")
    if is_joined:
        return path, [*arguments[:place], *arguments[place + 1 :]]
    if place + 1 == len(arguments) or arguments[place + 1].startswith("--"):
        return None, list(arguments)
    return arguments[place + 1], [*arguments[:place], *arguments[place + 2 :]]


class _Kind(NamedTuple):
    """What a flag takes: a value of a type, or a list of such."""

    type: type
    is_list: bool = False

    def __str__(self) -> str:
        one, several = _KINDS[self.type]
        return f"a list of {several}" if self.is_list else one

    def fits(self, value: Any) -> bool:
        if self.is_list:
            return all(map(_Kind(self.type).fits, several(value)))
        if self.type in (int, float) and type(value) is int:
            return abs(value) < 1 << 63  # what TOML promises
        return type(value) is self.type


def _kinds(dataclass: Any) -> dict[str, _Kind]:
    """By the name of the flag."""
    hints = typing.get_type_hints(dataclass)
    fields = [field for field in dataclasses.fields(dataclass) if field.metadata.get("cmd", True)]
    return {field.name: _kind(hints[field.name]) for field in fields}


def _kind(hint: Any) -> _Kind:
    if hint in _KINDS:
        return _Kind(hint)
    first = next(choice for choice in typing.get_args(hint) if choice is not NoneType)
    if typing.get_origin(hint) is Literal:
        return _Kind(type(first))
    return _Kind(_kind(first).type, typing.get_origin(hint) is list or _kind(first).is_list)


def _read(path: str) -> dict[str, Any]:
    """The values by the name of the flag, whatever table they stand in."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
        content = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"config must be a file, cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        number = int(found[1]) if found else 0  # else at the end
        line = text.split("\n")[number - 1].strip()
        raise InputError(f"{path} must be TOML: {first_line(error)}: {_shown(line)}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must be TOML: {first_line(error)}") from error
    tables = [value for value in content.values() if isinstance(value, dict)]
    top = {name: value for name, value in content.items() if not isinstance(value, dict)}
    values: dict[str, Any] = {}
    for key, value in (item for table in (top, *tables) for item in table.items()):
        name = key.replace("-", "_")
        if name in values:
            raise InputError(f"{path}: {name} must be given once")
        values[name] = value
    return values


def _words(path: str, name: str, value: Any, kind: _Kind) -> list[str]:
    """A flag and its value, or values, as on a command line."""
    if not kind.fits(value):
        raise InputError(f"{path}: {name} must be {kind}, got {_shown(value)}")
    if not kind.is_list:
        return [f"--{name}={_word(value)}"]
    words = [_word(item) for item in several(value)]
    for word in words:
        if word.startswith("-"):  # which a command line would take for a flag
            raise InputError(f"{path}: {name} must have values without a dash in front, got {word}")
    if not words:
        raise InputError(f"{path}: {name} must not be empty")
    return [f"--{name}", *words]


def several(value: Any) -> list[Any]:
    """A list as it is; of one value, the list of it, as a flag may be given one, too."""
    return value if isinstance(value, list) else [value]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else _word(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def as_toml(values: Mapping[str, Any]) -> str:
    """The text of such a file; what is None is left out, as a file has no word for it."""
    import tomli_w

    def given(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: given(value) if isinstance(value, Mapping) else value
            for name, value in mapping.items()
            if value is not None and value != {}
        }

    return tomli_w.dumps(given(values))
