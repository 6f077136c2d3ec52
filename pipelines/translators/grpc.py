"""TensorFlow Serving's gRPC interface, through the stubs of tensorflow-serving-api."""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from pipelines.errors import InputError, quoted
from pipelines.translators.predictor import MAX_ANSWER_BYTES, Unavailable

try:
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
except ImportError as error:
    raise InputError(
        "a grpc:// model needs tensorflow-serving-api, which the extra `export` installs: "
        "pip install -e '.[export]'"
    ) from error

_DTYPES = {"text": tf.string, "beam_size": tf.int32, "alpha": tf.float32}
_MAX_VALUES = 1_000_000  # of a tensor
_TOO_LARGE = "message larger than max"  # how gRPC's client tells it, in capitals or not


class GrpcServer:
    """A `Predictor`: a model behind TensorFlow Serving's gRPC interface, without encryption.

    Args:
        address: `host:port`, the port commonly 8500.
        name: the model's name.
        version: None for the latest.
        timeout: seconds to wait for an answer, all of it.
    """

    def __init__(self, address: str, name: str, version: int | None, timeout: float):
        self.name = f"grpc://{address}/{name}"
        self.at_once = 1
        self.model = name
        self.version = version
        self.timeout = timeout
        # Long n-best lists exceed the default of 4 MiB.
        limit = ("grpc.max_receive_message_length", MAX_ANSWER_BYTES)
        channel = grpc.insecure_channel(address, [limit])
        self._service = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def predict(self, signature: str, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """The outputs of a signature by name, as nested lists.

        Raises:
            Unavailable: nobody listens, the server is busy or takes longer than `timeout`.
            InputError: it refuses, or answers with something else.
        """
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.model
        request.model_spec.signature_name = signature
        if self.version is not None:
            request.model_spec.version.value = self.version
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype=_DTYPES[name]))
        try:
            response = self._service.Predict(request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise self._failure(error) from error
        try:
            return {name: _as_lists(tensor) for name, tensor in response.outputs.items()}
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.name} does not answer as TensorFlow Serving does: {quoted(str(error))}"
            ) from error

    def _failure(self, error: grpc.RpcError) -> Exception:
        code, detail = error.code(), quoted(error.details() or "")
        if _TOO_LARGE in detail.lower():
            return InputError(
                f"{self.name} must answer in at most {MAX_ANSWER_BYTES:,} bytes, but sends more"
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(f"{self.name} has not answered for {self.timeout:g} s")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return Unavailable(f"cannot reach a server at {self.name}: {detail}")
        return InputError(f"{self.name} refuses with {code.name}: {detail}")


def _as_lists(tensor: tensor_pb2.TensorProto) -> object:
    # One value may stand for any number of equal ones: a few bytes for all memory.
    if math.prod(dim.size for dim in tensor.tensor_shape.dim) > _MAX_VALUES:
        raise ValueError(f"a tensor of more than {_MAX_VALUES:,} values")
    array = tf.make_ndarray(tensor)
    if array.dtype == object:
        array = np.vectorize(lambda text: text.decode(errors="replace"), otypes=[object])(array)
    return array.tolist()
