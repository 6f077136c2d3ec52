"""`tf_relpos` needs Keras and NumPy alone, whatever else is installed."""

from tests.support.layer_checks import run_python

LOADED = "import sys; loaded = {name.partition('.')[0] for name in sys.modules}"


def test_layers_on_jax_never_load_tensorflow():
    loaded = run_python(
        f"""
import numpy as np, tf_relpos
x = np.ones((2, 5, 7), "float32")
layer = tf_relpos.RelativeMultiHeadAttention(3, 11, 2, dropout=0.1)
layer(x, x, use_causal_mask=True, training=True)
cache = np.zeros((2, 2, 5, 3, 11), "float32")
layer(x[:, :1], x[:, :1], cache=cache, cache_update_index=2)
labels = tf_relpos.relative_position_ids(5, 5, 1)
tf_relpos.RelationAwareAttention(3, 11, 3)(x, x, relations=labels)
tf_relpos.SinusoidalPositionEncoding()(x)
tf_relpos.smoothed_cross_entropy(np.ones((2, 5), "int32"), x)
tf_relpos.WarmupInverseSqrt(512)(0)
config = tf_relpos.TransformerConfig.preset("tiny")
model = tf_relpos.Transformer(config)
ids = np.array([[4, 5, 3], [4, 3, 0]], "int32")
model({{"source_ids": ids, "target_ids": ids}})
tf_relpos.beam_search(model, ids, beam_size=2, max_length=4)
{LOADED}
print(*sorted(loaded & {{"tensorflow", "jax", "keras"}}))
""",
        KERAS_BACKEND="jax",
        JAX_PLATFORMS="cpu",
    )
    assert loaded == "jax keras"


def test_import_is_of_keras_and_numpy_alone():
    extra = ("tensorflow_text", "sentencepiece", "sacrebleu", "ctranslate2", "pipelines", "torch")
    loaded = run_python(
        f"import tf_relpos; {LOADED}; print(*sorted(loaded & set({extra!r})), 'keras' in loaded)",
        KERAS_BACKEND="tensorflow",
    )
    assert loaded == "True"
