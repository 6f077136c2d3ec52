"""`pipelines.translate` on each form of a model, and as a filter between two programs."""

import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.translate import groups_as_they_come
from pipelines.translators.base import Sampling
from pipelines.translators.open import open_translator
from tests.support.exported_forms import forms
from tests.support.layer_checks import run_python
from tests.support.refusals import message_of, refused
from tests.support.runs import ENVIRONMENT, ROOT, command, run_command, run_process
from tests.support.serving_model import NAME, exported, loaded, sentences
from tests.support.serving_servers import GrpcModel, Model, RestModel, grpc_server, rest_server

SOURCES = [*sentences(20, seed=11), ""]


def hypotheses(model, **choices):
    return list(open_translator(model, **choices).stream(SOURCES, 8))


FORMS = ["run", "saved_model", "ctranslate2"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_translates_alike(form):
    """Greedily: CTranslate2's beam is another one."""
    expected = hypotheses(forms()["run"], beam_size=1)
    found = hypotheses(forms()[form], beam_size=1)
    assert len(found) == len(SOURCES)
    for e, f in zip(expected, found, strict=True):
        assert e[0].text == f[0].text


def test_a_tflite_file_translates_like_the_run():
    expected = open_translator(forms()["run"]).translate(SOURCES)
    assert open_translator(forms()["tflite"]).translate(SOURCES) == expected


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_several_hypotheses(form):
    for rows in hypotheses(forms()[form], nbest=3, beam_size=3, alpha=0.6)[:-1]:
        assert len(rows) == 3
        assert [r.score for r in rows] == sorted((r.score for r in rows), reverse=True)


@pytest.mark.parametrize(
    "form, choices",
    [
        *((form, {"nbest": 2}) for form in FORMS),
        ("tflite", {}),
        ("run", {"sample": Sampling()}),
    ],
    ids=str,
)
def test_blank_lines_have_one_translation_which_is_empty(form, choices):
    """They change nothing for others."""
    blank, translator = ["", " \t", "\u3000\xa0"], open_translator(forms()[form], **choices)
    (alone,) = translator.stream(["the dog"])
    *rows, dog = translator.stream([*blank, "the dog"])
    assert list(translator.stream(blank)) == rows == [[("", 0.0)]] * 3
    assert len(dog) == len(alone) and dog[0].text
    if "sample" not in choices:  # which draws anew
        assert dog == alone


def test_the_newest_version_is_opened(tmp_path):
    version = exported()[1]
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "saved_model.pb").write_bytes(b"not one")
    (tmp_path / "10").symlink_to(version)
    (tmp_path / ".11.incomplete").symlink_to(version)
    assert hypotheses(tmp_path) == hypotheses(version)
    with refused("9 cannot be read"):
        open_translator(tmp_path / "9")


def test_a_ctranslate2_model_without_weights_is_told(tmp_path):
    copy = shutil.copytree(forms()["ctranslate2"], tmp_path / "copy")
    (copy / "model.bin").unlink()
    with refused("copy cannot be read: .*model.bin"):
        open_translator(copy)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_saved_model_that_was_copied_in_part_is_told(tmp_path, share):
    version = shutil.copytree(exported()[1], tmp_path / "1")
    (weights,) = (version / "variables").glob("variables.data-*")
    weights.write_bytes(weights.read_bytes()[: int(share * weights.stat().st_size)])
    with refused("1 cannot be read: "):
        open_translator(version)


def test_a_saved_model_answers_with_the_settings_of_its_export_unless_others_are_given():
    """It was exported with a beam of 3."""
    by_default, alike, greedy = (
        hypotheses(forms()["saved_model"], **choices)
        for choices in ({}, {"beam_size": 3}, {"beam_size": 1})
    )
    assert [len(rows) for rows in by_default] == [1] * len(SOURCES)
    assert [r[0].text for r in by_default] == [r[0].text for r in alike]
    assert [r[0].score for r in by_default] != [r[0].score for r in greedy]
    with refused(r"toy/1 refuses: beam_size must be from 1 to 100, got 200$"):
        hypotheses(forms()["saved_model"], beam_size=200)


@pytest.mark.parametrize(
    ("path", "choices", "message"),
    [
        (
            "nothing",
            {},
            "there is no model .*/nothing: a model must be a .*, a Sav",
        ),
        ("empty", {}, "empty is a directory that holds nothing: a model must be"),
        ("other", {}, "other is a directory that holds a.txt, b.txt: a model must be"),
        ("other/a.txt", {}, "a.txt is a file of another kind: .* .tflite file"),
        ("x.tflite", {"nbest": 2}, "nbest cannot be chosen for a TFLite model, got 2: "),
        ("x.tflite", {"beam_size": 2}, "beam_size cannot be chosen for a TFLite model, got 2: "),
        (
            "x.tflite",
            {"checkpoint": "best"},
            "--checkpoint best needs a run directory, but .*/x.tflite is a TFLite model$",
        ),
        (
            "ct2",
            {"sample": Sampling()},
            "^--sample needs a run directory, but .*/ct2 is a CTranslate2 model$",
        ),
        (
            "ct2",
            {"alignment": True},
            "^--alignment needs a run directory, but .*/ct2 is a CTranslate2 model$",
        ),
        ("ct2", {}, "ct2 cannot be read"),
        ("no_weights", {"alignment": True}, "no_weights is a CTranslate2 model$"),
    ],
)
def test_what_cannot_be_opened(tmp_path, path, choices, message):
    for directory in ("empty", "other", "ct2", "no_weights"):
        (tmp_path / directory).mkdir()
    files = ("ct2/model.bin", "no_weights/config.json", "no_weights/shared_vocabulary.json")
    for file in ("other/a.txt", "other/b.txt", "x.tflite", *files):
        (tmp_path / file).write_text("")
    with refused(message):
        open_translator(tmp_path / path, **choices)


def test_what_only_run_directories_can_do():
    """Also of URLs, to which nothing is sent."""
    url = "http://localhost:1/v1/models/demo"
    for choices, flag in (({"sample": Sampling()}, "sample"), ({"alignment": True}, "alignment")):
        with refused(f"^--{flag} needs a run directory, but {url} is a served model$"):
            open_translator(url, **choices)


@pytest.mark.parametrize("name", ["1", "model.tflite"])
def test_a_run_directory_that_holds_its_exports_is_a_run_directory(tmp_path, name):
    if name == "1":
        (tmp_path / name).symlink_to(exported()[1])
    else:
        export = Path(forms()["tflite"])
        for file in export.parent.glob(f"{export.stem}.*"):
            shutil.copy(file, tmp_path / file.name.replace(export.stem, "model"))
    assert open_translator(tmp_path).translate(["the dog"])
    (tmp_path / "config.json").write_text("{")
    with refused("config.json cannot be read"):
        open_translator(tmp_path)


@pytest.mark.parametrize("url", ["ftp://host/v1/models/demo", "http://host:8501/demo"])
def test_urls_that_are_no_served_models(url):
    with refused("model must be a URL like http"):
        open_translator(url)


def test_forms_that_start_fast_need_no_tensorflow():
    loaded = run_python(
        f"""
import sys
from pipelines import translate
from pipelines.translators.open import open_translator
open_translator("http://localhost:1/v1/models/demo")
open_translator({str(forms()["ctranslate2"])!r}).translate(["the dog"])
open_translator({str(forms()["tflite"])!r}).translate(["the dog"])
print(sorted({{"tensorflow", "keras", "jax", "torch"}} & set(sys.modules)))
"""
    )
    assert loaded == "[]"


def test_groups_keep_the_order_and_the_limit():
    lines = [str(i) for i in range(1000)]
    groups = list(groups_as_they_come(lines, 7))
    assert [line for group in groups for line in group] == lines
    assert max(len(group) for group in groups) == 7
    assert list(groups_as_they_come([], 7)) == []


def test_an_error_of_the_input_comes_after_the_lines_before_it():
    def lines():
        yield from "abc"
        raise InputError("no more")

    found = []
    with refused("no more"):
        for group in groups_as_they_come(lines(), 2):
            found += group
    assert found == ["a", "b", "c"]


def start(*arguments, stdin=subprocess.PIPE):
    """The command with pipes at its ends."""
    return subprocess.Popen(
        command("translate", ["--model", forms()["ctranslate2"], *arguments]),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_each_line_is_answered_before_the_next_is_written():
    """A process that waits for a full batch, or buffers its output, would stop here for good."""
    expected = open_translator(forms()["ctranslate2"]).translate(SOURCES[:5])
    with start() as process:
        watchdog = threading.Timer(600, process.kill)
        watchdog.start()
        for source, translation in zip(SOURCES, expected, strict=False):
            process.stdin.write(f"{source}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{translation}\n"
        assert process.communicate() == (b"", b"")
        watchdog.cancel()
    assert process.returncode == 0


def test_invalid_text_is_reported_after_the_translations_before_it():
    good = SOURCES[:3]
    with start() as process:
        text = "".join(f"{line}\n" for line in good).encode() + b"\xff\xfe\nmore\n"
        printed, errors = process.communicate(text)
    assert len(printed.decode().splitlines()) == len(good)
    told = message_of(process.returncode, errors.decode())
    assert told.startswith("text must be UTF-8, but line 4 of ")


def test_a_reader_that_has_had_enough():
    with start() as process:
        process.stdout.close()
        process.stdin.write(b"".join(f"{line}\n".encode() for line in SOURCES))
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_what_is_read_before_is_not_translated(tmp_path):
    """Of a file as well, which could be read from its beginning."""
    (tmp_path / "sources").write_text("".join(f"{line}\n" for line in SOURCES))
    translate = command("translate", ["--model", forms()["ctranslate2"]])
    with open(tmp_path / "sources") as file:
        words = ["sh", "-c", 'read -r line; exec "$@"', "sh", *translate]
        result = run_process(words, stdin=file)
    assert result.stderr == ""
    expected = open_translator(forms()["ctranslate2"]).translate(SOURCES[1:])
    assert result.stdout.splitlines() == expected


def test_a_socket_is_read_until_it_ends_even_one_that_does_not_wait():
    expected = open_translator(forms()["ctranslate2"]).translate(SOURCES[:2])
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs, start(stdin=theirs) as process:
        for source, translation in zip(SOURCES[:2], expected, strict=True):
            ours.sendall(f"{source}\n".encode())
            assert process.stdout.readline().decode() == f"{translation}\n"
        ours.shutdown(socket.SHUT_WR)
        assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_a_closed_standard_input_is_told():
    translate = command("translate", ["--model", forms()["ctranslate2"]])
    result = run_process(["sh", "-c", 'exec "$@" <&-', "sh", *translate])
    told = message_of(result.returncode, result.stderr)
    assert told == "standard input must be open, but it is closed" and result.stdout == ""


def test_lines_that_are_cut_are_told_and_control_characters_do_not_reach_a_terminal():
    long, odd = "dog " * 300, "dog \x1b[2J\x07\tdog"
    result = run_command(
        "translate",
        ["--model", forms()["ctranslate2"], "--batch", 2],
        stdin="".join(f"{line}\n" for line in ("dog", odd, long, "", long)),
    )
    cut = "is cut: the model reads 256 of its 301 subwords, the end mark among them"
    assert result.stderr == f"line 3 {cut}\nline 5 {cut}\n2 of 5 lines were cut\n"
    lines = result.stdout.split("\n")
    assert len(lines) == 6 and lines[3] == ""
    assert all(line.isprintable() for line in lines)


def test_all_is_translated_where_standard_error_is_full():
    words = command("translate", ["--model", forms()["ctranslate2"], "--verbose"])
    with open("/dev/full", "w") as full:
        streams = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": full}
        result = run_process(words, input="dog\n", **streams)
    assert (result.returncode, result.stdout.count("\n")) == (0, 1)


def test_nbest_and_throughput(tmp_path):
    result = run_command(
        "translate",
        ["--model", forms()["ctranslate2"], "--nbest", 2, "--beam_size", 3, "--verbose"],
        stdin="".join(f"{line}\n" for line in SOURCES),
    )
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert rows.pop() == [str(len(SOURCES) - 1), "0.0000", ""]  # the empty line's
    numbers = [i for i in range(len(SOURCES) - 1) for _ in "ab"]
    assert [int(number) for number, _, _ in rows] == numbers
    assert all(float(a[1]) >= float(b[1]) for a, b in zip(rows[::2], rows[1::2], strict=True))
    assert result.stderr.startswith(f"{forms()['ctranslate2']}: {len(SOURCES)} sentences in ")
    assert result.returncode == 0


@pytest.fixture(params=["rest", "grpc"])
def url(request):
    """Of the model behind a server."""
    model = Model(NAME, loaded())
    if request.param == "rest":
        with rest_server(RestModel(model)) as address:
            yield f"http://{address}/v1/models/{NAME}"
    else:
        with grpc_server(GrpcModel(model)) as address:
            yield f"grpc://{address}/{NAME}"


def test_a_served_model(url):
    lines = "".join(f"{line}\n" for line in SOURCES)
    expected = [rows[0].text for rows in hypotheses(forms()["saved_model"])]
    result = run_command("translate", ["--model", url, "--verbose"], stdin=lines)
    assert result.stdout.splitlines() == expected
    assert result.stderr.startswith(f"{url}: {len(SOURCES)} sentences in ")
    assert result.returncode == 0

    result = run_command("translate", ["--model", url.replace(NAME, "other")], stdin=lines)
    assert message_of(result.returncode, result.stderr) and result.stdout == ""
