"""COMET, a learnt metric that reads the source as well (Rei et al. 2020), where it is installed.

As the program `comet-score`: the package needs older versions of protobuf and NumPy than TensorFlow
allows, so that it lives in an environment of its own.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import InputError
from pipelines.progress import progress
from pipelines.run.metrics import Score

_PROGRAM = "comet-score"


class Comet:
    """A model of unbabel-comet.

    Args:
        model: a name on the Hugging Face hub, such as "Unbabel/wmt22-comet-da", which the program
            downloads when it is first used, or the path of a .ckpt file.

    Raises:
        InputError: the program is not installed.
    """

    def __init__(self, model: str):
        self.model = model
        program = shutil.which(_PROGRAM)
        if program is None:
            raise InputError(
                f"comet needs the program {_PROGRAM}, in an environment of its own: "
                "pipx install unbabel-comet && pipx inject unbabel-comet 'setuptools<81'"
            )
        self._program = program

    @progress("scoring with COMET")
    def __call__(
        self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
    ) -> Score:
        """The mean over sentences, 0 to 1 in most models.

        Raises:
            InputError: the program fails, as it does where there is no such model.
        """
        texts = {"-s": sources, "-t": translations, "-r": references}
        command = [self._program, "--model", self.model, "--quiet", "--only_system"]
        with tempfile.TemporaryDirectory() as directory:
            for flag, lines in texts.items():
                path = Path(directory, flag.strip("-"))
                path.write_text("".join(f"{_one_line(line)}\n" for line in lines), "utf-8")
                command += [flag, str(path)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r"score: (-?[\d.]+)", result.stdout)
        if result.returncode or not found:
            reason = (result.stderr.strip() or "no score").splitlines()[-1]
            raise InputError(f"{_PROGRAM} failed with comet {self.model}: {reason}")
        return Score("COMET", float(found[1]), f"model:{self.model}")


def _one_line(text: str) -> str:
    """The program takes "\\r" for the end of a line as well."""
    return re.sub(r"[\r\n]", " ", text)
