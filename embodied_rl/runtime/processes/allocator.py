"""Settings of the C library's memory allocator."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3), malloc.h
_GIGABYTE = 1 << 30


def keep_freed_memory() -> None:
    """Stop the allocator from giving large blocks back to the system after each use.

    A network on the CPU frees and allocates the same large activations in every step. Returning them each time costs a
    page fault per 4 kB, about a fifth of an update. The call does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    for option, value in ((_MMAP_THRESHOLD, _GIGABYTE), (_TRIM_THRESHOLD, _GIGABYTE), (_TOP_PAD, 64 << 20)):
        library.mallopt(option, value)
