"""Changes to a TFLite file, which is a flatbuffer, that the converter has made."""

from collections import Counter

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from pipelines.exporters.quantization import LEAST_NUMBERS, rounded_rows
from pipelines.translators.tflite import METADATA_NAME

_INT8, _FLOAT32 = schema.TensorType.INT8, schema.TensorType.FLOAT32
_PRODUCT = schema.BuiltinOperator.FULLY_CONNECTED
_VERSION_WITH_INTEGERS = 12  # of that operation: a scale for each output


def completed(converted: bytes, text: str, *, in_integers: bool) -> bytes:
    """The file with its metadata, and equal constants stored once.

    Args:
        converted: the file.
        text: what becomes the metadata entry `METADATA_NAME`.
        in_integers: whether weights of products become integers.
    """
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(converted))
    if in_integers:
        _round_weights(model)
    _share_buffers(model)
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = list(text.encode())
    entry.name, entry.buffer = METADATA_NAME, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    return flatbuffer_utils.convert_object_to_bytearray(model)


def _round_weights(model: schema.ModelT) -> None:
    """Weights as integers of 8 bits: TFLite then rounds what they are multiplied with as well.

    The converter's own way to do this (`Optimize.DEFAULT`) also rounds tables that rows are taken
    of: the scales of an embedding, and a head's relative positions. With the latter LiteRT 2.3
    finds something else at each call.
    """
    for graph in model.subgraphs:
        products = [o for o in graph.operators if _kind(model, o) == _PRODUCT]
        uses = Counter(i for o in graph.operators for i in o.inputs)
        uses.update(graph.outputs)
        for index, number in Counter(product.inputs[1] for product in products).items():
            tensor = graph.tensors[index]
            data = model.buffers[tensor.buffer].data
            is_weight = data is not None and tensor.type == _FLOAT32 and uses[index] == number
            if is_weight and np.prod(tensor.shape) >= LEAST_NUMBERS:
                _round(model, tensor, np.asarray(data, np.uint8).view(np.float32))
        for product in products:
            if graph.tensors[product.inputs[1]].type == _INT8:
                product.builtinOptions.asymmetricQuantizeInputs = True
                model.operatorCodes[product.opcodeIndex].version = _VERSION_WITH_INTEGERS


def _kind(model: schema.ModelT, operator: schema.OperatorT) -> int:
    code = model.operatorCodes[operator.opcodeIndex]
    return max(code.builtinCode, code.deprecatedBuiltinCode)


def _round(model: schema.ModelT, tensor: schema.TensorT, values: np.ndarray) -> None:
    integers, scales = rounded_rows(values.reshape(tensor.shape))
    buffer, quantization = schema.BufferT(), schema.QuantizationParametersT()
    buffer.data = integers.view(np.uint8).ravel()
    quantization.scale, quantization.zeroPoint = scales, np.zeros(len(scales), np.int64)
    quantization.quantizedDimension = 0
    tensor.type, tensor.quantization, tensor.buffer = _INT8, quantization, len(model.buffers)
    model.buffers.append(buffer)


def _share_buffers(model: schema.ModelT) -> None:
    """Equal constants in one buffer; those that nothing is in become empty."""
    first: dict[bytes, int] = {}
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    for tensor in tensors:
        data = model.buffers[tensor.buffer].data
        if data is not None and len(data):
            tensor.buffer = first.setdefault(bytes(data), tensor.buffer)
    used = {tensor.buffer for tensor in tensors} | {e.buffer for e in model.metadata or []}
    for index, buffer in enumerate(model.buffers):
        if index not in used:
            buffer.data = None
