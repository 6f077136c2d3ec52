"""Text that changes is noticed, and text that does not is not read again."""

import os
import shutil

import pytest

from pipelines.errors import InputError
from pipelines.files import fingerprints
from pipelines.files.fingerprints import are_unchanged, write_fingerprints


@pytest.fixture
def text(tmp_path):
    """The record of two files, and their paths."""
    files = [str(tmp_path / name) for name in ("a.en", "a.de")]
    for path in files:
        with open(path, "w") as file:
            file.write(f"{path}\n")
    write_fingerprints(tmp_path / "text.json", files)
    return tmp_path / "text.json", files


@pytest.mark.parametrize("keeps_time", [False, True])
def test_another_text_of_the_same_size_is_noticed(text, keeps_time):
    record, files = text
    before, status = record.read_bytes(), os.stat(files[1])
    with open(files[1], "r+") as file:
        file.write("X")
    if keeps_time:
        os.utime(files[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not are_unchanged(record, files)
    assert not are_unchanged(record, files)
    assert record.read_bytes() == before


def test_the_same_text_is_read_only_after_it_has_been_moved(text, tmp_path, monkeypatch):
    record, files = text
    moved = [shutil.copy(path, f"{path}.moved") for path in files]
    assert are_unchanged(record, moved)
    monkeypatch.setattr(fingerprints, "sha256", None)  # nothing is read from here on
    assert are_unchanged(record, moved)


def test_fewer_files_and_files_in_another_order_are_another_text(text):
    record, files = text
    assert not are_unchanged(record, files[:1])
    assert not are_unchanged(record, files[::-1])


def test_without_a_record_nothing_is_known(text, tmp_path):
    assert are_unchanged(tmp_path / "absent.json", text[1])


@pytest.mark.parametrize("content", ["[1, 2]", '[{"sha256": 1}, {}]', "7", '{"a": 1, "b": 2}', "["])
def test_a_damaged_record_is_told(text, content):
    text[0].write_text(content)
    with pytest.raises(InputError, match="text.json cannot be read"):
        are_unchanged(*text)


def test_a_file_that_is_gone_is_told(text):
    os.unlink(text[1][0])
    with pytest.raises(InputError, match="cannot read .*a.en: No such file"):
        are_unchanged(*text)
