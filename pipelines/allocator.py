"""The C library's allocator, told not to give back the memory that every step needs anew."""

from __future__ import annotations

import ctypes
import os

# Numbers of <malloc.h>. A thread's heap has 64 MiB at most: with as much left at its end it is
# never taken apart, and what is larger than that is a mapping of its own whatever the threshold.
_M_TOP_PAD, _M_MMAP_THRESHOLD = -2, -3
_HEAP, _GIBIBYTE = 64 << 20, 1 << 30
_VARIABLES = (
    *("MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"),
    "GLIBC_TUNABLES",
)


def keep_freed_memory() -> bool:
    """Has freed memory kept for the next step where the C library is glibc.

    A step of training frees hundreds of megabytes and needs them again in the next one. By itself
    glibc gives much of it back to the kernel in between, which has to find and to clear every page
    once more: much of the time on virtual machines where a page fault is dear.

    Environment variables about it, such as `MALLOC_TOP_PAD_` or `GLIBC_TUNABLES`, are the user's
    decision and are left alone; so are other allocators (macOS, Windows, musl; one by `LD_PRELOAD`
    ignores it).

    Returns:
        Whether glibc was told.
    """
    if any(name in os.environ for name in _VARIABLES):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (glibc alone has it)
        set_option = library.mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: Windows takes no None
        return False
    settings = ((_M_TOP_PAD, _HEAP), (_M_MMAP_THRESHOLD, _GIBIBYTE))
    return all(set_option(option, value) == 1 for option, value in settings)
