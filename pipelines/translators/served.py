"""Opens a model that TensorFlow Serving serves, over REST or gRPC."""

import re
import time
from collections.abc import Mapping

from pipelines.errors import InputError
from pipelines.importing import load_tensorflow
from pipelines.translators.predictor import Predictor, Unavailable
from pipelines.translators.signatures import SignatureTranslator

_ATTEMPTS = 3  # of each request, while the server is unavailable
_FIRST_PAUSE = 0.5  # seconds before the second attempt; each pause is twice the last one

_HOST = r"(\[[\da-fA-F:]+\]|[\w.-]+)"
_REST = re.compile(
    rf"https?://{_HOST}(:\d+)?(/[\w.~%-]+)*/v1/models/[\w.~%-]+(/versions/\d+|/labels/[\w.~%-]+)?",
    re.ASCII,
)
_GRPC = re.compile(
    rf"grpc://(?P<address>{_HOST}:\d+)/(?P<name>[\w.-]+)(/(?P<version>\d+))?", re.ASCII
)


def open_remote(
    url: str,
    *,
    nbest: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
    timeout: float = 60.0,
) -> SignatureTranslator:
    """A translator for a model's URL. Nothing is sent yet.

    Requests change nothing on the server, so one that found no server, a busy one or no answer in
    time is sent again, three times in all.

    Args:
        url: `http://host:8501/v1/models/NAME`, optionally followed by `/versions/N` or
            `/labels/LABEL`, or the same with https; or `grpc://host:8500/NAME[/VERSION]`.
        nbest, beam_size, alpha: see `SignatureTranslator`.
        timeout: seconds that the server may take for a request.

    Raises:
        InputError: no such URL, a number out of range, or gRPC without tensorflow-serving-api.
            While translating: the server cannot be reached or refuses.
    """
    if timeout <= 0:
        raise InputError(f"timeout must be above 0 seconds, got {timeout}")
    server = RetryingPredictor(_server(url, timeout))
    return SignatureTranslator(server, nbest=nbest, beam_size=beam_size, alpha=alpha)


def _server(url: str, timeout: float) -> Predictor:
    if match := _GRPC.fullmatch(url.rstrip("/")):
        load_tensorflow()
        from pipelines.translators.grpc import GrpcServer

        version = int(match["version"]) if match["version"] else None
        return GrpcServer(match["address"], match["name"], version, timeout)
    if _REST.fullmatch(rest_url := url.rstrip("/").removesuffix(":predict")):
        from pipelines.translators.rest import RestServer

        return RestServer(rest_url, timeout)
    raise InputError(
        "model must be a URL like http://host:8501/v1/models/NAME or grpc://host:8500/NAME, "
        f"got {url}"
    )


class RetryingPredictor:
    """Asks another predictor again, after a pause, while it is unavailable."""

    def __init__(self, predictor: Predictor):
        self.predictor = predictor

    def predict(self, signature: str, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """See `Predictor`.

        Raises:
            InputError: it refuses, or was unavailable at the last attempt as well.
        """
        for attempt in range(_ATTEMPTS):
            if attempt > 0:
                time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
            try:
                return self.predictor.predict(signature, inputs)
            except Unavailable as error:
                failure = error
        raise InputError(str(failure)) from failure
