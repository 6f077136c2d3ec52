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
    file, matrices = np.zeros(head["size"], np.uint8), head["matrices"]
    numbers = sum(rows * columns for _, rows, columns in matrices)
    all_rows = sum(rows for _, rows, _ in matrices)
    sizes = [file.size - 4 * numbers, 4 * all_rows, numbers]
    body = np.frombuffer(content, np.uint8, offset=head_end)
    if body.size != sum(sizes):
        raise ValueError("it is not as long as it says")
    rest, scales, integers = np.split(body, np.cumsum(sizes[:-1]))
    scales, integers = scales.view(np.float32), integers.view(np.int8)
    from_, to, row, next_ = 0, 0, 0, 0
    for offset, rows, columns in matrices:
        gap, number = offset - to, rows * columns
        file[to:offset] = rest[from_ : from_ + gap]
        matrix = integers[next_ : next_ + number].reshape(rows, columns)
        matrix = matrix * scales[row : row + rows, None]
        to = offset + matrix.nbytes
        file[offset:to] = matrix.view(np.uint8).ravel()
        from_, row, next_ = from_ + gap, row + rows, next_ + number
    file[to:] = rest[from_:]
    return file.tobytes()
