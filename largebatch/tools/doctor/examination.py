"""All checks in order: those that need no device, then those of each process, then those of all."""

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path

import jax

from largebatch import data
from largebatch.config import Config, Facts, Plan, resolve
from largebatch.data.open import facts_of, known_split
from largebatch.errors import DataError
from largebatch.parallel import compiler
from largebatch.parallel.processes import agreed_minimum
from largebatch.tools.doctor import (
    agreement,
    dataset,
    devices,
    flags,
    host,
    network,
    nvidia,
    speed,
    storage,
    versions,
)
from largebatch.tools.doctor.lines import Line, attempted, gathered, gathered_lines, merged, skip
from largebatch.tools.doctor.patience import Patience
from largebatch.tracking import Console

Splits = tuple[data.Source, data.Source]


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        workdir: Where the run would be kept.
        devices: That there should be in all; 0: whatever there is.
        full: Read every shard of a prepared set.
        measure_step: Compile and time two steps.
        seconds: That decoding is measured for.
    """

    workdir: Path
    devices: int = 0
    full: bool = False
    measure_step: bool = False
    seconds: float = speed.SECONDS


def before_devices() -> list[Line]:
    """What has to be looked at before JAX touches a device, or can be without one."""
    gpus = nvidia.query()
    return [
        *attempted(versions.NAME, versions.check),
        *attempted(flags.ENVIRONMENT, flags.check_environment),
        *attempted("GPU memory", lambda: nvidia.memory(gpus)),
        *attempted("GPU clocks", lambda: nvidia.clocks(gpus)),
        *attempted("GPU memory errors", lambda: nvidia.health(gpus)),
        *attempted("GPU links", lambda: nvidia.links(nvidia.topology())),
    ]


def is_fatal(lines: list[Line]) -> bool:
    """Whether a process that touches a device would abort."""
    return any(line.name == flags.ENVIRONMENT and line.verdict == "PROBLEM" for line in lines)


def examine(
    config: Config,
    request: Request,
    early: list[Line],
    patience: Patience,
    say: Callable[[str], None] = lambda _: None,
) -> list[Line]:
    """All lines, merged over the processes; each of them must call it.

    Args:
        config: What is to run.
        request: What is asked for.
        early: As of `before_devices`.
        patience: Told what is looked at, so that no wait for another process is for ever.
        say: Told what is measured, since that takes seconds.
    """

    def stage(name: str, *, limited: bool = True) -> None:
        patience.stage(name, limited=limited)
        say(name)

    stage("looking at devices")
    own = [
        *early,
        *attempted("devices", lambda: devices.check(config, request.devices)),
        *attempted("device memory", devices.check_memory),
        *attempted("TPU topology", devices.coordinates),
        *attempted(flags.OPTIONS, lambda: _options(config)),
    ]
    splits: list[Splits] = []
    own += attempted(dataset.NAME, lambda: _dataset(config, splits))
    # Process 0 may read for hours, and the others wait for it.
    stage("reading shards of the data set", limited=not request.full)
    own += attempted(dataset.CHECKSUMS, lambda: _files(config, request))
    plans: list[Plan] = []
    # Only what it says is wanted here; the devices have had their line.
    unresolved = attempted("plan", lambda: _plan(config, splits, plans))
    own += [line for line in unresolved if line.verdict == "PROBLEM"]
    plan = plans[0] if plans else None
    own += _of_host(config, plan, request)
    together = bool(agreed_minimum(int(plan is not None)))
    own += _input(config, splits, plan if together else None, request, stage)
    stage("comparing hosts")
    own += attempted(storage.SHARED, lambda: storage.check_shared(request.workdir))
    own += attempted(agreement.NAME, lambda: agreement.check(config, plan.facts if plan else None))
    if together:
        stage("measuring all-reduces")
        own += attempted(network.NAME, lambda: network.check(plan))
    else:
        own.append(skip(network.NAME, "the plan of the run is not known"))
    return merged(gathered_lines(own), gathered(socket.gethostname()))


def _options(config: Config) -> Line:
    return flags.check_options(config, compiler.platform_of(jax.devices()[0]))


def _dataset(config: Config, splits: list[Splits]) -> Line:
    opened = dataset.opened(config)
    splits.append(opened)
    return dataset.check(config, opened)


def _files(config: Config, request: Request) -> Line:
    # A sample by each, since hosts may have copies of their own; all of a shared one but once.
    return dataset.check_files(config, full=request.full and jax.process_index() == 0)


def _plan(config: Config, splits: list[Splits], plans: list[Plan]) -> list[Line]:
    """Resolves the plan, with what is known of the data where they cannot be opened."""
    try:
        plans.append(resolve(config, _facts(config, splits)))
    except DataError:
        if splits:
            raise
        # The line of the data set has said so.
    return []


def _facts(config: Config, splits: list[Splits]) -> Facts:
    on_device = config.data.crops == "device"
    if splits:
        chosen = splits[0]
    else:
        names = ("train", "validation")
        chosen = tuple(
            known_split(config.data.source, name, config.data.image_size) for name in names
        )
        if None in chosen or on_device:
            raise DataError("the data set is neither here nor known")
    return facts_of(*chosen, len(jax.devices()), jax.process_count(), crops_on_device=on_device)


def _of_host(config: Config, plan: Plan | None, request: Request) -> list[Line]:
    several = len(jax.devices()) > 1
    on_gpu = jax.default_backend() == "gpu"
    lines = [
        *attempted("CPU governor", host.check_governor),
        *attempted("/dev/shm", lambda: host.check_shm(several, on_gpu)),
        *attempted(storage.LOCK, lambda: storage.check_lock(request.workdir)),
        *attempted(storage.CACHE, lambda: storage.check_cache(config.run.compile_cache)),
    ]
    if plan is None:
        return lines
    return [
        *attempted("host memory", lambda: host.check_memory(plan, jax.local_device_count())),
        *attempted("open files", lambda: host.check_files(plan)),
        *lines,
        *attempted(storage.DISK, lambda: storage.check_disk(plan, request.workdir)),
    ]


def _input(
    config: Config,
    splits: list[Splits],
    plan: Plan | None,
    request: Request,
    stage: Callable[[str], None],
) -> list[Line]:
    """Decoding against the step; processes take part in a measured step together."""
    everywhere = bool(agreed_minimum(int(bool(splits))))
    if plan is None or not everywhere:
        return [skip(speed.DECODING, "the data set cannot be read")]
    console = Console(quiet=True)
    stage("compiling and timing two steps" if request.measure_step else "predicting a step")
    paces: list[speed.Pace | str] = []

    def pace() -> list[Line]:
        paces.append(speed.check_pace(config, plan, measure=request.measure_step, console=console))
        return []

    lines = attempted(speed.STEP, pace)
    hosts = len(set(gathered(socket.gethostname())))
    known = paces[0] if paces else "the step could not be measured"
    stage(f"decoding for {request.seconds:g} s")
    train = splits[0][0]
    return lines + attempted(
        speed.DECODING,
        lambda: speed.check(config, train, plan, known, hosts=hosts, seconds=request.seconds),
    )
