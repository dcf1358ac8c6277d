"""A sweep, from its command line to its tables and figures."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from largebatch.checkpoint import lock
from largebatch.config import Config, adjusted, changed, freeze
from largebatch.config.recipe_file import execute, find, label
from largebatch.environment import ROOT
from largebatch.errors import ConfigError, UserError, counted, did_you_mean
from largebatch.fault_tolerance import Interrupted
from largebatch.store_urls import check_local
from largebatch.tools.sweep import curves, directory, seeds, space, study, view
from largebatch.tools.sweep.driver import Driver, signals
from largebatch.tools.sweep.executors import Cluster, Executor, SubmititExecutor, local_executor
from largebatch.tools.sweep.space import Axis, Choice
from largebatch.tools.sweep.trial import Objective, Trial, ranked

Search = Literal["grid", "quasi", "tpe"]
_TO_END_S = 10.0
"""Seconds beyond ``health.grace_s`` that the process of a trial has to end."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The command line of a sweep; ``scripts/sweep.py --help`` describes each flag.

    Attributes:
        config: the recipe to sweep; None: the first recipe in ``sweep``, or the digits.
        sweep: axes as texts, or recipe files with a ``sweep()``.
        workdir: None: ``sweeps/NAME``.
        trials: None for a grid.
        jobs: None: one, or one for each GPU.
        slurm: None: processes of this machine.
        overrides: options of all trials.
        resources: of a job of SLURM, as parameters of submitit.
    """

    config: Path | None
    sweep: Sequence[str]
    workdir: Path | None = None
    search: Search = "grid"
    trials: int | None = None
    objective: Objective = "top1"
    seed: int = 0
    jobs: int | None = None
    slurm: Cluster | None = None
    dry_run: bool = False
    retry_failed: bool = False
    overrides: Sequence[tuple[str, str]] = ()
    resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """The recipes among the arguments of ``--sweep``."""
        return [path for path in map(_file, self.sweep) if path]

    @property
    def recipe(self) -> Path:
        """The recipe to sweep."""
        return self.config or (*self.files, find("digits"))[0]

    @property
    def place(self) -> Path:
        """The directory of the sweep."""
        return self.workdir or Path("sweeps") / label((*self.files, self.recipe)[0])

    def command(self, choice: Choice, workdir: Path) -> tuple[str, ...]:
        """Return the command of a trial."""
        options = directory.train_options(self.recipe, self.overrides, choice, workdir)
        return (sys.executable, str(ROOT / "train.py"), *options)


def _file(argument: str) -> Path | None:
    """Return the recipe that a ``--sweep`` names; None if it is an axis."""
    if "=" in argument:
        return None
    named = find(Path("configs") / "sweeps" / f"{argument}.py")
    if named.is_file():
        return named
    return Path(argument) if argument.endswith(".py") or "/" in argument else None


def sweep(request: Request) -> None:
    """Run a sweep, or resume it.

    Raises:
      UserError: a mistake that the user can fix; or no trial has a result.
      Interrupted: a signal has stopped it; the same command resumes.
    """
    study.optuna()  # a listed sweep can be run
    if request.jobs is not None and request.jobs < 1:
        raise ConfigError(f"--jobs={request.jobs}: expected at least 1")
    if request.seed < 0:
        raise ConfigError(f"--seed={request.seed}: expected at least 0")
    check_local("--workdir", request.place)
    workdir, objective, prune = request.place, request.objective, request.search == "tpe"
    base = freeze(execute(request.recipe)[0], request.overrides)
    config = adjusted(base, request.overrides, print)
    axes = _axes(request, config)
    planned, total = _planned(request, axes)
    for choice in planned or [{}]:
        _check_objective(objective, adjusted(base, [*request.overrides, *choice.items()]))
    space.check(base, request.overrides, axes, planned)
    names = ", ".join(axis.name for axis in axes)
    shown = f"{counted(total, 'trial')} of {request.recipe}"
    print(f"{shown}: {request.search} over {names}, in {workdir}")
    if request.dry_run:
        _list(request, planned, total)
        return
    executor = _executor(request)
    with lock.hold(workdir, note=print):
        resumed = directory.keep(workdir, _description(request, config, axes))
        kept = study.Study(workdir / "study.db", axes, objective, seed=request.seed, prune=prune)
        if request.retry_failed:
            print(f"{counted(kept.retry_failed(), 'failed trial')} to run again")
        driver = Driver(
            kept,
            executor,
            workdir,
            request.command,
            planned,
            total=total,
            grace_s=config.health.grace_s + _TO_END_S,
        )
        if resumed:
            print(f"resuming: {view.summary_line(driver.trials, total)}")
        show = view.Progress(driver.trials, objective, total)

        def watch(trials: Sequence[Trial]) -> None:
            if show(trials):  # the file is current after a kill at any time
                directory.keep_results(workdir, trials, total)

        with signals(driver.kill) as stopped_by:
            complete = driver.run(watch, lambda: bool(stopped_by))
        directory.keep_results(workdir, driver.trials, total)
    if not complete:
        raise Interrupted(f"{stopped_by[-1]}: {view.summary_line(driver.trials, total)}")
    _conclude(workdir, axes, driver.trials, kept)


def _axes(request: Request, config: Config) -> list[Axis]:
    if not request.sweep:
        raise ConfigError(f"--sweep is missing: expected {space.FORM}, or a recipe")
    found: list[Axis] = []
    for argument in request.sweep:
        path = _file(argument)
        found += space.from_recipe(path, config) if path else [space.from_text(argument)]
    return found


def _planned(request: Request, axes: Sequence[Axis]) -> tuple[list[Choice], int]:
    """Return the trials that are known beforehand, and the number of all."""
    asked, most = request.trials, space.MOST_TRIALS
    if request.search == "grid":
        if asked is not None:
            raise ConfigError("--trials needs --search=quasi or tpe; a grid has a fixed number")
        planned = space.grid(axes)
        return planned, len(planned)
    if asked is None or not 1 <= asked <= most:
        raise ConfigError(f"--search={request.search} needs --trials=N, from 1 to {most:,}")
    few = min(asked, study.STARTUP) if request.search == "tpe" else asked
    return space.quasi(axes, few, request.seed), asked


def _list(request: Request, planned: Sequence[Choice], total: int) -> None:
    for number, choice in enumerate(planned):
        print(view.line(Trial(number, choice), request.objective))
    if total > len(planned):
        print(f"and {total - len(planned)} that depend on the results of these")
    first = request.command(planned[0], directory.trial(request.place, 0))
    print(f"the first one: {directory.pasteable(first[2:])}")


def _executor(request: Request) -> Executor:
    if request.slurm is None:
        return local_executor(request.jobs)
    jobs, folder = request.jobs or 1, request.place / "slurm"
    array = request.search != "tpe"
    return SubmititExecutor(folder, request.slurm, jobs, request.resources, all_at_once=array)


def _check_objective(objective: Objective, config: Config) -> None:
    """Check that a trial of this configuration has such a result.

    Raises:
      ConfigError: it has none.
    """
    if objective == "target_s" and not config.run.target:
        raise ConfigError("--objective=target_s needs a target; use --config.run.target=0.9")
    sets = [text.partition("=")[0].strip() for text in config.data.validation_sets]
    results = ("top1", "loss", "ema_top1", "ema_loss")
    known = [*results, "target_s", *(f"{name}/{result}" for name in sets for result in results)]
    if objective not in known:
        raise ConfigError(
            f"--objective={objective}: unknown; {did_you_mean(objective, known)}; NAME/top1 needs "
            "NAME in data.validation_sets"
        )
    if "ema_" in objective and not config.schedule.ema:
        raise ConfigError(
            f"--objective={objective} needs averaged weights; use --config.schedule.ema='5 epochs'"
        )


def _description(request: Request, config: Config, axes: Sequence[Axis]) -> dict[str, Any]:
    return {
        "recipe": str(request.recipe),
        "overrides": request.overrides,
        "objective": request.objective,
        "settings": {
            "--config": str(request.recipe),
            "--search": request.search,
            "--objective": request.objective,
            "--seed": request.seed,
            "--sweep": " ".join(map(str, axes)),
            **{f"--config.{key}": text for key, text in request.overrides},
            **changed(config),
        },
    }


def _conclude(
    workdir: Path,
    axes: Sequence[Axis],
    trials: Sequence[Trial],
    kept: study.Study,
) -> None:
    """Write the tables and figures, and print the winner.

    Raises:
      UserError: no trial has a result.
    """
    order = ranked(trials, kept.objective)
    view.write_csv(workdir / "results.csv", order, axes)
    view.print_table(order, axes, kept.objective)
    if failed := sum(trial.state == "failed" for trial in trials):
        print(f"{counted(failed, 'trial')} failed; run them again by adding --retry_failed")
    winner = seeds.best(trials, kept.objective)
    if winner is None:
        ended = next((trial for trial in order if trial.error), order[0])
        raise UserError(
            f"none of the {len(order)} trials has a result; trial {ended.number}: "
            f"{ended.error or ended.state}"
        )
    names = ["results.csv", directory.RESULTS, *kept.draw(workdir)]
    groups = seeds.groups(trials, kept.objective)
    names += curves.draw(workdir, groups, axes, kept.objective)
    has_repetitions = any(group.deviation is not None for group in groups)
    if has_repetitions:
        view.write_seeds(workdir / "seeds.csv", groups, axes)
        view.print_seeds(groups, axes, kept.objective)
        names.insert(1, "seeds.csv")
    print(f"written into {workdir}: {', '.join(names)}")
    if winner.state != "complete":
        print(f"no trial is complete: the best one, trial {winner.number}, {winner.state}")
    elif order[0].state != "complete":
        print(f"the best complete trial is {winner.number}; trial {order[0].number} diverged later")
    if has_repetitions:
        print(f"the winner is trial {winner.number}, the best one of the best choice over seeds")
    print(f"the best again: {directory.best_command(workdir)[0]}")
