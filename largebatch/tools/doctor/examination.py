"""All checks in order: without devices, then of each process, then of all processes together."""

import contextlib
import dataclasses
import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from largebatch import data
from largebatch.config import Config, Facts, Plan, resolve
from largebatch.data.open import facts_of, known_split, open_source
from largebatch.errors import DataError
from largebatch.fault_tolerance.exit_codes import HUNG
from largebatch.parallel import compiler
from largebatch.parallel.processes import agreed_minimum
from largebatch.tools.doctor import dataset, machine, network, software, speed, storage
from largebatch.tools.doctor.lines import Line, attempted, gathered, gathered_lines, merged, skip

Splits = tuple[data.Source, data.Source]


@dataclasses.dataclass(frozen=True)
class Request:
    """What to check.

    Attributes:
        workdir: run directory.
        devices: number of devices that there should be in all; 0: any.
        full: read every shard of a prepared dataset.
        measure_step: compile and time two steps.
        seconds: time to measure decoding for.
        limit_s: time limit of each stage, in seconds; 0: none.
    """

    workdir: Path
    devices: int = 0
    full: bool = False
    measure_step: bool = False
    seconds: float = speed.SECONDS
    limit_s: float = 0.0


@contextlib.contextmanager
def time_limit(stage: str, seconds: float) -> Iterator[None]:
    """End the process with code 70 and the stacks of its threads if the body takes longer.

    An error on one host would otherwise keep the others waiting in a collective.

    Args:
        stage: name of the stage, for the message.
        seconds: the limit; 0: none.
    """

    def end() -> None:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        print(
            f"error: {stage} takes more than {seconds:g} s: another process failed or is missing, "
            "see its output; --limit_s=0 waits",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HUNG)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def before_devices() -> list[Line]:
    """Run the checks that must come before JAX uses a device, or that need none."""
    gpus = machine.query_gpus()
    return [
        *attempted(software.VERSIONS, software.check_versions),
        *attempted(software.ENVIRONMENT, software.check_environment),
        *attempted(machine.GPU_MEMORY, lambda: machine.gpu_memory(gpus)),
        *attempted(machine.GPU_CLOCKS, lambda: machine.gpu_clocks(gpus)),
        *attempted(machine.GPU_ERRORS, lambda: machine.gpu_errors(gpus)),
        *attempted(machine.GPU_LINKS, lambda: machine.gpu_links(machine.topology_text())),
    ]


def is_fatal(lines: list[Line]) -> bool:
    """Return whether a process that uses a device would abort."""
    return any(line.name == software.ENVIRONMENT and line.verdict == "PROBLEM" for line in lines)


def examine(
    config: Config,
    request: Request,
    early: list[Line],
    report: Callable[[str], None] = lambda _: None,
) -> list[Line]:
    """Return all lines, merged over the processes; each process must call this.

    Args:
        config: configuration of the run.
        request: what to check.
        early: the lines of `before_devices`.
        report: called with the name of each stage.
    """

    @contextlib.contextmanager
    def stage(name: str, limit_s: float = request.limit_s) -> Iterator[None]:
        report(name)
        with time_limit(name, limit_s):
            yield

    splits: list[Splits] = []
    plans: list[Plan] = []
    with stage("checking devices"):
        own = [
            *early,
            *attempted(machine.DEVICES, lambda: machine.check_devices(config, request.devices)),
            *attempted(machine.TOPOLOGY, machine.check_topology),
            *attempted(software.OPTIONS, lambda: _options(config)),
            *attempted(dataset.NAME, lambda: _dataset(config, splits)),
        ]
    # Process 0 may read for hours, and the others wait for it.
    with stage("reading shards of the dataset", 0 if request.full else request.limit_s):
        own += attempted(dataset.CHECKSUMS, lambda: _files(config, request))
        own += attempted("plan", lambda: _plan(config, splits, plans))
        plan = plans[0] if plans else None
        own += _of_host(config, plan, request)
        together = bool(agreed_minimum(int(plan is not None)))
        readable = bool(agreed_minimum(int(together and bool(splits))))
    if readable:
        paces: list[speed.Pace | str] = []
        with stage("timing two steps" if request.measure_step else "predicting a step"):
            own += attempted(speed.STEP, lambda: _pace(config, plan, request, paces))
            hosts = len(set(gathered(socket.gethostname())))
        with stage(f"decoding for {request.seconds:g} s"):
            known = paces[0] if paces else "the step could not be measured"
            own += attempted(
                speed.DECODING,
                lambda: speed.judge(
                    *speed.decode_rate(config, splits[0][0], plan, seconds=request.seconds),
                    data.cores(),
                    plan,
                    known,
                    hosts=hosts,
                ),
            )
    else:
        own.append(skip(speed.DECODING, "the dataset cannot be read"))
    with stage("comparing hosts"):
        facts = plan.facts if plan else None
        own += attempted(storage.SHARED, lambda: storage.check_shared(request.workdir))
        own += attempted(software.AGREEMENT, lambda: software.check_agreement(config, facts))
    with stage("measuring all-reduces"):
        if together:
            own += attempted(network.NAME, lambda: network.check(plan))
        else:
            own.append(skip(network.NAME, "the plan of the run is unknown"))
        return merged(gathered_lines(own), gathered(socket.gethostname()))


def _options(config: Config) -> Line:
    return software.check_options(config, compiler.platform_of(jax.devices()[0]))


def _dataset(config: Config, splits: list[Splits]) -> Line:
    splits.append((open_source(config, "train"), open_source(config, "validation")))
    return dataset.check(config, splits[0])


def _files(config: Config, request: Request) -> Line:
    # Each host reads a sample, since it may have its own copy; only process 0 reads everything.
    return dataset.check_files(config, full=request.full and jax.process_index() == 0)


def _pace(
    config: Config, plan: Plan, request: Request, paces: list[speed.Pace | str]
) -> list[Line]:
    paces.append(speed.pace(config, plan, measure=request.measure_step))
    return []


def _plan(config: Config, splits: list[Splits], plans: list[Plan]) -> list[Line]:
    """Resolve the plan, with the published counts if the dataset cannot be opened.

    It has no line of its own unless it raises.
    """
    try:
        plans.append(resolve(config, _facts(config, splits)))
    except DataError:
        if splits:  # otherwise the line of the dataset is the problem
            raise
    return []


def _facts(config: Config, splits: list[Splits]) -> Facts:
    on_device = config.data.crops == "device"
    chosen = splits[0] if splits else None
    if chosen is None:
        source, size = config.data.source, config.data.image_size
        chosen = tuple(known_split(source, name, size) for name in ("train", "validation"))
        if None in chosen or on_device:
            raise DataError("the dataset is neither here nor known")
    return facts_of(*chosen, len(jax.devices()), jax.process_count(), crops_on_device=on_device)


def _of_host(config: Config, plan: Plan | None, request: Request) -> list[Line]:
    nccl = len(jax.devices()) > 1 and jax.default_backend() == "gpu"
    lines = [
        *attempted(machine.SHM, lambda: machine.check_shm(needed=nccl)),
        *attempted(storage.LOCK, lambda: storage.check_lock(request.workdir)),
        *attempted(storage.CACHE, lambda: storage.check_cache(config.run.compile_cache)),
    ]
    if plan is None:
        return lines
    local = jax.local_device_count()
    return [
        *attempted(machine.MEMORY, lambda: machine.check_memory(plan, local)),
        *attempted(machine.FILES, lambda: machine.check_files(plan)),
        *lines,
        *attempted(storage.DISK, lambda: storage.check_disk(plan, request.workdir)),
    ]
