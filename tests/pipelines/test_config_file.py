"""Flags from a file: what it may say, what is refused, and the file that a run leaves."""

import re
from dataclasses import dataclass
from typing import Literal

import pytest

from pipelines import evaluate, train_wmt
from pipelines.config import CorpusConfig, default_config
from pipelines.config_file import as_toml
from pipelines.errors import InputError
from pipelines.flag_parser import parse_flags
from tests.support.refusals import refused


@dataclass(frozen=True)
class Flags:
    """Of every kind."""

    name: str
    """text"""
    count: int = 3
    """number"""
    rate: float | None = None
    """number"""
    is_on: bool = True
    """switch"""
    kind: Literal["one", "other"] = "one"
    """choice"""
    files: list[str] | None = None
    """several"""

    def __post_init__(self):
        if self.count < 1:
            raise InputError(f"count must be at least 1, got {self.count}")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "flags.toml"

    def write(text):
        path.write_text(text, encoding="utf-8")
        return path

    return write


def parsed(path, *arguments):
    return parse_flags(Flags, "", "program", ["--config", str(path), *arguments])


EVERY = """
name = "-n=\\"x\\" "
is-on = false
files = ["a b", "ü.gz"]
[of_any_name]
count = 1_000
rate = 2
[another]
kind = "other"
"""


def test_every_kind_of_value(file):
    expected = Flags('-n="x" ', 1000, 2.0, False, "other", ["a b", "ü.gz"])
    assert parsed(file(EVERY)) == expected
    assert parse_flags(Flags, "", "program", [f"--config={file(EVERY)}"]) == expected
    assert parsed(file(as_toml({"a": vars(expected), "b": {"c": None}}))) == expected


def test_a_byte_order_mark_is_no_key(file):
    assert parsed(file("\ufeffname = 'x'\n")).name == "x"


def test_the_command_line_takes_the_place_of_the_file(file):
    flags = parsed(file(EVERY), "--is-on", "true", "--count=5", "--files", "c")
    assert (flags.is_on, flags.count, flags.files) == (True, 5, ["c"])
    assert parsed(file("files = 'a'"), "--name", "x").files == ["a"]
    assert flags.kind == "other"
    for none in (["--rate", "none"], ["--rate=None"]):
        assert parsed(file(EVERY), *none).rate is None
    for flag in ("--count", "--rate"):
        with refused(f"argument {flag}: invalid (int|float) value: 'x'; see program --help"):
            parsed(file(EVERY), flag, "x")
    with refused("argument --count: invalid int value: 'none'"):
        parsed(file(EVERY), "--count", "none")
    with refused("--count must be given once, got it 2 times"):
        parsed(file(EVERY), "--count", "1", "--count", "2")


@pytest.mark.parametrize(
    "text, message",
    [
        ("nosuch = 3", "{}: nosuch is not a flag of this command"),
        ("config = 'x'", "{}: config is not a flag of this command"),
        ("count = '3'", "{}: count must be a whole number, got '3'"),
        ("count = 3.0", "{}: count must be a whole number, got 3.0"),
        ("count = true", "{}: count must be a whole number, got true"),
        (f"count = {1 << 64}", "{}: count must be a whole number, got 18446744073709551616"),
        ("rate = '2'", "{}: rate must be a number, got '2'"),
        ("is_on = 1", "{}: is_on must be true or false, got 1"),
        ("files = 1", "{}: files must be a list of texts in quotes, got 1"),
        ("files = ['a', 1]", "{}: files must be a list of texts in quotes, got ['a', 1]"),
        ("files = ['--count']", "{}: files must have values without a dash in front, got --count"),
        ("files = []", "{}: files must not be empty"),
        ("[a.name]\nb = 1", "{}: name must be text in quotes, got {'b': 1}"),
        ("name = 1979-05-27", "{}: name must be text in quotes, got 1979-05-27"),
        ('name = "a\\u0000b"', "{}: name must not have a NUL character, got 'a\\x00b'"),
        (
            'files = ["a", "b\\u0000"]',
            "{}: files must not have a NUL character, got ['a', 'b\\x00']",
        ),
        ("count = 0", "{}: count must be at least 1, got 0"),
        ("kind = 'third'", "{}: argument --kind: invalid choice: 'third'"),
        ("count = 3\n[a]\ncount = 4", "{}: count must be given once"),
        ("is_on = true\nis-on = true", "{}: is_on must be given once"),
        (
            "count = 3\ncount = 4\n",
            "{} must be TOML: Cannot overwrite a value (at line 2, column 10): 'count = 4'",
        ),
        ("count = ", "{} must be TOML: Invalid value (at end of document): 'count ='"),
        ("a = " + "[" * 9999, "{} must be TOML: "),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(file, text, message):
    path = file(text)
    with refused("^" + re.escape(message.replace("{}", str(path), 1))):
        parsed(path, *([] if "name" in text else ["--name", "x"]))


def test_a_mistake_on_the_command_line_is_not_the_file_s(file):
    with refused("^count must be at least 1, got 0$"):
        parsed(file(EVERY), "--count", "0")


def test_what_follows_two_dashes_is_all_that_is_refused(file):
    with refused("^unrecognized arguments: -- more; see"):
        parsed(file(EVERY), "--", "more")


@pytest.mark.parametrize("argument", [("--config", "absent.toml"), ("--config=",)])
def test_a_file_that_cannot_be_read(argument):
    with refused("^config must be a file, cannot read .*: No such file"):
        parse_flags(Flags, "", "program", ["--name", "x", *argument])


def test_no_text_is_no_flags(file, tmp_path):
    assert parsed(file(""), "--name", "x") == Flags("x")
    (tmp_path / "latin").write_bytes("name = 'ü'".encode("latin-1"))
    with refused("latin must be TOML: 'utf-8' codec"):
        parsed(tmp_path / "latin")


def test_a_preset_of_the_file_decides_the_defaults(file):
    config, _, places = train_wmt.parse(
        ["--config", str(file('preset = "big"\n[model]\ndropout = 0.25')), "--run-dir", "runs/x"]
    )
    defaults = default_config("big", demo=True)
    assert config.preset == "big"
    assert (config.model.model_dim, config.model.dropout) == (1024, 0.25)
    assert config.training == defaults.training
    assert places.run_dir == "runs/x"


def test_a_flag_of_the_file_counts_as_given(file, tmp_path, refusal):
    """For rules about flags together, and those that the command line does not have."""
    path = file("max_length = 99")
    told = refusal(train_wmt.main, ["--config", path, "--prepared", tmp_path])
    assert told == f"{path}: --max_length must not be given with --prepared, which decides it"
    told = refusal(evaluate.main, ["--config", path])
    assert told == f"{path}: max_length is not a flag of this command"


def test_what_a_preparation_has_decided_is_left_out(file):
    config = default_config("base", demo=True)
    flags = config.flags(prepared="prepared/x")
    found, corpus, places = train_wmt.parse(["--config", str(file(as_toml(flags)))])
    assert places.prepared == "prepared/x" and corpus is None
    assert found.training == config.training and found.corpus == CorpusConfig()
    assert found.model.dropout == config.model.dropout
