"""What the command lines share, without a model."""

import errno
import io
import logging
import sys
from dataclasses import dataclass

import pytest
from simple_parsing import choice

from pipelines import train_wmt
from pipelines.errors import InputError
from pipelines.flag_parser import parse_flags
from tests.support.runs import call


def test_what_the_encoding_lacks_is_printed_as_an_escape(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)

    def main(arguments):
        logging.getLogger("pipelines.training").info("Vögel")
        print("Öl")
        return 3

    assert call(main, [], monkeypatch) == 3
    output.flush()
    assert output.buffer.getvalue() == b"V\\xf6gel\n\\xd6l\n"


@pytest.mark.parametrize(
    ("flags", "run_dir", "export_dir"),
    [
        (["--run_dir", "."], ".", "saved_models/mine"),
        (["--run_dir", "../mine/"], "../mine/", "saved_models/mine"),
        (["--prepared", "."], "runs/mine", "saved_models/mine"),
        (["--prepared", ".."], "runs/text", "saved_models/text"),
        (["--run_dir", "other", "--export_dir", "none"], "other", None),
    ],
)
def test_names_are_those_of_the_directories(tmp_path, monkeypatch, flags, run_dir, export_dir):
    (tmp_path / "text" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "text" / "mine")
    places = train_wmt.parse(flags)[-1]
    assert (places.run_dir, places.export_dir) == (run_dir, export_dir)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("kind", [MemoryError, "ResourceExhaustedError"])
def test_too_little_memory_is_one_line(refusal, kind):
    def main(arguments):
        if kind is MemoryError:
            raise MemoryError("Unable to allocate 9 EiB")
        import tensorflow as tf

        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    assert refusal(main, []).startswith("there is not enough memory: ")


class Full(io.StringIO):
    """A stream whose disk is full."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [InputError("x"), PermissionError(13, "no"), MemoryError("x")])
def test_an_error_that_nobody_can_be_told_of_is_still_one(monkeypatch, error):
    def main(arguments):
        raise error

    monkeypatch.setattr(sys, "stderr", Full())
    assert call(main, [], monkeypatch) == 2


def test_the_other_spelling_of_a_switch_is_no_flag():
    """It would pass by what is checked by names, and lose against a file."""
    arguments = ["--noskip_non_finite"]
    with pytest.raises(InputError, match="--noskip_non_finite is no flag: .*skip_non_finite=false"):
        train_wmt.parse(arguments)
    assert train_wmt.parse(["--skip_non_finite=false"])[0].training.skip_non_finite is False


@pytest.mark.parametrize("flag", ["name", "rate", "count", "kind"])
def test_a_flag_without_its_value_is_refused(flag):
    """Such as a variable of a shell that is not set leaves."""

    @dataclass(frozen=True)
    class Flags:
        """Of every kind."""

        is_on: bool = False
        """switch"""
        name: str | None = None
        """text"""
        rate: float | None = None
        """number"""
        count: int = 3
        """number"""
        kind: str | None = choice("one", "other", default=None)
        """choice"""

    for arguments in ([f"--{flag}"], [f"--{flag}", "--is_on"]):
        with pytest.raises(InputError, match=f"^argument --{flag}: expected one argument"):
            parse_flags(Flags, "", "program", arguments)
    assert parse_flags(Flags, "", "program", ["--is_on"]) == Flags(is_on=True)
    assert parse_flags(Flags, "", "program", ["--rate", "none"]) == Flags()
