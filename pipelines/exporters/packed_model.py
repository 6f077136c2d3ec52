"""A TFLite file of float32 made small, for those who load it over a network."""

import json

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from pipelines.exporters.quantization import LEAST_NUMBERS, rounded_rows
from pipelines.translators.packed_model import PACKED


def pack(content: bytes) -> bytes:
    """A file whose matrices are rounded to 8 bits with a scale for each row.

    `pipelines.translators.packed_model.unpack` makes a file of float32 of it again, which computes
    with the rounded weights, but rounds nothing else: whatever runs it finds the same.
    """
    model, whole = schema.Model.GetRootAs(content), np.frombuffer(content, np.uint8)
    matrices = {}
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            shape = tensor.ShapeAsNumpy()
            is_float = tensor.Type() == schema.TensorType.FLOAT32
            data = model.Buffers(tensor.Buffer()).DataAsNumpy()
            if is_float and np.size(data) >= 4 * LEAST_NUMBERS and np.size(shape) == 2:
                matrices[data.ctypes.data - whole.ctypes.data] = tuple(shape.tolist())
    rest, scales, integers, end = [], [], [], 0
    for start, (rows, columns) in sorted(matrices.items()):
        rest.append(content[end:start])
        end = start + 4 * rows * columns
        values = np.frombuffer(content[start:end], np.float32).reshape(rows, columns)
        rounded = rounded_rows(values)
        integers.append(rounded[0].tobytes())
        scales.append(rounded[1].tobytes())
    settings = {
        "size": len(content),
        "matrices": [[start, *shape] for start, shape in sorted(matrices.items())],
    }
    head = json.dumps(settings).encode()
    length = len(head).to_bytes(4, "little")
    return b"".join([PACKED, length, head, *rest, content[end:], *scales, *integers])
