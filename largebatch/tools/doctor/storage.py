"""The run directory: free space, the lock, the compile cache, and whether all hosts share it."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import jax

from largebatch.checkpoint import lock
from largebatch.checkpoint.directories import complete
from largebatch.checkpoint.lock_holder import lives, parse, this_process
from largebatch.config import Plan
from largebatch.parallel import compile_cache, processes
from largebatch.tools.doctor.lines import Line, gathered, ok, problem, skip
from largebatch.training.memory import GIB
from largebatch.training.preflight import LOG_BYTES, checkpoint_bytes, free_bytes

DISK, LOCK, CACHE, SHARED = "disk", "working directory", "compile cache", "shared directory"
_SHARED_S = 10.0  # a network file system shows files of other hosts with a delay


def check_disk(plan: Plan, workdir: Path) -> Line:
    """Compare the free space with that of checkpoints and logs."""
    return judge_disk(workdir, free_bytes(workdir), checkpoint_bytes(plan) + LOG_BYTES)


def judge_disk(workdir: Path, free: int, needed: int) -> Line:
    """Return the line; bytes."""
    words = f"{free / GIB:,.1f} GiB free for {workdir}, {needed / GIB:.2f} needed"
    if free >= needed:
        return ok(DISK, words)
    remedy = "free some space, lower run.keep_checkpoints, or give another --workdir"
    return problem(DISK, words, remedy)


def check_lock(workdir: Path) -> Line:
    """Check that the directory is writable and that no other run is alive in it."""
    existing = _existing(workdir)
    if not os.access(existing, os.W_OK):
        return problem(LOCK, f"{existing} is not writable", "give another --workdir")
    with contextlib.suppress(OSError):
        path = workdir / lock.NAME
        holder, age_s = parse(path.read_bytes()), time.time() - path.stat().st_mtime
        here = this_process()
        is_here = holder and (holder.host, holder.system) == (here.host, here.system)
        if lives(holder) if is_here else age_s < lock.PATIENCE_S:
            who = holder.description if holder else "another run"
            found = f"{workdir} is in use by {who}, heartbeat {max(0.0, age_s):.0f} s ago"
            return problem(LOCK, found, "give another --workdir, or stop that process")
    step = None
    with contextlib.suppress(OSError):
        step = max(complete(workdir / "checkpoints"), default=None)
    resumes = "" if step is None else f"; a run resumes from step {step:,} unless --resume=never"
    return ok(LOCK, f"{workdir} is free{resumes}")


def check_cache(option: str) -> Line:
    """Check that the folder of compiled programs is writable and has free space."""
    folder = compile_cache.place(option, jax.default_backend())
    if folder is None:
        return ok(CACHE, "off: every start compiles")
    return judge_cache(folder, free_bytes(folder), os.access(_existing(folder), os.W_OK))


def judge_cache(folder: Path, free: int, writable: bool) -> Line:
    """Return the line; `free` in bytes."""
    if not writable:
        remedy = "give another folder in run.compile_cache"
        return problem(CACHE, f"{folder} is not writable", remedy)
    words = f"{free / GIB:,.2f} GiB free in {folder}"
    if free < GIB:
        remedy = "free 1 GiB, or give another folder in run.compile_cache"
        return problem(CACHE, words, remedy)
    return ok(CACHE, words)


def check_shared(workdir: Path, clock: Callable[[], float] = time.monotonic) -> Line:
    """Check that all processes see a file that process 0 writes; each must call this.

    An error on one host does not keep it from the barriers, where the others would wait.
    """
    if jax.process_count() == 1:
        return skip(SHARED, "one process")
    token = gathered(secrets.token_hex(8))[0]
    folder = workdir
    with contextlib.suppress(OSError):
        folder = _existing(workdir)
    path, writable = folder / f".largebatch_doctor_{token}", True
    if jax.process_index() == 0:
        try:
            path.write_text("")
        except OSError:
            writable = False
    processes.wait_for_all("doctor wrote")
    seen = _appears(path, clock)
    processes.wait_for_all("doctor looked")
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    if not writable:
        return problem(SHARED, f"{folder} is not writable", "give another --workdir")
    if seen:
        return ok(SHARED, f"{folder} is the same directory for all processes")
    return problem(
        SHARED,
        f"{folder} does not show a file that process 0 wrote there",
        "give a --workdir on a file system that all hosts share: all read the checkpoints",
    )


def _appears(path: Path, clock: Callable[[], float]) -> bool:
    """Whether a file appears within _SHARED_S."""
    until = clock() + _SHARED_S
    while True:
        with contextlib.suppress(OSError):  # a stale handle may recover
            if path.exists():
                return True
            os.listdir(path.parent)  # makes a network file system look again
        if clock() >= until:
            return False
        time.sleep(0.2)


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())
