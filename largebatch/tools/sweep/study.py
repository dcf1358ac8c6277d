"""The study that a sweep is kept in. Nothing outside this module knows Optuna.

One process writes it, which ``lock.json`` of the sweep's directory sees to; SQLite makes each write
whole or none, so that a kill at any moment leaves a study that can be read.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from largebatch.errors import UserError
from largebatch.tools.sweep.outcome import Objective, Outcome, State, Trial, maximised, worst
from largebatch.tools.sweep.space import Axis, Choice

STARTUP = 8
"""Trials spread evenly before a model of the others decides, and ended before any is pruned."""
_UNPRUNED = 1
"""Evaluations that say too little: where the warm-up is long, the first is in the middle of it."""


def optuna() -> ModuleType:
    """The library, quiet.

    Raises:
      UserError: it is not installed.
    """
    try:
        import optuna as found
    except ImportError as error:
        raise UserError("a sweep needs Optuna; run: pip install -e '.[sweep]'") from error
    found.logging.set_verbosity(found.logging.WARNING)
    return found


class Study:
    """Trials of a sweep, kept on disk."""

    def __init__(
        self,
        path: Path | None,
        axes: Sequence[Axis],
        objective: Objective,
        *,
        seed: int = 0,
        prune: bool = False,
    ) -> None:
        """Open the study, which is made when absent.

        Args:
          path: of its file; None keeps it in memory.
          axes: what is swept.
          objective: what is sought.
          seed: of the search.
          prune: whether trials may be ended early.

        Raises:
          UserError: Optuna is absent, or the file is none of its.
        """
        self._optuna = optuna()
        self._axes = tuple(axes)
        self._objective = objective
        self._distributions = {axis.name: self._distribution(axis) for axis in axes}
        pruner = (
            self._optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=_UNPRUNED)
            if prune
            else self._optuna.pruners.NopPruner()
        )
        try:
            self._study = self._optuna.create_study(
                study_name="sweep",
                storage=None if path is None else f"sqlite:///{path}",
                direction="maximize" if maximised(objective) else "minimize",
                sampler=self._optuna.samplers.RandomSampler(seed),
                pruner=pruner,
                load_if_exists=True,
            )
        except Exception as error:
            raise UserError(
                f"{path} cannot be opened ({str(error).splitlines()[0]}); put it aside, or give "
                "another --workdir"
            ) from error
        self._seed = seed

    def _distribution(self, axis: Axis) -> Any:
        known, found = self._optuna.distributions, axis.range
        if found is None:
            return known.CategoricalDistribution([_label(point) for point in axis.points])
        if found.whole:
            return known.IntDistribution(int(found.low), int(found.high), log=found.shape == "log")
        return known.FloatDistribution(found.low, found.high, log=found.shape == "log")

    def trials(self) -> list[Trial]:
        """All that have been begun, in their order."""
        return [self._row(each) for each in self._study.get_trials(deepcopy=False)]

    def suggest(self) -> Trial:
        """Begin a trial where the Tree-structured Parzen Estimator expects most."""
        # A new sampler of another seed each time: resumed, a sweep goes on as if never stopped.
        count = len(self._study.get_trials(deepcopy=False))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=self._optuna.exceptions.ExperimentalWarning)
            self._study.sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=0,  # the caller begins with a spread of its own
                seed=self._seed + 7919 * count,
                # Parallel trials are told apart by taking those that run for bad ones.
                constant_liar=True,
            )
        return self._row(self._study.ask(self._distributions), begun=True)

    def begin(self, choice: Choice) -> Trial:
        """Begin a trial of these values."""
        fixed = {axis.name: self._encoded(axis, choice) for axis in self._axes}
        waiting = self._optuna.trial.TrialState.WAITING
        # A kill between the two leaves one waiting, which is this one: all come in their order.
        if not self._study.get_trials(deepcopy=False, states=(waiting,)):
            self._study.enqueue_trial(fixed)
        return self._row(self._study.ask(self._distributions), begun=True)

    def report(self, number: int, values: Sequence[float]) -> bool:
        """Tell the evaluations of a trial so far; whether it is to be pruned."""
        trial = self._running(number)
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        for ordinal in range(len(values)):
            if ordinal not in known:
                trial.report(values[ordinal], ordinal)
        return bool(values) and trial.should_prune()

    def note(self, number: int, name: str, value: str) -> None:
        """Keep a word with a trial that runs."""
        self._running(number).set_user_attr(name, value)

    def noted(self, number: int, name: str) -> str:
        """The word that was kept with a trial; empty without one."""
        return self._study.get_trials(deepcopy=False)[number].user_attrs.get(name, "")

    def tell(self, trial: Trial, result: Outcome) -> None:
        """End a trial; a value that is no number, which Optuna refuses, counts as the worst."""
        if result.value is not None and math.isnan(result.value):
            result = dataclasses.replace(result, value=worst(self._objective))
        running = self._running(trial.number)
        known = self._optuna.trial.TrialState
        states = {"pruned": known.PRUNED, "failed": known.FAIL}
        row = dataclasses.asdict(trial) | dataclasses.asdict(result)
        row["value"] = None if result.value is None else repr(result.value)
        running.set_user_attr("row", row)
        value = result.value if result.state in ("complete", "diverged") else None
        with _quietly():
            self._study.tell(trial.number, value, state=states.get(result.state, known.COMPLETE))

    def _running(self, number: int) -> Any:
        frozen = self._study.get_trials(deepcopy=False)[number]
        return self._optuna.trial.Trial(self._study, frozen._trial_id)

    def _row(self, trial: Any, *, begun: bool = False) -> Trial:
        known = self._optuna.trial.TrialState
        if begun:
            return Trial(trial.number, self._choice(trial.params), "running")
        params = trial.params
        if trial.state == known.WAITING:
            params = trial.system_attrs.get("fixed_params", {})
        elif trial.state == known.RUNNING and len(params) < len(self._axes):
            # Killed while it was begun: what is lacking is drawn now.
            running = self._running(trial.number)
            params = {axis.name: self._drawn(running, axis) for axis in self._axes}
        states: dict[Any, State] = {known.WAITING: "waiting", known.RUNNING: "running"}
        if trial.state in states:
            return Trial(trial.number, self._choice(params), states[trial.state])
        row = dict(trial.user_attrs["row"])
        row["value"] = None if row["value"] is None else float(row["value"])
        return Trial(**row)

    def _choice(self, params: dict[str, Any]) -> Choice:
        choice: Choice = {}
        for axis in self._axes:
            value = params[axis.name]
            if axis.range is not None:
                choice[axis.keys[0]] = axis.range.text(value)
            else:
                choice |= axis.point([_label(point) for point in axis.points].index(value))
        return choice

    def _drawn(self, trial: Any, axis: Axis) -> Any:
        """The value of an axis, which is the one before if it had one."""
        bounds = axis.range
        if bounds is None:
            return trial.suggest_categorical(axis.name, [_label(point) for point in axis.points])
        log = bounds.shape == "log"
        if bounds.whole:
            return trial.suggest_int(axis.name, int(bounds.low), int(bounds.high), log=log)
        return trial.suggest_float(axis.name, bounds.low, bounds.high, log=log)

    def _encoded(self, axis: Axis, choice: Choice) -> Any:
        if axis.range is None:
            return _label(tuple(choice[key] for key in axis.keys))
        number = float(choice[axis.keys[0]].split()[0])
        return int(number) if axis.range.whole else number


def importances(
    axes: Sequence[Axis], trials: Sequence[Trial], objective: Objective
) -> dict[str, float]:
    """Shares of the objective's variance that each axis explains, the most important first.

    By fANOVA (Hutter et al. 2014) over the trials that have a value; those that came to nothing
    count as the worst of the others.

    Returns:
      {axis: share}, of sum 1; empty where there are fewer than four such trials, or all are equal.
    """
    scored = [trial for trial in trials if trial.value is not None]
    finite = [trial.value for trial in scored if math.isfinite(trial.value)]
    if len(scored) < 4 or len(set(finite)) < 2:
        return {}
    library = optuna()
    study = Study(None, axes, objective)
    for trial in scored:
        value = trial.value if math.isfinite(trial.value) else max(finite)
        params = {axis.name: study._encoded(axis, trial.values) for axis in axes}
        study._study.add_trial(
            library.trial.create_trial(
                params=params, distributions=study._distributions, value=value
            )
        )
    with _quietly():
        found = library.importance.get_param_importances(
            study._study, evaluator=library.importance.FanovaImportanceEvaluator(seed=0)
        )
    return {name: float(share) for name, share in found.items()}


def _label(point: Sequence[str]) -> str:
    return "; ".join(point)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without remarks on features that may change, or on values that are not finite."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="optuna")
        yield
