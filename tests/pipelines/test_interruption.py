"""Ctrl-C, in processes of their own: it ends them at once, and with the status that shells know."""

import signal
import subprocess
import sys

import pytest

from pipelines import interruption
from tests.support.runs import ENVIRONMENT, ROOT

IN_A_DESTRUCTOR = """
import signal, time
from pipelines.command_line import run

class Object:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def main(arguments):
    Object()
    time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)
run(main)
"""
# Reading goes on as long as the process lives, as that of a large text would.
WHILE_SUBWORDS_ARE_LEARNT = """
import os, signal
from pipelines.command_line import run
from pipelines.importing import load_tensorflow

load_tensorflow()
from pipelines.data.tokenizer import train_tokenizer

def sentences():
    for number in range(1_000_000_000):
        if number == 10_000:
            os.kill(os.getpid(), signal.SIGINT)
        yield f"sentence number {number}"

def main(arguments):
    print("learning")
    train_tokenizer(sentences(), 300, "tokenizer.model")

signal.signal(signal.SIGINT, signal.default_int_handler)
run(main)
"""

# As TensorFlow's iterators may, when Python takes itself apart.
WHAT_WOULD_WAIT = """
import atexit, signal, time
from pipelines.command_line import run

atexit.register(time.sleep, 300)
signal.signal(signal.SIGINT, signal.default_int_handler)
run(lambda arguments: signal.raise_signal(signal.SIGINT))
"""


@pytest.mark.parametrize(
    "program",
    [
        IN_A_DESTRUCTOR,
        WHAT_WOULD_WAIT,
        pytest.param(WHILE_SUBWORDS_ARE_LEARNT, marks=pytest.mark.tensorflow_only),
    ],
    ids=["in a destructor", "what would wait", "while subwords are learnt"],
)
def test_it_ends_the_process(program, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, "")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_in_destructors_are_reported_as_ever(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    class Object:
        def __del__(self):
            raise ValueError

    with interruption.never_lost():
        Object()
    assert [found.exc_type for found in reported] == [ValueError]
    assert sys.unraisablehook == reported.append
