"""Versions, XLA options, and whether all processes run the same code and configuration."""

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
from collections.abc import Iterator, Sequence

import jax
from packaging.requirements import Requirement

from largebatch.config import Config, Plan
from largebatch.environment import code, versions
from largebatch.parallel import processes
from largebatch.parallel import xla_options as compiler_options
from largebatch.tools.doctor.job import Job
from largebatch.tools.doctor.lines import Problem, Skip, gathered
from largebatch.training import agreement as training_agreement

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
_LIMIT_S = 180.0


def versions_fit() -> str:
    """Compare the installed packages with what they require, JAX's plugins included."""
    installed = versions((*_PACKAGES, *_PLUGINS))
    extras = [extra for plugin, extra in _PLUGINS.items() if plugin in installed]
    problems = []
    for name in ("jax", "flax", "optax", "largebatch"):
        for need in requirements(name, extras if name == "jax" else ()):
            version = versions([need.name]).get(need.name)
            if version is None:
                what = f"{need.name}, which {name} requires, is not installed"
            elif not need.specifier.contains(version, prereleases=True):
                what = f"{need.name} {version}, but {name} requires {need.specifier}"
            else:
                continue
            problems.append((what, f"pip install '{need}'"))
    if problems:
        raise Problem(*problems)
    return ", ".join([f"Python {platform.python_version()}", *map(" ".join, installed.items())])


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


def flags_known() -> str:
    """Start a child process with $XLA_FLAGS; an unknown flag aborts every start."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags.strip():
        return "not set"
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
        return shlex.join(flags.split())
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: ?(.*)", output)
    if unknown:
        found = f"XLA does not know {unknown[1].strip()}; every start would abort"
        raise Problem((found, "remove it from XLA_FLAGS"))
    last = (output.strip().splitlines() or ["no output"])[-1].strip()
    found = f"a process with {flags} ends with {status}: {last}"
    raise Problem((found, "correct or unset XLA_FLAGS"))


def xla_options(job: Job) -> str:
    """Try our XLA options and those of comm.xla_options."""
    device = jax.devices()[0]
    backend = compiler_options.platform_of(device)
    asked = compiler_options.parse_options(job.config.comm.xla_options)
    options = compiler_options.wanted(backend, job.config)
    refused = compiler_options.refused(device, options)
    problems = [
        (f"{name} (comm.xla_options): {reason}", f"remove it from comm.xla_options: {name}")
        if name in asked
        else (
            f"{name} (set by largebatch, omitted in a run): {reason}",
            "use the jax version of docs/performance.md, or expect XLA to merge gradient buckets",
        )
        for name, reason in refused.items()
    ]
    if problems:
        raise Problem(*problems)
    words = ", ".join(f"{name}={value}" for name, value in options.items())
    return words or f"none needed for {backend}"


def agreement(job: Job) -> str:
    """Compare what the processes would run; each process must call this."""
    found = gathered(processes.each_process_does(lambda: summarised(job.config, job.plan)))
    hosts = gathered(socket.gethostname())
    count, configuration = len(found), _digest(found[0])
    if count == 1:
        raise Skip(f"one process; configuration {configuration}")
    same = training_agreement.alike({i: _digest(facts) for i, facts in enumerate(found)})
    if len(same) > 1:
        kinds = [training_agreement.Kind(each, found[each[0]]) for each in same]
        line = training_agreement.explain(kinds, dict(enumerate(hosts)))
        raise Problem((line, "give all the same command, code and environment"))
    installed = ", ".join(f"{k} {v}" for k, v in versions((*_PACKAGES, *_PLUGINS)).items())
    return f"{count} processes: configuration {configuration}, {installed}, commit {code()}"


def summarised(config: Config, plan: Plan | None) -> dict[str, str]:
    """Return what this process would run, each part as a short text."""
    facts = {"data and devices": str(plan.facts)} if plan else {}
    return training_agreement.command_facts(config) | facts


def _digest(value: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def clocks(_: Job) -> str:
    """Compare the clocks of all processes at one moment; each process must call this."""
    processes.wait_for_all("doctor reads the clocks")
    found = gathered([time.time(), socket.gethostname()])
    if len(found) == 1:
        raise Skip("one process")
    (early, behind), (late, ahead) = min(found), max(found)
    if late - early > CLOCKS_S:
        what = f"{ahead} is {late - early:.1f} s ahead of {behind}"
        raise Problem((what, "synchronize them by NTP (chronyc tracking, timedatectl)"))
    return f"within {late - early:.2f} s"
