"""Freed memory that is kept."""

import os
import platform
import subprocess
import sys

import pytest

from pipelines.allocator import keep_freed_memory

glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

# A block that glibc maps anew each time by default: its own threshold never rises above 32 MiB.
PAGE_FAULTS = """
import resource, sys
from pipelines.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * (40 << 20)
before = page_faults()
for _ in range(5):
    b"x" * (40 << 20)
print(page_faults() - before)
"""


def page_faults(which):
    done = subprocess.run(
        [sys.executable, "-c", PAGE_FAULTS, which], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@glibc_only
def test_what_is_freed_is_not_cleared_again():
    given_back, kept = page_faults("given back"), page_faults("kept")
    assert given_back > 5 * (40 << 20) / os.sysconf("SC_PAGE_SIZE") / 1024  # huge pages at most
    assert kept < given_back / 10


@pytest.mark.parametrize("name", ["MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_users_own_settings_are_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()
