"""The benchmarks run and write what they measured; how fast anything is, nothing here asks."""

import json

import pytest

from pipelines.benchmark import (
    attention,
    compatibility,
    data,
    decoding,
    graph_memory,
    graph_peer,
    memory,
    training_step,
    web,
    window,
)
from pipelines.benchmark.measuring import ratios, seconds_in_turns
from pipelines.errors import InputError
from tests.support.browser import need_browser, need_node
from tests.support.runs import call, flags, run_command
from tests.support.sentences import write_conllu

pytestmark = pytest.mark.tensorflow_only


def measure(main, tmp_path, monkeypatch, **values):
    output = tmp_path / "results.json"
    assert call(main, flags(**values, output=output), monkeypatch) == 0
    results = json.loads(output.read_text())
    assert results["date"] and "cores" in results["device"]
    return results


def test_contestants_take_turns():
    order = []
    turns = seconds_in_turns({name: lambda name=name: order.append(name) for name in "ab"}, 2)
    assert order == ["a", "b"] * 3
    assert [set(turn) for turn in turns] == [{"a", "b"}] * 2


def test_a_ratio_is_the_median_of_those_within_turns():
    """One turn on a slow machine, one in which the other was disturbed."""
    turns = [{"a": 1.0, "b": 3.0}, {"a": 10.0, "b": 30.0}, {"a": 1.0, "b": 50.0}]
    assert ratios(turns, "a") == {"b": 3.0}


def test_attention(tmp_path, monkeypatch):
    sizes = {"lengths": [3, 5], "tokens": 10, "num_heads": 1, "head_dim": 2, "turns": 1}
    results = measure(attention.main, tmp_path, monkeypatch, **sizes)
    assert [(r["xla"], r["T"]) for r in results["ratios"]] == [
        (x, T) for x in (0, 1) for T in (3, 5)
    ]
    assert all(r[name] > 0 for r in results["ratios"] for name in ("transpose_reshape", "bucketed"))


@pytest.mark.slow
def test_compatibility(tmp_path, monkeypatch, capsys):
    sizes = {"lengths": [32], "tokens": 64, "num_heads": 2, "head_dim": 8, "turns": 1}
    steps = measure(compatibility.main, tmp_path, monkeypatch, **sizes)["steps"]
    assert [(step["xla"], step["T"]) for step in steps] == [(False, 32), (True, 32)]
    assert all(step["ratio"] > 0 for step in steps)
    assert "additive" in capsys.readouterr().out


@pytest.mark.slow
def test_training_step(tmp_path, monkeypatch, capsys):
    sizes = {"preset": "tiny", "vocabulary_size": 20, "tokens": 12, "length": 4, "turns": 1}
    results = measure(training_step.main, tmp_path, monkeypatch, **sizes)
    assert set(results["ratios"]) == {"transpose_reshape", "bucketed"}
    assert "target tokens a second" in capsys.readouterr().out


@pytest.mark.slow
def test_data(tmp_path, monkeypatch):
    sizes = {"pairs": [3000], "vocabulary_size": 400, "seconds": 0.2, "directory": tmp_path}
    (corpus,) = measure(data.main, tmp_path, monkeypatch, **sizes)["corpora"]
    assert sum(corpus["prepare"]["dropped"].values()) < 3000
    assert all(read["tokens_per_second"] > 0 for read in corpus["read"])


@pytest.mark.slow
def test_memory(tmp_path, monkeypatch):
    """A process for each number: of 8 heads, 1,024 positions have 34 MB of scores."""
    records = measure(memory.main, tmp_path, monkeypatch, lengths=[1024])["memory"]
    assert len(records) == 2 * len(memory.MODES)
    assert all(record["keras"] > 30 and record["relative"] > 1 for record in records)


@pytest.mark.slow
def test_window(tmp_path, monkeypatch, capsys):
    sizes = {"lengths": [300, 3000], "window": 8, "num_heads": 2, "turns": 1, "gigabytes": 0.1}
    short, long = measure(window.main, tmp_path, monkeypatch, **sizes)["steps"]
    assert set(short["seconds"]) == set(short["megabytes"]) == {"window", "all pairs"}
    assert set(long["seconds"]) == {"window"}
    assert "all pairs skipped" in capsys.readouterr().out


@pytest.mark.slow
def test_graph_memory(tmp_path, monkeypatch):
    """In training the form of the paper holds the vectors of all pairs, [B, T, T, H]: 84 MB."""
    sizes = {"batch": 4, "length": 256, "num_relations": 50, "num_heads": 2, "head_dim": 80}
    results = measure(graph_memory.main, tmp_path, monkeypatch, **sizes)
    forward, training = results["memory"]
    assert not forward["training"] and forward["keras"] > 1
    whole = results["one_tensor"]["[B, T, T, H]"]
    assert training["bucketed"] < whole < training["transpose_reshape"]


@pytest.mark.slow
def test_graph_peer(tmp_path):
    """In a process of its own, which may choose how many threads TensorFlow has."""
    pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    text, output = write_conllu(tmp_path / "trees.conllu", 160), tmp_path / "results.json"
    given = flags(train=text, test=text, epochs=6, learning_rate=0.01, seeds=2, output=output)
    result = run_command("benchmark.graph_peer", given)
    assert result.returncode == 0, result.stderr
    results = json.loads(output.read_text())
    contestants = results["contestants"]
    assert [c["name"] for c in contestants] == [graph_peer.OURS, *graph_peer.PEERS]
    assert [set(turn) for turn in results["turns"]] == [{graph_peer.OURS, *graph_peer.PEERS}] * 10
    assert contestants[0]["seconds_over_ours"] == 1
    for contestant in contestants:
        assert len(contestant["accuracies"]) == 2 and contestant["steps_per_second"] > 0
        assert contestant["accuracy"] > 0.3  # by the most frequent class 0.2 to 0.3


@pytest.mark.slow
def test_decoding(trained_run, corpus, tmp_path):
    """In a process of its own, which may choose how many threads TensorFlow has."""
    output = tmp_path / "results.json"
    sizes = {"run_dir": trained_run, "source": corpus / "test.en", "sentences": 8, "turns": 1}
    result = run_command("benchmark.decoding", flags(**sizes, output=output))
    assert result.returncode == 0, result.stderr
    records = json.loads(output.read_text())["decoding"]
    assert [record["batch"] for record in records] == [32, 1]
    assert all(rate > 0 for record in records for rate in record["per_s"].values())


@pytest.mark.slow
def test_web(trained_run, corpus, tmp_path, monkeypatch):
    """Both threads of the page come from its service worker."""
    need_browser()
    given = {"run_dir": trained_run, "source": corpus / "test.en", "sentences": 2, "turns": 1}
    for threads in (1, 2):
        records = measure(web.main, tmp_path, monkeypatch, **given, threads=threads)["web"]
        assert [record["quantization"] for record in records] == ["int8", "none"]
        assert all(record["start_up_s"] > 0 for record in records)
        assert all(rate > 0 for record in records for rate in record["per_s"].values())


def test_a_browser_that_ends_is_told_of(tmp_path, monkeypatch):
    """A closed pipe to it is not taken for a reader of standard output that has left."""
    script = tmp_path / "test" / "benchmark.mjs"
    script.parent.mkdir()
    script.write_text("throw new Error('no such browser');")
    need_node()
    monkeypatch.setattr(web, "SOURCES", tmp_path)
    with (
        pytest.raises(InputError, match="the browser fails: .*no such browser"),
        web._page("http://127.0.0.1/", threads=1) as ask,
    ):
        ask(first="x" * 10**6)  # more than a pipe holds


@pytest.mark.slow
def test_forms(trained_run, corpus, tmp_path):
    """In a process of its own, which may switch TensorFlow's messages off."""
    output = tmp_path / "results.json"
    source, reference = corpus / "test.en", corpus / "test.de"
    arguments = flags(run_dir=trained_run, source=source, reference=reference, sentences=20)
    result = run_command("benchmark.forms", [*arguments, "--turns", 1, "--output", output])
    assert result.returncode == 0, result.stderr
    forms = json.loads(output.read_text())["forms"]
    assert [form["form"] for form in forms][:2] == ["run directory", "SavedModel"]
    assert all(form["same"] == 20 for form in forms if "float32" in form["form"])


@pytest.mark.parametrize(
    ("main", "values", "message"),
    [
        (attention.main, {"turns": 0}, "turns must be at least 1, got 0"),
        (attention.main, {"lengths": 5000}, "lengths must be from 1 to tokens, 4096, got [5000]"),
        (attention.main, {"head_dim": 0}, "head_dim must be at least 1, got 0"),
        (attention.main, {"dtype": "int8"}, "int8"),
        (memory.main, {"lengths": 1}, "lengths must be at least 2, got [1]"),
        (window.main, {"window": 0}, "window must be at least 1, got 0"),
        (window.main, {"lengths": 1}, "lengths must be at least 2, got [1]"),
        (graph_memory.main, {"batch": 0}, "batch must be at least 1, got 0"),
        (graph_peer.main, {"epochs": 1}, "epochs must be 2 or more: the first is not timed, got 1"),
        (graph_peer.main, {"seeds": 0}, "seeds must be at least 1, got 0"),
        (training_step.main, {"preset": "huge"}, "preset must be one of tiny, base, big, "),
        (training_step.main, {"length": 0}, "length must be from 1 to tokens, 4096, got 0"),
        (
            decoding.main,
            {"run_dir": "r", "source": "s", "sentences": 7},
            "sentences must be at least 8, got 7",
        ),
        (
            web.main,
            {"run_dir": "r", "source": "s", "sentences": 0},
            "sentences must be at least 1, got 0",
        ),
        (web.main, {"run_dir": "r", "source": "s", "threads": 3}, "threads must be 1 or 2, got 3"),
        (data.main, {"pairs": 0}, "pairs must be at least 1, got [0]"),
    ],
)
def test_wrong_flags_are_told(main, values, message, monkeypatch, capsys):
    assert call(main, flags(**values), monkeypatch) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and message in told and told.count("\n") == 1
