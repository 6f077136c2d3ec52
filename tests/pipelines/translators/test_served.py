"""The client against real servers on loopback, of which some serve the exported model."""

import json
import socket
import sys
import threading

import numpy as np
import pytest

from pipelines.errors import InputError
from pipelines.translators import served as serving_client
from pipelines.translators.base import Translation
from pipelines.translators.predictor import Unavailable
from pipelines.translators.served import RetryingPredictor, open_remote
from tests.support import serving_model
from tests.support.serving_servers import (
    GrpcModel,
    Model,
    Refusal,
    RestModel,
    grpc_server,
    rest_server,
)

pytestmark = pytest.mark.tensorflow_only
NAME = serving_model.NAME
PATIENCE = 600.0  # seconds: a busy machine is no failure


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(serving_client, "_FIRST_PAUSE", 0.01)


@pytest.fixture(params=["rest", "grpc"])
def served(request):
    """The model behind either interface, and its URL."""
    model = Model(NAME, serving_model.loaded())
    if request.param == "rest":
        with rest_server(RestModel(model)) as address:
            yield model, f"http://{address}/v1/models/{NAME}"
    else:
        pytest.importorskip("tensorflow_serving")
        with grpc_server(GrpcModel(model)) as address:
            yield model, f"grpc://{address}/{NAME}"


def versioned(url, version):
    return f"{url}/{version}" if url.startswith("grpc") else f"{url}/versions/{version}"


def assert_same(got, expected):
    got, expected = list(got), list(expected)
    assert [[h.text for h in row] for row in got] == [[h.text for h in row] for row in expected]
    for row, other in zip(got, expected, strict=True):
        np.testing.assert_allclose([h.score for h in row], [h.score for h in other], rtol=1e-5)


def test_translates_like_the_translator_in_order_and_in_batches(served):
    model, url = served
    translator, _ = serving_model.exported()
    texts = [*serving_model.sentences(37, seed=4), "", "emoji 😀 \x00 „Fluß“"]
    remote = open_remote(url, timeout=PATIENCE)
    assert_same(remote.stream(iter(texts)), [row[:1] for row in translator.stream(texts)])
    assert model.requests == [("serving_default", 32), ("serving_default", 6)]  # one was empty
    assert remote.translate(texts[:2]) == translator.translate(texts[:2])


def test_nbest_has_the_callers_beam_size_and_alpha(served):
    model, url = served
    texts = serving_model.sentences(3, seed=6)
    remote = open_remote(url, nbest=2, beam_size=5, alpha=1, timeout=PATIENCE)
    hypotheses = [
        [Translation(text.decode(), score) for text, score in zip(*row, strict=True)][:2]
        for row in zip(*serving_model.nbest(texts, 5, 1.0), strict=True)
    ]
    assert_same(remote.stream(texts), hypotheses)
    assert model.requests == [("nbest", 3)]
    assert len(next(open_remote(url, nbest=7, timeout=PATIENCE).stream(["dog"]))) == 7


def test_a_sentence_at_a_time_is_answered_at_once(served):
    model, url = served
    asked = []

    def sentences():
        for sentence in ("the dog", "the house"):
            asked.append(sentence)
            yield sentence

    answers = open_remote(url, timeout=PATIENCE).stream(sentences(), 1)
    next(answers)
    assert asked == ["the dog"] and model.requests == [("serving_default", 1)]
    assert len(list(answers)) == 1


def test_a_version_can_be_asked_for(served):
    _, url = served
    assert open_remote(versioned(url, 1) + "/", timeout=PATIENCE).translate(["dog"])
    with pytest.raises(InputError, match=r"Servable not found for request: Specific\(toy, 2\)"):
        open_remote(versioned(url, 2), timeout=PATIENCE).translate(["dog"])


def test_sources_that_are_cut_are_told_and_only_long_ones_are_asked_about(served, caplog):
    model, url = served
    short, long = serving_model.sentences(3, seed=8), "dog " * 300
    remote = open_remote(url, timeout=PATIENCE)
    assert remote.cut(short) == []
    assert remote.cut([*short, long]) == [(3, 301, 256)]
    assert remote.cut(short) == []
    assert model.requests == [("source_length", 3), ("source_length", 1)]
    assert caplog.messages == []


def test_an_older_export_does_not_tell_which_sources_it_cuts(served, caplog):
    model, url = served
    model.signatures = {"serving_default": model.signatures["serving_default"]}
    remote = open_remote(url, timeout=PATIENCE)
    assert remote.cut(["dog"]) == remote.cut(["dog " * 300]) == []
    assert caplog.messages == [
        f"{url} does not tell which sources it cuts: one that is exported anew does"
    ]


def test_an_unknown_model_and_a_refusing_graph_are_reported(served):
    model, url = served
    with pytest.raises(InputError, match=r"refuses .*Servable not found .*Latest\(other\)"):
        open_remote(url.replace(f"/{NAME}", "/other"), timeout=PATIENCE).translate(["dog"])
    with pytest.raises(InputError, match=r"beam_size must be from 1 to 100, got\] \[1000\]"):
        open_remote(url, beam_size=1000, timeout=PATIENCE).translate(["dog"])
    model.signatures = {"serving_default": model.signatures["serving_default"]}
    with pytest.raises(InputError, match='refuses .*signature name: "nbest" not found'):
        open_remote(url, nbest=2, timeout=PATIENCE).translate(["dog"])


def test_the_server_of_the_tests_speaks_both_formats_and_refuses_nonsense():
    answer = RestModel(Model(NAME, serving_model.loaded()))
    path = f"/v1/models/{NAME}:predict"
    columns = answer(path, json.dumps({"inputs": {"text": ["dog"]}}))["outputs"]
    rows = answer(path, json.dumps({"instances": [{"text": "dog"}]}))["predictions"]
    assert rows == [{name: values[0] for name, values in columns.items()}]
    for body in ("no JSON", "{}", '{"inputs": {"text": "dog"}}', '{"inputs": {"text": [1]}}'):
        with pytest.raises(Refusal) as refusal:
            answer(path, body)
        assert refusal.value.status == 400


def test_a_server_that_is_loading_is_asked_again():
    model = RestModel(Model(NAME, serving_model.loaded()))
    attempts = []

    def loading(path, body):
        attempts.append(path)
        if len(attempts) < 3:
            raise Refusal(503, "The model is being loaded")
        return model(path, body)

    with rest_server(loading) as address:
        assert open_remote(f"http://{address}/v1/models/{NAME}", timeout=PATIENCE).translate(
            ["dog"]
        )
    assert len(attempts) == 3


def test_patience_has_an_end():
    attempts = []

    def busy(path, body):
        attempts.append(path)
        raise Refusal(503, "overloaded,\ntry later")

    with rest_server(busy) as address, pytest.raises(InputError) as refused:
        open_remote(f"http://{address}/v1/models/{NAME}").translate(["dog"])
    assert "refuses with HTTP status 503: overloaded, try later" in str(refused.value)
    assert len(attempts) == 3


def test_what_is_refused_is_not_asked_again():
    attempts = []

    def refuse(path, body):
        attempts.append(path)
        raise Refusal(400, "no")

    with rest_server(refuse) as address, pytest.raises(InputError, match="HTTP status 400: no"):
        open_remote(f"http://{address}/v1/models/{NAME}").translate(["dog"])
    assert len(attempts) == 1


def test_the_proxy_of_the_environment_is_asked(monkeypatch):
    asked = []

    def answer(path, body):
        asked.append(path)
        return {"outputs": {"translation": ["Hund"], "score": [-1.0]}}

    with rest_server(answer) as address:
        monkeypatch.setenv("http_proxy", f"http://user:secret@{address}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        far = open_remote("http://far.invalid:8501/v1/models/toy", timeout=PATIENCE)
        assert far.translate(["dog"]) == ["Hund"]
        near = open_remote(f"http://{address}/v1/models/toy", timeout=PATIENCE)
        assert near.translate(["dog"]) == ["Hund"]
    assert asked == [
        "http://far.invalid:8501/v1/models/toy:predict",
        "/v1/models/toy:predict",
    ]
    monkeypatch.setenv("http_proxy", "socks9://there")
    with pytest.raises(InputError, match="^http_proxy of the environment must be the URL of an"):
        open_remote("http://far.invalid:8501/v1/models/toy")


def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}/v1/models/toy", "grpc://127.0.0.1:{}/toy"])
@pytest.mark.parametrize("scheme", [str.lower, str.upper])  # which are alike (RFC 3986, 3.1)
def test_an_absent_server_is_reported(form, scheme):
    form = scheme(form[:4]) + form[4:]
    if form.lower().startswith("grpc"):
        pytest.importorskip("tensorflow_serving")
    url = form.format(unused_port())
    with pytest.raises(InputError, match="^cannot reach a server at .*refused"):
        open_remote(url).translate(["dog"])


def test_an_unknown_host_is_reported():
    with pytest.raises(InputError, match="^cannot reach a server at http://nowhere.invalid"):
        open_remote("http://nowhere.invalid:8501/v1/models/toy").translate(["dog"])


def test_a_server_that_does_not_answer_in_time_is_reported():
    asked, over = threading.Semaphore(0), threading.Event()

    def slow(path, body):
        asked.release()
        over.wait(PATIENCE)
        return {}

    with rest_server(slow) as address:
        with pytest.raises(InputError, match="has not answered for 0.2 s"):
            open_remote(f"http://{address}/v1/models/{NAME}", timeout=0.2).translate(["dog"])
        assert all(asked.acquire(timeout=PATIENCE) for _ in range(3))
        over.set()
    assert not asked.acquire(blocking=False)


def test_a_grpc_server_that_does_not_answer_in_time_is_reported():
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    over = threading.Event()

    def slow(request, context):
        over.wait(60)
        return predict_pb2.PredictResponse()

    with grpc_server(slow) as address:
        with pytest.raises(InputError, match="has not answered for 0.2 s"):
            open_remote(f"grpc://{address}/{NAME}", timeout=0.2).translate(["dog"])
        over.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>Sign in</html>",
        b"",
        b"\xff\xfe",
        [1, 2],
        {"predictions": [1]},
        {"outputs": [1.5]},
        {"outputs": {"classes": ["cat"]}},
        {"outputs": {"translation": ["a", "b"], "score": [1.0, 2.0]}},
        {"outputs": {"translation": [], "score": []}},
        {"outputs": {"translation": [7], "score": [1.0]}},
        {"outputs": {"translation": ["a"], "score": ["good"]}},
        {"outputs": {"translation": "a", "score": 1.0}},
        {"outputs": {"translation": [["a"]], "score": [[1.0]]}},
    ],
)
def test_an_answer_of_something_else_is_reported(answer):
    with rest_server(lambda path, body: answer) as address:
        url = f"http://{address}/v1/models/{NAME}"
        with pytest.raises(InputError, match="does not answer as|must be a translator"):
            open_remote(url).translate(["dog"])


@pytest.mark.parametrize(
    "answer",
    [
        {"translations": [["a"]], "scores": [[1.0]]},
        {"translations": [["a", "b"]], "scores": [[1.0]]},
        {"translations": ["a"], "scores": [1.0]},
        {"translations": [["a", "b"]]},
    ],
)
def test_nbest_lists_of_another_length_are_reported(answer):
    with rest_server(lambda path, body: {"outputs": answer}) as address:
        url = f"http://{address}/v1/models/{NAME}"
        with pytest.raises(
            InputError, match=f"model {url} must be a translator, but its answer has"
        ):
            open_remote(url, beam_size=2).translate(["dog"])


def test_a_server_that_does_not_speak_http_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example ESMTP\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/models/toy"
        with pytest.raises(InputError, match="does not answer in HTTP as TensorFlow Serving"):
            open_remote(url).translate(["dog"])
        thread.join()


@pytest.mark.parametrize(
    "url",
    [
        "http://host:8501",
        "http://host:8501/v1/models/",
        "http://host:8501/v2/models/demo",
        "http:///v1/models/demo",
        "http://host:port/v1/models/demo",
        "http://host:8501/v1/models/two words",
        "http://host:8501/v1/models/größe",
        "grpc://host:8500",
        "grpc://host/demo",
        "grpc://host:8500/demo/latest",
        "ftp://host/v1/models/demo",
    ],
)
def test_other_urls_are_refused(url):
    with pytest.raises(InputError, match="model must be a URL like .*, got "):
        open_remote(url)


@pytest.mark.parametrize(
    "url", ["https://host/a/b/v1/models/de-en_2.1/labels/stable", "http://[::1]:8501/v1/models/m"]
)
def test_other_forms_of_urls_are_taken(url):
    for written in (url, f"{url}/", f"{url}:predict"):
        assert open_remote(written).predictor.name == url


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"nbest": 0}, "nbest must be from 1 to beam_size 4, got 0"),
        ({"nbest": 3, "beam_size": 2}, "nbest must be from 1 to beam_size 2, got 3"),
        ({"timeout": 0}, "timeout must be above 0 seconds, got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        open_remote("http://host:8501/v1/models/demo", **wrong)


def test_retries_pause_and_give_up():
    calls = []

    class Absent:
        name = "absent"
        at_once = 1

        def predict(self, signature, inputs):
            calls.append((signature, inputs))
            raise Unavailable("nobody there")

    with pytest.raises(InputError, match="^nobody there$"):
        RetryingPredictor(Absent()).predict("nbest", {"x": 1})
    assert calls == [("nbest", {"x": 1})] * 3


def test_grpc_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)  # importing it fails
    monkeypatch.delitem(sys.modules, "pipelines.translators.grpc", raising=False)
    open_remote("http://host:8501/v1/models/demo")
    with pytest.raises(
        InputError,
        match=r"needs tensorflow-serving-api, .* `export` installs: pip install -e '\.\[export\]'$",
    ):
        open_remote("grpc://host:8500/demo")
