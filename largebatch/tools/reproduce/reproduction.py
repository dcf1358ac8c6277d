"""Several seeds of a published run on the clock, and the record of them."""

import dataclasses
import datetime
import itertools
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from largebatch import tracking
from largebatch.config import load
from largebatch.config.recipe_file import label
from largebatch.config.recipes import Published, load_recipe
from largebatch.errors import ConfigError, HealthError, UserError
from largebatch.fault_tolerance import Watchdog
from largebatch.files import replacing, write_json
from largebatch.parallel import compile_cache, processes, xla_options
from largebatch.parallel.clusters import machine
from largebatch.planning.prediction import Prediction
from largebatch.tools.reproduce import page, record
from largebatch.tools.reproduce.record import SeedResult
from largebatch.tracking.mlperf import check_rules, complaints, read_log, seconds_between
from largebatch.training import session
from largebatch.training.run import Run

Scale = Literal["laptop", "node", "full"]


@dataclasses.dataclass(frozen=True)
class Request:
    """The recipe, the number of runs, and where the record goes.

    Attributes:
        recipe: the file.
        out: directory of records; all processes must share it.
        runs_in: directory of working directories, RUNS_IN/RECORD/seed_N; shared likewise.
        runs: number of seeds, from `run.seed` on; at least 1.
        scale: `run.scale_to`; `full`: the recipe unchanged.
        overrides: options over those of the recipe.
        command: the command line, for the record.
        cluster: name of the machines that it runs on, for a prediction of the time; empty: none.
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
    watchdog: Watchdog | None = None,
) -> Path:
    """Run all seeds and write the record.

    Args:
        request: what to run.
        environment: versions, devices, commit, flags.
        published: the row of the published run; None for a recipe of our own.
        hosts: how the processes found each other, as a text.
        devices: None for all devices of all processes.
        watchdog: of each run; a run that is stopped ends the reproduction.

    Returns:
        The record's folder.

    Raises:
        UserError: a mistake that the user can correct.
        HealthError: training failed with every seed; the record has been written.
        Interrupted: a signal has stopped it; a clocked run cannot be resumed.
    """
    if request.cluster:
        machine(request.cluster)
    devices = jax.devices() if devices is None else devices
    console = tracking.Console(quiet=jax.process_index() != 0)
    overrides = _overrides(request, published)
    given = load(request.recipe, overrides, console.note)
    asked = session.Request(request.recipe, request.runs_in, tuple(overrides))
    opened = Run.open(given, console, devices, request=asked)
    config, plan = opened.config, opened.plan
    opened.checkpoints.check_space(opened.checkpoint_shapes)
    processes.first_process_does(lambda: check_rules(plan))
    options = xla_options.program_options(devices[0], config, console.warn)
    unlike, expected = [], None
    if published is not None:
        unlike = record.other_task(config, plan, load_recipe(request.recipe))
        if unlike:
            console.warn(f"{record.OTHER_TASK}: {'; '.join(unlike)}")
        else:
            expected = _predicted(console, lambda: record.prediction(request.recipe, published))
    here = _predicted(console, lambda: record.prediction_here(plan, devices, request.cluster))
    folder = _folder(request, devices)
    seeds = range(config.run.seed, config.run.seed + request.runs)
    compile_cache.use(config.run.compile_cache)  # for the seeds after the first
    results: list[SeedResult | None] = []
    failures: list[HealthError] = []
    for seed in seeds:
        result, failure = _run(request, overrides, seed, folder, hosts, devices, watchdog)
        results.append(result)
        if failure:
            console.warn(f"run.seed={seed}: {failure}")
            failures.append(failure)
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
        kept = record.record(about, plan, results, published, expected, here, unlike)
        write_json(folder / "record.json", kept)
        with replacing(folder / "README.md") as stream:
            stream.write(page.page(kept).encode())
        console.closing(page.closing_rows(kept), str(folder))
    processes.wait_for_all("record written")
    if len(failures) == request.runs:
        raise failures[-1]
    return folder


def _predicted(
    console: tracking.Console, predict: Callable[[], Prediction | None]
) -> Prediction | None:
    """Return a prediction, or warn why there is none."""
    try:
        return predict()
    except ConfigError as error:
        console.warn(f"no prediction: {error}")
        return None


def _overrides(request: Request, published: Published | None) -> list[tuple[str, str]]:
    """Return the options of a clocked run to the published target; the user's come last."""
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
    """Create `<date>_<recipe>_<device>`, with a number if it exists; equal on all processes."""
    today = datetime.date.fromordinal(processes.agreed_minimum(datetime.date.today().toordinal()))
    recipe = label(request.recipe) + ("" if request.scale == "full" else f"-{request.scale}")
    kind = re.sub(r"[^a-z0-9]+", "-", devices[0].device_kind.lower()).strip("-")
    device = kind if len(devices) == 1 else f"{kind}-{len(devices)}"
    name = f"{today.isoformat()}_{recipe}_{device}"

    def numbered(number: int) -> Path:
        return request.out / (name if number == 1 else f"{name}_{number}")

    free = next(number for number in itertools.count(1) if not numbered(number).exists())
    folder = numbered(processes.agreed_minimum(free))

    def make() -> None:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"--out: {folder} cannot be created ({error.strerror}); use another directory"
            ) from error

    processes.first_process_does(make)
    return folder


def _run(
    request: Request,
    overrides: Sequence[tuple[str, str]],
    seed: int,
    folder: Path,
    hosts: str,
    devices: Sequence[jax.Device],
    watchdog: Watchdog | None,
) -> tuple[SeedResult | None, HealthError | None]:
    """Run one seed in its own working directory.

    Returns:
        The result, None on processes other than 0; why training failed, None if it did not.
    """
    workdir = request.runs_in / folder.name / f"seed_{seed}"
    chosen = (*overrides, ("run.seed", str(seed)))
    asked = session.Request(request.recipe, workdir, chosen, resume="never")
    config = load(request.recipe, chosen)
    failed = None
    try:
        summary = session.run(config, asked, hosts=hosts, devices=devices, watchdog=watchdog)
    except HealthError as error:  # all processes agree on it, and the logs have been written
        summary, failed = tracking.Summary.read(workdir), error

    def keep() -> SeedResult:
        """Copy the logs of the run to the record, and return its result."""
        log = folder / f"result_{seed}.txt"
        shutil.copyfile(workdir / log.name, log)
        for name in ("config.json", "metrics.jsonl", "layers.jsonl"):
            stem, suffix = name.split(".")
            shutil.copyfile(workdir / name, folder / f"{stem}_{seed}.{suffix}")
        events = read_log(log)
        stop = events[-1]
        return SeedResult(
            seed=seed,
            summary=summary,
            reached=stop["metadata"]["status"] == "success" if config.run.target else None,
            clock_s=seconds_between(events, "run"),
            epochs=stop["metadata"].get("epoch_num"),
            initialisation_s=seconds_between(events, "init"),
            accepted=not complaints(log),
        )

    return processes.first_process_does(keep), failed
