"""What all tests share: a generator seeded by the test's own name, and backend selection."""

import os
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "tensorflow_only: needs the TensorFlow backend of Keras")


def pytest_collection_modifyitems(items):
    import keras

    if keras.backend.backend() == "tensorflow":
        return
    for item in items:
        if item.get_closest_marker("tensorflow_only"):
            item.add_marker(pytest.mark.skip(reason="needs the TensorFlow backend of Keras"))


@pytest.fixture
def rng(request):
    """A NumPy generator that gives each test its own reproducible numbers."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _fresh_seed(request):
    """Initial weights and dropout, too, depend on the test's name alone."""
    import keras

    keras.utils.set_random_seed(zlib.crc32(request.node.nodeid.encode()) % 2**31)
