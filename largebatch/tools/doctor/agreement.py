"""Whether all processes are about to run the same thing, and their clocks agree."""

import dataclasses
import hashlib
import json
import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from largebatch.config import Config, Facts
from largebatch.environment import code, versions
from largebatch.files import plain
from largebatch.parallel import processes
from largebatch.tools.doctor.lines import Line, gathered, judged, skip

NAME, CLOCKS = "hosts agree", "clocks"
CLOCKS_S = 2.0
"""Greatest difference of two hosts' clocks, so that events of a run can be put in order."""
_VERSIONS = ("jax", "jaxlib", "flax", "optax", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu")
_SET = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")


def mine(config: Config, facts: Facts | None) -> dict[str, Any]:
    """What this process would run, each part as a short text that all must have alike."""
    about = {"config": dataclasses.asdict(config)}
    if facts is not None:
        about["facts"] = dataclasses.asdict(facts)
    return {
        "configuration": digest(about["config"]),
        "data and devices": digest(about.get("facts", {})),
        "versions": ", ".join(f"{k} {v}" for k, v in versions(_VERSIONS).items()),
        "Python": platform.python_version(),
        "commit": code(),
        "environment": " ".join(f"{k}={os.environ[k]}" for k in _SET if k in os.environ),
    }


def digest(value: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of a mapping that JSON can hold."""
    text = json.dumps(plain(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check(config: Config, facts: Facts | None) -> list[Line]:
    """The lines; each process must call it."""
    own = processes.each_process_does(lambda: mine(config, facts))
    found = gathered({"host": socket.gethostname(), **own})
    processes.wait_for_all("doctor reads the clocks")
    times = gathered(time.time())
    hosts = [each.pop("host") for each in found]
    return [judge(found, hosts), judge_clocks(times, hosts)]


def judge(found: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> Line:
    """The line, from what `mine` says in each process."""
    first = found[0]
    if len(found) == 1:
        return skip(NAME, f"one process; configuration {first['configuration']}")
    problems = []
    for part in first:
        values = Counter(each[part] for each in found)
        if len(values) == 1:
            continue
        usual = values.most_common(1)[0][0]
        other = next(i for i, each in enumerate(found) if each[part] != usual)
        problems.append(
            (
                f"{part}: {hosts[other]} (process {other}) has {found[other][part] or 'none'!r}, "
                f"{values[usual]} of {len(found)} have {usual or 'none'!r}",
                "give all the same command, code and environment",
            )
        )
    words = f"{len(found)} processes: configuration {first['configuration']}, {first['versions']}"
    return judged(NAME, f"{words}, commit {first['commit']}", problems)


def judge_clocks(times: Sequence[float], hosts: Sequence[str]) -> Line:
    """The line, from the clocks of all processes, seconds, read at about the same moment."""
    if len(times) == 1:
        return skip(CLOCKS, "one process")
    early, late = (pick(range(len(times)), key=lambda i: times[i]) for pick in (min, max))
    apart = times[late] - times[early]
    problems = []
    if apart > CLOCKS_S:
        problems.append(
            (
                f"{hosts[late]} is {apart:.1f} s ahead of {hosts[early]}",
                "let them take the time from the network (chronyc tracking, timedatectl)",
            )
        )
    return judged(CLOCKS, f"within {apart:.2f} s", problems)
