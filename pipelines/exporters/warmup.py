"""Requests that TensorFlow Serving answers for itself before it announces a model.

The file holds records of the protocol buffer `tensorflow.serving.PredictionLog`, whose classes
come with tensorflow-serving-api. An export must not need that package for a handful of nested
fields, so they are encoded here. All have wire type 2: key, length, bytes.

    PredictionLog   6 predict_log    PredictLog
    PredictLog      1 request        PredictRequest
    PredictRequest  1 model_spec     ModelSpec
                    2 inputs         map<string, TensorProto>
    ModelSpec       1 name           string
                    3 signature_name string
    a map's entry   1 key, 2 value

Source: tensorflow_serving/apis/{prediction_log,predict,model}.proto
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")


def write_warmup_requests(
    version: Path, model_name: str, signature: str, requests: Sequence[Mapping[str, object]]
) -> None:
    """Writes `assets.extra/tf_serving_warmup_requests` into an exported version.

    Args:
        version: its directory.
        model_name: the name it is served under.
        signature: of the requests.
        requests: the inputs of each by name, anything that makes a tensor.
    """
    path = version / WARMUP_FILE
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for inputs in requests:
            writer.write(_prediction_log(model_name, signature, inputs))


def _prediction_log(model_name: str, signature: str, inputs: Mapping[str, object]) -> bytes:
    model_spec = _field(1, model_name.encode()) + _field(3, signature.encode())
    request = _field(1, model_spec)
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the eighth says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
