"""What answers for an exported model: the model itself in this process, or a server."""

from collections.abc import Mapping
from typing import Protocol

# Of one answer: far more than a hundred hypotheses of each of 32 long sentences take.
MAX_ANSWER_BYTES = 1 << 26


class Unavailable(Exception):
    """A server that cannot be reached or is busy: the same request may succeed later."""


class Predictor(Protocol):
    """Something with the signatures of an exported model.

    Attributes:
        name: what it is called in messages, a path or a URL.
        at_once: requests that it may be sent side by side.
    """

    name: str
    at_once: int

    def predict(self, signature: str, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """The outputs of a signature by name, as nested lists.

        Args:
            signature: `"serving_default"`, `"nbest"` or `"source_length"`, see
                `pipelines.exporters.saved_model`.
            inputs: by name, numbers or lists.

        Raises:
            Unavailable: there is no answer now.
            InputError: there will never be one, however often it is asked.
        """
