"""The lines that the documents show for every backend run on each that is installed."""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.support.documents import PAGES, blocks
from tests.support.runs import ENVIRONMENT


def test_the_same_lines_on_every_backend(tmp_path):
    """Each in a process of its own, which also loads what those before it have saved."""
    lines = next(code for code in blocks(PAGES / "layers.md", "python") if "save_weights" in code)
    assert sum(map(bool, lines.splitlines())) == 10
    commands = re.findall(
        r"^KERAS_BACKEND=(\w+) python fit.py +# after pip install (\w+)$",
        "".join(blocks(PAGES / "layers.md", "sh")),
        re.MULTILINE,
    )
    assert [backend for backend, _ in commands] == ["tensorflow", "jax", "torch"]
    check = """
assert keras.backend.backend() == {backend!r}
assert model.get_metrics_result()["accuracy"] > 0.9
np.save("{backend}.npy", model.predict(ids[:64], verbose=0))
model.save_weights("{backend}.weights.h5")
for other in {others}:
    model.load_weights(other + ".weights.h5")
    assert np.max(np.abs(model.predict(ids[:64], verbose=0) - np.load(other + ".npy"))) < 1e-5
"""
    done = []
    for backend, package in commands:
        if importlib.util.find_spec(package):
            code = lines + check.format(backend=backend, others=done)
            result = subprocess.run(
                [sys.executable, "-c", code],
                cwd=tmp_path,
                env={**ENVIRONMENT, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert result.returncode == 0, result.stderr
            done.append(backend)
    if len(done) < len(commands):
        pytest.skip(f"passed on {', '.join(done)}, which are installed")
