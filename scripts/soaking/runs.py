"""Runs of train.py for the soak: one attempt, which may be killed, and the files of a run."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.checkpoint.checkpoints import manifest_of, steps_in
from largebatch.checkpoint.place import LocalPlace
from largebatch.config import Facts, Plan, freeze, resolve
from largebatch.environment import ROOT
from largebatch.files import read_json
from largebatch.tracking import Summary, read_rows

PARTIAL = ".*.partial"
"""A checkpoint that is being written."""
_TIMED = ("images_per_s", "input_wait", "seconds")
_RESUMED = re.compile(r"^resuming from .*?(\d+)\s*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Moment:
    """When to kill a process.

    Attributes:
        after_s: seconds after the start of the process; for a save, after the start of that.
        save: number of a save among those of the process, from 1; otherwise 0.
    """

    after_s: float
    save: int = 0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """How a process ended.

    Attributes:
        code: its exit code; None if it was killed.
        seconds: how long it ran.
        log: what it printed.
        saving: whether it was killed while it wrote a checkpoint.
    """

    code: int | None
    seconds: float
    log: str
    saving: bool

    @property
    def resumed(self) -> int | None:
        """The step that it resumed from, 0 for a new run; None if it did not come that far."""
        if found := _RESUMED.search(self.log):
            return int(found[1])
        return 0 if "compiled " in self.log else None


def attempt(
    train: Sequence[str], workdir: str, log: Path, moment: Moment | None, limit_s: float
) -> Attempt:
    """Run the trainer to its end, or until it is killed.

    Args:
        train: its command, from the path of train.py on.
        workdir: its run directory, or the URL of one.
        log: the file for its output.
        moment: when to kill it; None: never.
        limit_s: seconds after which it counts as hanging.

    Raises:
        TimeoutError: it hangs, and has been killed.
    """
    checkpoints = Path(workdir, "checkpoints")
    saves = set(checkpoints.glob(PARTIAL))
    began = due_from = time.monotonic()
    killed, saving = False, False
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *train, f"--workdir={workdir}"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not killed and process.poll() is None:
            now = time.monotonic()
            if now - began > limit_s:
                raise TimeoutError(f"no end within {limit_s:.0f} s; it printed {log}")
            if moment and len(saves) < moment.save:
                saves |= set(checkpoints.glob(PARTIAL))
                due_from = now
            elif moment and now - due_from >= moment.after_s:
                os.killpg(process.pid, signal.SIGKILL)
                killed, saving = True, any(checkpoints.glob(PARTIAL))
            time.sleep(0.002)
        seconds = time.monotonic() - began
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    text = log.read_text(errors="replace")
    return Attempt(None if killed else code, seconds, text, saving)


def checkpoints(workdir: Path) -> list[int]:
    """Return the steps of the complete checkpoints, ascending, after a 0."""
    return [0, *reversed(steps_in(LocalPlace(workdir)))]


def last_row(workdir: Path) -> int:
    """Return the last step of metrics.jsonl; 0 if there is none."""
    path = workdir / "metrics.jsonl"
    rows = read_rows(path) if path.exists() else []
    return rows[-1]["step"] if rows else 0


def plan_of(workdir: Path) -> Plan:
    """Return the plan of a run."""
    kept = read_json(workdir / "config.json")
    facts = Facts(**{**kept["facts"], "image_shape": tuple(kept["facts"]["image_shape"])})
    return resolve(freeze(kept["config"]), facts, microbatch=kept["plan"]["microbatch"])


def evidence(workdir: Path) -> dict[str, Any]:
    """Return all in which two runs of one command must agree, by name.

    Raises:
        OSError: a file is missing.
        ValueError: a file is damaged.
    """
    summary, newest = Summary.read(workdir), checkpoints(workdir)[-1]
    folder = workdir / "checkpoints"
    about = manifest_of(LocalPlace(workdir), newest)
    found = {
        "status": summary and summary.status,
        "steps": summary and summary.steps,
        "newest checkpoint": newest,
        "left over": sorted(p.name for p in folder.iterdir() if p.suffix != ".safetensors"),
    }
    found |= {f"array {name}": array for name, array in about.arrays.items()}
    for file in ("metrics.jsonl", "layers.jsonl"):
        for index, row in enumerate(read_rows(workdir / file)):
            kept = {name: value for name, value in row.items() if name not in _TIMED}
            found[f"{file} row {index}"] = kept
    return found


def differences(whole: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names under which two runs differ; empty: nothing was lost."""
    return [name for name in {**whole, **other} if whole.get(name) != other.get(name)]
