"""How the memory allocator of this process treats freed memory."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping

# malloc.h of glibc
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_HEAP_BYTES = 64 * 2**20  # largest piece of a thread's heap


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory in this process for the next allocation, where glibc's malloc is used.

    A step on a CPU allocates and frees its buffers. By default, glibc returns large blocks to the
    kernel, which must clear every page again in the next step: a sixth of the time of a small
    network (docs/performance.md). Afterwards, the process stays at its largest use of memory.

    Args:
        environ: A setting of glibc's allocator in it takes precedence: nothing is changed.

    Returns:
        Whether the allocator was set.
    """
    own = any(name.startswith("MALLOC_") for name in environ)
    if sys.platform != "linux" or own or "glibc.malloc" in environ.get("GLIBC_TUNABLES", ""):
        return False
    with contextlib.suppress(OSError, AttributeError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        # Never shrink the heap, keep the empty heaps of threads, and map no block by itself.
        return all(
            [mallopt(_TRIM_THRESHOLD, -1), mallopt(_TOP_PAD, _HEAP_BYTES), mallopt(_MMAP_MAX, 0)]
        )
    return False
