"""Translates with a model that TensorFlow Serving serves, over REST or gRPC."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from pipelines.errors import InputError
from pipelines.translators.base import BATCH_SIZE, TextTranslator, Translation

_ATTEMPTS = 3  # of each request, while the server cannot be reached
_FIRST_PAUSE = 0.5  # seconds before the second attempt; each pause is twice the last one

_HOST = r"(\[[\da-fA-F:]+\]|[\w.-]+)"
_REST = re.compile(
    rf"https?://{_HOST}(:\d+)?(/[\w.~%-]+)*/v1/models/[\w.~%-]+(/versions/\d+|/labels/[\w.~%-]+)?",
    re.ASCII,
)
_GRPC = re.compile(
    rf"grpc://(?P<address>{_HOST}:\d+)/(?P<name>[\w.-]+)(/(?P<version>\d+))?", re.ASCII
)


class Unavailable(Exception):
    """The server could not be reached or asked for patience: the same request may do later."""


class Server(Protocol):
    """A served model; `predict` raises `Unavailable`, or `InputError` where a retry is idle."""

    def predict(self, signature: str, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """The outputs of a signature by name, as nested lists."""


def open_remote(
    url: str,
    *,
    nbest: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
    timeout: float = 60.0,
) -> "RemoteTranslator":
    """A translator for a model's URL. Nothing is sent yet.

    Args:
        url: `http://host:8501/v1/models/NAME`, with `/versions/N` or `/labels/LABEL` behind it if
            need be, https alike; or `grpc://host:8500/NAME[/VERSION]`.
        nbest: hypotheses of each sentence.
        beam_size: None for the exported one.
        alpha: length penalty; None for the exported one.
        timeout: seconds that the server may take for a request.

    Raises:
        InputError: no such URL, a number out of range, or gRPC without tensorflow-serving-api.
    """
    if timeout <= 0:
        raise InputError(f"timeout must be above 0 seconds, got {timeout}")
    if match := _GRPC.fullmatch(url.rstrip("/")):
        from pipelines.importing import load_tensorflow

        load_tensorflow()
        from pipelines.translators.grpc import GrpcServer

        version = match["version"] and int(match["version"])
        server: Server = GrpcServer(match["address"], match["name"], version, timeout)
    elif _REST.fullmatch(rest_url := url.rstrip("/").removesuffix(":predict")):
        from pipelines.translators.rest import RestServer

        server = RestServer(rest_url, timeout)
    else:
        raise InputError(
            "model must be a URL like http://host:8501/v1/models/NAME or grpc://host:8500/NAME, "
            f"got {url}"
        )
    return RemoteTranslator(server, nbest=nbest, beam_size=beam_size, alpha=alpha)


class RemoteTranslator(TextTranslator):
    """A `Translator` whose model is on a server.

    The signature `serving_default` is asked for one hypothesis as the model was exported, `nbest`
    for anything else. Requests change nothing on the server, so one that found no server, a busy
    one or no answer in time is sent again, `_ATTEMPTS` times in all.

    Args:
        server: a `RestServer` or `GrpcServer`.
        nbest: hypotheses of each sentence.
        beam_size: None for the exported one, or for `nbest` if that is above 4.
        alpha: length penalty; None for the exported one, or 0.6 with a beam size of one's own.

    Raises:
        InputError: nbest below 1 or above the beam size. While translating: the server is absent,
            refuses, or answers something else.
    """

    def __init__(
        self,
        server: Server,
        *,
        nbest: int = 1,
        beam_size: int | None = None,
        alpha: float | None = None,
    ):
        self.server = server
        self.nbest = nbest
        self.has_own_search = nbest != 1 or beam_size is not None or alpha is not None
        self.beam_size = max(4, nbest) if beam_size is None else beam_size
        self.alpha = 0.6 if alpha is None else alpha
        if not 1 <= nbest <= self.beam_size:
            raise InputError(f"nbest must be from 1 to beam_size {self.beam_size}, got {nbest}")

    def _translate_chunk(self, sentences: Sequence[str]) -> list[list[Translation]]:
        by_length = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        results: list[list[Translation]] = [[] for _ in sentences]
        for begin in range(0, len(by_length), BATCH_SIZE):
            chosen = by_length[begin : begin + BATCH_SIZE]
            answers = self._request([sentences[i] for i in chosen])
            for i, hypotheses in zip(chosen, answers, strict=True):
                results[i] = hypotheses
        return results

    def _request(self, sentences: list[str]) -> list[list[Translation]]:
        if not self.has_own_search:
            outputs = with_retries(
                lambda: self.server.predict("serving_default", {"text": sentences})
            )
            texts, scores = (_output(outputs, name) for name in ("translation", "score"))
            rows = [[text] for text in texts], [[score] for score in scores]
            return _translations(*rows, len(sentences), 1)
        inputs = {"text": sentences, "beam_size": self.beam_size, "alpha": float(self.alpha)}
        outputs = with_retries(lambda: self.server.predict("nbest", inputs))
        texts, scores = (_output(outputs, name) for name in ("translations", "scores"))
        hypotheses = _translations(texts, scores, len(sentences), self.beam_size)
        return [row[: self.nbest] for row in hypotheses]


def with_retries(call: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
    """What `call` returns; it is called again, after a pause, while it raises `Unavailable`.

    Raises:
        InputError: the last attempt failed as well.
    """
    for attempt in range(_ATTEMPTS):
        if attempt > 0:
            time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
        try:
            return call()
        except Unavailable as error:
            failure = error
    raise InputError(str(failure)) from failure


def _output(outputs: Mapping[str, object], name: str) -> list:
    if not isinstance(value := outputs.get(name), list):
        _strange(f"no list of {name} in it")
    return value


def _translations(texts: list, scores: list, rows: int, columns: int) -> list[list[Translation]]:
    """Hypotheses of each sentence from two nested lists `[rows, columns]`, which are checked."""
    for values, kind in ((texts, str), (scores, (int, float))):
        lengths = {len(row) if isinstance(row, list) else 0 for row in values}
        if len(values) != rows or lengths - {columns}:
            _strange(f"{rows} sentences have other than {columns} hypotheses each")
        if not all(isinstance(value, kind) for row in values for value in row):
            _strange("texts that are no text or scores that are no numbers")
    return [
        [Translation(text, float(score)) for text, score in zip(*row, strict=True)]
        for row in zip(texts, scores, strict=True)
    ]


def _strange(detail: str) -> NoReturn:
    raise InputError(f"model must be a translator; the server's answer is another one's: {detail}")
