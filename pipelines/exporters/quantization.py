"""How weights are stored."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from pipelines.errors import InputError

Quantization = Literal["none", "float16", "int8"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)
# Of a SavedModel, which computes in what it holds.
SavedModelQuantization = Literal["none", "bfloat16"]
SAVED_MODEL_QUANTIZATIONS: tuple[str, ...] = get_args(SavedModelQuantization)

# Numbers in the smallest matrix that becomes integers. What is smaller, as tables of relative
# positions mostly are, would save little.
LEAST_NUMBERS = 4096


def check_quantization(quantization: str, known: Sequence[str], form: str) -> None:
    """Checks a name, of those that are known for a form.

    Raises:
        InputError: it is not among those that are known.
    """
    if quantization not in known:
        names = ", ".join(known)
        raise InputError(f"quantization must be one of {names}, got {quantization} for {form}")


def rounded_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix `[rows, columns]` as integers from -127 to 127 and a scale for each row.

    Their product is the matrix, with an error of at most half a scale.

    Returns:
        int8 `[rows, columns]`, and float32 `[rows]`.
    """
    largest = np.abs(matrix).max(axis=1).astype(np.float32)
    scales = np.where(largest > 0, largest / np.float32(127), np.float32(1))
    return np.rint(matrix / scales[:, None]).clip(-127, 127).astype(np.int8), scales
