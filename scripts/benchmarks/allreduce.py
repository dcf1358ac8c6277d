"""All-reduce: our buckets against pmean per leaf and one psum; latency, rate and precision.

    allreduce --devices_per_process 4 --json records/allreduce.json

It uses all devices of all processes, started by a cluster manager or scripts/launch_local.py;
--devices_per_process sets their number on a CPU. A sweep of sizes gives the latency and rate that
the network model of the planner needs. The error of each number format on the wire is that of the
sum of random gradients.
"""

import argparse
import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from benchmarks.competitor import Figures, Race, interleave
from benchmarks.measure import Result, chosen, numbers, require_positive
from largebatch import parallel
from largebatch.config import Config, Facts, load, override
from largebatch.config.plan import Plan
from largebatch.config.registries import WIRE_FORMATS
from largebatch.config.resolution import resolve
from largebatch.config.sections import Batch, Norm, Schedule
from largebatch.errors import UserError, counted
from largebatch.models.tracing import shapes_of
from largebatch.parallel import Bucket, processes, xla_options
from largebatch.parallel.buckets import gradient_buckets
from largebatch.parallel.clusters import Link, cluster_of
from largebatch.parallel.mesh import AXES
from largebatch.parallel.network import all_reduce_s, ring_s
from largebatch.training.steps import model_of

Gradients = Mapping[str, jax.Array]
"""Path to (devices, …): every device's own."""
Reduce = Callable[[Gradients], Mapping[str, jax.Array]]
OVERRIDES = True
WIRES = tuple(WIRE_FORMATS)
_FLOAT32 = 4
_CLASSES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add(
        *("--devices_per_process", "--devices"),
        type=int,
        default=0,
        metavar="N",
        help="CPU devices of each process; --devices is the old name (those there are)",
    )
    add("--wire", default=",".join(WIRES), help=f"comma-separated ({','.join(WIRES)})")
    add("--sizes_kib", default="4,16,64,256,1024,4096,16384,65536", help="of the sweep")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    add("--calls", type=int, default=3, help="all-reduces of a repeat, of the gradients (3)")
    add("--config", help="recipe whose network is used (ResNet-50 in float32)")
    add("--image_size", type=int, default=224, help="pixels a side (224)")
    add("--images", type=int, default=40, help="images that a device computes at a time (40)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Measure; with several processes only the first one returns results.

    Raises:
        ConfigError: Impossible options.
        UserError: One device alone.
    """
    require_positive(flags, "repeats", "calls")
    wires, sizes = chosen("--wire", flags.wire, WIRES), numbers("--sizes_kib", flags.sizes_kib)
    if flags.devices_per_process:
        # Too late where devices are in use already: then the first of them are taken.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", flags.devices_per_process)
    processes.initialise()
    devices = jax.devices()
    if flags.devices_per_process and jax.process_count() == 1:
        devices = devices[: flags.devices_per_process]
    if len(devices) == 1:
        raise UserError(
            "an all-reduce needs several devices, got 1; use --devices_per_process 4 on a CPU, or "
            "start several processes"
        )
    plan, mesh = plan_of(flags, len(devices)), parallel.make_mesh(devices, 1)
    where = f"{mesh.size} devices of {counted(jax.process_count(), 'process')}"
    buckets = {wire: buckets_of(plan, mesh, wire) for wire in wires}
    gradients = random_gradients(mesh, dict(shapes_of(model_of(plan))))
    results = [
        *_gradients(flags, plan, mesh, buckets, gradients, where),
        *_sweep(flags, sizes, mesh, where),
        *_precision(plan, mesh, buckets, gradients, where),
    ]
    return results if jax.process_index() == 0 else []


def plan_of(flags: argparse.Namespace, devices: int) -> Plan:
    """The recipe's network with one worker of --images images on each device.

    Raises:
        ConfigError: An option that does not exist, or an impossible value.
    """
    config = load(flags.config) if flags.config else Config()
    for key, text in flags.overrides:
        config = override(config, key, text)
    require_positive(flags, "images", "image_size")
    config = dataclasses.replace(
        config,
        batch=Batch(workers=devices, images_per_worker=flags.images, microbatch=1),
        norm=dataclasses.replace(config.norm, span=Norm.span),
        schedule=Schedule(length="1 steps", warmup="0 steps", peak=1.0),
    )
    shape = (flags.image_size, flags.image_size, 3)
    return resolve(config, Facts(devices * flags.images, 1, _CLASSES, shape, devices=devices))


def _ms(reduce: Reduce, gradients: Gradients, calls: int) -> Callable[[], Figures]:
    seconds = timed(reduce, gradients, calls)
    return lambda: {"ms": 1e3 * seconds()}


def _gradients(
    flags: argparse.Namespace,
    plan: Plan,
    mesh: Mesh,
    buckets: Mapping[str, Sequence[Bucket]],
    gradients: Gradients,
    where: str,
) -> list[Result]:
    """All gradients of the network: ours and the peers interleaved."""
    options = xla_options.program_options(mesh.devices.flat[0], Config(), print)
    results = []
    for wire, ours in buckets.items():
        competitors = {
            "ours": in_buckets(mesh, ours, wire, options),
            "pmean per leaf": per_leaf(mesh, wire),
            "one psum of all": whole_tree(mesh, wire),
        }
        repeats = {name: _ms(each, gradients, flags.calls) for name, each in competitors.items()}
        mib = sum(bucket.size for bucket in ours) * jnp.dtype(wire).itemsize / 2**20
        note = f"{plan.config.model.name}, {counted(len(ours), 'bucket')}, {mib:.1f} MiB; {where}"
        race = Race(interleave(repeats, flags.repeats), about={"ours": note})
        results += race.results(f"gradients, {wire}")
    return results


def _sweep(flags: argparse.Namespace, sizes: Sequence[int], mesh: Mesh, where: str) -> list[Result]:
    """One flat array of each size; the link that fits them, and the planner's own figure."""
    repeats = {}
    for kib in sizes:
        array = random_gradients(mesh, {"x": (kib * 1024 // _FLOAT32,)})
        calls = min(50, max(flags.calls, 1024 // kib))
        repeats[f"psum of {kib:,} KiB"] = _ms(flat_sum(mesh), array, calls)
    race = Race(interleave(repeats, flags.repeats))
    times = {1024 * kib: race.column("ms", name) for kib, name in zip(sizes, repeats, strict=True)}
    medians = [(nbytes, median(each) / 1e3) for nbytes, each in times.items()]
    link, cluster = fit_link(mesh.size, medians), cluster_of(list(mesh.devices.flat))
    results = []
    for name, (nbytes, each) in zip(repeats, times.items(), strict=True):
        note = f"fitted {1e3 * ring_s(mesh.size, nbytes, link):.4g} ms"
        if cluster is not None:
            table = f"the table for {cluster.hardware.name}"
            note += f", {1e3 * all_reduce_s(cluster, nbytes):.4g} ms by {table}"
        results.append(Result(name, "ms", each, note=note))
    note = f"one ring of {where}; a call's own cost is part of the latency"
    rate = (link.bandwidth / 1e9,) if link.bandwidth < float("inf") else ()
    absent = "" if rate else "times do not grow with the bytes"
    return [
        *results,
        Result("fitted rate of a device", "GB/s", rate, absent=absent, note=note),
        Result("fitted latency of a hop", "µs", (1e6 * link.latency,), note=note),
    ]


def _precision(
    plan: Plan,
    mesh: Mesh,
    buckets: Mapping[str, Sequence[Bucket]],
    gradients: Gradients,
    where: str,
) -> list[Result]:
    kinds = model_of(plan).kinds()
    note = f"‖a−b‖/‖b‖, b the float64 sum; random gradients, {where}"
    return [
        Result(f"error of the sum, {wire}, {kind}", "relative", (error,), note=note)
        for wire, ours in buckets.items()
        for kind, error in sorted(errors(gradients, kinds, mesh, ours, wire).items())
    ]


def fit_link(ranks: int, measured: Sequence[tuple[float, float]]) -> Link:
    """Fit the link of ``ring_s`` to measured all-reduces.

    Least squares of (α + βS − t)/t over all points, α and β not below 0. The latency is all that
    does not grow with the bytes, including the cost of a call.

    Args:
      ranks: N.
      measured: (bytes, seconds).

    Returns:
      The link; its bandwidth is infinite if time does not grow with the bytes.
    """
    nbytes, seconds = np.asarray(measured, np.float64).T
    columns = np.stack([1 / seconds, nbytes / seconds], axis=1)
    ones = np.ones_like(seconds)
    (alpha, beta), *_ = np.linalg.lstsq(columns, ones)
    if alpha < 0 or beta < 0:
        # The optimum lies on the border: one of the two alone.
        alone = columns.T @ ones / (columns**2).sum(0)
        errors = ((columns * alone - ones[:, None]) ** 2).sum(0)
        alpha, beta = (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
    crossings = 2 * (ranks - 1)
    bandwidth = crossings / ranks / beta if beta > 0 else math.inf
    return Link(float(bandwidth), float(alpha / crossings))


# ---- reductions, and their times


def random_gradients(mesh: Mesh, shapes: Mapping[str, tuple[int, ...]]) -> Gradients:
    """Return normal float32 numbers that differ between devices."""
    sizes = [math.prod(shape) for shape in shapes.values()]

    def make() -> dict[str, jax.Array]:
        # One random stream for all arrays: one for each would take long to compile.
        flat = jax.random.normal(jax.random.key(0), (mesh.size, sum(sizes)))
        cut = jnp.split(flat, list(itertools.accumulate(sizes))[:-1], axis=1)
        return {
            path: part.reshape(mesh.size, *shape)
            for part, (path, shape) in zip(cut, shapes.items(), strict=True)
        }

    return jax.jit(make, out_shardings=parallel.split(mesh))()


def flat_sum(mesh: Mesh) -> Reduce:
    """Return the sum of one float32 array, as a step sums its metrics."""

    def reduce(gradients: Gradients) -> Mapping[str, jax.Array]:
        return parallel.sum_over_devices({path: g[0] for path, g in gradients.items()})

    return compiled(mesh, reduce)


def compiled(mesh: Mesh, reduce: Reduce, options: Mapping[str, str] | None = None) -> Reduce:
    """Compile a reduction of every device's gradients.

    Args:
      mesh: all devices.
      reduce: called by each with (1, …).
      options: of XLA.
    """
    mapped = parallel.map_over(mesh, reduce, parallel.SPLIT, parallel.REPLICATED)
    return jax.jit(mapped, compiler_options=dict(options) if options else None)


def timed(reduce: Reduce, gradients: Gradients, calls: int) -> Callable[[], float]:
    """Return a function that measures the seconds of one of `calls` consecutive reductions.

    The number of calls is fixed, because all processes must make as many. The first call, which
    compiles, is made here.
    """
    jax.block_until_ready(reduce(gradients))

    def repeat() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            # Wait for each call: a device that runs ahead would hide its cost.
            jax.block_until_ready(reduce(gradients))
        return (time.perf_counter() - start) / calls

    return repeat


def in_buckets(
    mesh: Mesh, buckets: Sequence[Bucket], wire: str, options: Mapping[str, str] | None = None
) -> Reduce:
    """Our sums over all devices, by the function that hooks a step's backward pass.

    The loss is linear in the parameters, so its gradient is what is given.
    """

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        own = {path: gradient[0] for path, gradient in gradients.items()}

        def linear(params: Mapping[str, jax.Array]) -> jax.Array:
            hooked = parallel.reduce_gradients_in_backward(params, buckets, None, wire)
            return sum(jnp.vdot(hooked[path], own[path]) for path in own)

        return jax.grad(linear)({path: jnp.zeros_like(own[path]) for path in own})

    return compiled(mesh, reduce, options)


def per_leaf(mesh: Mesh, wire: str) -> Reduce:
    """The means, by `pmean` of the tree of gradients, as the Flax ImageNet example has it."""

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        own = {path: gradient[0].astype(wire) for path, gradient in gradients.items()}
        means = jax.lax.pmean(own, AXES)
        return {path: mean.astype(gradients[path].dtype) for path, mean in means.items()}

    return compiled(mesh, reduce)


def whole_tree(mesh: Mesh, wire: str) -> Reduce:
    """The sums, by one `psum` of all gradients joined."""

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        flat, unravel = jax.flatten_util.ravel_pytree({p: g[0] for p, g in gradients.items()})
        return unravel(jax.lax.psum(flat.astype(wire), AXES).astype(flat.dtype))

    return compiled(mesh, reduce)


def errors(
    gradients: Gradients,
    kinds: Mapping[str, str],
    mesh: Mesh,
    buckets: Sequence[Bucket],
    wire: str,
) -> dict[str, float]:
    """‖a − b‖/‖b‖ by kind of parameter, `all` for all of them together.

    a is the result of our all-reduce, b the float64 sum of the gradients of all devices.
    """
    # In float64, of all devices of all processes.
    every = multihost_utils.process_allgather(dict(gradients), tiled=True)
    exact = {path: np.asarray(array, np.float64).sum(0) for path, array in every.items()}
    reduced = in_buckets(mesh, buckets, wire)(gradients)
    squares: dict[str, np.ndarray] = {}
    for path, b in exact.items():
        a = np.asarray(reduced[path].addressable_data(0), np.float64)
        both = np.array([np.sum((a - b) ** 2), np.sum(b**2)])
        for kind in (kinds[path], "all"):
            squares[kind] = squares.get(kind, 0) + both
    return {kind: float(np.sqrt(d / s)) for kind, (d, s) in squares.items()}


def buckets_of(plan: Plan, mesh: Mesh, wire: str) -> tuple[Bucket, ...]:
    """The buckets of a run with these options."""
    return gradient_buckets(
        model_of(plan),
        dataclasses.replace(plan.config.comm, wire=wire),
        list(mesh.devices.flat),
        images=plan.first_stage.local_images,
        image_shape=plan.facts.image_shape,
    )
