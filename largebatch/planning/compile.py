"""The product's own train step, compiled for devices that need not be here.

Each compilation is a child process with limits of time and memory: compilers of absent hardware may
end the process, and their libraries are not to be mixed with those of a run.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import largebatch
from largebatch.config import Config, Facts
from largebatch.errors import UserError
from largebatch.planning.topologies import Topology

GIB = 2**30
LIMIT_S = 900.0
LIMIT_GIB = 12.0
_POLL_S = 0.2


class CompileError(UserError):
    """A program that could not be compiled for the devices asked for."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One compilation."""

    config: Config
    topology: Topology
    facts: Facts
    mean: tuple[float, ...]
    """Of the images' channels, as of ``data.Source``."""
    std: tuple[float, ...]
    options: dict[str, str]
    """Of XLA, name to value."""
    microbatch: int | None = None
    """Workers at a time where ``batch.microbatch`` is auto; None: the most."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled train step of one device."""

    hlo: str
    """Text of the scheduled module."""
    device_kind: str
    peak_bytes: int
    """On a device while the step runs; without the workspace of cuDNN, which is chosen there."""
    memory: dict[str, int]
    """Arguments, results, temporaries and code; bytes."""
    buckets: tuple[int, ...]
    """Elements of each group of gradients as it is sent, in the order of backward."""
    totals: int
    """Elements of the statistics and metrics that are summed beside them."""
    head_flops: float
    """Of the head's matrix product."""
    compile_s: float
    """Tracing and compiling."""
    compiler_gib: float
    """Most memory that the compiler's process had in use."""
    versions: dict[str, str]


def compile_step(
    request: Request, *, limit_s: float = LIMIT_S, limit_gib: float = LIMIT_GIB
) -> Compiled:
    """Compile the last microbatch's program, which holds all collectives of a step.

    Args:
      request: what, for which devices, with which options.
      limit_s: seconds after which it is given up.
      limit_gib: memory of the compiler's process at which it is given up; looked at on Linux.

    Raises:
      ConfigError: the configuration does not suit the devices.
      CompileError: the compiler failed, or a limit was reached.
    """
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "request.json").write_text(json.dumps(_encoded(request)))
        what = f"compiling for {request.topology.text}"
        _run(folder, request.topology, what, limit_s, limit_gib)
        answer = json.loads((folder / "answer.json").read_text())
        hlo = (folder / "module.txt").read_text()
    answer["buckets"] = tuple(answer["buckets"])
    return Compiled(hlo=hlo, **answer)


def _encoded(request: Request) -> dict[str, Any]:
    """The request as the child reads it."""
    return {
        "config": dataclasses.asdict(request.config),
        "topology": request.topology.text,
        "facts": dataclasses.asdict(request.facts),
        "mean": request.mean,
        "std": request.std,
        "options": request.options,
        "microbatch": request.microbatch,
    }


def _run(folder: Path, topology: Topology, what: str, limit_s: float, limit_gib: float) -> None:
    """Start the child and wait for its answer.

    Raises:
      CompileError: there is none; with the reason in one line.
    """
    root = str(Path(largebatch.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = os.environ | topology.child_environment() | {"PYTHONPATH": path}
    command = [sys.executable, "-m", "largebatch.planning.compile_child", str(folder)]
    with (folder / "output.txt").open("w+") as output:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            reason = _watch(child, limit_s, limit_gib)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        output.seek(0)
        said = [line.strip() for line in output if line.strip()]
    error = folder / "error.json"
    if error.is_file():
        raise CompileError(f"{what}: {json.loads(error.read_text())}")
    if reason:
        raise CompileError(f"{what}: {reason}")
    if child.returncode or not (folder / "answer.json").is_file():
        last = f": {said[-1][:300]}" if said else ""
        raise CompileError(f"{what}: the compiler ended with code {child.returncode}{last}")


def _watch(child: subprocess.Popen, limit_s: float, limit_gib: float) -> str:
    """Wait for the child to end; why it must be ended where it reaches a limit, else empty."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            child.wait(_POLL_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() > deadline:
            return f"no result in {limit_s:,.0f} s; give it more with --limit_s"
        used = _resident_bytes(child.pid) / GIB
        if used > limit_gib:
            return (
                f"the compiler uses {used:.1f} GiB, more than --limit_gib={limit_gib:g}; give it "
                "more"
            )


def _resident_bytes(process: int) -> int:
    """Memory of a process, 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
