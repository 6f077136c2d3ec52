"""The benchmarks run and write what they measured; how fast anything is, nothing here asks."""

import json

import pytest

from pipelines.benchmark import (
    attention,
    callers,
    compatibility,
    data,
    decoding,
    forms,
    graph_memory,
    graph_peer,
    memory,
    training_memory,
    training_step,
    web,
    window,
)
from pipelines.benchmark.measuring import ratios, seconds_in_turns
from pipelines.errors import InputError
from pipelines.files.atomic import new_directory
from tests.support.browser import need_browser, need_node
from tests.support.runs import call, flags, run_command
from tests.support.sentences import write_conllu

pytestmark = pytest.mark.tensorflow_only


def measure(main, tmp_path, monkeypatch, **values):
    output = tmp_path / "results.json"
    assert call(main, flags(**values, output=output), monkeypatch) == 0
    results = json.loads(output.read_text())
    assert results["date"] and "core" in results["device"]
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


def test_attention(tmp_path, monkeypatch, capsys):
    sizes = {
        "lengths": [5], "tokens": 10, "num_heads": 1, "head_dim": 2, "turns": 1,
        "max_relative_positions": [2], "dtype": "bfloat16",
    }  # fmt: skip
    results = measure(attention.main, tmp_path, monkeypatch, **sizes)
    assert [(r["xla"], r["table"], r["T"]) for r in results["ratios"]] == [
        (x, table, 5) for x in (0, 1) for table in ("shared", "per head")
    ]
    for record in results["ratios"]:
        assert set(record["over_plain"]) == {"auto", "transpose_reshape", "bucketed"}
        assert all(ratio > 0 for ratio in (*record["over_plain"].values(), record["over_keras"]))
    assert "XLA    per head  k   2  T    5  auto" in capsys.readouterr().out


def test_the_papers_form_is_left_out_where_it_takes_too_much_memory(tmp_path, monkeypatch, capsys):
    """Four times 5 x 5 vectors of 2 numbers, in float32 in between: 1,200 bytes; of 4 x 4, 768."""
    sizes = {
        "lengths": [4, 5], "tokens": 20, "num_heads": 1, "head_dim": 2, "turns": 1,
        "max_relative_positions": [2], "tables": ["shared"], "dtype": "bfloat16",
        "modes": ["graph"], "memory_limit": 1000 / 2**30,
    }  # fmt: skip
    short, long = measure(attention.main, tmp_path, monkeypatch, **sizes)["ratios"]
    assert "transpose_reshape" in short["over_plain"]
    assert set(long["over_plain"]) == {"auto", "bucketed"}
    of_short, of_long = capsys.readouterr().out.splitlines()
    assert "left out" not in of_short and "transpose_reshape left out, over " in of_long


def test_the_share_of_points_where_auto_is_nearly_the_fastest():
    found = [(1.09, 1.0), (1.2, 1.0), (1.2, 1.0)]
    records = [{"over_plain": {"auto": auto, "bucketed": b}} for auto, b in found]
    assert attention.share_of_best({"ratios": records}) == pytest.approx(1 / 3)


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
    assert set(results["ratios"]) == {"relative"}
    assert "target tokens a second" in capsys.readouterr().out


@pytest.mark.slow
def test_training_memory(tmp_path, monkeypatch):
    sizes = {"preset": "tiny", "vocabulary_size": 2000, "tokens": 12, "length": 4, "turns": 2}
    results = measure(training_memory.main, tmp_path, monkeypatch, **sizes)
    assert len(results["megabytes_of_turns"]) == 2
    assert set(results["megabytes"]) == set(training_step.CONTESTANTS)
    for position, megabytes in results["megabytes"].items():
        assert 100 < megabytes < 10_000
        assert 0 < results["tensor_megabytes"][position] < megabytes / 2


def test_a_preparation_is_known_by_its_files_while_they_are_hidden(tmp_path):
    with new_directory(tmp_path / "prepared") as hidden:
        assert data._phase(tmp_path) == "learning subwords"
        (hidden / "tokenizer.model").touch()
        assert data._phase(tmp_path) == "tokenizing"
        with new_directory(hidden / "train") as train:
            (train / "pairs.npy").touch()
            assert data._phase(tmp_path) == "sorting"


@pytest.mark.slow
def test_data(tmp_path, monkeypatch):
    sizes = {"pairs": [3000], "vocabulary_size": 400, "seconds": 0.2, "directory": tmp_path}
    (corpus,) = measure(data.main, tmp_path, monkeypatch, **sizes)["corpora"]
    assert sum(corpus["prepare"]["dropped"].values()) < 3000
    assert len(corpus["read"]) == len(data.READINGS)
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
    text = {"source": corpus / "test.en", "reference": corpus / "test.de", "bfloat16": True}
    sizes = {"run_dir": trained_run, "sentences": 8, "turns": 1}
    result = run_command("benchmark.decoding", flags(**text, **sizes, output=output))
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    records = json.loads(output.read_text())["decoding"]
    assert [(record["batch"], record["sentences"]) for record in records] == [(32, 8), (1, 1)]
    in_bfloat16 = [record["same"].pop("saved_model_bfloat16") for record in records]
    assert 4 < in_bfloat16[0] <= 8 and in_bfloat16[1] in (0, 1)
    assert [record["same"] for record in records] == [
        {"saved_model": 8},
        {"saved_model": 1, "tflite": 1},
    ]
    for record in records:
        assert record["bleu"]["saved_model"] == record["bleu"]["ctranslate2"]
        assert 0 <= record["bleu"]["saved_model_bfloat16"] <= 100
        assert all(rate > 0 for rate in record["per_s"].values())
        assert all(1 < length < 12 for length in record["subwords"].values())


def test_calls_are_gathered():
    """Batches of four callers each, as nobody waits for less than a minute alone."""
    sentences = [f"sentence {number}" for number in range(8)]
    sizes = {"callers": [4], "max_batch_size": 4, "batch_timeout_micros": 60_000_000}
    flags = callers.Benchmark("run", "source", **sizes, num_batch_threads=1)
    translate = callers.gathered(lambda text: {"translation": text + "!"}, flags)
    together = callers.Callers(4, translate, sentences)
    answers = together()
    assert together.turns == [answers]
    assert [a.translation.decode() for a in answers] == [f"{sentence}!" for sentence in sentences]
    assert {answer.batch for answer in answers} == {4}


@pytest.mark.slow
def test_callers(trained_run, corpus, tmp_path):
    """In a process of its own, which may choose how many threads TensorFlow has."""
    output = tmp_path / "results.json"
    sizes = {"source": corpus / "test.en", "sentences": 8, "callers": [1, 4], "turns": 1}
    result = run_command("benchmark.callers", flags(run_dir=trained_run, **sizes, output=output))
    assert result.returncode == 0, result.stderr
    assert "8 of 8 as alone" in result.stdout and "WARNING" not in result.stderr
    records = json.loads(output.read_text())["callers"]
    assert [record["callers"] for record in records] == [1, 4]
    for record in records:
        for way in (record["straight"], record["gathered"]):
            assert way["same"] == 8 and 1 <= way["batch"] <= record["callers"]
            assert 0 < way["median_ms"] <= way["percentile_95_ms"]
        assert record["straight"]["batch"] == 1


@pytest.mark.slow
def test_web(trained_run, corpus, tmp_path, monkeypatch):
    """Both threads of the page come from its service worker."""
    need_browser()
    given = {"run_dir": trained_run, "source": corpus / "test.en", "sentences": 2, "turns": 1}
    for threads in (1, 2):
        records = measure(web.main, tmp_path, monkeypatch, **given, threads=threads)["web"]
        assert [record["quantization"] for record in records] == ["int8", "none"]
        assert all(record["start_up_s"] > 0 for record in records)
        assert all(record["per_s"].keys() == {"python", "page"} for record in records)
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
    same = {form["form"]: form["same"] for form in json.loads(output.read_text())["forms"]}
    assert list(same) == ["run directory", *forms.FORMS]
    exact = [name for name in same if "float32" in name]
    assert len(exact) == 3 and {same[name] for name in exact} == {20}


@pytest.mark.parametrize(
    ("main", "values", "message"),
    [
        (attention.main, {"turns": 0}, "turns must be at least 1, got 0"),
        (attention.main, {"lengths": 5000}, "lengths must be from 1 to tokens, 4096, got [5000]"),
        (attention.main, {"head_dim": 0}, "head_dim must be at least 1, got 0"),
        (attention.main, {"memory_limit": "nan"}, "memory_limit must be above 0, got nan"),
        (attention.main, {"dtype": "int8"}, "argument --dtype: invalid choice: 'int8'"),
        (attention.main, {"tables": "own"}, "tables must be of shared, per head, got own"),
        (attention.main, {"modes": "eager"}, "modes must be of graph, XLA, got eager"),
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
            decoding.main,
            {"run_dir": "r", "source": "s", "turns": 0},
            "turns must be at least 1, got 0",
        ),
        (
            callers.main,
            {"run_dir": "r", "source": "s", "callers": [1, 9], "sentences": 8},
            "callers must be from 1 to sentences, 8, got [1, 9]",
        ),
        (
            callers.main,
            {"run_dir": "r", "source": "s", "batch_timeout_micros": -1},
            "batch_timeout_micros must be at least 0, got -1",
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
def test_wrong_flags_are_told(main, values, message, refusal):
    assert message in refusal(main, flags(**values))


@pytest.mark.parametrize(
    ("main", "rule"), [(callers.main, "128 sentences"), (decoding.main, "at least 8 sentences")]
)
def test_a_short_source_is_told(main, rule, tmp_path, refusal):
    source = tmp_path / "short.en"
    source.write_text("a\nb\n")
    told = refusal(main, flags(run_dir="r", source=source))
    assert f"source must have {rule}, but {source} has 2" in told
