"""Servers that are broken or mean harm: each is refused in one line that names it and the rule."""

import itertools
import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from pipelines.translators import grpc as grpc_client
from pipelines.translators import rest as rest_client
from pipelines.translators import served as serving_client
from pipelines.translators.served import open_remote
from tests.support.refusals import refused
from tests.support.serving_servers import Refusal, grpc_server, raw_server, rest_server

pytestmark = pytest.mark.tensorflow_only
ESCAPE = "\x1b[2J\x1b]0;owned\x07\x9b1m"
LIMIT = 1 << 20  # bytes of an answer here


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch):
    monkeypatch.setattr(serving_client, "_FIRST_PAUSE", 0.01)
    for client in (rest_client, grpc_client):
        monkeypatch.setattr(client, "MAX_ANSWER_BYTES", LIMIT)


def refusal(url, timeout=600.0):
    """The one line in which a translator refuses."""
    with refused() as told:
        open_remote(url, timeout=timeout).translate(["dog"])
    message = str(told.value)
    assert message.isprintable() and len(message) < 600
    return message


def refusal_of_rest(answer, **choices):
    """The same of a server with an answer: JSON, bytes, or what makes one."""
    with rest_server(answer if callable(answer) else lambda path, body: answer) as address:
        url = f"http://{address}/v1/models/toy"
        message = refusal(url, **choices)
        assert url in message
        return message.replace(url, "URL")


def raw(status="200 OK", headers="", body=b""):
    return f"HTTP/1.1 {status}\r\n{headers}\r\n".encode("latin-1") + body


def refusal_of_raw(parts, **choices):
    with raw_server(parts) as address:
        url = f"http://{address}/v1/models/toy"
        return refusal(url, **choices).replace(url, "URL")


def outputs(translation='"a"', score="-1.0"):
    return f'{{"outputs": {{"translation": [{translation}], "score": [{score}]}}}}'.encode()


SCORES = ["9" * 400, "-" + "9" * 5000, "1e999", "NaN", "-Infinity", "true", "null", '"-1"', "[-1]"]


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score[:9])
def test_scores_that_are_none(score):
    expected = (
        "model URL must be a translator, but its answer has scores that are no finite numbers"
    )
    assert refusal_of_rest(outputs(score=score)) == expected


@pytest.mark.parametrize("text", ['"\\ud800"', '"a\\udfffb"', "7", "null", '["a"]'])
def test_texts_that_are_none(text):
    expected = "model URL must be a translator, but its answer has texts that are not Unicode text"
    assert refusal_of_rest(outputs(text)) == expected


@pytest.mark.parametrize("begin", ["[", '{"outputs":', '{"error":'])
def test_deep_nesting(begin):
    nested = (begin * 50_000).encode()
    message = refusal_of_rest(nested)
    assert message.startswith("URL does not answer as TensorFlow Serving does: ")
    message = refusal_of_raw(lambda: [raw("500 Oops", "", nested)])
    assert message == (
        "URL refuses with HTTP status 500: Oops, without a message of TensorFlow Serving"
    )


def test_an_error_is_cut_and_does_nothing_to_a_terminal():
    def refuse(path, body):
        raise Refusal(400, f"{ESCAPE} bad\r\n\ud800 {'x' * 300_000}")

    message = refusal_of_rest(refuse)
    assert message.startswith("URL refuses with HTTP status 400: \ufffd[2J\ufffd]0;owned")
    assert message.endswith("xxx...") and len(message) < 400
    assert "\ufffd[2J" in refusal_of_rest(ESCAPE.encode())


@pytest.mark.parametrize(
    "parts, expected",
    [
        ([raw(f"500 {ESCAPE}")], "URL refuses with HTTP status 500: \ufffd[2J"),
        ([raw("200 OK", f"{ESCAPE}\r\nContent-Length: 2\r\n", b"{}")], "URL "),
        ([raw("200 OK", "a: b\r\n" * 1000)], "URL does not answer in HTTP as TensorFlow Serving"),
        ([raw("200 OK", "a: " + "b" * 100_000)], "URL does not answer in HTTP as TensorFlow Serv"),
        ([raw("200 OK", "Content-Length: 9\r\n", b"{")], "the answer of URL has broken off"),
        ([raw("200 OK", "Transfer-Encoding: chunked\r\n", b"zz\r\n")], "URL does not answer in HT"),
        (
            [raw("200 OK", "Content-Encoding: gzip\r\nContent-Length: 1\r\n", b"\x1f")],
            "URL does not",
        ),
        ([b"220 mail.example ESMTP\r\n\r\n"], "URL does not answer in HTTP as TensorFlow Serving"),
        ([b""], "cannot reach a server at URL: "),
    ],
    ids=lambda value: str(value)[:40],
)
def test_broken_http(parts, expected, capfd):
    assert refusal_of_raw(lambda: parts).startswith(expected)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("length", ["", f"Content-Length: {1 << 40}\r\n"])
def test_a_body_without_end(length):
    begin = raw("200 OK", length)
    message = refusal_of_raw(lambda: itertools.chain([begin], itertools.repeat(b" " * (1 << 16))))
    assert message == f"URL must answer in at most {LIMIT:,} bytes, but sends more"


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\na: ", raw()])
def test_the_time_is_for_the_whole_answer(begin):
    """The next byte always comes in time."""
    over = threading.Event()

    def parts():
        yield begin
        while not over.wait(0.05):
            yield b" "

    message = refusal_of_raw(parts, timeout=0.3)
    over.set()
    assert message == "URL has not answered for 0.3 s"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status):
    asked = []

    def other(path, body):
        asked.append(path)
        return json.loads(outputs())

    with rest_server(other) as address:
        target = f"http://{address}/v1/models/toy:predict"
        head = raw(f"{status} Moved", f"Location: {target}\r\nContent-Length: 0\r\n")
        message = refusal_of_raw(lambda: [head])
    assert message == f"URL must answer itself, but redirects to {target}"
    assert asked == []


def tensor(value, dtype, *shape):
    made = tf.make_tensor_proto(value, dtype=dtype)
    if shape:
        del made.tensor_shape.dim[:]
        for size in shape:
            made.tensor_shape.dim.add(size=size)
    return made


def proto_of_unknown_type():
    made = tensor([-1.0], tf.float32)
    made.dtype = 99
    return made


TEXT, SCORE = tensor(["a"], tf.string), tensor([-1.0], tf.float32)


@pytest.mark.parametrize(
    "text, score, expected",
    [
        (TEXT, tensor([np.nan], tf.float32), "scores that are no finite numbers"),
        (TEXT, tensor([True], tf.bool), "scores that are no finite numbers"),
        (TEXT, tensor([1j], tf.complex64), "scores that are no finite numbers"),
        (SCORE, SCORE, "texts that are not Unicode text"),
        (tensor(["a"], tf.string, 1 << 30, 1 << 10), SCORE, "a tensor of more than 1,000,000 val"),
        (TEXT, tensor([-1.0], tf.float32, -2), "does not answer as TensorFlow Serving does: "),
        (tensor([], tf.string, 2), SCORE, "does not answer as TensorFlow Serving does: "),
        (TEXT, proto_of_unknown_type(), "does not answer as TensorFlow Serving does: "),
        (tensor([b"\xff" * (LIMIT + 1)], tf.string), SCORE, f"must answer in at most {LIMIT:,} by"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answers_over_grpc(text, score, expected):
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    response = predict_pb2.PredictResponse(outputs={"translation": text, "score": score})
    with grpc_server(lambda request, context: response) as address:
        message = refusal(url := f"grpc://{address}/toy")
    assert url in message and expected in message


def test_an_error_over_grpc_is_cut_and_does_nothing_to_a_terminal():
    grpc = pytest.importorskip("grpc")

    def refuse(request, context):
        context.abort(grpc.StatusCode.INTERNAL, f"{ESCAPE} bad\n {'x' * 5000}")

    with grpc_server(refuse) as address:
        message = refusal(url := f"grpc://{address}/toy")
    assert message.startswith(f"{url} refuses with INTERNAL: \ufffd[2J\ufffd]0;owned")


@pytest.mark.parametrize("form", ["http://{}/v1/models/toy", "grpc://{}/toy"])
@pytest.mark.parametrize(
    "address, rule",
    [
        ("a..b:80", "the host of a URL must be"),
        (".a:80", "the host of a URL must be"),
        (f"{'a' * 64}.b:80", "the host of a URL must be"),
        (f"{'a.' * 127}b:80", "the host of a URL must be"),
        ("[:::::]:80", "the host of a URL must be"),
        ("[1:2]:80", "the host of a URL must be"),
        ("host:65536", "the port of a URL must be from 1 to 65535"),
        ("host:0", "the port of a URL must be from 1 to 65535"),
        (f"host:{'9' * 5000}", "the port of a URL must be from 1 to 65535"),
    ],
    ids=lambda value: value[:20],
)
def test_addresses_that_are_none(form, address, rule):
    with refused(f"^{rule}.*, got ") as told:
        open_remote(form.format(address))
    assert len(str(told.value)) < 500


@pytest.mark.parametrize("url", ["http://h/v1/models/m/versions/{}", "grpc://h:8500/m/{}"])
def test_versions_beyond_those_of_tensorflow_serving(url):
    with refused("^the version of a URL must be from 0 to 9223372036854775"):
        open_remote(url.format(2**63))
