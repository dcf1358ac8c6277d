"""The all-reduce: our buckets beside pmean per leaf and one psum of all, latency, rate, precision.

    allreduce --devices_per_process 4 --json records/allreduce.json
    allreduce --processes 2 --devices_per_process 2 --image_size 64 --images 4
    allreduce --profile_out profile.json --config.model.dtype=bfloat16

On all devices of all processes, as a cluster manager or --processes has started them;
--devices_per_process makes that many on a CPU, for each process. A sweep of sizes gives the latency
and rate that the network model of the planner needs. Gradients of a real backward pass tell what a
number format on the wire does to them. With --profile_out only the backward pass of one device is
measured, for comm.backward_profile.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import jax
import launch_local
from jax.sharding import Mesh

from benchmarks import backward, reductions, wire
from benchmarks.measure import Result, interleave
from largebatch import parallel
from largebatch.config import Plan
from largebatch.config.communication import WIRE_FORMATS
from largebatch.config.sections import Comm
from largebatch.errors import ConfigError, UserError
from largebatch.parallel import Bucket, compiler, processes
from largebatch.parallel.backward_times import BackwardProfile, shapes_of
from largebatch.parallel.bucket_planner import gradient_buckets
from largebatch.parallel.clusters import Cluster, cluster_of
from largebatch.parallel.collective_costs import fit_link, ring_s
from largebatch.parallel.network import all_reduce_s
from largebatch.training.microbatch import model_of

OVERRIDES = True
WIRES = tuple(WIRE_FORMATS)
_KIB = 1024
_FLOAT32 = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--processes", type=int, default=1, help="start so many on this machine's CPU (1)")
    add(
        *("--devices_per_process", "--devices"),
        type=int,
        default=0,
        metavar="N",
        help="CPU devices of each process; --devices is the old name (those there are)",
    )
    add("--wire", default=",".join(WIRES), help=f"comma-separated ({','.join(WIRES)})")
    add("--bucket_mib", default="auto", help="as comm.bucket_mib (auto)")
    add("--sizes_kib", default="4,16,64,256,1024,4096,16384,65536", help="of the sweep")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    add("--calls", type=int, default=3, help="all-reduces of a repeat, of the gradients (3)")
    backward.add_arguments(parser)
    add("--profile_out", type=Path, help="measure the backward pass into this file, and end")
    add("--profile_cuts", choices=("block", "stage"), default="block", help="its detail (block)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Measures; with several processes the first one alone has results.

    Raises:
        ConfigError: Options that cannot be.
        UserError: One device alone, or a process that failed.
    """
    _check(flags)
    if flags.processes > 1 and processes.PROCESSES not in os.environ:
        _start(flags)
        return []
    if flags.devices_per_process:
        # Too late where devices are in use already: then the first so many of them are taken.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", flags.devices_per_process)
    processes.initialise()
    if flags.profile_out:
        return _profiled(flags)
    devices = jax.devices()
    if flags.devices_per_process and jax.process_count() == 1:
        devices = devices[: flags.devices_per_process]
    if len(devices) == 1:
        raise UserError(
            "one device reduces with nobody; give --devices_per_process 4 on a CPU, or start "
            "several processes"
        )
    plan = backward.plan_of(flags, len(devices))
    mesh = parallel.make_mesh(devices, 1)
    results = _gradients(flags, plan, mesh) + _sweep(flags, mesh) + _precision(flags, plan, mesh)
    return results if jax.process_index() == 0 else []


def _check(flags: argparse.Namespace) -> None:
    for name in ("processes", "repeats", "calls"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name} {getattr(flags, name)} must be above 0")
    unknown = [name for name in _wires(flags) if name not in WIRES]
    if unknown:
        raise ConfigError(f"--wire {unknown[0]!r} is none of {', '.join(WIRES)}")
    _bucket_mib(flags)
    try:
        sizes = _sizes(flags)
    except ValueError:
        sizes = []
    if not sizes or min(sizes) <= 0:
        raise ConfigError(f"--sizes_kib {flags.sizes_kib!r} must be whole numbers above 0")


def _start(flags: argparse.Namespace) -> None:
    """The same command as several processes; what they print and write is theirs."""
    started = launch_local.launch(sys.argv, flags.processes, flags.devices_per_process or 1)
    try:
        code = launch_local.wait(started)
    finally:
        launch_local.stop(started)
    if code:
        raise UserError(f"a process ended with {code}; its message stands above")


def _profiled(flags: argparse.Namespace) -> list[Result]:
    found, times = backward.profile(backward.plan_of(flags, 1), flags.profile_cuts, flags.repeats)
    found.save(flags.profile_out)
    ends = [tuple(1e3 * s for s in repeats) for repeats in times]
    return [
        Result("forward pass", "ms", ends[0], better="less"),
        Result("forward and backward pass", "ms", ends[-1], better="less", note=_profile(found)),
    ]


def _profile(found: BackwardProfile) -> str:
    stages: dict[str, float] = {}
    for path, seconds in found.seconds.items():
        stage = "/".join(path.split("/")[: 2 if path.startswith("stages/") else 1])
        stages[stage] = stages.get(stage, 0) + 1e3 * seconds
    each = ", ".join(f"{stage} {ms:.3g}" for stage, ms in stages.items())
    return f"{found.images} images, {found.dtype}, {found.hardware}; backward in ms: {each}"


def _gradients(flags: argparse.Namespace, plan: Plan, mesh: Mesh) -> list[Result]:
    """The whole set of gradients, ours and the peers' in turn."""
    shapes = dict(shapes_of(model_of(plan)))
    gradients = reductions.random_gradients(mesh, shapes)
    results = []
    for name in _wires(flags):
        buckets = _buckets(flags, plan, mesh, name)
        competitors = {
            "ours": reductions.ours(mesh, buckets, name, _options(mesh)),
            "pmean per leaf": reductions.per_leaf(mesh, name),
            "one psum of all": reductions.whole_tree(mesh, name),
        }
        repeats = {
            label: reductions.timed(reduce, gradients, flags.calls)
            for label, reduce in competitors.items()
        }
        times = {
            label: tuple(1e3 * s for s in found)
            for label, found in interleave(repeats, flags.repeats).items()
        }
        mib = sum(bucket.size for bucket in buckets) * jax.numpy.dtype(name).itemsize / 2**20
        note = f"{plan.config.model.name}, {len(buckets)} bucket(s), {mib:.1f} MiB; {_where(mesh)}"
        results += [
            Result(
                f"gradients, {name}, beside {peer}",
                "ms",
                times["ours"],
                times[peer],
                peer,
                better="less",
                note=note,
            )
            for peer in ("pmean per leaf", "one psum of all")
        ]
    return results


def _sweep(flags: argparse.Namespace, mesh: Mesh) -> list[Result]:
    """One flat array of each size; the link that fits, and what it and the table say of each."""
    sizes = _sizes(flags)
    repeats = {}
    for nbytes in sizes:
        array = reductions.random_gradients(mesh, {"x": (nbytes // _FLOAT32,)})
        calls = min(50, max(flags.calls, 2**20 // nbytes))
        repeats[nbytes] = reductions.timed(reductions.flat_sum(mesh), array, calls)
    found = interleave(repeats, flags.repeats)
    points = [(nbytes, median(times)) for nbytes, times in found.items()]
    link = fit_link(mesh.size, points)
    cluster = cluster_of(list(mesh.devices.flat))
    results = [
        Result(
            f"psum of {nbytes // _KIB:,} KiB",
            "ms",
            tuple(1e3 * s for s in times),
            better="less",
            note=f"fitted {1e3 * ring_s(mesh.size, nbytes, link):.4g} ms{_table(cluster, nbytes)}",
        )
        for nbytes, times in found.items()
    ]
    about = f"one ring of {_where(mesh)}; a call's own cost is part of the latency"
    rate = (link.bandwidth / 1e9,) if link.bandwidth < float("inf") else ()
    absent = "" if rate else "times do not grow with the bytes"
    return [
        *results,
        Result("fitted rate of a device", "GB/s", rate, absent=absent, note=about),
        Result("fitted latency of a hop", "µs", (1e6 * link.latency,), better="less", note=about),
    ]


def _table(cluster: Cluster | None, nbytes: int) -> str:
    """What the planner's own figures say."""
    if cluster is None:
        return ""
    return (
        f", {1e3 * all_reduce_s(cluster, nbytes):.4g} ms by the table for {cluster.hardware.name}"
    )


def _precision(flags: argparse.Namespace, plan: Plan, mesh: Mesh) -> list[Result]:
    gradients = wire.device_gradients(plan, mesh)
    note = (
        f"‖a−b‖/‖b‖, b the float64 sum; {plan.first_stage.samples_per_step} images, {_where(mesh)}"
    )
    results = []
    for name in _wires(flags):
        buckets = _buckets(flags, plan, mesh, name)
        found = wire.errors(gradients, mesh, buckets, [name])[name]
        results += [
            Result(
                f"error of the sum, {name}, {kind}",
                "relative",
                (error,),
                better="less",
                note=note if (name, kind) == (_wires(flags)[0], "all") else "",
            )
            for kind, error in sorted(found.items())
        ]
    return results


def _buckets(flags: argparse.Namespace, plan: Plan, mesh: Mesh, name: str) -> tuple[Bucket, ...]:
    """As a run with these options would have them."""
    return gradient_buckets(
        shapes_of(model_of(plan)),
        Comm(bucket_mib=_bucket_mib(flags), wire=name),
        list(mesh.devices.flat),
        images=plan.first_stage.local_images,
        image_shape=plan.facts.image_shape,
        dtype=plan.config.model.dtype,
    )


def _bucket_mib(flags: argparse.Namespace) -> float | str:
    if flags.bucket_mib == "auto":
        return "auto"
    try:
        least = float(flags.bucket_mib)
    except ValueError:
        least = 0.0
    if not 0 < least < float("inf"):
        raise ConfigError(f"--bucket_mib {flags.bucket_mib!r} is neither auto nor above 0")
    return least


def _options(mesh: Mesh) -> dict[str, str]:
    platform = compiler.platform_of(mesh.devices.flat[0])
    return compiler.program_options(
        platform, "bucket", (), lambda line: print(line, file=sys.stderr)
    )


def _where(mesh: Mesh) -> str:
    return f"{mesh.size} devices of {jax.process_count()} process(es)"


def _wires(flags: argparse.Namespace) -> list[str]:
    return [name for name in flags.wire.split(",") if name]


def _sizes(flags: argparse.Namespace) -> Sequence[int]:
    return [int(text) * _KIB for text in flags.sizes_kib.split(",") if text]
