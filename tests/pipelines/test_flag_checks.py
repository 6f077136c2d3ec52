"""What is checked of flags that several commands have."""

from types import SimpleNamespace

import pytest

from pipelines.errors import InputError
from pipelines.flag_checks import check_files


def test_only_what_is_given_must_be_a_file(tmp_path, monkeypatch):
    """Whatever else the directory has that a command runs in."""
    monkeypatch.chdir(tmp_path)
    for name in ("x", "None", "output"):
        (tmp_path / name).mkdir()
    check_files(SimpleNamespace(output=None, picture="new.svg"), "output", "picture")
    with pytest.raises(InputError, match="^picture must be a file, got a directory, x$"):
        check_files(SimpleNamespace(output=None, picture="x"), "output", "picture")
