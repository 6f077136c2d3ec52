"""Names that their owners may change without notice, and what relies on each.

A new version of Keras, tensorflow_text or TensorFlow that changes one fails here, and the message
says what broke. A private name that is used and does not stand here fails, too.
"""

import argparse
import ast
import inspect
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.lite.python import schema_py_generated
from tensorflow.lite.tools import flatbuffer_utils
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

ROOT = Path(__file__).resolve().parents[1]

# Of a built keras.layers.MultiHeadAttention, and what `tf_relpos.edge_attention` does with it.
LAYER = {
    "_dtype_policy": "a part's own, where all have a map: parts",
    "_attention_axes": "which axes hold positions; masks, labels and free axes follow it",
    "_build_attention": "extended: softmax in float32",
    "_compute_attention": "overridden: Eq. 5 and Eq. 3",
    "_compute_attention_mask": "extended: masks of heads and free axes align",
    "_compute_causal_mask": "overridden: the axis of the positions need not be the second",
    "_compute_sliding_window_mask": "overridden, likewise",
    "_dropout_layer": "dropout of the weights, of both terms alike",
    "_flash_attention": "switched off, or Keras's own computation is used",
    "_gate_dense": "`use_gate`",
    "_inverse_sqrt_key_dim": "the scale of the query",
    "_key_dense": "the projection of keys, also of the cache",
    "_masked_softmax": "the softmax; over several axes in the precision of the layer",
    "_output_dense": "the projection of the output",
    "_query_dense": "the projection of the query",
    "_sliding_window": "the window, also in a cache",
    "_softmax": "replaced by one in float32",
    "_use_gate": "`use_gate`",
    "_value_dense": "the projection of values, also of the cache",
}

# Those that are overridden or called with positions, and the arguments that Keras gives them.
MASKS = ["query_mask", "value_mask", "key_mask", "attention_mask", "use_causal_mask"]
ATTENTION = ["attention_mask", "training", "return_attention_scores", "use_causal_mask"]
ARGUMENTS = {
    "_build_attention": ["rank"],
    "_compute_attention": ["query", "key", "value", *ATTENTION],
    "_compute_attention_mask": ["query", "value", *MASKS],
    "_compute_causal_mask": ["query", "value"],
    "_compute_sliding_window_mask": ["query", "value"],
    "_masked_softmax": ["attention_scores", "attention_mask"],
}

ADAM = keras.optimizers.Adam()
ADAM.build([keras.Variable(0.0)])

# Other objects: owner, name, and what relies on it.
OTHERS = [
    (ADAM, "_momentums", "the first moments: training.adam"),
    (ADAM, "_velocities", "the second moments: training.adam"),
    (ADAM, "_get_variable_index", "where those of a variable stand: training.adam"),
    (tf.saved_model.experimental.TrackableResource, "_create_resource", "data.tokenizer"),
    (gen_sentencepiece_tokenizer, "sentencepiece_op", "the named model of data.tokenizer"),
    (schema_py_generated, "BufferT", "metadata of exporters.tflite"),
    (schema_py_generated, "MetadataT", "metadata of exporters.tflite"),
    (schema_py_generated, "ModelT", "shared buffers of exporters.tflite"),
    (flatbuffer_utils, "read_model_from_bytearray", "exporters.tflite"),
    (flatbuffer_utils, "convert_object_to_bytearray", "exporters.tflite"),
    (keras.layers.Layer, "_flatten_layers", "the parts of a layer: tf_relpos.parts"),
    (argparse, "_HelpAction", "its flag is spelt in both ways: flag_parser"),
    (argparse.HelpFormatter, "_format_action_invocation", "one spelling of a flag: flag_parser"),
    (argparse.HelpFormatter, "_format_args", "flag_parser"),
    (argparse.HelpFormatter, "_get_help_string", "no default of None: flag_parser"),
]
MODULES = {
    "tensorflow.core.framework",
    "tensorflow.core.protobuf",
    "tensorflow.lite.python",
    "tensorflow.lite.tools",
    "tensorflow_text.python.ops.sentencepiece_tokenizer",
}
MASK = "_keras_mask"
RESOURCE = "_model_resource"  # of a SentencepieceTokenizer, replaced in data.tokenizer
TORCH = "_are_functorch_transforms_active"  # of torch._C, for tf_relpos.custom_gradients
DOCUMENTED = {"_asdict", "_replace", "_fields", "_exit"}  # of named tuples, and of `os`


@pytest.fixture(scope="module")
def layer():
    layer = keras.layers.MultiHeadAttention(2, 3, use_gate=True, sliding_window=2)
    layer.build((None, 5, 7), (None, 5, 7))
    return layer


@pytest.mark.parametrize("name,use", LAYER.items(), ids=LAYER)
def test_name_of_keras_s_layer(layer, name, use):
    assert hasattr(layer, name), f"keras {keras.__version__} has no {name}: {use}"


@pytest.mark.parametrize("name,expected", ARGUMENTS.items(), ids=ARGUMENTS)
def test_arguments_of_keras_s_methods(layer, name, expected):
    arguments = list(inspect.signature(getattr(layer, name)).parameters)
    assert arguments == expected, f"keras {keras.__version__}, {name}: {LAYER[name]}"


def test_forms_of_keras_s_names(layer):
    """Not only there, but what the code takes them for."""
    assert layer._attention_axes == (1,)
    assert layer._sliding_window == 2
    assert layer._inverse_sqrt_key_dim == pytest.approx(3**-0.5)


def test_where_keras_keeps_the_mask_of_a_tensor():
    embedded = keras.layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))
    assert getattr(embedded, MASK, None) is not None, "tf_relpos.edge_attention._without_mask"


@pytest.mark.parametrize("owner,name,use", OTHERS, ids=[name for _, name, _ in OTHERS])
def test_name_of_another_package(owner, name, use):
    assert hasattr(owner, name), f"tensorflow {tf.__version__}: {use}"


def test_name_of_pytorch():
    torch = pytest.importorskip("torch")
    assert not getattr(torch._C, TORCH)()
    active = []
    torch.func.grad(lambda x: (active.append(getattr(torch._C, TORCH)()), x)[1])(torch.ones(()))
    assert active == [True], f"torch {torch.__version__}: gradients under torch.func"


def test_where_tensorflow_text_keeps_its_model():
    source = inspect.getsource(tensorflow_text.SentencepieceTokenizer)
    for used in (f"self.{RESOURCE} =", f"self.{RESOURCE}.resource_handle"):
        assert used in source, "data.tokenizer puts a model of its own there"


def test_arguments_of_the_operation_of_tensorflow_text():
    arguments = inspect.signature(gen_sentencepiece_tokenizer.sentencepiece_op).parameters
    assert {"model", "shared_name"} <= set(arguments), "data.tokenizer names its model"


def sources():
    for package in ("tf_relpos", "pipelines"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def is_private(name):
    return re.match("_[a-z]", name) is not None


def own_names():
    """Private names that our code itself gives to something."""
    for _, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def test_no_other_private_names_are_used(layer):
    """Attributes that our code uses and does not define, or that a class of others has as well."""
    listed = {*LAYER, RESOURCE, TORCH, *(name for _, name, _ in OTHERS), *DOCUMENTED}
    own = set(own_names())
    bases = {"tf_relpos": [layer, keras.Model], "pipelines": [owner for owner, *_ in OTHERS]}
    for path, tree in sources():
        foreign = {n for base in bases[path.relative_to(ROOT).parts[0]] for n in dir(base)}
        for node in ast.walk(tree):
            name = getattr(node, "attr", getattr(node, "name", None))
            if isinstance(node, ast.Attribute | ast.FunctionDef) and is_private(name):
                known = name in listed or (name in own and name not in foreign)
                assert known, f"{path}:{node.lineno}: {name} is not in the lists of this test"


def test_no_other_private_modules_are_imported():
    for path, tree in sources():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                private = re.match(r"keras\.src|\w+\.(python|lite|core)\b|.*\._[a-z]", name)
                assert not private or name in MODULES, f"{path}:{node.lineno}: {name}"


def test_the_lists_name_nothing_that_is_not_used():
    text = "".join(path.read_text() for path, _ in sources())
    for name in (*LAYER, MASK, RESOURCE, TORCH, *MODULES, *(name for _, name, _ in OTHERS)):
        assert name in text, f"{name} is not used any more"
