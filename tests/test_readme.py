"""What the documents show runs."""

import re

import pytest

from tests.support.layer_checks import run_python
from tests.support.runs import ROOT, run_command
from tests.support.serving_model import exported

pytestmark = pytest.mark.tensorflow_only

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "saved_models/README.md"]


def commands():
    """Flags that documents use, by module of the command line."""
    flags = {}
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        for module, rest in re.findall(r"python -m pipelines\.([\w.]+)([^\n`<|&#]*)", text):
            flags.setdefault(module, set()).update(re.findall(r"--[\w-]+", rest))
    return flags


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_runs(number, tmp_path):
    """The model stands for the one that training leaves."""
    run_python(BLOCKS[number].replace("saved_models/demo/1", str(exported()[1])))


@pytest.mark.parametrize(("module", "flags"), sorted(commands().items()))
def test_commands_have_the_flags(module, flags):
    result = run_command(module, ["--help"])
    assert result.returncode == 0
    assert flags <= set(re.findall(r"--[\w-]+", result.stdout))


def test_all_of_them_are_found():
    """A change of the documents' layout must not empty the checks."""
    assert len(BLOCKS) >= 4
    assert {"train_wmt", "prepare", "evaluate", "translate", "export"} <= set(commands())
