"""A TFLite file whose matrices are stored in 8 bits, as pages load it (`web/src/unpack.ts`).

The file begins with `PACKED` and the length of what follows, 4 bytes, the lowest first: JSON with
the `size` of the TFLite file and its `matrices`, of float32, as `[offset, rows, columns]`. Behind
it stand the TFLite file without them, a scale of float32 for each of their rows, and their
integers.
"""

import json

import numpy as np

PACKED = b"RELPACK1"
PACKED_NAME = "model.packed"


def unpack(content: bytes) -> bytes:
    """The TFLite file of a packed one; what is not packed remains as it is.

    Raises:
        ValueError, KeyError or TypeError: it is damaged.
    """
    if not content.startswith(PACKED):
        return content
    start = len(PACKED) + 4
    head_end = start + int.from_bytes(content[len(PACKED) : start], "little")
    head = json.loads(content[start:head_end])
    matrices = head["matrices"]
    rows = [rows for _, rows, _ in matrices]
    numbers = [rows * columns for _, rows, columns in matrices]
    sizes = [head["size"] - 4 * sum(numbers), 4 * sum(rows), sum(numbers)]
    if min(sizes) < 0 or head_end + sum(sizes) != len(content):
        raise ValueError("it is not as long as it says")
    file, is_rest = np.zeros(head["size"], np.uint8), np.ones(head["size"], bool)
    body = np.frombuffer(content, np.uint8, offset=head_end)
    rest, scales, integers = np.split(body, np.cumsum(sizes[:-1]))
    scales_of = np.split(scales.view(np.float32), np.cumsum(rows))[:-1]
    integers_of = np.split(integers.view(np.int8), np.cumsum(numbers))[:-1]
    for matrix, own_scales, own_integers in zip(matrices, scales_of, integers_of, strict=True):
        offset, *shape = matrix
        values = own_integers.reshape(shape) * own_scales[:, None]
        place = slice(offset, offset + values.nbytes)
        file[place] = values.view(np.uint8).ravel()
        is_rest[place] = False
    file[is_rest] = rest
    return file.tobytes()
