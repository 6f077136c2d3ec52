"""Opens a model that TensorFlow Serving serves, over REST or gRPC."""

import ipaddress
import re
import time
from collections.abc import Mapping

from pipelines.errors import InputError, quoted
from pipelines.importing import load_tensorflow
from pipelines.translators.predictor import Predictor, Unavailable
from pipelines.translators.signatures import SignatureTranslator

_ATTEMPTS = 3  # of each request, while the server is unavailable
_FIRST_PAUSE = 0.5  # seconds before the second attempt; each pause is twice the last one

_HOST = r"(?P<host>\[[\da-fA-F:.]+\]|[\w.-]+)"
_LABEL = re.compile(r"[\w-]{1,63}", re.ASCII)  # what stands between the dots of a name
_MAX_NAME, _MAX_PORT, _MAX_VERSION = 253, 65535, 2**63 - 1
_REST = re.compile(
    rf"(?i:https?)://{_HOST}(:(?P<port>\d+))?(/[\w.~%-]+)*/v1/models/[\w.~%-]+"
    r"(/versions/(?P<version>\d+)|/labels/[\w.~%-]+)?",
    re.ASCII,
)
_GRPC = re.compile(
    rf"(?i:grpc)://(?P<address>{_HOST}:(?P<port>\d+))/(?P<name>[\w.-]+)(/(?P<version>\d+))?",
    re.ASCII,
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
        timeout: seconds that the server may take for a request, until its answer is complete.

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
        _check_parts(url, match)
        load_tensorflow()
        from pipelines.translators.grpc import GrpcServer

        version = int(match["version"]) if match["version"] else None
        return GrpcServer(match["address"], match["name"], version, timeout)
    if match := _REST.fullmatch(rest_url := url.rstrip("/").removesuffix(":predict")):
        _check_parts(url, match)
        from pipelines.translators.rest import RestServer

        return RestServer(rest_url, timeout)
    raise InputError(
        "model must be a URL like http://host:8501/v1/models/NAME or grpc://host:8500/NAME, "
        f"got {quoted(url)}"
    )


def _check_parts(url: str, match: re.Match[str]) -> None:
    """Clients differ in what they make of these, from a traceback to another port."""
    if not _is_host(match["host"]):
        raise InputError(
            "the host of a URL must be an IP address or a name of at most 253 characters, 1 to 63 "
            f"between its dots, got {quoted(url)}"
        )
    for name, least, most in (("port", 1, _MAX_PORT), ("version", 0, _MAX_VERSION)):
        # Cut, and still too large: Python reads no more than 4,300 digits.
        digits = match[name] and match[name].lstrip("0")
        if digits is not None and not least <= int(digits[:20] or 0) <= most:
            raise InputError(
                f"the {name} of a URL must be from {least} to {most}, got {quoted(url)}"
            )


def _is_host(host: str) -> bool:
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return False
        return True
    labels = host.removesuffix(".").split(".")
    return len(host) <= _MAX_NAME and all(_LABEL.fullmatch(label) for label in labels)


class RetryingPredictor:
    """Asks another predictor again, after a pause, while it is unavailable."""

    def __init__(self, predictor: Predictor):
        self.predictor = predictor
        self.name = predictor.name
        self.at_once = predictor.at_once

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
