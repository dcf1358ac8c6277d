"""Versions, XLA options, and whether all processes run the same code and configuration."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from packaging.requirements import Requirement

from largebatch.config import Config, Facts
from largebatch.environment import code, versions
from largebatch.files import plain
from largebatch.parallel import compiler, processes
from largebatch.tools.doctor.lines import Line, gathered, judged, ok, problem, skip

VERSIONS, ENVIRONMENT, OPTIONS = "versions", "XLA_FLAGS", "XLA options"
AGREEMENT, CLOCKS = "hosts agree", "clocks"
CLOCKS_S = 2.0
"""Greatest difference of the clocks of two hosts, so that their events can be put in order."""
_PACKAGES = ("jax", "jaxlib", "flax", "optax")
_PLUGINS = {
    "jax-cuda12-plugin": "cuda12",
    "jax-cuda13-plugin": "cuda13",
    "libtpu": "tpu",
    "jax-rocm7-plugin": "rocm7",
}
"""Distribution → the extra of jax that requires its version."""
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")
_LIMIT_S = 60.0


def check_versions() -> Line:
    """Compare the installed packages with what they require, JAX's plugins included."""
    installed = versions((*_PACKAGES, *_PLUGINS))
    extras = [extra for plugin, extra in _PLUGINS.items() if plugin in installed]
    problems = [
        (what, f"pip install '{need}'")
        for name in ("jax", "flax", "optax", "largebatch")
        for need in requirements(name, extras if name == "jax" else ())
        if (what := unmet(name, need, versions([need.name]).get(need.name)))
    ]
    words = [f"Python {platform.python_version()}", *map(" ".join, installed.items())]
    return judged(VERSIONS, ", ".join(words), problems)


def requirements(name: str, extras: Sequence[str] = ()) -> Iterator[Requirement]:
    """Yield what an installed distribution requires here, with some of its extras."""
    try:
        stated = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for need in map(Requirement, stated):
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras)):
            need.marker = None
            yield need


def unmet(name: str, need: Requirement, version: str | None) -> str:
    """Return how the installed version of a requirement of `name` differs from it; '' if met."""
    if version is None:
        return f"{need.name}, which {name} requires, is not installed"
    if need.specifier.contains(version, prereleases=True):
        return ""
    return f"{need.name} {version}, but {name} requires {need.specifier}"


def check_environment() -> Line:
    """Start a child process with $XLA_FLAGS; an unknown flag aborts every start."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags.strip():
        return ok(ENVIRONMENT, "not set")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "import jax; jax.devices()"],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        status, output = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        status, output = 1, f"no answer in {_LIMIT_S:.0f} s"
    if status == 0:
        return ok(ENVIRONMENT, shlex.join(flags.split()))
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: ?(.*)", output)
    if unknown:
        found = f"XLA does not know {unknown[1].strip()}; every start would abort"
        return problem(ENVIRONMENT, found, "remove it from XLA_FLAGS")
    last = (output.strip().splitlines() or ["no output"])[-1].strip()
    found = f"a process with {flags} ends with {status}: {last}"
    return problem(ENVIRONMENT, found, "correct or unset XLA_FLAGS")


def check_options(config: Config, platform: str) -> Line:
    """Try our XLA options and those of comm.xla_options in a child process.

    Args:
        config: configuration of the run.
        platform: see `compiler.platform_of`.

    Raises:
        ConfigError: comm.xla_options has an item that is not `name=value`.
    """
    asked = compiler.parse_options(config.comm.xla_options)
    ours = compiler.options_for(
        platform, config.comm.allreduce, deterministic=config.run.deterministic
    )
    return judge_options(platform, asked, compiler.checked(platform, ours | asked))


def judge_options(platform: str, asked: Mapping[str, str], verdict: compiler.Verdict) -> Line:
    """Return the line; `asked` are the options of the recipe."""
    problems = [
        (f"{name} (comm.xla_options): {reason}", f"remove it from comm.xla_options: {name}")
        if name in asked
        else (
            f"{name} (set by largebatch, omitted in a run): {reason}",
            "use the jax version of docs/performance.md, or expect XLA to merge gradient buckets",
        )
        for name, reason in verdict.rejected.items()
    ]
    words = ", ".join(f"{name}={value}" for name, value in verdict.accepted.items())
    return judged(OPTIONS, words or f"none needed for {platform}", problems)


def check_agreement(config: Config, facts: Facts | None) -> list[Line]:
    """Compare what the processes would run, and their clocks; each process must call this."""
    own = processes.each_process_does(lambda: summarised(config, facts))
    found, hosts = gathered(own), gathered(socket.gethostname())
    processes.wait_for_all("doctor reads the clocks")
    return [judge_agreement(found, hosts), judge_clocks(gathered(time.time()), hosts)]


def summarised(config: Config, facts: Facts | None) -> dict[str, str]:
    """Return what this process would run, each part as a short text."""
    return {
        "configuration": _digest(config),
        "data and devices": _digest(facts) if facts else "",
        "versions": ", ".join(f"{k} {v}" for k, v in versions((*_PACKAGES, *_PLUGINS)).items()),
        "Python": platform.python_version(),
        "commit": code(),
        "environment": " ".join(f"{k}={os.environ[k]}" for k in _VARIABLES if k in os.environ),
    }


def _digest(value: Config | Facts) -> str:
    text = json.dumps(plain(dataclasses.asdict(value)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def judge_agreement(found: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> Line:
    """Return the line from `summarised` of each process."""
    first, count = found[0], len(found)
    if count == 1:
        return skip(AGREEMENT, f"one process; configuration {first['configuration']}")
    problems = []
    for part in first:
        (usual, times), *others = Counter(each[part] for each in found).most_common()
        if others:
            other = next(i for i, each in enumerate(found) if each[part] != usual)
            what = (
                f"{part}: {hosts[other]} (process {other}) has {found[other][part] or 'none'!r}, "
                f"{times} of {count} have {usual or 'none'!r}"
            )
            problems.append((what, "give all the same command, code and environment"))
    words = f"{count} processes: configuration {first['configuration']}, {first['versions']}"
    return judged(AGREEMENT, f"{words}, commit {first['commit']}", problems)


def judge_clocks(times: Sequence[float], hosts: Sequence[str]) -> Line:
    """Return the line from the clocks of all processes, in seconds, read at one moment."""
    if len(times) == 1:
        return skip(CLOCKS, "one process")
    (early, behind), (late, ahead) = (pick(zip(times, hosts, strict=True)) for pick in (min, max))
    if late - early <= CLOCKS_S:
        return ok(CLOCKS, f"within {late - early:.2f} s")
    found = f"{ahead} is {late - early:.1f} s ahead of {behind}"
    return problem(CLOCKS, found, "synchronize them by NTP (chronyc tracking, timedatectl)")
