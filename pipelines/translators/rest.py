"""TensorFlow Serving's REST interface."""

import http.client
import json
import time
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import urllib3

from pipelines.errors import InputError, quoted
from pipelines.interruption import in_a_thread
from pipelines.translators.predictor import MAX_ANSWER_BYTES, Unavailable

_BUSY = (429, 502, 503, 504)  # of the server, or of a proxy in front of it
_BROKEN_OFF = (http.client.IncompleteRead, urllib3.exceptions.IncompleteRead)
_BLOCK_BYTES = 1 << 16


class _Answer(NamedTuple):
    status: int
    reason: str
    location: str  # where a redirect leads
    content: bytes


class _TooLong(Exception):
    """The answer has more than `MAX_ANSWER_BYTES`."""


class RestServer:
    """A `Predictor`: a model behind TensorFlow Serving's REST interface.

    A server is believed nothing: an answer has a limit for its size and one time for the whole of
    it, and leads nowhere else.

    Args:
        url: `http://host:8501/v1/models/NAME`, optionally with `/versions/N` or `/labels/LABEL`.
        timeout: seconds to wait for an answer, all of it.

    Reference: https://www.tensorflow.org/tfx/serving/api_rest
    """

    def __init__(self, url: str, timeout: float):
        self.name = url
        self.at_once = 1
        self.timeout = timeout
        self._pool = _pool(url)

    def predict(self, signature: str, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """The outputs of a signature by name, as nested lists.

        The request is in the columnar format ("inputs"), the one that can hold scalars.

        Raises:
            Unavailable: nobody listens, the server is busy or takes longer than `timeout`.
            InputError: it refuses, or what answers is not TensorFlow Serving.
        """
        body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
        try:
            answer = in_a_thread(lambda: self._post(body), self.timeout)
        except _TooLong as error:
            raise InputError(
                f"{self.name} must answer in at most {MAX_ANSWER_BYTES:,} bytes, but sends more"
            ) from error
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            raise self._failure(error) from error
        if answer.status != http.client.OK:
            raise self._refusal(answer)
        return self._outputs(answer.content)

    def _post(self, body: bytes) -> _Answer:
        until = time.monotonic() + self.timeout
        response = self._pool.urlopen(
            "POST",
            f"{self.name}:predict",
            body=body,
            headers={"Content-Type": "application/json"},
            redirect=False,
            retries=False,
            timeout=self.timeout,
            preload_content=False,
            decode_content=False,  # none is asked for, and a few bytes may decode to many
        )
        content = bytearray()
        try:
            while block := response.read1(_BLOCK_BYTES):
                content += block
                if len(content) > MAX_ANSWER_BYTES:
                    raise _TooLong
                if time.monotonic() > until:
                    raise TimeoutError
        finally:
            response.close()
        location = response.headers.get("Location", "")
        return _Answer(response.status, response.reason or "", location, bytes(content))

    def _refusal(self, answer: _Answer) -> Exception:
        if 300 <= answer.status < 400:
            return InputError(
                f"{self.name} must answer itself, but redirects to {quoted(answer.location)}"
            )
        try:
            message = quoted(str(_parsed(answer.content)["error"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            message = f"{quoted(answer.reason)}, without a message of TensorFlow Serving"
        text = f"{self.name} refuses with HTTP status {answer.status}: {message}"
        return Unavailable(text) if answer.status in _BUSY else InputError(text)

    def _failure(self, error: Exception) -> Exception:
        """What went wrong, by the innermost of the exceptions."""
        causes: list[BaseException] = [error]
        while cause := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(cause)
        if any(isinstance(cause, TimeoutError) for cause in causes):
            return Unavailable(f"{self.name} has not answered for {self.timeout:g} s")
        reason = quoted(str(getattr(causes[-1], "strerror", None) or causes[-1]))
        if isinstance(causes[-1], _BROKEN_OFF):
            return Unavailable(f"the answer of {self.name} has broken off")
        if any(isinstance(cause, ConnectionError) for cause in causes):
            return Unavailable(f"cannot reach a server at {self.name}: {reason}")
        if isinstance(error, (urllib3.exceptions.ProtocolError, http.client.HTTPException)):
            return InputError(
                f"{self.name} does not answer in HTTP as TensorFlow Serving does: {reason}"
            )
        return InputError(f"cannot reach a server at {self.name}: {reason}")

    def _outputs(self, content: bytes) -> Mapping[str, object]:
        try:
            outputs = _parsed(content)["outputs"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            begin = quoted(content[:240].decode(errors="replace"), 60)
            raise InputError(
                f"{self.name} does not answer as TensorFlow Serving does: {begin!r}"
            ) from error
        return outputs if isinstance(outputs, dict) else {}


def _pool(url: str) -> urllib3.PoolManager:
    """Connections as the environment says: through a proxy (`https_proxy`), or none."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return urllib3.PoolManager()
    try:
        address = urllib3.util.parse_url(proxy if "://" in proxy else f"http://{proxy}")
        headers = urllib3.make_headers(proxy_basic_auth=unquote(address.auth or "") or None)
        return urllib3.ProxyManager(address._replace(auth=None).url, proxy_headers=headers)
    except urllib3.exceptions.HTTPError as error:
        raise InputError(
            f"{parts.scheme}_proxy of the environment must be the URL of an HTTP proxy"
        ) from error


def _parsed(content: bytes) -> dict:
    """JSON whose numbers are all floats: an int of 400 digits is infinite rather than an int."""
    return json.loads(content, parse_int=float)
