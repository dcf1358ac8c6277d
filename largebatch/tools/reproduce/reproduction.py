"""A published run, repeated: several seeds on the clock, and the record that is kept of them."""

import contextlib
import dataclasses
import datetime
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from largebatch import tracking
from largebatch.config import load
from largebatch.config.recipe_file import label
from largebatch.config.recipes import Published, load_recipe
from largebatch.errors import ConfigError, UserError, did_you_mean
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.files import replacing, write_json
from largebatch.parallel import compiler, processes
from largebatch.planning.prediction import Prediction, known_clusters
from largebatch.tools.reproduce import record
from largebatch.tools.reproduce.statistics import SeedResult
from largebatch.tracking.compliance import check_log, interval, read_log
from largebatch.training import session
from largebatch.training.preflight import preflight

Scale = Literal["laptop", "node", "full"]


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be repeated, how often, and where the record goes.

    Attributes:
        recipe: the file.
        out: directory of records; with several processes all of them must share it.
        runs_in: directory of working directories, RUNS_IN/RECORD/seed_N; shared likewise.
        runs: seeds, from `run.seed` on.
        scale: `run.scale_to`; `full` takes the recipe as it is.
        overrides: options over those of the recipe.
        command: what was typed, for the record.
        cluster: name of the machines that it runs on, in `largebatch.planning`, to set a prediction
            for them beside the measured time; empty: none.
    """

    recipe: Path
    out: Path
    runs_in: Path = Path("runs")
    runs: int = 5
    scale: Scale = "full"
    overrides: tuple[tuple[str, str], ...] = ()
    command: str = ""
    cluster: str = ""


def reproduce(
    request: Request,
    environment: Mapping[str, Any],
    published: Published | None = None,
    *,
    hosts: str = "one process",
    devices: Sequence[jax.Device] | None = None,
    watchdog: Watchdog = IDLE,
) -> Path:
    """Run all seeds and write the record.

    Args:
        request: what to run.
        environment: what the figures depend on: versions, devices, commit, flags.
        published: the row that is repeated; None for a recipe of our own.
        hosts: how the processes found each other, for people.
        devices: None for all devices of all processes.
        watchdog: of each run; a run that is stopped ends the reproduction.

    Returns:
        The record's folder.

    Raises:
        UserError: a mistake that the user can correct.
        Interrupted: it was asked to stop; a clocked run cannot be resumed.
    """
    if request.runs < 1:
        raise UserError(f"--runs={request.runs} is no run; give 1 or more")
    if request.cluster and request.cluster not in known_clusters():
        raise UserError(
            f"--cluster={request.cluster} is unknown; "
            f"{did_you_mean(request.cluster, known_clusters())}"
        )
    devices = jax.devices() if devices is None else devices
    console = tracking.Console(quiet=jax.process_index() != 0)
    overrides = _overrides(request, published)
    config = load(request.recipe, overrides)
    ready = preflight(config, request.runs_in, devices=devices)
    console.plan(f"preflight of {label(request.recipe)}", ready.rows)
    options = compiler.program_options(
        compiler.platform_of(devices[0]),
        config.comm.allreduce,
        config.comm.xla_options,
        console.warn,
        deterministic=config.run.deterministic,
    )
    unlike, expected = [], None
    if published is not None:
        unlike = record.other_task(config, ready.plan, load_recipe(request.recipe))
        if unlike:
            console.warn(f"{record.OTHER_TASK}: {'; '.join(unlike)}")
        else:
            expected = _predicted(console, lambda: record.prediction(request.recipe, published))
    here = _predicted(console, lambda: record.prediction_here(ready.plan, devices, request.cluster))
    folder = _folder(request, devices)
    seeds = range(config.run.seed, config.run.seed + request.runs)
    with _compiling_once():
        results = [
            _run(request, overrides, seed, folder, hosts, devices, watchdog) for seed in seeds
        ]
    if jax.process_index() == 0:
        about = {
            "recipe": label(request.recipe),
            "scale": request.scale,
            "command": request.command,
            "overrides": dict(request.overrides),
            "environment": dict(environment),
            "xla_options": options,
            "cluster": request.cluster or None,
        }
        kept = record.record(about, ready.plan, results, published, expected, here, unlike)
        write_json(folder / "record.json", kept)
        with replacing(folder / "README.md") as stream:
            stream.write(record.page(kept).encode())
        console.closing(record.closing_rows(kept), str(folder))
    processes.wait_for_all("record written")
    return folder


def _predicted(
    console: tracking.Console, predict: Callable[[], Prediction | None]
) -> Prediction | None:
    """A prediction, or a warning that says why there is none."""
    try:
        return predict()
    except ConfigError as error:
        console.warn(f"no prediction: {error}")
        return None


def _overrides(request: Request, published: Published | None) -> list[tuple[str, str]]:
    """Clocked, without checkpoints on the clock, to the published target; the user's come last."""
    ours = [
        ("run.mlperf_log", "open"),
        ("run.checkpoint_every", "100 %"),
        ("run.keep_checkpoints", "1"),
    ]
    if request.scale != "full":
        ours.append(("run.scale_to", request.scale))
    elif published and published.target_percent:
        ours.append(("run.target", f"{published.target_percent / 100:.6g}"))
    return [*ours, *request.overrides]


def _folder(request: Request, devices: Sequence[jax.Device]) -> Path:
    """`<date>_<recipe>_<device>`, the same for all processes; a number follows if it is taken."""
    today = datetime.date.fromordinal(processes.agreed_minimum(datetime.date.today().toordinal()))
    recipe = label(request.recipe) + ("" if request.scale == "full" else f"-{request.scale}")
    kind = re.sub(r"[^a-z0-9]+", "-", devices[0].device_kind.lower()).strip("-")
    device = kind if len(devices) == 1 else f"{kind}-{len(devices)}"
    name = f"{today.isoformat()}_{recipe}_{device}"
    number = 1
    while (request.out / _numbered(name, number)).exists():
        number += 1
    folder = request.out / _numbered(name, processes.agreed_minimum(number))
    processes.first_process_does(lambda: _make(folder))
    return folder


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"--out: {folder} cannot be made ({error.strerror}); choose another directory"
        ) from error


@contextlib.contextmanager
def _compiling_once() -> Iterator[None]:
    """Lets later seeds take the programs of the first, unless a cache is set already."""
    if jax.config.jax_compilation_cache_dir:
        yield
        return
    from jax.experimental.compilation_cache import compilation_cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    with tempfile.TemporaryDirectory() as directory:
        try:
            for name, value in zip(names, (directory, 0.0), strict=True):
                jax.config.update(name, value)
            yield
        finally:
            for name, value in zip(names, before, strict=True):
                jax.config.update(name, value)
            compilation_cache.reset_cache()  # or it would go on in the folder that is deleted


def _run(
    request: Request,
    overrides: Sequence[tuple[str, str]],
    seed: int,
    folder: Path,
    hosts: str,
    devices: Sequence[jax.Device],
    watchdog: Watchdog,
) -> SeedResult | None:
    """One seed, in a working directory of its own; None on processes other than 0."""
    workdir = request.runs_in / folder.name / f"seed_{seed}"
    chosen = (*overrides, ("run.seed", str(seed)))
    asked = session.Request(request.recipe, workdir, chosen, resume="never")
    config = load(request.recipe, chosen)
    summary = session.run(config, asked, hosts=hosts, devices=devices, watchdog=watchdog)
    target = config.run.target
    return processes.first_process_does(
        lambda: _kept(workdir, folder, seed, summary, has_target=bool(target))
    )


def _kept(
    workdir: Path, folder: Path, seed: int, summary: tracking.Summary, *, has_target: bool
) -> SeedResult:
    """What the run was; its logs go to the record too, its checkpoints do not."""
    log = folder / f"result_{seed}.txt"
    shutil.copyfile(workdir / log.name, log)
    shutil.copyfile(workdir / "config.json", folder / f"config_{seed}.json")
    for name in ("metrics", "layers"):
        shutil.copyfile(workdir / f"{name}.jsonl", folder / f"{name}_{seed}.jsonl")
    events = read_log(log)
    stop = events[-1]
    return SeedResult(
        seed=seed,
        status=summary.status,
        reached=stop.metadata["status"] == "success" if has_target else None,
        top1=summary.top1,
        top5=summary.top5,
        loss=summary.loss,
        clock_s=interval(events, "run"),
        epochs=stop.metadata.get("epoch_num"),
        initialisation_s=interval(events, "init"),
        compile_s=summary.compile_s,
        train_s=summary.train_s,
        wait_s=summary.wait_s,
        evaluation_s=summary.evaluation_s,
        checkpoint_s=summary.checkpoint_s,
        images_per_s=summary.images_per_s,
        accepted=check_log(log).accepted,
    )
