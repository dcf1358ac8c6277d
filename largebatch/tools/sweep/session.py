"""One turn at a sweep: from what the command line asks for to tables and figures."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from largebatch.checkpoint import lock
from largebatch.config import Config, adjusted
from largebatch.config.load import frozen
from largebatch.config.recipe_file import execute
from largebatch.errors import ConfigError, UserError
from largebatch.fault_tolerance import Interrupted
from largebatch.tools.sweep import command, plots, points, space, view
from largebatch.tools.sweep.description import Search, describe, keep, keep_results, winner
from largebatch.tools.sweep.driver import Driver
from largebatch.tools.sweep.executors import Executor, LocalExecutor, cores_here, gpus_here, shares
from largebatch.tools.sweep.outcome import Objective, Trial, best, ranked
from largebatch.tools.sweep.slurm import Cluster, Resources, SubmititExecutor
from largebatch.tools.sweep.space import Axis, Choice
from largebatch.tools.sweep.stopping import Stopping, signals
from largebatch.tools.sweep.study import STARTUP, Study, importances, optuna

_TABLE_CELLS = 160
_TO_END_S = 10.0
"""Beyond ``health.grace_s``, for a trial's process to be gone."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        train: path of train.py.
        recipe: that is swept; None: the first of ``sweeps`` that is a file, or ``fallback``.
        fallback: see there.
        sweeps: axes as texts, or recipe files.
        overrides: options of all trials.
        workdir: where the sweep is kept; None: ``sweeps/NAME``.
        trials: how many; None for a grid.
        jobs: at a time; None: one, or one for each GPU.
        cluster: None: processes of this machine.
        resources: of a trial there.
        dry_run: only check and list.
    """

    train: Path
    recipe: Path | None
    fallback: Path
    sweeps: tuple[str, ...]
    overrides: tuple[tuple[str, str], ...] = ()
    workdir: Path | None = None
    search: Search = "grid"
    trials: int | None = None
    objective: Objective = "top1"
    seed: int = 0
    jobs: int | None = None
    cluster: Cluster | None = None
    resources: Resources = dataclasses.field(default_factory=Resources)
    dry_run: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """Recipes with a sweep."""
        return tuple(Path(each) for each in self.sweeps if _is_file(each))

    @property
    def swept(self) -> Path:
        """The recipe that is swept."""
        return self.recipe or (*self.files, self.fallback)[0]

    @property
    def place(self) -> Path:
        """Where the sweep is kept."""
        return self.workdir or Path("sweeps") / (*self.files, self.swept)[0].stem


def _is_file(text: str) -> bool:
    return "=" not in text and (text.endswith(".py") or "/" in text)


def sweep(request: Request, say: Callable[[str], None] = print) -> None:
    """Run a sweep, or go on with it.

    Raises:
      UserError: anything that the user can mend; or no trial was of use.
      Interrupted: it was asked to stop; the same command goes on.
    """
    recipe = frozen(execute(request.swept)[0], request.overrides)
    config = adjusted(recipe, request.overrides)
    axes = _axes(request, config)
    planned, total = _planned(request, axes)
    points.check(recipe, request.overrides, axes, planned)
    if request.objective == "target_s" and not config.run.target:
        raise ConfigError("--objective=target_s needs a target; add --config.run.target=0.9")
    names = ", ".join(axis.name for axis in axes)
    say(f"{total} trials of {request.swept}: {request.search} over {names}, in {request.place}")
    if request.dry_run:
        _list(request, axes, planned, total, say)
        return
    optuna()
    executor = _executor(request)
    workdir = request.place
    with lock.hold(workdir, note=say, lost=_ended_by), signals() as stopping:
        about = describe(
            request.swept,
            request.overrides,
            config,
            axes,
            search=request.search,
            objective=request.objective,
            seed=request.seed,
        )
        resumed = keep(workdir, about)
        study = Study(
            workdir / "study.db",
            axes,
            request.objective,
            seed=request.seed,
            prune=request.search == "tpe",
        )
        driver = Driver(
            study,
            executor,
            workdir / "trials",
            lambda choice, where: _command(request, choice, where),
            planned=planned,
            total=total,
            objective=request.objective,
            prune=request.search == "tpe",
            grace_s=config.health.grace_s + _TO_END_S,
        )
        if resumed:
            say(f"resuming: {view.summary_line(driver.trials, total)}")
        complete = _run(driver, request, axes, total, stopping)
    keep_results(workdir, driver.trials, total)
    if not complete:
        raise Interrupted(f"{stopping.reason}: {view.summary_line(driver.trials, total)}")
    _conclude(request, axes, driver.trials, say)


def best_command(workdir: Path, train_to: Path | None = None) -> str:
    """The command line of train.py that runs the winner of a sweep again.

    Args:
      workdir: of the sweep.
      train_to: where it is to train; None: ``best`` in there.

    Raises:
      DataError: there is none yet.
    """
    about, trial = winner(workdir)
    pairs = [(key, value) for key, value in about["overrides"]]
    arguments = command.options(
        Path(about["recipe"]), pairs, trial.values, train_to or workdir / "best"
    )
    return command.pasteable(arguments)


def _axes(request: Request, config: Config) -> list[Axis]:
    if not request.sweeps:
        raise ConfigError(f"--sweep is missing: what is to be varied; {space.FORM}, or a recipe")
    found: list[Axis] = []
    for text in request.sweeps:
        if _is_file(text):
            found += space.from_recipe(Path(text), config)
        else:
            found.append(space.from_text(text))
    return found


def _planned(request: Request, axes: Sequence[Axis]) -> tuple[list[Choice], int]:
    """The trials that are known beforehand, and how many there will be."""
    asked = request.trials
    if request.search == "grid":
        if asked is not None:
            raise ConfigError(
                "--trials is for --search=quasi and tpe; a grid has as many as it has"
            )
        planned = points.grid(axes)
        return planned, len(planned)
    if asked is None or not 1 <= asked <= space.MOST_VALUES:
        raise ConfigError(
            f"--search={request.search} needs --trials=N, from 1 to {space.MOST_VALUES:,}"
        )
    few = min(asked, STARTUP) if request.search == "tpe" else asked
    return points.quasi(axes, few, request.seed), asked


def _list(
    request: Request,
    axes: Sequence[Axis],
    planned: Sequence[Choice],
    total: int,
    say: Callable[[str], None],
) -> None:
    for number, choice in enumerate(planned):
        say(view.line(Trial(number, choice), request.objective))
    if total > len(planned):
        say(f"and {total - len(planned)} that depend on what these come to")
    first = _command(request, planned[0], request.place / "trials" / "0000")
    say(f"the first one: {command.pasteable(first[2:])}")


def _command(request: Request, choice: Choice, workdir: Path) -> tuple[str, ...]:
    arguments = command.options(request.swept, request.overrides, choice, workdir)
    return (sys.executable, str(request.train), *arguments)


def _executor(request: Request) -> Executor:
    if request.cluster is not None:
        return SubmititExecutor(
            request.place / "slurm",
            request.cluster,
            1 if request.jobs is None else request.jobs,
            request.resources,
            all_at_once=request.search != "tpe",
        )
    gpus = gpus_here(os.environ)
    jobs = max(1, len(gpus)) if request.jobs is None else request.jobs
    return LocalExecutor(shares(jobs, cores_here(), gpus))


def _run(
    driver: Driver, request: Request, axes: Sequence[Axis], total: int, stopping: Stopping
) -> bool:
    stopping.kill = driver.kill
    states: dict[int, str] = {}

    with view.watching(axes, request.objective, total) as show:

        def watch(trials: Sequence[Trial]) -> None:
            now = {trial.number: trial.state for trial in trials}
            if now != states:  # readable at any time, also after a kill
                keep_results(request.place, trials, total)
                states.clear()
                states.update(now)
            show(trials)

        return driver.run(watch, lambda: bool(stopping.reason))


def _conclude(
    request: Request, axes: Sequence[Axis], trials: Sequence[Trial], say: Callable[[str], None]
) -> None:
    """Tables, figures, the winner.

    Raises:
      UserError: no trial has come to its end.
    """
    workdir, objective = request.place, request.objective
    order = ranked(trials, objective)
    view.write_csv(workdir / "results.csv", order, axes)
    out = view.console()
    if not out.is_terminal:
        out.width = _TABLE_CELLS  # rows stay whole
    out.print(view.table(order, axes, objective))
    for line in view.errors(order):
        say(line)
    if best(trials, objective) is None:
        ended = next((t for t in order if t.error), order[0])
        raise UserError(
            f"none of the {len(order)} trials is complete; trial {ended.number}: "
            f"{ended.error or ended.state}"
        )
    written = ["results.csv", "results.json"]
    if plots.parallel(axes, order, objective, workdir / "parallel.png"):
        written.append("parallel.png")
    shares_ = importances(axes, trials, objective)
    if len(shares_) > 1:
        count = sum(trial.value is not None for trial in trials)
        plots.importance(shares_, count, workdir / "importance.png")
        written.append("importance.png")
    say(f"written into {workdir}: {', '.join(written)}")
    say(f"the best again: {best_command(workdir)}")


def _ended_by(reason: str) -> None:
    """Another sweep has taken the directory: to go on would do harm."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    os._exit(2)
