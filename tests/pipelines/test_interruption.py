"""How commands end, in processes of their own: at once, and with the status that shells know."""

import re
import signal
import sys

import pytest

from pipelines import interruption
from tests.support.runs import run_process

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
AS_ANOTHER_EXCEPTION = """
import signal
from pipelines.command_line import run

def main(arguments):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise RuntimeError("active exception types replaced by KeyboardInterrupt") from error

signal.signal(signal.SIGINT, signal.default_int_handler)
run(main)
"""
WHILE_BATCHES_ARE_TRANSLATED = """
import os, signal, time
from pipelines.command_line import run
from pipelines.translators.side_by_side import side_by_side

def translate(batch):
    if batch == 2:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(300)

signal.signal(signal.SIGINT, signal.default_int_handler)
run(lambda arguments: list(side_by_side(translate, [1, 2], at_once=2)))
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

# A dataset is read ahead when the command is over.
WHILE_DATA_IS_READ_AHEAD = """
import sys, time
from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.importing import load_tensorflow

load_tensorflow()
import numpy as np
import tensorflow as tf

def read(number):
    time.sleep(0.2)
    return np.int32(number)

def load(context):
    data = tf.data.Dataset.range(1_000_000)
    return data.map(lambda i: tf.numpy_function(read, [i], tf.int32)).prefetch(100_000)

def main(arguments):
    global iterator
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    iterator = iter(strategy.distribute_datasets_from_function(load))
    next(iterator)
    print("to the last word", end="")
    if arguments:
        raise {"mistake": InputError, "defect": KeyError}[arguments[0]]("that is none")
    return 5

run(main)
"""


@pytest.mark.parametrize(
    "program",
    [
        IN_A_DESTRUCTOR,
        AS_ANOTHER_EXCEPTION,
        WHAT_WOULD_WAIT,
        WHILE_BATCHES_ARE_TRANSLATED,
        pytest.param(WHILE_SUBWORDS_ARE_LEARNT, marks=pytest.mark.tensorflow_only),
    ],
    ids=[
        "in a destructor",
        "as another exception",
        "what would wait",
        "while batches are translated",
        "while subwords are learnt",
    ],
)
def test_it_ends_the_process(program, tmp_path):
    result = run_program(program, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("arguments", "status", "errors"),
    [
        ([], 5, ""),
        (["mistake"], 2, "error: that is none\n"),
        (["defect"], 1, "Traceback .*\nKeyError: 'that is none'\n"),
    ],
)
def test_a_command_ends_while_data_is_read_ahead(arguments, status, errors):
    result = run_program(WHILE_DATA_IS_READ_AHEAD, *arguments)
    assert result.returncode == status
    assert re.fullmatch(errors, result.stderr, re.DOTALL)
    assert result.stdout == "to the last word"


def run_program(program, *arguments, **options):
    return run_process([sys.executable, "-c", program, *arguments], timeout=100, **options)


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
