"""The parent's side of a competitor: start it, let it run its repeats, hold it still otherwise."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.runner import Figures
from benchmarks.workload import Absent, Task
from largebatch.errors import DataError

SCRIPTS = Path(__file__).resolve().parent.parent
_GRACE_S = 10.0


class FailedError(RuntimeError):
    """A competitor's process failed; its standard error is in the message."""


class Competitor:
    """A process of its own that is stopped (SIGSTOP) whenever it is not its turn.

    So what it reads ahead, its worker processes and its thread pools take nothing from the others.

    Attributes:
        ready_s: Seconds from the start of the process until it was ready.
        about: How it does its work, in its own words; may be empty.
    """

    def __init__(self, module: str, work: Task) -> None:
        """Starts it and waits until it is ready.

        Args:
            module: As of `benchmarks.runner`.
            work: What it is to do.

        Raises:
            Absent: It cannot take part; the message says why.
            DataError: The data are not what the workload says.
            FailedError: It failed.
        """
        path = os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._limit_s = work.limit_s
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.runner", module, work.dumps()],
            env=os.environ | {"PYTHONPATH": path} | work.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        try:
            self.about = self._reply()["ready"]
            self.ready_s = time.perf_counter() - start
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def repeat(self) -> Figures:
        """Lets it do one repeat; errors are as of `Competitor`."""
        self._signal(signal.SIGCONT)
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        figures = self._reply()
        self._signal(signal.SIGSTOP)
        return figures

    def close(self) -> None:
        """Ends it and its descendants."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> "Competitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _reply(self) -> dict[str, Any]:
        limit = threading.Timer(self._limit_s, self._signal, [signal.SIGKILL])
        limit.start()
        start = time.perf_counter()
        line = self._process.stdout.readline()
        limit.cancel()
        over = time.perf_counter() - start >= self._limit_s
        end = f"no answer in {self._limit_s:g} s" if over else "it ended"
        reply = json.loads(line) if line else {"failed": end}
        if "absent" in reply:
            raise Absent(reply["absent"])
        if "error" in reply:
            raise DataError(reply["error"])
        if "failed" in reply:
            self._errors.seek(0)
            raise FailedError(f"{reply['failed']}\n{self._errors.read()[-4000:]}".strip())
        return reply
