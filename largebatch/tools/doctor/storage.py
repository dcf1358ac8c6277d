"""Where a run writes: room, an earlier run, the lock, the compile cache, whether hosts share it."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import jax

from largebatch.checkpoint import lock
from largebatch.checkpoint.directories import complete
from largebatch.checkpoint.lock_holder import Holder, lives, parse, this_process
from largebatch.config import Plan
from largebatch.environment import command_output
from largebatch.parallel import compile_cache, processes
from largebatch.tools.doctor.lines import Line, gathered, judged, ok, problem, skip
from largebatch.training.memory import GIB
from largebatch.training.preflight import LOG_BYTES, checkpoint_bytes, free_bytes

DISK, LOCK, CACHE, SHARED = "disk", "working directory", "compile cache", "shared directory"
_SHARED_S = 10.0  # network file systems show another host's file after their cache's time
_NETWORKS = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb",
    "fuse.gcsfuse",
    "9p",
    "wekafs",
)


def check_disk(plan: Plan, workdir: Path) -> Line:
    """Room for checkpoints and logs."""
    return judge_disk(workdir, free_bytes(workdir), checkpoint_bytes(plan), LOG_BYTES)


def judge_disk(workdir: Path, free: int, checkpoints: int, logs: int) -> Line:
    """The line; bytes. `checkpoints`: of all that are kept at once."""
    needed = checkpoints + logs
    words = f"{free / GIB:,.1f} GiB free for {workdir}, {needed / GIB:.2f} needed"
    if free >= needed:
        return ok(DISK, words)
    return problem(DISK, words, "free some, lower run.keep_checkpoints, or give another --workdir")


def check_lock(workdir: Path) -> Line:
    """Whether the directory can be written, holds another run, and whether that is alive."""
    existing = _existing(workdir)
    if not os.access(existing, os.W_OK):
        return problem(LOCK, f"{existing} cannot be written", "give another --workdir")
    path = workdir / lock.NAME
    try:
        text, age_s = path.read_bytes(), time.time() - path.stat().st_mtime
    except OSError:
        return judge_lock(workdir, None, False, 0.0, _newest(workdir))
    holder = parse(text)
    here = this_process()
    same = holder and (holder.host, holder.system) == (here.host, here.system)
    alive = lives(holder) if same else age_s < lock.PATIENCE_S
    return judge_lock(workdir, holder, alive, age_s, _newest(workdir))


def judge_lock(
    workdir: Path, holder: Holder | None, alive: bool, age_s: float, step: int | None
) -> Line:
    """The line.

    Args:
        workdir: The directory.
        holder: Who holds its lock; None: nobody, or nobody can tell.
        alive: Whether somebody seems to.
        age_s: Since the lock was written.
        step: Of the newest checkpoint, None without one.
    """
    if alive:
        who = holder.description if holder else "another run"
        return problem(
            LOCK,
            f"{workdir} is in use by {who}, heartbeat {max(0.0, age_s):.0f} s ago",
            "give another --workdir, or stop that process",
        )
    words = f"{workdir} is free"
    if step is not None:
        words += f"; the run there resumes from step {step:,} (--resume=never puts it aside)"
    return ok(LOCK, words)


def _newest(workdir: Path) -> int | None:
    try:
        return max(complete(workdir / "checkpoints"), default=None)
    except OSError:
        return None


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def check_cache(option: str) -> Line:
    """Where compiled programs are kept."""
    folder = compile_cache.place(option, jax.default_backend())
    if folder is None:
        return judge_cache(None, 0, 0, 0, False, "")
    existing = _existing(folder)
    sizes = [entry.stat().st_size for entry in os.scandir(folder)] if folder.is_dir() else []
    usable = os.access(existing, os.W_OK)
    return judge_cache(
        folder, len(sizes), sum(sizes), free_bytes(folder), usable, file_system(existing)
    )


def judge_cache(
    folder: Path | None, files: int, size: int, free: int, writable: bool, system: str
) -> Line:
    """The line.

    Args:
        folder: None: nothing is kept.
        files: How many are there.
        size: Their bytes.
        free: Bytes free there.
        writable: Whether it can be written.
        system: Type of the file system; empty: unknown.
    """
    if folder is None:
        return ok(CACHE, "off: every start compiles")
    shared = any(system.startswith(name) for name in _NETWORKS)
    kind = f"{'shared' if shared else 'local'} {system}" if system else "unknown file system"
    words = f"{folder} ({kind}): {files:,} files, {size / GIB:.2f} GiB"
    problems = []
    if not writable:
        problems.append((f"{folder} cannot be written", "name another folder in run.compile_cache"))
    elif free < GIB:
        problems.append(
            (f"{folder} has {free / GIB:.2f} GiB free", "free some, or name another folder")
        )
    return judged(CACHE, words, problems)


def file_system(path: Path) -> str:
    """Type of the file system that a path lies on, such as ext4 or nfs4; '' where unknown."""
    found = command_output("stat", "-f", "-c", "%T", str(path.absolute()))
    return found or ""


def check_shared(workdir: Path, clock: Callable[[], float] = time.monotonic) -> Line:
    """Whether all processes see what process 0 writes; each must call it."""
    if jax.process_count() == 1:
        return skip(SHARED, "one process")
    token = gathered(secrets.token_hex(8))[0]
    # What fails on one host must not keep it from meeting the others.
    try:
        folder = _existing(workdir)
    except OSError:
        folder = workdir
    path = folder / f".largebatch_doctor_{token}"
    written = True
    if jax.process_index() == 0:
        try:
            path.write_text("")
        except OSError:
            written = False
    processes.wait_for_all("doctor wrote")
    seen = _appears(path, clock)
    processes.wait_for_all("doctor looked")
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    return judge_shared(folder, seen, written)


def _appears(path: Path, clock: Callable[[], float]) -> bool:
    """Whether a file can be seen within a while."""
    until = clock() + _SHARED_S
    while True:
        try:
            if path.exists():
                return True
            os.listdir(path.parent)  # has a network file system look again
        except OSError:  # a stale handle may mend
            pass
        if clock() >= until:
            return False
        time.sleep(0.2)


def judge_shared(folder: Path, seen: bool, written: bool = True) -> Line:
    """The line of one process."""
    if not written:
        return problem(SHARED, f"{folder} cannot be written", "give another --workdir")
    if seen:
        return ok(SHARED, f"{folder} is the same directory for all processes")
    return problem(
        SHARED,
        f"{folder} is not what process 0 sees there",
        "give a --workdir on a file system that all hosts share: checkpoints are read by all",
    )
