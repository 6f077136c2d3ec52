"""The list of the command lines, versions, and what each knows of itself."""

import importlib
import re
import sys
from importlib import metadata

import pytest

from pipelines.commands import COMMANDS
from tests.support.refusals import message_of
from tests.support.runs import run_command, run_process

pytestmark = pytest.mark.tensorflow_only


def pipelines(*arguments):
    return run_process([sys.executable, "-m", "pipelines", *arguments])


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_the_package_lists_the_commands(arguments):
    listed = pipelines(*arguments)
    assert listed.returncode == 0
    assert re.findall(r"^  (\w+)  +\S", listed.stdout, re.MULTILINE) == list(COMMANDS)


def test_the_package_runs_a_command():
    assert pipelines("train-wmt", "--help").stdout.startswith(
        "usage: python -m pipelines train_wmt [flags]\n"
    )
    wrong = pipelines("trane")
    told = message_of(wrong.returncode, wrong.stderr)
    assert re.fullmatch(r"the command must be one of prepare, .*, got trane", told)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_its_version_and_its_flags(command):
    told = run_command(command, ["--version"])
    assert told.returncode == 0
    assert told.stdout.startswith(f"tf_relpos {metadata.version('tf_relpos')}, tensorflow 2.")
    text = run_command(command, ["--help"]).stdout
    assert text.startswith(f"usage: python -m pipelines.{command} ")
    assert {"--version", "--config", "--help"} <= set(re.findall(r"--\w+", text))
    assert "Literal" not in text and "default: None" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_flags_from_a_file(command, tmp_path, refusal):
    """Whatever types its flags have."""
    (tmp_path / "flags.toml").write_text("[any]\nnosuchflag = 3")
    main = importlib.import_module(f"pipelines.{command}").main
    told = refusal(main, ["--config", tmp_path / "flags.toml"])
    assert told == f"{tmp_path}/flags.toml: nosuchflag is not a flag of this command"
