"""What all tests share: a generator seeded by the test's own name, and backend selection."""

import gc
import logging
import os
import shutil
import signal
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# What is compiled for a test runs once or twice: not optimized, and by what compiles in less time.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)
if (
    os.environ.get("KERAS_BACKEND") == "torch"
):  # whose threads wait for each other, worker by worker
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

# Ignored by what is started with `&` or `nohup`, and then by what that starts.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)


def pytest_addoption(parser):
    """For `test_parity`, which trains the demo model unless it is given another one."""
    for name, what in (
        ("--run_dir", "a run directory"),
        ("--source", "sentences, one a line"),
        ("--reference", "their translations"),
    ):
        parser.addoption(name, help=f"test_parity: {what}")


def pytest_configure(config):
    config.addinivalue_line("markers", "tensorflow_only: needs the TensorFlow backend of Keras")
    config.addinivalue_line("markers", "requires_trainable_backend: in Keras's own tests")


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items):
    """Of a test with three parameters and more, only so many combinations are not slow as have
    each pair of values; on other backends than TensorFlow, each value.
    """
    import keras

    from tests.support.combinations import beyond_the_cover

    is_tensorflow = keras.backend.backend() == "tensorflow"
    quick = [item for item in items if not item.get_closest_marker("slow")]
    for item in beyond_the_cover(quick, strength=2 if is_tensorflow else 1):
        item.add_marker(pytest.mark.slow)
    if is_tensorflow:
        return
    for item in items:
        if item.get_closest_marker("tensorflow_only"):
            item.add_marker(pytest.mark.skip(reason="needs the TensorFlow backend of Keras"))


def pytest_collection_finish():
    """What has been imported is not looked through for garbage, as Keras does for each layer that
    it quantizes.
    """
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _no_graph_outlives_its_module():
    """TensorFlow keeps what each custom gradient of a graph computes with, which is the whole
    graph, for as long as the process lives: gigabytes, through which each search for garbage goes
    again.
    """
    yield
    import keras

    if keras.backend.backend() != "tensorflow":
        return
    from tensorflow.python.framework import ops

    gradients = ops.gradient_registry._registry
    for name in [name for name in gradients if name.startswith("CustomGradient-")]:
        del gradients[name]
    gc.collect()


@pytest.fixture
def rng(request):
    """A NumPy generator that gives each test its own reproducible numbers."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _fresh_seed(request):
    """Initial weights and dropout, too, depend on the test's name alone."""
    import keras

    keras.utils.set_random_seed(zlib.crc32(request.node.nodeid.encode()) % 2**31)


@pytest.fixture(autouse=True)
def _log_as_it_was():
    """Command lines direct the library's log to the standard streams."""
    log = logging.getLogger("pipelines")
    before = log.handlers, log.level, log.propagate
    yield
    log.handlers, log.level, log.propagate = before


@pytest.fixture
def run(tmp_path):
    """The directory of a training run that has been started, without a checkpoint."""
    from tests.support.runs import open_run

    return open_run(tmp_path / "run")


@pytest.fixture
def refusal(monkeypatch, capfd):
    """Runs a command line that has to refuse and to print no result; gives its message."""
    from tests.support.refusals import message_of
    from tests.support.runs import call

    def refusal(main, arguments, **options):
        capfd.readouterr()  # of what was run before
        status = call(main, arguments, monkeypatch)
        output, errors = capfd.readouterr()
        assert output == ""
        return message_of(status, errors, **options)

    return refusal


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A directory with the text of the small task in `runs`."""
    from tests.support.runs import write_corpus

    return write_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def trained_run(corpus, tmp_path_factory):
    """The directory of a short run that has learnt the task; `export` beside it.

    It is trained once for all processes that test, each of which has a copy.
    """
    from pipelines.files.locks import one_at_a_time

    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # of all of them
    place /= "trained_once"
    place.mkdir(exist_ok=True)
    with one_at_a_time(place):
        if not (place / "export").exists():  # which comes last
            _train(corpus, place)
    return shutil.copytree(place, tmp_path_factory.mktemp("trained") / "copy") / "run"


def _train(corpus, directory):
    from pipelines import train_wmt
    from tests.support.runs import train_flags

    arguments = train_flags(
        corpus,
        directory / "run",
        steps=600,
        warmup_steps=100,
        tokens_per_replica=512,
        dropout=0.0,
        label_smoothing=0.0,
        valid_every=300,
        checkpoint_every=200,
        keep_checkpoints=2,
        average_checkpoints=2,
        export_dir=directory / "export",
        jit=None,
    )
    assert train_wmt.main(arguments) == 0
