"""The Dockerfiles, as far as they can be checked without building: what they name exists.

`test_wheel` installs what the one that trains copies, and nothing else.
"""

import configparser
import json
import re
import shlex

import pytest

from tests.support.documents import DOCKERFILES, PAGES, blocks, copied_by, instructions, name, read
from tests.support.runs import ROOT

TRAIN, SERVE = (ROOT / "docs" / "docker" / f"{which}.Dockerfile" for which in ("train", "serve"))


@pytest.fixture(scope="module")
def metadata():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def of(path, instruction):
    """What follows each instruction of a kind."""
    return [rest for word, rest in instructions(path) if word == instruction]


def arguments(path):
    """The arguments of a Dockerfile and their defaults."""
    found = (rest.partition("=") for rest in of(path, "ARG"))
    return {argument: value.strip('"') for argument, _, value in found}


def shown():
    """The docker commands of the page, and of the comments of the files themselves."""
    page = "".join(blocks(PAGES / "deployment.md", "sh")).replace("\\\n", " ")
    comments = "".join(re.findall(r"^# +(docker .*\n)", "".join(map(read, DOCKERFILES)), re.M))
    return [shlex.split(line) for line in (page + comments).splitlines() if "docker" in line[:6]]


def values(command, flag):
    return [command[i + 1] for i, word in enumerate(command) if word == flag]


def test_there_are_two():
    assert sorted([TRAIN, SERVE]) == DOCKERFILES
    assert {word for path in DOCKERFILES for word, _ in instructions(path)} == {
        *("FROM", "ARG", "COPY", "RUN", "WORKDIR", "ENV", "ENTRYPOINT")
    }


def test_the_one_that_trains_installs_the_package(metadata):
    assert all((ROOT / path).exists() for path in copied_by(TRAIN))
    assert all(rest.split()[-1].startswith("/source/") for rest in of(TRAIN, "COPY"))
    (command,) = of(TRAIN, "RUN")
    assert "pip install" in command and "/source[export,plot,graphs]" in command
    extras = metadata["options.extras_require"]["pipelines"].split("\n")
    assert arguments(TRAIN)["TENSORFLOW"].replace("==", " ==") in extras
    (entry,) = of(TRAIN, "ENTRYPOINT")
    assert f"{json.loads(entry)[0]} = " in metadata["options.entry_points"]["console_scripts"]
    (image,) = of(TRAIN, "FROM")
    version = re.fullmatch(r"python:(3\.\d+)-slim", image)[1]
    assert f"Programming Language :: Python :: {version}" in metadata["metadata"]["classifiers"]


def test_the_one_that_serves_has_the_model_where_the_server_looks():
    """`/models/$MODEL_NAME` is where the image of TensorFlow Serving looks."""
    assert ("COPY", "saved_models/$MODEL /models/$MODEL") in instructions(SERVE)
    assert ("ENV", "MODEL_NAME=$MODEL") in instructions(SERVE)
    assert arguments(SERVE)["SERVING"].partition(":")[0] == "tensorflow/serving"


def test_the_commands_fit_the_files():
    built = {}
    for command in shown():
        if command[1] == "build":
            (path,), (tag,) = values(command, "-f"), values(command, "-t")
            assert ROOT / path in DOCKERFILES and command[-1] == "."
            given = {value.partition("=")[0] for value in values(command, "--build-arg")}
            assert given <= set(arguments(ROOT / path))
            built[tag] = ROOT / path
    assert set(built.values()) == set(DOCKERFILES)
    images = {word for command in shown() if command[1] == "run" for word in command}
    assert set(built) <= images
    assert "--build-arg TENSORFLOW=" in read(TRAIN) and "TENSORFLOW" in arguments(TRAIN)


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_variables_are_declared(path):
    before = set()
    for word, rest in instructions(path):
        assert set(re.findall(r"\$(\w+)", rest)) <= before
        if word == "ARG":
            before.add(rest.partition("=")[0])
