"""Plain Keras `compile` and `fit` on two virtual devices of `MirroredStrategy`.

In processes of their own, because a process can have virtual devices only from its beginning.
`steps_per_execution` above 1 and `jit_compile=True` fail there for a `Dense` layer as well.
"""

import json

import pytest

from tests.support.layer_checks import run_python

PROGRAM = """
import json
import keras, numpy as np, tensorflow as tf
from tf_relpos import EncoderBlock, Transformer, TransformerConfig, smoothed_cross_entropy
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
keras.utils.set_random_seed(1)
source = np.random.default_rng(0).integers(4, 23, (16, 7)).astype("int32")
labels = source[:, ::-1].copy()
shifted = np.concatenate([np.full((16, 1), 2, "int32"), labels[:, :-1]], axis=1)
inputs = {"source_ids": source, "target_ids": shifted}

def transformer():
    return Transformer(TransformerConfig(vocabulary_size=23, model_dim=18, inner_dim=11,
        num_heads=3, encoder_layers=1, decoder_layers=1, max_relative_position=2, dropout=0.0))

def layers():
    ids = {name: keras.Input((None,), dtype="int32", name=name) for name in inputs}
    x = keras.layers.Embedding(23, 18, mask_zero=True)(ids["source_ids"])
    x = EncoderBlock(18, 11, 3, 2)(x)
    return keras.Model(ids, keras.layers.Dense(23)(x))

def run(make, loss, as_dataset):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = make()
        model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    data = {"x": inputs, "y": labels, "batch_size": 8}
    if as_dataset:
        data = {"x": tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(8)}
    ends = []
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(epoch))
    losses = model.fit(**data, epochs=4, verbose=0, callbacks=[count]).history["loss"]
    loss_after = model.evaluate(**data, verbose=0)[0]
    logits = model.predict(data["x"], verbose=0)
    return {"losses": losses, "after": loss_after, "shape": logits.shape, "epochs": len(ends)}

crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
print(json.dumps([run(MODEL, loss, as_dataset)
                  for loss, as_dataset in ((crossentropy, 0), (smoothed_cross_entropy, 1))]))
"""


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("model", [pytest.param("transformer", marks=pytest.mark.slow), "layers"])
def test_keras_fit_evaluate_and_predict_on_two_devices(model):
    results = json.loads(run_python(PROGRAM.replace("MODEL", model)).splitlines()[-1])
    assert len(results) == 2
    for result in results:
        assert result["losses"][-1] < result["losses"][0]
        assert result["after"] < result["losses"][0]
        assert result["shape"] == [16, 7, 23]
        assert result["epochs"] == 4
