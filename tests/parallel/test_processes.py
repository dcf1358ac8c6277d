"""Freed memory is kept for the next allocation, in a process of its own."""

import os
import platform
import subprocess
import sys

import pytest

from largebatch.parallel.processes import keep_freed_memory

_FEW = 16  # 64 MiB are 32 huge pages, or 16,384 of 4 KiB
# Fills 64 MiB with ones, frees them, and counts the page faults of the second time.
_FAULTS = """
import ctypes, resource
from largebatch.parallel.processes import keep_freed_memory
print(keep_freed_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(64 << 20)))
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
fill()
print(fill())
"""


def kept_and_faults(**environ):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command, environ = [sys.executable, "-c", _FAULTS], {**clean, "GLIBC_TUNABLES": "", **environ}
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    kept, faults = answer.stdout.split()
    return kept, int(faults) > _FEW


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this allocator")
@pytest.mark.slow
def test_freed_memory_causes_no_page_faults_unless_the_user_has_set_the_allocator():
    assert kept_and_faults() == ("True", False)
    # This value is glibc's own default.
    assert kept_and_faults(MALLOC_TRIM_THRESHOLD_="131072") == ("False", True)
    assert not keep_freed_memory({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"})
