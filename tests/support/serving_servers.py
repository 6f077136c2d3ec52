"""Real servers on loopback with TensorFlow Serving's interfaces and its error messages.

`RestModel` and `GrpcModel` answer with an exported model's own signatures.
Reference: https://www.tensorflow.org/tfx/serving/api_rest
"""

import contextlib
import json
import re
import socket
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import tensorflow as tf


class Refusal(Exception):
    """A request that TensorFlow Serving refuses, with the HTTP status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Model:
    """One model, version 1, as a server holds it."""

    def __init__(self, name, signatures):
        self.name = name
        self.signatures = signatures
        self.requests = []  # (signature name, batch size)

    def run(self, name, version, signature_name, inputs):
        """`inputs` by name, what makes a tensor of each -> tensors by name."""
        if name != self.name or version not in (None, 1):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise Refusal(404, f"Servable not found for request: {wanted}")
        signature_name = signature_name or "serving_default"
        if signature_name not in self.signatures:
            raise Refusal(400, f'Serving signature name: "{signature_name}" not found in signature')
        signature = self.signatures[signature_name]
        specs = signature.structured_input_signature[1]
        if set(inputs) != set(specs):
            raise Refusal(400, f"input size does not match signature: {len(inputs)}")
        try:
            tensors = {n: tf.constant(v, specs[n].dtype) for n, v in inputs.items()}
        except (TypeError, ValueError) as error:
            raise Refusal(400, f"JSON Value: cannot be converted: {error}") from error
        for n, tensor in tensors.items():
            if tensor.shape.rank != specs[n].shape.rank:
                raise Refusal(400, f"input {n} has the wrong rank")
        self.requests.append((signature_name, len(tensors["text"])))
        try:
            return signature(**tensors)
        except tf.errors.InvalidArgumentError as error:
            raise Refusal(400, error.message) from error


class RestModel:
    """`POST /v1/models/NAME[/versions/N]:predict`, in the columnar and the row format."""

    def __init__(self, model):
        self.model = model

    def __call__(self, path, body):
        match = re.fullmatch(r"/v1/models/([^/:]+)(?:/versions/(\d+))?:predict", path)
        if not match:
            raise Refusal(404, f"Malformed request: POST {path}")
        try:
            request = json.loads(body)
        except ValueError as error:
            raise Refusal(400, f"JSON Parse error: {error}") from error
        rows = request.get("instances")
        inputs = request.get("inputs")
        if (rows is None) == (inputs is None):
            raise Refusal(400, "Missing 'inputs' or 'instances' key")
        if rows is not None:
            rows = [row if isinstance(row, dict) else {"text": row} for row in rows]
            inputs = {name: [row[name] for row in rows] for name in rows[0]}
        elif not isinstance(inputs, dict):
            inputs = {"text": inputs}
        version = int(match[2]) if match[2] else None
        outputs = self.model.run(match[1], version, request.get("signature_name"), inputs)
        lists = {name: as_json(tensor.numpy()) for name, tensor in outputs.items()}
        if rows is not None:
            names = list(lists)
            columns = zip(*lists.values(), strict=True)
            return {"predictions": [dict(zip(names, row, strict=True)) for row in columns]}
        return {"outputs": lists}


def as_json(array):
    if array.dtype == object:
        return np.vectorize(bytes.decode, otypes=[object])(array).tolist()
    return array.tolist()


@contextlib.contextmanager
def rest_server(answer):
    """Serves `answer(path, body) -> JSON value, or bytes as they are`; yields `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = 200
            try:
                content = answer(self.path, body)
            except Refusal as refusal:
                status, content = refusal.status, {"error": str(refusal)}
            if not isinstance(content, bytes):
                content = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def raw_server(answer):
    """Sends the bytes that `answer()` yields once a request has come; yields `host:port`.

    At its end it has closed all connections, whatever their clients do.
    """
    connections = []
    listener = socket.create_server(("127.0.0.1", 0))

    def send(connection):
        with contextlib.suppress(OSError), connection:
            connection.recv(1 << 16)
            for part in answer():
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):  # closed with something unread, it would be reset
                pass

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                thread = threading.Thread(target=send, args=(connection,))
                connections.append((connection, thread))
                thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for connection, thread in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextlib.contextmanager
def grpc_server(predict):
    """Serves `predict(request, context) -> PredictResponse` as PredictionService."""
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            return predict(request, context)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


class GrpcModel:
    """PredictionService.Predict over a model."""

    def __init__(self, model):
        self.model = model

    def __call__(self, request, context):
        import grpc
        from tensorflow_serving.apis import predict_pb2

        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        try:
            outputs = self.model.run(spec.name, version, spec.signature_name, inputs)
        except Refusal as refusal:
            codes = {404: grpc.StatusCode.NOT_FOUND, 400: grpc.StatusCode.INVALID_ARGUMENT}
            context.abort(codes[refusal.status], str(refusal))
        response = predict_pb2.PredictResponse()
        for name, tensor in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(tensor.numpy()))
        return response
