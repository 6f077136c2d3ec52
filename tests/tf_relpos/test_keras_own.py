"""Keras's own tests of its layer, from the installed wheel, with ours in the layer's place."""

import importlib.util
import types
from pathlib import Path

import keras
import pytest

from tf_relpos import RelativeMultiHeadAttention

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@keras.saving.register_keras_serializable("tests")
class WithoutRelations(RelativeMultiHeadAttention):
    """A class, not a partial: Keras's tests make subclasses of it."""

    def __init__(self, *args, relative_keys=False, relative_values=False, **kwargs):
        super().__init__(
            *args, relative_keys=relative_keys, relative_values=relative_values, **kwargs
        )


TESTS = Path(keras.__file__).parent / "src/layers/attention/multi_head_attention_test.py"
if not TESTS.exists():
    pytest.skip(f"the wheel of Keras {keras.__version__} has no tests", allow_module_level=True)


def load_tests():
    """The test class, whose module sees our layer as `layers.MultiHeadAttention`."""
    spec = importlib.util.spec_from_file_location("tests_of_keras", TESTS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = {**vars(module.layers), "MultiHeadAttention": WithoutRelations}
    module.layers = types.SimpleNamespace(**names)
    return module.MultiHeadAttentionTest


MultiHeadAttentionTest = load_tests()


def test_they_are_keras_s_tests_of_our_layer():
    methods = [name for name in dir(MultiHeadAttentionTest) if name.startswith("test_")]
    assert len(methods) >= 48, methods
    layers = MultiHeadAttentionTest.test_mha_constraints.__globals__["layers"]
    assert issubclass(layers.MultiHeadAttention, RelativeMultiHeadAttention)
