"""Files and directories that are complete or absent."""

import fcntl
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pipelines.errors import InputError
from pipelines.files.atomic import (
    check_files_writable,
    new_directory,
    new_file,
    remove_leftovers,
    write_text,
)
from pipelines.files.locks import exclusive, exclusive_file
from tests.support.full_disk import largest_files
from tests.support.runs import ENVIRONMENT

WRITER = """
import sys
from pathlib import Path
from pipelines.files import atomic
with getattr(atomic, sys.argv[1])(sys.argv[2]) as path:
    (path / "half" if path.is_dir() else path).write_text("half")
    print("at work", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("make", ["new_file", "new_directory"])
def test_what_a_process_writes_is_a_leftover_when_it_is_dead(tmp_path, make):
    arguments = [sys.executable, "-c", WRITER, make, str(tmp_path / "x")]
    with subprocess.Popen(
        arguments, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "at work\n"
        remove_leftovers(tmp_path)
        (hidden,) = tmp_path.iterdir()
        assert hidden.name.startswith(".x.") and hidden.name.endswith(".incomplete")
        writer.kill()
    write_text(tmp_path / "y", "beside it")
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


def test_other_hidden_files_are_no_leftovers(tmp_path):
    names = [".x.incomplete", "x.0123abcd.incomplete", ".x.0123abcd", ".0123abcd.incomplete"]
    for name in names:
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("error", [OSError, KeyError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "deep" / "file"
    write_text(path, "before")
    expected = InputError if error is OSError else error
    with pytest.raises(expected), new_file(path) as temporary:
        temporary.write_text("half")
        raise error("failed")
    with pytest.raises(expected), new_directory(path.with_name("directory")):
        raise error("failed")
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.read_text() == "before"


@pytest.mark.parametrize("make", [new_file, new_directory])
def test_a_place_that_cannot_be_written_is_told(tmp_path, make):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match="cannot write .*/x: Not a directory"),
        make(tmp_path / "file" / "x"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_directories_are_replaced_when_that_is_asked_for(tmp_path):
    path = tmp_path / "x"
    for text in ("first", "second"):
        with new_directory(path, replace=True) as temporary:
            (temporary / "file").write_text(text)
    assert (path / "file").read_text() == "second"
    with pytest.raises(InputError, match="cannot write .*/x: "), new_directory(path) as temporary:
        (temporary / "file").write_text("third")
    assert (path / "file").read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_lock_file_tells_who_holds_it(tmp_path):
    message = f"{tmp_path} is in use by process {os.getpid()} on .*: wait for it, or choose another"
    for _ in range(2):
        with (
            exclusive(tmp_path),
            pytest.raises(InputError, match=message),
            exclusive(tmp_path),
        ):
            raise AssertionError("two hold it")
    assert not any(tmp_path.iterdir())


def test_a_file_of_somebody_that_has_the_name_of_a_lock_stays(tmp_path):
    (tmp_path / "lock").write_text("mine")
    with (
        pytest.raises(InputError, match="/lock must be absent, or the lock of a process"),
        exclusive(tmp_path),
    ):
        raise AssertionError("it was taken")
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_file_that_is_made_tells_who_makes_it(tmp_path):
    path = tmp_path / "found.json"
    message = f"^{path} is in use by process {os.getpid()} on .*, or choose another file$"
    with (
        exclusive_file(path, "output"),
        exclusive_file(tmp_path / "other.json", "output"),
        pytest.raises(InputError, match=message),
        exclusive_file(path, "output"),
    ):
        raise AssertionError("two hold it")
    assert not any(tmp_path.iterdir())


def test_a_lock_file_that_goes_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    flock, path = fcntl.flock, tmp_path / "lock"
    path.touch()

    def late(*arguments):
        monkeypatch.undo()
        path.unlink()  # as who held it does at the end
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with exclusive(tmp_path):
        assert path.read_text().startswith(f"process {os.getpid()} on ")


def test_what_fails_under_a_lock_leaves_no_directory_that_it_has_made(tmp_path):
    with pytest.raises(InputError, match="^refused$"), exclusive(tmp_path / "a" / "b"):
        raise InputError("refused")
    assert not any(tmp_path.iterdir())
    with pytest.raises(InputError, match="^refused$"), exclusive(tmp_path / "a" / "b"):
        (tmp_path / "a" / "kept").touch()
        raise InputError("refused")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "kept"]
    with (
        largest_files(0),
        pytest.raises(InputError, match="^cannot write to x .*/full: File too large$"),
        exclusive(tmp_path / "full", "x"),
    ):
        raise AssertionError("the lock was not written")
    assert not (tmp_path / "full").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="^refused$"), exclusive(tmp_path / "mine"):
        raise InputError("refused")
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize("make", [new_file, new_directory])
def test_a_failure_leaves_no_directory_that_was_made_for_it(tmp_path, make):
    with pytest.raises(KeyboardInterrupt), make(tmp_path / "a" / "b" / "x"):
        raise KeyboardInterrupt
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("is_there", [True, False])
def test_what_a_link_leads_to_is_written(tmp_path, is_there):
    (tmp_path / "there").mkdir()
    if is_there:
        (tmp_path / "there" / "file").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_text(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "after"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file"]


@pytest.mark.parametrize("letter", ["a", "ä"])
def test_names_may_be_as_long_as_the_file_system_takes_them(tmp_path, letter):
    name = "x" + letter * (254 // len(letter.encode()))
    write_text(tmp_path / name, "written")
    with new_directory(tmp_path / name[:-1]) as path:
        remove_leftovers(tmp_path)
        assert path.exists() and path.parent == tmp_path
    assert sorted(os.listdir(tmp_path)) == sorted([name, name[:-1]])
    assert (tmp_path / name).read_text() == "written"


def test_names_that_are_too_long_are_told_beforehand(tmp_path):
    flags = SimpleNamespace(output=str(tmp_path / ("x" * 256)), picture=None)
    with pytest.raises(
        InputError, match="^output must have a name of at most 255 bytes, got .*xx$"
    ):
        check_files_writable(flags, "picture", "output")
