"""TensorFlow Serving's REST interface."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping

from pipelines.errors import InputError
from pipelines.translators.predictor import Unavailable

_BUSY = (429, 502, 503, 504)  # of the server, or of a proxy in front of it


class RestServer:
    """A `Predictor`: a model behind TensorFlow Serving's REST interface.

    Args:
        url: `http://host:8501/v1/models/NAME`, optionally with `/versions/N` or `/labels/LABEL`.
        timeout: seconds to wait for an answer.

    Reference: https://www.tensorflow.org/tfx/serving/api_rest
    """

    def __init__(self, url: str, timeout: float):
        self.url = url
        self.timeout = timeout

    def predict(self, signature: str, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """The outputs of a signature by name, as nested lists.

        The request is in the columnar format ("inputs"), the one that can hold scalars.

        Raises:
            Unavailable: nobody listens, the server is busy or takes longer than `timeout`.
            InputError: it refuses, or what answers is not TensorFlow Serving.
        """
        request = urllib.request.Request(
            f"{self.url}:predict",
            json.dumps({"signature_name": signature, "inputs": inputs}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from error
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise self._failure(getattr(error, "reason", error)) from error
        return self._outputs(content)

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        try:
            content = error.read()
        except (http.client.HTTPException, OSError):
            content = b""
        try:
            message = json.loads(content)["error"]
        except (ValueError, KeyError, TypeError):
            message = f"{error.reason}, without a message of TensorFlow Serving"
        text = f"{self.url} refuses with HTTP status {error.code}: {' '.join(str(message).split())}"
        return Unavailable(text) if error.code in _BUSY else InputError(text)

    def _failure(self, reason: object) -> Exception:
        if isinstance(reason, TimeoutError):
            return Unavailable(f"{self.url} has not answered for {self.timeout:g} s")
        if isinstance(reason, ConnectionError):
            cause = getattr(reason, "strerror", None) or reason
            return Unavailable(f"cannot reach a server at {self.url}: {cause}")
        if isinstance(reason, http.client.HTTPException):
            return InputError(
                f"{self.url} does not answer in HTTP as TensorFlow Serving does: {reason!r}"
            )
        return InputError(f"cannot reach a server at {self.url}: {reason}")

    def _outputs(self, content: bytes) -> Mapping[str, object]:
        try:
            outputs = json.loads(content)["outputs"]
        except (ValueError, KeyError, TypeError) as error:
            begin = content[:60].decode(errors="replace")
            raise InputError(
                f"{self.url} does not answer as TensorFlow Serving does: {begin!r}"
            ) from error
        return outputs if isinstance(outputs, dict) else {}
