"""What stands around the trainings beside OpenNMT-tf, which itself is not installed for tests."""

import json
import os
import sys
import time
from collections import defaultdict

import numpy as np
import pytest
import yaml

from pipelines.benchmark import opennmt, opennmt_peer
from pipelines.benchmark.contestants import OurTokens
from pipelines.benchmark.flops import flops_of_pairs
from pipelines.benchmark.paused_process import PausedProcess
from pipelines.errors import InputError
from pipelines.training.batches import batches_of
from tests.support.runs import flags, run_command
from tf_relpos.config import TransformerConfig

pytestmark = pytest.mark.tensorflow_only

# OpenNMT-tf 2.32.0 printed these.
PRINTED = """\
2026-11-23 16:20:37.173000: W runner.py:269] No checkpoint to restore in run
2026-11-23 16:21:06.313000: I runner.py:310] Number of model parameters: 2360320
2026-11-23 16:21:06.423000: I runner.py:310] Step = 1 ; steps/s = 0.00, tokens/s = 0 (0 source, \
0 target) ; Learning rate = 0.000012 ; Loss = 8.961953
2026-11-23 16:21:06.618000: I training.py:176] Saved checkpoint run/ckpt-1
2026-11-23 16:21:09.040000: I runner.py:310] Step = 3 ; steps/s = 0.84, tokens/s = 6249 (3041 \
source, 3208 target) ; Learning rate = 0.000024 ; Loss = 8.957733
2026-11-23 16:21:09.884000: I runner.py:310] Step = 4 ; steps/s = 1.19, tokens/s = 8832 (4216 \
source, 4616 target) ; Learning rate = 0.000030 ; Loss = 8.945803
""".splitlines()

# An environment's interpreter: it has all packages, and trains at a steady pace.
PEER = """\
#!/bin/sh
[ "$3" = pip ] && exit 0
step=0
while true; do
    step=$((step + 1))
    echo "Step = $step ; steps/s = 9.90, tokens/s = 600 (200 source, 400 target) ; Loss = 8.9"
    sleep 0.1
done
"""


def write_environment(directory, python):
    """A directory that looks like a virtual environment whose interpreter is a shell script."""
    (directory / "bin").mkdir(parents=True)
    (directory / "pyvenv.cfg").touch()
    (directory / "bin" / "python").write_text(python)
    (directory / "bin" / "python").chmod(0o755)
    return directory


def given(corpus, **values):
    text = {"source": corpus / "train.en", "target": corpus / "train.de"}
    return {**text, "environment": "env", **values}


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    from pipelines.data.preparation import prepare

    config = config_of(corpus)
    directory = tmp_path_factory.mktemp("prepared")
    size = config.model.vocabulary_size
    return prepare(config.corpus.corpus(), directory, vocabulary_size=size)


def config_of(corpus):
    sizes = {"vocabulary_size": 288, "tokens_per_replica": 256}
    return opennmt.Benchmark(**given(corpus, **sizes)).config()


def test_tokens_are_those_of_the_lines():
    """In the seconds since the line before."""
    tokens = [opennmt_peer.tokens_of(line, 0.5) for line in PRINTED]
    assert tokens == [None, None, 0, None, 6249 / 2, 8832 / 2]


def test_the_peer_reads_the_same_subwords(prepared, corpus, tmp_path):
    config = config_of(corpus)
    opennmt_peer.write_files(prepared, config, tmp_path)
    pieces = (tmp_path / "vocabulary").read_text(encoding="utf-8").splitlines()
    assert len(pieces) == len(set(pieces)) == 288 - 1
    assert pieces[:5] == ["<blank>", "<s>", "</s>", "<0x00>", "<0x01>"]
    for side, language in (("source", "en"), ("target", "de")):
        lines = (tmp_path / side).read_text(encoding="utf-8").splitlines()
        words = [line.split(" ") for line in lines]
        assert {word for line in words for word in line} <= set(pieces)
        text = ["".join(line).replace("▁", " ").strip() for line in words]
        assert text == (corpus / f"train.{language}").read_text(encoding="utf-8").splitlines()
        ends = len(lines)
        assert sum(map(len, words)) + ends == prepared.train.metadata[f"{side}_tokens"]


def test_the_peer_reads_its_settings_as_they_are_meant(prepared, corpus, tmp_path):
    config = config_of(corpus)
    opennmt_peer.write_files(prepared, config, tmp_path)
    text = (tmp_path / "settings.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == json.loads(text)
    settings = yaml.safe_load(text)
    assert settings == opennmt_peer.settings(config, tmp_path, 2000)
    assert settings["train"]["batch_size"] == 256
    assert settings["train"]["max_step"] == config.training.steps
    model = (tmp_path / "model.py").read_text(encoding="utf-8")
    compile(model, "model.py", "exec")
    assert "'num_units': 128" in model and "'pre_norm': True" in model


def test_our_tokens_are_those_of_the_plan(prepared, corpus):
    """Of a batch as many as its pairs have; the first update of each shape does not count."""
    config = config_of(corpus)
    tokens_of = OurTokens(prepared, config)
    assert (
        tokens_of("compiled 1 shapes and took their first updates in 2 s, until step 12", 1.0)
        is None
    )
    buckets, plan = prepared.train.buckets, batches_of(config, prepared, replicas=1).plan
    found = defaultdict(list)
    for step in range(1, 1 + round(plan.batches_per_epoch)):
        line = f"step {step:,}/2,000  loss 8.838  600 tokens/s"
        found[plan.bucket(step - 1)].append(tokens_of(line, 1.0))
    assert len(found) == len(buckets) > 1
    for number, (first, *others) in found.items():
        bucket = buckets[number]
        batch = 256 // bucket.longest // 8 * 8
        of_a_pair = (bucket.source_tokens + bucket.target_tokens) / bucket.pairs
        assert first == 0 and np.mean(others) == pytest.approx(batch * of_a_pair, rel=0.02)


def test_operations_by_hand():
    """E = C = 1, D = 2, I = 3, V = 5, of S = 7 and T = 11."""
    sizes = {"model_dim": 2, "inner_dim": 3, "num_heads": 1, "vocabulary_size": 5}
    config = TransformerConfig(**sizes, encoder_layers=1, decoder_layers=1)
    weights = 7 * (16 + 12 + 8) + 11 * (24 + 12 + 10)
    attention = 2 * 2 * (7 * 7 + 11 * 11 + 11 * 7)
    assert flops_of_pairs(config, np.array([7]), np.array([11])) == [6 * (weights + attention)]


def test_operations_are_those_of_all_kernels():
    """For an id a side: each multiplies once, and so does the embedding, as the softmax."""
    from tf_relpos import Transformer

    sizes = {"model_dim": 6, "inner_dim": 7, "num_heads": 3, "vocabulary_size": 11}
    config = TransformerConfig(**sizes, encoder_layers=2, decoder_layers=3)
    model = Transformer(config)
    model.build()
    names = ("kernel", "embedding", "embeddings")
    kernels = sum(np.prod(w.shape) for w in model.weights if w.path.split("/")[-1] in names)
    attention = 2 * 6 * (2 + 3 * 2)
    one = np.ones(1, int)
    assert flops_of_pairs(config, one, one) == [6 * (kernels + attention)]


def test_a_process_stands_still_between_its_turns(tmp_path):
    """What it prints in a turn it has done in the turn, but for what it was at."""
    code = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.01)"
    with PausedProcess("clock", [sys.executable, "-c", code], tmp_path) as process:
        for _ in range(3):
            began = time.monotonic()
            with process.turn() as lines:
                next(lines)
                next(lines)
                assert float(next(lines)) >= began
            time.sleep(0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(process._process.pid, 0)


def test_a_process_that_ends_is_told_of(tmp_path):
    code = "import sys; print('once'); sys.exit('ValueError: no GPU\\n\\n')"
    with (
        PausedProcess("OpenNMT-tf", [sys.executable, "-u", "-c", code], tmp_path) as process,
        process.turn() as lines,
        pytest.raises(InputError, match="^OpenNMT-tf has ended: ValueError: no GPU$"),
    ):
        list(lines)
    with (
        PausedProcess("OpenNMT-tf", ["/nowhere/python"], tmp_path) as process,
        pytest.raises(InputError, match="OpenNMT-tf cannot be started: .*/nowhere/python"),
        process.turn(),
    ):
        pass


def test_installing_that_fails_is_told_of(tmp_path):
    failing = "#!/bin/sh\necho WARNING >&2; echo 'ERROR: No matching distribution' >&2; exit 1\n"
    environment = write_environment(tmp_path / "env", failing)
    told = r"installing tensorflow==2.13.1 .* in .*env has failed: ERROR: No matching distribution$"
    with pytest.raises(InputError, match=told):
        opennmt_peer.install(environment, "python3.11")
    with pytest.raises(InputError, match="environment must be a virtual environment, or"):
        opennmt_peer.install(tmp_path, "python3.11")
    with pytest.raises(InputError, match="making .* with /nowhere/python has failed: No such file"):
        opennmt_peer.install(tmp_path / "new", "/nowhere/python")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"updates": 0}, "updates must be at least 1, got 0"),
        ({"preset": "huge"}, "preset must be one of tiny, base, big, "),
        (
            {"preset": "vaswani_base"},
            "preset must be one with relative positions, got vaswani_base",
        ),
        (
            {"precisions": ["float32", "float16"]},
            "precisions must be of float32, mixed_bfloat16, got ['float32', 'float16']",
        ),
        ({"source": "nowhere.en"}, "nowhere.en"),
        ({"environment": __file__}, "environment must be a virtual environment, or"),
    ],
)
def test_wrong_flags_are_told(values, message, corpus, refusal):
    assert message in refusal(opennmt.main, flags(**given(corpus, **values)))


@pytest.mark.slow
def test_beside_a_stand_in(corpus, tmp_path):
    """From text to results, with a script in the place of OpenNMT-tf."""
    output = tmp_path / "results.json"
    sizes = {"vocabulary_size": 288, "tokens_per_replica": 256, "updates": 3, "turns": 2}
    environment = write_environment(tmp_path / "env", PEER)
    values = {**sizes, "environment": environment, "precisions": "float32", "output": output}
    result = run_command("benchmark.opennmt", flags(**given(corpus, **values)))
    assert result.returncode == 0, result.stderr
    results = json.loads(output.read_text())
    theirs, ours = results["training"]
    assert (theirs["name"], ours["name"]) == ("OpenNMT-tf", "tf_relpos float32")
    assert theirs["tokens_per_second"] == pytest.approx(600)
    assert theirs["over_opennmt_tf"] == 1 and ours["tokens_per_second"] > 0
    assert len(results["turns"]) == 2 and results["settings"]["source"] == "train.en"
