"""How weights are stored."""

from collections.abc import Sequence
from typing import Literal, get_args

from pipelines.errors import InputError

Quantization = Literal["none", "float16", "int8"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)


def check_quantization(quantization: str, known: Sequence[str] = QUANTIZATIONS) -> None:
    """Checks a name.

    Raises:
        InputError: it is not among those that are known.
    """
    if quantization not in known:
        raise InputError(f"quantization must be one of {', '.join(known)}, got {quantization}")
