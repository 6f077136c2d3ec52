"""Numbered directories that are complete or absent."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from pipelines.errors import InputError
from pipelines.exporters.versions import (
    AlreadyExported,
    check_is_new,
    check_place,
    new_version,
    write_source,
)


def write(directory, version=None, text="x"):
    with new_version(directory, version) as (path, final):
        (path / "file").write_text(text)
        assert path.parent == final.parent and not path.name.isdigit()
        assert not final.exists()
    assert final.is_dir() and not path.exists()
    return final.name


def test_numbers_go_up_from_the_largest(tmp_path):
    for name in ("old", "notes.txt", "²", ".9.incomplete"):
        (tmp_path / name).mkdir()
    assert [write(tmp_path) for _ in range(2)] == ["1", "2"]
    assert write(tmp_path, 10) == "10"
    assert write(tmp_path) == "11"
    assert write(tmp_path, 5) == "5"


def test_a_failure_leaves_nothing_of_a_number(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_version(tmp_path / "model") as (path, _):
        (path / "half").write_text("x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "model")
    with pytest.raises(KeyboardInterrupt), new_version(tmp_path / "model"):
        raise KeyboardInterrupt
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["1"]


def test_an_existing_version_is_refused_and_stays(tmp_path):
    write(tmp_path, 3, "first")
    with pytest.raises(InputError, match="version 3 exists in .*: give another --version.*, 4$"):
        write(tmp_path, 3, "second")
    assert (tmp_path / "3" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_of_two_at_once_one_waits(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        with new_version(tmp_path) as (path, _):
            (path / "file").write_text("slow")
            other = pool.submit(write, tmp_path)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.3)
        assert other.result() == "2"
    assert (tmp_path / "1" / "file").read_text() == "slow"


def test_a_number_that_is_taken_meanwhile_stays(tmp_path):
    """As by another machine, where the file system has no locks."""
    refused = pytest.raises(InputError, match="cannot write .*1: ")
    with refused, new_version(tmp_path) as (path, final):
        (path / "file").write_text("slow")
        final.mkdir()
        (final / "file").write_text("fast")
    assert (tmp_path / "1" / "file").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_places_that_cannot_hold_versions_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(InputError, match="cannot write to the output directory .*file"):
            write(path)
    (tmp_path / "demo" / "1").mkdir(parents=True)
    (tmp_path / "demo" / "1" / "saved_model.pb").write_text("x")
    with pytest.raises(InputError, match=r"must hold versions, .*demo.1 is one.*give .*demo$"):
        write(tmp_path / "demo" / "1")
    with pytest.raises(InputError, match="version must be at least 1, got 0"):
        write(tmp_path, 0)
    with pytest.raises(InputError, match=r"version must be below 2\^63, .*got 9223372036854775808"):
        write(tmp_path, 1 << 63)


NEEDED = [
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
]


def export(directory, source):
    with new_version(directory) as (path, final):
        check_is_new(directory, source)
        for name in ("assets.extra", "variables"):
            (path / name).mkdir()
        for name in NEEDED:
            (path / name).write_text("x")
        write_source(path, source)
    return final.name


def test_the_same_is_not_exported_twice_in_a_row(tmp_path):
    first, second = ({"run": "a", "weights": weights} for weights in "12")
    assert export(tmp_path / "m", first) == "1"
    with pytest.raises(AlreadyExported, match="m/1 holds this model .* already: give --version"):
        export(tmp_path / "m", first)
    assert export(tmp_path / "m", second) == "2"
    assert export(tmp_path / "m", first) == "3"  # back to the first


@pytest.mark.parametrize("name", NEEDED)
def test_a_version_that_lacks_a_file_is_exported_again(tmp_path, name):
    assert export(tmp_path, {"run": "a"}) == "1"
    (tmp_path / "1" / name).write_text("")
    assert export(tmp_path, {"run": "a"}) == "2"
    (tmp_path / "2" / name).unlink()
    assert export(tmp_path, {"run": "a"}) == "3"


def test_versions_of_another_run_are_not_replaced_unasked(tmp_path):
    assert export(tmp_path, {"run": "a"}) == "1"
    message = "holds versions of another run, .* choose another directory, or .*--version 2`"
    for run in ("b", None):
        with pytest.raises(InputError, match=message):
            export(tmp_path, {"run": run})
        with pytest.raises(InputError, match=message):
            check_place(tmp_path, run)
    check_place(tmp_path, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"run": null}', "[" * 10**5, None])
def test_versions_that_do_not_say_where_they_are_from_are_gone_on_with(tmp_path, content):
    (tmp_path / "7" / "assets.extra").mkdir(parents=True)
    if content is not None:
        (tmp_path / "7" / "assets.extra" / "tf_relpos.json").write_text(content)
    check_place(tmp_path, "a")
    assert export(tmp_path, {"run": "a"}) == "8"


@pytest.mark.parametrize("name", ["mine [v2]", "a\\b"])
def test_paths_that_tensorflow_takes_for_patterns_are_refused(tmp_path, name):
    directory = tmp_path / name
    message = rf"no \[ and no \\ in its path.*, got {re.escape(str(directory))}: give"
    with pytest.raises(InputError, match=message), new_version(directory):
        pass
    with pytest.raises(InputError, match=message):
        check_place(directory, None)
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_found_where_it_was_exported(tmp_path):
    directory = tmp_path / "a*b?{c}"
    check_place(directory, None)
    model = tf.Module()
    model.number = tf.Variable(3)
    with new_version(directory) as (path, final):
        tf.saved_model.save(model, path)
    assert int(tf.saved_model.load(final).number) == 3


def test_a_place_is_checked_without_a_trace(tmp_path):
    check_place(tmp_path / "new" / "model", None)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "away")
    for name in ("file", "file/model", "link"):
        with pytest.raises(InputError, match=f"cannot write to export_dir .*{name}: "):
            check_place(tmp_path / name, None)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(InputError, match="must hold versions"):
        check_place(tmp_path, None)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "saved_model.pb"}
