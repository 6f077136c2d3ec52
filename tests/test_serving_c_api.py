"""The loader that TensorFlow Serving uses, called from C: no Python, no Keras, nothing of ours."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import serving_model
import tensorflow as tf
import tensorflow_text
from google.protobuf.message import Message
from tensorflow.core.protobuf import saved_model_pb2

COMPILER = shutil.which(os.environ.get("CC", "cc"))
PROGRAM = Path(__file__).with_name("serving_c_api.c")
LIBRARIES = [
    str(Path(tensorflow_text.__file__).parent / "python" / "ops" / "_sentencepiece_tokenizer.so")
]

pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("c_api") / "serving_c_api"
    library = tf.sysconfig.get_lib()
    flags = [f"-I{tf.sysconfig.get_include()}", f"-L{library}", f"-Wl,-rpath,{library}"]
    libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    command = [COMPILER, "-Wall", "-Werror", str(PROGRAM), *flags, *libraries, "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def signature(version: Path) -> Message:
    content = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    return content.meta_graphs[0].signature_def["serving_default"]


def run(program, version, texts: list[bytes], libraries=LIBRARIES):
    names = signature(version)
    tensors = [
        names.inputs["text"].name,
        names.outputs["translation"].name,
        names.outputs["score"].name,
    ]
    return subprocess.run(
        [program, version, *tensors, *libraries],
        input=b"".join(text + b"\n" for text in texts),
        capture_output=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
    )


def parse(output: bytes) -> list[tuple[float, bytes]]:
    results = []
    while output:
        score, size, rest = output.split(b"\t", 2)
        results.append((float(score), rest[: int(size)]))
        assert rest[int(size) : int(size) + 1] == b"\n"
        output = rest[int(size) + 1 :]
    return results


def test_a_c_program_translates_like_the_translator(program):
    translator, version = serving_model.exported()
    texts = [text.encode() for text in serving_model.sentences(13, seed=3)] + [b"", b"\xff dog"]
    result = run(program, version, texts)
    assert result.returncode == 0, result.stderr.decode()
    answers = parse(result.stdout)
    expected = [
        hypotheses[0]
        for hypotheses in translator.stream(text.decode(errors="replace") for text in texts)
    ]
    assert [translation.decode() for _, translation in answers] == [e.text for e in expected]
    assert len({translation for _, translation in answers}) > 9
    np.testing.assert_allclose(
        [score for score, _ in answers], [e.score for e in expected], rtol=1e-5, atol=2e-6
    )


def test_the_library_of_sentencepiece_is_needed(program):
    result = run(program, serving_model.exported()[1], [b"dog"], libraries=[])
    assert result.returncode == 1 and b"Sentencepiece" in result.stderr
