"""Checks at intervals: whether a step can be reproduced, and which host is slow.

A wrong result without an error stays in the parameters, and nothing else detects it. Therefore a
step is computed twice: the same program on the same input gives the same bits, on GPUs with
``run.deterministic``. Each device compares its own copies and parts, since copies may differ once a
device miscalculates. The faulty device is known only if the error happened after the all-reduce,
which spreads an earlier error to all devices.

The wall time of a step does not show which host is slow, because all wait for the slowest one at
the all-reduce. Each process therefore measures the time until its devices could begin the
all-reduce, including the wait for input, and the processes exchange these times.
"""

import socket
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from largebatch.checkpoint.file import by_path
from largebatch.parallel.processes import agreed_minimum, gather
from largebatch.training.stage import Stage
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.timing import Clock

Row = dict[str, Any]
"""Columns of ``events.jsonl``."""
_NAME_BYTES = 64
_NAMED = 3  # arrays in the warning; the row has all
SLOW = 1.2
"""Multiple of the median time to the barrier from which on a process is slow."""
CONFIRMED = 3
"""Consecutive comparisons at which the same process must be slow to be called a straggler.

One comparison is one measured step, and noise alone makes some process slow in a share q of them.
Of two processes, both are equally likely then, and noise confirms one of them in at most q³/4 of
the comparisons; of n processes in q³/n²."""


def host_names() -> tuple[str, ...]:
    """Return the host name of each process; each must call this."""
    name = socket.gethostname().encode()[:_NAME_BYTES]
    rows = gather(np.frombuffer(name.ljust(_NAME_BYTES, b"\0"), np.uint8))
    return tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows)


# ---- A step computed twice


def differences(
    stage: Stage,
    first: tuple[TrainState, Metrics],
    second: tuple[TrainState, Metrics],
    hosts: Sequence[str],
) -> Row | None:
    """Compare two results of a step bitwise; every process must call it.

    Args:
      stage: of the step.
      first: state and metrics.
      second: the same, computed a second time.
      hosts: host name of each process.

    Returns:
      The arrays that differ, the same on each process; None if there are none. ``names`` are paths
      in the state or of metrics, ``values`` the numbers of different values on the device with most
      of them, ``largest`` the largest absolute differences (NaN if one of two values is NaN),
      ``processes`` and ``hosts`` those with differences.
    """
    trees = [
        {**state._asdict(), "metrics": {name: getattr(metrics, name) for name in MEASURED}}
        for state, metrics in (first, second)
    ]
    found = stage.steps.difference(*trees)
    # (values that differ, largest distance) of each array, on each of this process's devices.
    own = np.stack([np.asarray(shard.data)[0] for shard in found.addressable_shards])
    if agreed_minimum(int(not own[:, 0].any())):
        return None
    every = gather(own.max(axis=0).ravel()).reshape(-1, *own.shape[1:])
    counts, distances = every.max(axis=0)
    differing = np.flatnonzero(counts)
    names = list(by_path(trees[0]))
    processes = np.flatnonzero(every[:, 0].any(axis=1)).tolist()
    return {
        "processes": processes,
        "hosts": [hosts[process] for process in processes],
        "names": [names[i] for i in differing],
        "values": counts[differing].astype(int).tolist(),
        "largest": distances[differing].tolist(),
    }


def corruption_line(row: Mapping[str, Any], of: int, *, may_be_harmless: bool) -> str:
    """Return one line about a result of `differences`: which arrays differ, on which processes.

    Args:
      row: the result.
      of: number of processes of the run.
      may_be_harmless: whether nondeterministic kernels may have been in use.
    """
    columns = zip(row["names"], row["values"], row["largest"], strict=True)
    named = [f"{name} ({count} of its values, by up to {x:.3g})" for name, count, x in columns]
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more arrays"]
    if len(row["processes"]) == of:
        where = "on all processes" if of > 1 else "on the only process"
    else:
        pairs = zip(row["processes"], row["hosts"], strict=True)
        where = "on process " + ", ".join(f"{process} ({host})" for process, host in pairs)
    hint = "; kernels of GPUs may be nondeterministic without run.deterministic=true"
    return (
        f"a step computed twice gave two results: {', '.join(named)}; {where}"
        + hint * may_be_harmless
    )


# ---- Times of the hosts


class HostTimes:
    """The times of this process since the last comparison, and the process under suspicion."""

    def __init__(self, clock: Clock, step: int) -> None:
        """Begin after ``step`` steps; each process must call this."""
        self.names = host_names()
        self._clock, self._since = clock, (clock.now(), clock.wait_s, step)
        self._compute_s = 0.0
        self._suspected, self._times = -1, 0
        self._named: set[int] = set()

    def note(self, compute_s: float) -> None:
        """Note the seconds that a step computed before its all-reduce could begin."""
        self._compute_s = compute_s

    def compare(self, step: int) -> Row:
        """Compare the times up to ``step`` with those of the other processes, which call this too.

        Args:
          step: number of the step whose compute time has been noted.

        Returns:
          The row of `compared` with ``slow``: whether the slowest process is a straggler.
        """
        now, waited = self._clock.now(), self._clock.wait_s
        steps = max(1, step - self._since[2])
        own = (now - self._since[0]) / steps, (waited - self._since[1]) / steps, self._compute_s
        self._since = now, waited, step
        row = compared(gather(np.asarray(own, np.float32)), self.names)
        return row | {"slow": self.confirms(row["slowest"], row["factor"] >= SLOW)}

    def news(self, row: Mapping[str, Any]) -> str:
        """Return one line about a straggler that no earlier row has named; '' if there is none."""
        if not row["slow"] or row["slowest"] in self._named:
            return ""
        self._named.add(row["slowest"])
        return straggler_line(row)

    def confirms(self, slowest: int, exceeds: bool) -> bool:
        """Return whether the slowest process of a comparison has been slow `CONFIRMED` times."""
        self._times = (self._times * (slowest == self._suspected) + 1) if exceeds else 0
        self._suspected = slowest
        return self._times >= CONFIRMED


def compared(times: np.ndarray, names: Sequence[str]) -> Row:
    """Compare the mean times of a step on all processes.

    Medians are lower medians: with two processes the mean would hide half of the loss.

    Args:
      times: (processes, 3) seconds of a step, of its wait for input and of its computing.
      names: host name of each process.

    Returns:
      ``slowest``, the process with the longest time to the barrier (wait and computing),
      ``factor``, that time over the median, ``cause``, where it loses more time (``input`` or
      ``compute``), ``median_s``; and a value for each process of the times and of ``host``.
    """
    step, wait, compute = np.asarray(times, np.float64).T
    barrier = wait + compute
    median, slowest = statistics.median_low(barrier), int(barrier.argmax())
    lost = {
        cause: each[slowest] - statistics.median_low(each)
        for cause, each in (("compute", compute), ("input", wait))
    }
    return {
        "slowest": slowest,
        "factor": float(barrier[slowest] / median) if median > 0 else 1.0,
        "cause": max(lost, key=lost.get),
        "median_s": float(median),
        "host": list(names),
        "barrier_s": barrier.tolist(),
        "compute_s": compute.tolist(),
        "wait_s": wait.tolist(),
        "step_s": step.tolist(),
    }


def straggler_line(row: Mapping[str, Any]) -> str:
    """Return one line about a result of `compared`: the slowest process and the cause."""
    index = row["slowest"]
    times = [
        f"{name} {1e3 * row[key][index]:.1f} ms against {1e3 * statistics.median_low(row[key]):.1f}"
        for name, key in (("compute", "compute_s"), ("input wait", "wait_s"))
    ]
    return (
        f"process {index} ({row['host'][index]}) is the slowest: {row['factor']:.2f} times the "
        f"median to the barrier, because of {row['cause']} ({', '.join(times)})"
    )
