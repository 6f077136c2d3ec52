"""What is imported when: a mistyped flag is answered before anything slow is."""

import platform

import pytest

from tests.support.layer_checks import run_python

WATCH = """
import sys
sys.path.insert(0, "")
SLOW = ("tensorflow", "keras", "tensorflow_datasets", "tensorflow_text", "sentencepiece", "numpy")
from pipelines.command_line import run
from pipelines import {module}
sys.argv = ["program", *{arguments}]
try:
    run({module}.main)
except SystemExit as ended:
    print(ended.code, *[name for name in SLOW if name in sys.modules])
"""

WRONG = {
    "train_wmt": [
        ["--nosuchflag", "3"],
        ["--steps", "0"],
        ["--model_dim", "7", "--num_heads", "2"],
        ["--preset", "enormous"],
        ["--dataset", "wmt14_translate/cs-en"],
        ["--dataset", "wmt14_translate/de-en", "--target_language", "fr"],
        ["--train_source", "absent.en", "--train_target", "absent.de"],
        ["--strategy", "multi_worker"],
        ["--num_shapes", "0"],
        ["--max_length", "0"],
    ],
    "reproduce": [
        ["--table", "4"],
        ["--table", "1", "--steps", "0"],
        ["--table", "1", "--rows", "x"],
    ],
    "generalize": [
        ["--commands", "x"],
        ["--commands", "absent", "--actions", "absent"],
        ["--share", "2"],
        ["--rows", "x"],
        ["--train_source", "absent.en", "--train_target", "absent.de"],
    ],
    "inspect": [["--run_dir", "x", "--sentence", "a", "--output", "a.png"]],
    "prepare": [["--nosuchflag", "3"], ["--output", "x", "--dataset", "mnist"]],
    "evaluate": [
        ["--nosuchflag", "3"],
        ["--run_dir", "x", "--source", "x", "--reference", "x", "--beam_size", "0"],
        ["--run_dir", "x", "--source", "x", "--reference", "x", "--output", "absent/x"],
        ["--run_dir", "x", "--source", "x", "--reference", "x", "--compare_with", "absent"],
        ["--run_dir", "x", "--source", "x", "--reference", "x", "y", "--comet", "x"],
        ["--run_dir", "x", "--source", "x", "--reference", "x", "--tokenize", "x"],
    ],
    "train_graph": [["--layers", "0"], ["--train", "x"], ["--train", "x", "--hold_out", "0.5"]],
    "compare_positions": [["--seeds", "0"], ["--task", "series", "--model", "keras_hub"]],
    "score": [["--nosuchflag", "3"], ["--model", "x", "--source", "absent", "--target", "x"]],
    "translate": [
        ["--nosuchflag", "3"],
        ["--model", "absent"],
        ["--model", "x", "--alpha", "nan"],
        ["--model", "x", "--seed", "1"],
        ["--model", "x", "--nbest", "2", "--alignment"],
        ["--model", "x", "--sample", "--temperature", "0"],
        ["--model", "x", "--sample", "--nbest", "2"],
    ],
    "export": [
        ["--nosuchflag", "3"],
        ["--run_dir", "x", "--format", "tflite", "--output", "y", "--version", "3"],
    ],
}


@pytest.mark.parametrize(
    "module, arguments",
    [(module, arguments) for module, several in WRONG.items() for arguments in several],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_flag_is_told_before_anything_slow_is_imported(module, arguments):
    output = run_python(WATCH.format(module=module, arguments=arguments))
    status, *slow = output.splitlines()[-1].split()
    assert status == "2"
    assert not set(slow) - {"numpy"}


@pytest.mark.parametrize("name", ["wmt14_translate/de-en", "wmt_t2t_translate/de-en"])
def test_flags_of_a_data_set_are_parsed_without_looking_at_it(name):
    output = run_python(
        f"""
import sys
from pipelines.train_wmt import parse
config, corpus, places = parse(["--dataset", {name!r}])
print(corpus.name, places.run_dir, "tensorflow_datasets" in sys.modules, "keras" in sys.modules)
"""
    )
    assert output == f"{name} runs/{name.replace('/', '-')} False False"


@pytest.mark.parametrize("imported", ["", "import keras"], ids=["not yet", "already"])
def test_keras_computes_on_tensorflow_whatever_backend_is_set(imported):
    code = f"""
{imported}
from pipelines.importing import load_keras
try:
    load_keras()
except ValueError as error:
    print(error)
else:
    import keras
    print(keras.backend.backend())
"""
    expected = "the backend of Keras must be tensorflow, got jax" if imported else "tensorflow"
    assert run_python(code, KERAS_BACKEND="jax") == expected


def test_numbers_are_those_of_the_flags_whatever_the_users_settings_are(tmp_path):
    (tmp_path / "keras.json").write_text('{"floatx": "float16", "backend": "jax"}')
    code = """
from pipelines.importing import load_keras
load_keras()
import keras
print(keras.backend.backend(), keras.config.floatx(), keras.layers.Dense(1).compute_dtype)
"""
    assert run_python(code, KERAS_HOME=str(tmp_path)) == "tensorflow float32 float32"


def test_what_needs_no_keras_leaves_its_backend_alone():
    code = """
import keras
from pipelines.importing import load_tensorflow
load_tensorflow()
import os
print(os.environ["KERAS_BACKEND"], keras.backend.backend())
"""
    assert run_python(code, KERAS_BACKEND="jax") == "jax jax"


def test_config_imported_alone_is_that_of_the_package():
    output = run_python(
        """
import sys
from pipelines.config import TransformerConfig
before = "keras" in sys.modules
import tf_relpos
from tf_relpos.config import TransformerConfig as own
import tf_relpos.config
same = TransformerConfig is tf_relpos.TransformerConfig is own is tf_relpos.config.TransformerConfig
print(before, "keras" in sys.modules, same)
"""
    )
    assert output == "False True True"


def test_a_module_of_a_package_that_is_imported_already():
    output = run_python(
        """
import tf_relpos
from pipelines.importing import import_alone
print(import_alone("tf_relpos.config").TransformerConfig is tf_relpos.TransformerConfig)
"""
    )
    assert output == "True"


@pytest.mark.parametrize(("setting", "expected"), [(None, "_MklMatMul"), ("0", "MatMul")])
def test_products_are_those_of_onednn(setting, expected, monkeypatch):
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("TensorFlow has them on x86 processors")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if setting:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", setting)
    output = run_python(
        """
from pipelines.importing import load_tensorflow
load_tensorflow()
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
options, metadata = config_pb2.RunOptions(output_partition_graphs=True), config_pb2.RunMetadata()
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x = tf.compat.v1.placeholder("float32", [4, 4])
    session.run(x @ x, {x: [[1.0] * 4] * 4}, options, metadata)
nodes = [node.op for graph in metadata.partition_graphs for node in graph.node]
print(*(op for op in nodes if "MatMul" in op))
"""
    )
    assert output == expected


@pytest.mark.parametrize("collects", [True, False])
def test_what_tensorflow_imports_is_not_looked_through_for_garbage(collects):
    code = f"""
import gc
{"" if collects else "gc.disable()"}
from pipelines.importing import load_tensorflow
before = gc.get_stats()
load_tensorflow()
after = gc.get_stats()
print(gc.isenabled(), gc.get_freeze_count() > 100_000, before[2] == after[2])
"""
    assert run_python(code).split() == [str(collects), str(collects), "True"]


@pytest.mark.parametrize("is_there", [False, True])
def test_tensorflow_does_not_load_what_the_commands_do_not_need(is_there):
    """Their own imports find it afterwards, and what was there before stays."""
    code = f"""
import sys
{"import jax" if is_there else ""}
before = [sys.modules.get(name) for name in ("jax", "matplotlib")]
from pipelines.importing import load_keras
load_keras()
print([sys.modules.get(name) for name in ("jax", "matplotlib")] == before, before[0] is not None)
import jax.numpy, matplotlib.pyplot
print(jax.numpy.ones(2).sum(), matplotlib.pyplot is sys.modules["matplotlib.pyplot"])
"""
    assert run_python(code).split() == ["True", str(is_there), "2.0", "True"]
