"""The train step, compiled for devices that can be absent, in several variants.

Each compilation is a child process with limits of time and memory: compilers of absent hardware can
end the process, and their libraries must not be mixed with those of a run. The child is ``python -m
largebatch.planning.compile FOLDER``: it reads FOLDER/request.json and writes module.txt and
answer.json there, or error.json with one line for the user.
"""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import largebatch
from largebatch import parallel
from largebatch.config import Config, Facts, freeze, override
from largebatch.config.plan import StagePlan
from largebatch.config.resolution import resolve
from largebatch.environment import versions
from largebatch.errors import ConfigError, UserError, did_you_mean
from largebatch.parallel import Bucket, xla_options
from largebatch.parallel.mesh import part_size
from largebatch.planning import costs, hlo, schedule
from largebatch.planning.schedule import Estimate, Schedule
from largebatch.planning.topologies import Topology, open_topology
from largebatch.training.description import peak_bytes
from largebatch.training.memory import GIB
from largebatch.training.stage import Stage, program_bytes
from largebatch.training.steps import Steps, steps_of
from largebatch.trees import flatten_paths

LIMIT_S = 900.0
LIMIT_GIB = 12.0
_POLL_S = 0.2
_PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-pjrt",
    "jax-cuda13-pjrt",
    "nvidia-cuda-nvcc-cu12",
    "libtpu",
)
VARIANTS: Mapping[str, str] = {
    "default": "the recipe's buckets, XLA's own options",
    "leaf": "an all-reduce for each parameter",
    "tree": "one all-reduce for all parameters",
    "ours": "the recipe as it is trained",
}


class CompileError(UserError):
    """A program could not be compiled for the devices."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One compilation."""

    config: Config
    topology: Topology
    facts: Facts
    mean: tuple[float, ...]
    """Mean of each channel of the images, as in ``data.Source``."""
    std: tuple[float, ...]
    options: dict[str, str]
    """Options of XLA, name to value."""
    microbatch: int | None = None
    """Workers at a time if ``batch.microbatch`` is auto; None: all of a device."""
    complete: bool = False
    """Compile all that training calls, evaluation too, not the last microbatch's program alone."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled train step of one device."""

    hlo: str
    """Text of the scheduled module."""
    device_kind: str
    peak_bytes: int
    """On a device while the step runs, without the workspace of cuDNN, which is chosen there."""
    memory: dict[str, int]
    """Arguments, results, temporaries and code; bytes."""
    buckets: tuple[int, ...]
    """Elements of each group of gradients on the wire, in the order of backward."""
    totals: int
    """Elements of the statistics and metrics that are summed beside them."""
    head_flops: float
    """FLOPs of the head's matrix product."""
    programs: dict[str, int]
    """Peak bytes on a device of each compiled program, by name."""
    compile_s: float
    """Tracing and compiling."""
    compiler_gib: float
    """Peak memory of the compiler's process."""
    versions: dict[str, str]
    refused: dict[str, str]
    """Options that the compiler refuses, with its reasons; the programs are without them."""


def compile_step(
    request: Request, *, limit_s: float = LIMIT_S, limit_gib: float = LIMIT_GIB
) -> Compiled:
    """Compile the last microbatch's program, which has all collectives of a step, or all programs.

    Args:
      request: program, devices and options.
      limit_s: seconds until the compilation is stopped.
      limit_gib: memory of the compiler's process at which it is stopped; checked on Linux.

    Raises:
      CompileError: the compiler failed, the configuration does not suit the devices, or a limit was
        reached.
    """
    fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    fields |= {"config": dataclasses.asdict(request.config), "topology": request.topology.text}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        fields["facts"] = dataclasses.asdict(request.facts)
        (folder / "request.json").write_text(json.dumps(fields))
        _run(folder, request.topology, limit_s, limit_gib)
        answer = json.loads((folder / "answer.json").read_text())
        text = (folder / "module.txt").read_text()
    answer["buckets"] = tuple(answer["buckets"])
    return Compiled(hlo=text, **answer)


def _run(folder: Path, topology: Topology, limit_s: float, limit_gib: float) -> None:
    """Start the child and wait for its answer.

    Raises:
      CompileError: there is none; with the reason in one line.
    """
    what = f"compiling for {topology.text}"
    root = str(Path(largebatch.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = os.environ | topology.child_environment() | {"PYTHONPATH": path}
    command = [sys.executable, "-m", "largebatch.planning.compile", str(folder)]
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
        lines = [line.strip() for line in output if line.strip()]
    error = folder / "error.json"
    if error.is_file():
        raise CompileError(f"{what}: {json.loads(error.read_text())}")
    if reason:
        raise CompileError(f"{what}: {reason}")
    if child.returncode or not (folder / "answer.json").is_file():
        last = f": {lines[-1][:300]}" if lines else ""
        raise CompileError(f"{what}: the compiler ended with code {child.returncode}{last}")


def _watch(child: subprocess.Popen, limit_s: float, limit_gib: float) -> str:
    """Wait for the child to end; return the limit that it reaches, else an empty string."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            child.wait(_POLL_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() > deadline:
            return f"no result in {limit_s:,.0f} s; use a larger --limit_s"
        used = _resident_bytes(child.pid) / GIB
        if used > limit_gib:
            return f"the compiler uses {used:.1f} GiB; use a --limit_gib above {limit_gib:g}"


def _resident_bytes(process: int) -> int:
    """Return the memory of a process; 0 where the system does not report it."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


# ---- the child


def compile_request(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the compiled module's text, and the other fields of ``Compiled``.

    Raises:
      UserError: the configuration does not suit the devices.
    """
    config = freeze(request["config"])
    facts = Facts(**request["facts"] | {"image_shape": tuple(request["facts"]["image_shape"])})
    devices = open_topology(request["topology"]).jax_devices()
    if len(devices) != facts.devices:
        raise UserError(f"the compiler has {len(devices)} devices, expected {facts.devices}")
    plan = resolve(config, facts, microbatch=request["microbatch"]).first_stage
    mesh = parallel.make_mesh(devices, plan.members)
    source = types.SimpleNamespace(mean=tuple(request["mean"]), std=tuple(request["std"]))
    steps = steps_of(plan, mesh, source)
    refused = xla_options.refused(devices[0], request["options"])
    options = {name: v for name, v in request["options"].items() if name not in refused}
    stage = Stage(steps, options)
    compiled = stage.finish
    if request["complete"]:
        side = config.data.evaluation_size
        _ = stage.init
        stage.prepare([(side, side) if side else facts.image_shape[:2]])
    analysis = compiled.memory_analysis()
    return compiled.as_text(), {
        "device_kind": devices[0].device_kind,
        "peak_bytes": program_bytes(compiled),
        "memory": {
            "arguments": analysis.argument_size_in_bytes,
            "results": analysis.output_size_in_bytes,
            "results in place of arguments": analysis.alias_size_in_bytes,
            "temporaries": analysis.temp_size_in_bytes,
            "code": analysis.generated_code_size_in_bytes,
        },
        "buckets": [_sent(bucket, plan) for bucket in steps.buckets],
        "totals": jax.eval_shape(steps.empty_carry).totals.shape[1],
        "head_flops": _head_flops(steps),
        "programs": stage.bytes,
        "compile_s": stage.compile_s,
        "compiler_gib": peak_bytes(resource.RUSAGE_SELF) / GIB,
        "versions": versions(_PACKAGES),
        "refused": refused,
    }


def _sent(bucket: Bucket, plan: StagePlan) -> int:
    """Return a bucket's elements on the wire; a sharded update pads each array to equal parts."""
    if plan.config.optimizer.update != "sharded":
        return bucket.size
    devices = plan.facts.devices
    return sum(devices * part_size(size, devices) for size in bucket.sizes)


def _head_flops(steps: Steps) -> float:
    """Count two FLOPs per multiply-add of a microbatch's images with the head's kernel."""
    params, _ = steps.model.shapes()
    (kernel,) = (leaf for leaf in flatten_paths(params).values() if len(leaf.shape) == 2)
    return 2.0 * steps.plan.local_images * kernel.size


def main(folder: Path) -> int:
    """Compile the request of a folder; return the exit code."""
    try:
        text, answer = compile_request(json.loads((folder / "request.json").read_text()))
    except Exception as error:
        lines = str(error).splitlines() or [""]
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        (folder / "error.json").write_text(json.dumps(name + lines[0]))
        if not isinstance(error, UserError):
            raise
        return 2
    (folder / "module.txt").write_text(text)
    (folder / "answer.json").write_text(json.dumps(answer))
    return 0


# ---- variants


@dataclasses.dataclass(frozen=True)
class Study:
    """One variant of a recipe on a topology."""

    name: str
    options: dict[str, str]
    compiled: Compiled
    schedule: Schedule
    estimate: Estimate
    traffic: costs.Traffic

    def as_json(self) -> dict[str, Any]:
        """The study without the module, for a record."""
        of = self.compiled
        return {
            "name": self.name,
            "meaning": VARIANTS[self.name],
            "xla_options": self.options,
            "buckets": list(of.buckets),
            "convolutions": self.schedule.convolutions,
            "backward_convolutions": self.schedule.backward_convolutions,
            "gradient_bytes": self.schedule.gradient_bytes,
            "gradient_bytes_under_backward_share": self.schedule.overlapped_share,
            "estimate": dataclasses.asdict(self.estimate),
            "traffic": dataclasses.asdict(self.traffic),
            "peak_bytes": of.peak_bytes,
            "memory": of.memory,
            "compile_s": of.compile_s,
            "compiler_gib": of.compiler_gib,
            "collectives": [
                dataclasses.asdict(each)
                | {"dtypes": list(each.dtypes), "is_overlapped": each.is_overlapped}
                for each in self.schedule.collectives
            ],
        }


def parse_variants(text: str) -> tuple[str, ...]:
    """Return the names of variants with commas between.

    Raises:
      ConfigError: one is unknown, or there is none.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in VARIANTS:
            raise ConfigError(f"--variants: unknown {name!r}; {did_you_mean(name, VARIANTS)}")
    if not names:
        raise ConfigError(f"--variants: expected one or more of {', '.join(VARIANTS)}")
    return names


def variant_of(config: Config, name: str, platform: str) -> tuple[Config, dict[str, str]]:
    """Return the configuration of a variant, and XLA's options for it.

    Args:
      config: the recipe's.
      name: of the variant.
      platform: as ``xla_options.platform_of`` names it.
    """
    if name == "default":
        return config, {}
    if name in ("leaf", "tree"):
        config = override(config, "comm.allreduce", name)
    return config, xla_options.wanted(platform, config)


def study(request: Request, name: str, **limits: float) -> Study:
    """Compile a variant and read its schedule.

    Args:
      request: of the variant's configuration and options.
      name: of the variant.
      **limits: as of ``compile_step``.

    Raises:
      ConfigError: the devices are several TPU slices.
      CompileError: as of ``compile_step``, or this compiler's schedule cannot be read.
    """
    if request.topology.slices > 1:
        raise ConfigError(
            f"topology {request.topology.text!r}: collectives between slices are not read; use one "
            "slice, or --all, which compiles for several"
        )
    compiled = compile_step(request, **limits)
    module = hlo.parse(compiled.hlo)
    found = schedule.read(module, compiled.buckets, compiled.totals, compiled.head_flops)
    # Equal gradients (of the biases of two BatchNorms that meet at a shortcut) may be sent once.
    wanted = sum(compiled.buckets)
    if request.topology.devices > 1 and not 0.99 * wanted <= found.gradient_elements <= wanted:
        raise CompileError(
            f"the schedule for {request.topology.text} reduces {found.gradient_elements:,} "
            f"gradients of {wanted:,}; the form of this compiler's collectives is unknown"
        )
    estimate = schedule.estimate(module, found, request.topology.cluster)
    options = {name: v for name, v in request.options.items() if name not in compiled.refused}
    return Study(name, options, compiled, found, estimate, costs.traffic(module))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
