"""A C program that translates with a SavedModel through TensorFlow's C API."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_text
from google.protobuf.message import Message
from tensorflow.core.protobuf import saved_model_pb2

COMPILER = shutil.which(os.environ.get("CC", "cc"))
PROGRAM = Path(__file__).with_name("serving_c_api.c")
LIBRARIES = [
    str(Path(tensorflow_text.__file__).parent / "python" / "ops" / "_sentencepiece_tokenizer.so")
]


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def compiled(directory: Path) -> Path:
    """The program."""
    path = directory / "serving_c_api"
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
