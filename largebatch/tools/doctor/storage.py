"""The run directory: free space, the lock, the compile cache, and whether all hosts share it."""

import contextlib
import os
import secrets
import time
from pathlib import Path

import jax

from largebatch.checkpoint import lock
from largebatch.checkpoint.checkpoints import steps_in
from largebatch.checkpoint.place import LocalPlace
from largebatch.parallel import compile_cache, processes
from largebatch.store_urls import url_of
from largebatch.tools.doctor.job import Job
from largebatch.tools.doctor.lines import Problem, Skip, gathered
from largebatch.training.memory import GIB
from largebatch.training.preflight import LOG_BYTES, checkpoint_bytes, free_bytes

_SHARED_S = 10.0  # a network file system shows files of other hosts with a delay


def disk_room(job: Job) -> str:
    """Compare the free space with that of checkpoints and logs."""
    needed = checkpoint_bytes(job.known_plan()) + LOG_BYTES
    free = free_bytes(job.workdir)
    words = f"{free / GIB:,.1f} GiB free for {job.workdir}, {needed / GIB:.2f} needed"
    if free < needed:
        remedy = "free some space, lower run.keep_checkpoints, or give another --workdir"
        raise Problem((words, remedy))
    return words


def lock_free(job: Job) -> str:
    """Check that the directory is writable and that no other run is alive in it."""
    workdir, existing = job.workdir, _existing(job.workdir)
    if not os.access(existing, os.W_OK):
        raise Problem((f"{existing} is not writable", "give another --workdir"))
    if lock.is_held(workdir):
        holder = lock.holder(workdir)
        who = holder.description if holder else "another run"
        raise Problem((f"{workdir} is in use by {who}", "give another --workdir, or stop it"))
    step = max(steps_in(LocalPlace(workdir)), default=None)
    resumes = "" if step is None else f"; a run resumes from step {step:,} unless --resume=never"
    return f"{workdir} is free{resumes}"


def cache_room(job: Job) -> str:
    """Check that the folder of compiled programs is writable and has free space."""
    place = compile_cache.place(job.config.run.compile_cache, jax.default_backend())
    if not place or url_of(place):
        return place or "off: every start compiles"
    folder = Path(place)
    if not os.access(_existing(folder), os.W_OK):
        remedy = "give another folder in run.compile_cache"
        raise Problem((f"{folder} is not writable", remedy))
    free = free_bytes(folder)
    words = f"{free / GIB:,.2f} GiB free in {folder}"
    if free < GIB:
        raise Problem((words, "free 1 GiB, or give another folder in run.compile_cache"))
    return words


def shared(job: Job) -> str:
    """Check that all processes see a file that process 0 writes; each must call this.

    An error on one host does not keep it from the barriers, where the others would wait.
    """
    if jax.process_count() == 1:
        raise Skip("one process")
    token = gathered(secrets.token_hex(8))[0]
    folder = job.workdir
    with contextlib.suppress(OSError):
        folder = _existing(job.workdir)
    path, writable = folder / f".largebatch_doctor_{token}", True
    if jax.process_index() == 0:
        try:
            path.write_text("")
        except OSError:
            writable = False
    processes.wait_for_all("doctor wrote")
    seen = _appears(path)
    processes.wait_for_all("doctor looked")
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    if not writable:
        raise Problem((f"{folder} is not writable", "give another --workdir"))
    if not seen:
        found = f"{folder} does not show a file that process 0 wrote there"
        remedy = "give a --workdir on a file system that all hosts share: all read the checkpoints"
        raise Problem((found, remedy))
    return f"{folder} is the same directory for all processes"


def _appears(path: Path) -> bool:
    """Whether a file appears within _SHARED_S."""
    until = time.monotonic() + _SHARED_S
    while True:
        with contextlib.suppress(OSError):  # a stale handle may recover
            if path.exists():
                return True
            os.listdir(path.parent)  # makes a network file system look again
        if time.monotonic() >= until:
            return False
        time.sleep(0.2)


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())
