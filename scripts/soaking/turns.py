"""One turn of a training: a process, or several, started, watched and perhaps killed."""

import contextlib
import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from soaking.moments import Moment

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.002
PARTIAL = ".*.partial"
"""Of a checkpoint that is being written, in the folder of checkpoints."""
_RESUMED = re.compile(r"^resuming from .*?(\d+)\s*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Turn:
    """How a turn went.

    Attributes:
        code: exit code of the process, or of the launcher of several; None if it was killed.
        killed: number of the process that was, '' for the whole group.
        after_s: seconds that it ran, until the kill if there was one.
        first_row_s: seconds to its first step; None if there was none.
        log: what it printed.
        saving: whether a checkpoint was being written when it was killed.
    """

    code: int | None
    killed: str
    after_s: float
    first_row_s: float | None
    log: str
    saving: bool

    @property
    def resumed(self) -> int | None:
        """The step that it said to resume from; 0 if it began anew; None if it did neither yet."""
        said = _RESUMED.search(self.log)
        if said:
            return int(said[1])
        return 0 if "compiled " in self.log else None


def take_turn(
    train: Sequence[str],
    workdir: Path,
    log: Path,
    moment: Moment | None,
    *,
    processes: int,
    limit_s: float,
    rng: random.Random,
) -> Turn:
    """Run the trainer, to its end or until it is killed.

    Args:
        train: its command, from the path of train.py on.
        workdir: its working directory.
        log: where what it prints goes.
        moment: when it is killed; None: not at all.
        processes: how many; of several one is killed, and the launcher ends the others.
        limit_s: seconds after which it is taken to hang.
        rng: chooses the process.

    Raises:
        TimeoutError: it hangs, and has been killed.
    """
    command = [sys.executable, *train, f"--workdir={workdir}"]
    if processes > 1:
        command[1:1] = [f"{ROOT}/scripts/launch_local.py", f"--processes={processes}", "--"]
    rows, before = workdir / "metrics.jsonl", _stamp(workdir / "metrics.jsonl")
    began = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    due = _Due(moment, workdir / "checkpoints", began)
    first_row_s, killed, killed_s, saving = None, None, None, False
    try:
        while process.poll() is None:
            now = time.monotonic()
            if now - began > limit_s:
                raise TimeoutError(f"it does not end within {limit_s:.0f} s")
            if first_row_s is None and _stamp(rows) not in (before, None) and _stamp(rows)[1]:
                first_row_s = now - began
            if killed is None and due.now(now):
                killed, killed_s = _kill(process, processes, rng), now - began
                saving = any((workdir / "checkpoints").glob(PARTIAL))
            time.sleep(POLL_S)
    finally:
        _kill_group(process)
        process.wait()
    return Turn(
        code=process.returncode if killed is None else None,
        killed=killed or "",
        after_s=time.monotonic() - began if killed is None else killed_s,
        first_row_s=first_row_s,
        log=log.read_text(errors="replace"),
        saving=saving,
    )


class _Due:
    """Tells when a moment has come."""

    def __init__(self, moment: Moment | None, checkpoints: Path, began: float) -> None:
        self._moment, self._checkpoints = moment, checkpoints
        # A save that was broken off before is not one of this process.
        self._seen = set(checkpoints.glob(PARTIAL))
        self._from = began

    def now(self, now: float) -> bool:
        """Whether it is."""
        if self._moment is None:
            return False
        if self._moment.saves:
            self._seen |= set(self._checkpoints.glob(PARTIAL))
            if len(self._seen) < self._moment.saves:
                self._from = now
                return False
        return now - self._from >= self._moment.after_s


def _kill(process: subprocess.Popen, processes: int, rng: random.Random) -> str | None:
    """SIGKILL; which process of several, '' for all; None where there is none to kill."""
    if processes == 1:
        _kill_group(process)
        return ""
    children = _children(process.pid)
    if not children:
        return None
    pid = rng.choice(children)
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return None
    index = [e for e in environment if e.startswith(b"JAX_PROCESS_ID=")]
    return index[0].partition(b"=")[2].decode() if index else "?"


def _kill_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    """Processes that a process has started, in their order."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced or grows."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size
