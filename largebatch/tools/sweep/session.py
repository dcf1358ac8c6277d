"""A sweep, from its command line to its tables."""

import dataclasses
import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from largebatch.config import Config, adjusted, changed, freeze
from largebatch.config.recipe_file import execute, find, label
from largebatch.environment import ROOT, command_output, command_path
from largebatch.errors import ConfigError, UserError, counted, did_you_mean
from largebatch.fault_tolerance import Interrupted
from largebatch.files import no_folder_reason
from largebatch.store_urls import check_local
from largebatch.tools.sweep import results, space
from largebatch.tools.sweep.space import Axis, Choice
from largebatch.tools.sweep.study import STARTUP, Share, Study, exclusive, optuna
from largebatch.tools.sweep.trial import ENDED, Objective, Trial

Search = Literal["grid", "quasi", "tpe"]
_EARLIER = "study.db"
"""The study of a sweep of an earlier version."""
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
        overrides: options of all trials.
    """

    config: Path | None
    sweep: Sequence[str]
    workdir: Path | None = None
    search: Search = "grid"
    trials: int | None = None
    objective: Objective = "top1"
    seed: int = 0
    jobs: int | None = None
    dry_run: bool = False
    retry_failed: bool = False
    overrides: Sequence[tuple[str, str]] = ()

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
        options = results.train_options(self.recipe, self.overrides, choice, workdir)
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
    """Run a sweep, resume it, or help other processes that run it.

    Raises:
      UserError: a mistake that the user can fix; or no trial has a result.
      Interrupted: a signal has stopped it; the same command resumes.
    """
    optuna()  # a listed sweep can be run
    if request.seed < 0:
        raise ConfigError(f"--seed={request.seed}: expected at least 0")
    check_local("--workdir", request.place)
    workdir, objective = request.place, request.objective
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    divided = shares(request.jobs, cores, gpus_here(os.environ))
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
    if (workdir / _EARLIER).exists():
        raise ConfigError(
            f"{workdir}: expected a sweep of this version, got one of an earlier version "
            f"({_EARLIER}); use another --workdir"
        )
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        with exclusive(workdir):
            results.keep_description(workdir, _description(request, config, axes))
            prune = request.search == "tpe"
            study = Study(workdir, axes, objective, seed=request.seed, prune=prune)
            if request.retry_failed:
                print(f"{counted(study.retry_failed(), 'failed trial')} to run again")
            if found := study.trials():
                print(f"resuming: {results.summary_line(found)}")
            if len(found) > total:
                raise ConfigError(
                    f"--trials={total}: expected at least the {len(found)} of this sweep; use "
                    f"--trials={len(found)}, or another --workdir"
                )
            study.plan(planned, total)
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written to ({no_folder_reason(error)}); use another "
            "--workdir"
        ) from error
    stopped_by = study.run(request.command, divided, config.health.grace_s + _TO_END_S)
    trials = study.trials()
    if stopped_by and not all(trial.state in ENDED for trial in trials):
        raise Interrupted(f"{stopped_by}: {results.summary_line(trials)}")
    with exclusive(workdir):
        _conclude(workdir, axes, trials, study)


def gpus_here(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that JAX would use, in the form of CUDA_VISIBLE_DEVICES, opening none."""
    if environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return []
    if "CUDA_VISIBLE_DEVICES" in environ:
        names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
        # CUDA ignores what follows a name that is none, such as -1.
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    return (
        command_output("nvidia-smi", "--query-gpu=index", "--format=csv,noheader") or ""
    ).split()


def shares(jobs: int | None, cores: Sequence[int], gpus: Sequence[str]) -> list[Share]:
    """Divide a machine evenly among jobs; jobs share all cores if there are fewer cores.

    Args:
      jobs: None: one for each GPU, or one.
      cores: numbers of the cores; empty: unknown.
      gpus: in the form of CUDA_VISIBLE_DEVICES.

    Raises:
      ConfigError: no job; or more jobs than GPUs.
    """
    jobs = max(1, len(gpus)) if jobs is None else jobs
    if jobs < 1 or 0 < len(gpus) < jobs:
        expected = f"1 to {len(gpus)}, one for each GPU" if gpus else "at least 1"
        raise ConfigError(f"--jobs={jobs}: expected {expected}")
    if jobs == 1:
        return [Share()]

    cores = cores if len(cores) >= jobs else ()

    def part(items: Sequence, job: int) -> str:
        chosen = items[job * len(items) // jobs : (job + 1) * len(items) // jobs]
        return ",".join(map(str, chosen))

    return [Share(part(cores, job), part(gpus, job)) for job in range(jobs)]


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
    few = min(asked, STARTUP) if request.search == "tpe" else asked
    return space.quasi(axes, few, request.seed), asked


def _list(request: Request, planned: Sequence[Choice], total: int) -> None:
    for number, choice in enumerate(planned):
        print(results.line(Trial(number, choice), request.objective))
    if total > len(planned):
        print(f"and {total - len(planned)} that depend on the results of these")
    first = request.command(planned[0], results.trial_directory(request.place, 0))
    print(f"the first one: {results.pasteable(first[2:])}")


def _check_objective(objective: Objective, config: Config) -> None:
    """Check that a trial of this configuration has such a result.

    Raises:
      ConfigError: it has none.
    """
    if objective == "target_s" and not config.run.target:
        raise ConfigError("--objective=target_s needs a target; use --config.run.target=0.9")
    sets = [text.partition("=")[0].strip() for text in config.data.validation_sets]
    kinds = ("top1", "loss", "ema_top1", "ema_loss")
    known = [*kinds, "target_s", *(f"{name}/{kind}" for name in sets for kind in kinds)]
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


def _conclude(workdir: Path, axes: Sequence[Axis], trials: Sequence[Trial], study: Study) -> None:
    """Write the tables, and print the winner.

    Raises:
      UserError: all trials have ended, and none has a result.
    """
    order = results.ranked(trials, study.objective)
    keys = [key for axis in axes for key in axis.keys]
    results.print_results(order, keys, study.objective)
    if failed := sum(trial.state == "failed" for trial in trials):
        print(f"{counted(failed, 'trial')} failed; run them again by adding --retry_failed")
    if elsewhere := sum(trial.state not in ENDED for trial in trials):
        print(f"{counted(elsewhere, 'trial')} in other processes; the last one writes all results")
    winner = results.best(trials, study.objective)
    if winner is None and elsewhere:
        return
    if winner is None:
        ended = next((trial for trial in order if trial.error), order[0])
        raise UserError(
            f"none of the {len(order)} trials has a result; trial {ended.number}: "
            f"{ended.error or ended.state}"
        )
    names = [results.RESULTS]
    if shares := study.importance():
        results.write_importance(workdir, shares)
        names.append(results.IMPORTANCE)
    groups = results.groups(trials, study.objective)
    has_repetitions = any(group.deviation is not None for group in groups)
    if has_repetitions:
        results.keep_seeds(workdir, groups, keys, study.objective)
        names.insert(1, results.SEEDS)
    print(f"written into {workdir}: {', '.join(names)}")
    report = shlex.join(["python", command_path("scripts/report.py"), str(workdir)])
    print(f"figures: {report}")
    if winner.state != "complete":
        print(f"no trial is complete: the best one, trial {winner.number}, {winner.state}")
    elif order[0].state != "complete":
        print(f"the best complete trial is {winner.number}; trial {order[0].number} diverged later")
    if has_repetitions:
        print(f"the winner is trial {winner.number}, the best one of the best choice over seeds")
    print(f"the best again: {results.best_command(workdir)[0]}")
