"""The study in which a sweep is kept. Nothing outside this module uses Optuna.

One process writes it, which ``lock.json`` of the sweep ensures. SQLite writes all of a trial or
nothing of it, so a kill at any moment leaves a study that can be read.
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
from largebatch.tools.sweep.space import Axis, Choice
from largebatch.tools.sweep.trial import Objective, Outcome, Trial, is_accuracy, worst

STARTUP = 8
"""Trials of ``tpe`` that are spread evenly, and that end before any trial is pruned."""
_UNPRUNED = 1
"""Evaluations without pruning: the first one may be within the warm-up."""
_TITLES = {"top1": "top-1", "loss": "validation loss", "target_s": "seconds to the target"}


def optuna() -> ModuleType:
    """Return the library, without its messages.

    Raises:
      UserError: it is not installed.
    """
    try:
        import optuna as found
    except ImportError as error:
        raise UserError("a sweep needs Optuna; run: pip install -e '.[sweep]'") from error
    found.logging.set_verbosity(found.logging.ERROR)
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
        """Open the study, or create it.

        Args:
          path: its file; None keeps it in memory.
          axes: what is swept.
          objective: what is optimised.
          seed: of the search.
          prune: whether trials may be ended early.

        Raises:
          UserError: Optuna is absent, or the file is not one of its studies.
        """
        self.objective, self.prune = objective, prune
        self._optuna, self._seed, self._axes = optuna(), seed, tuple(axes)
        self._distributions = {axis.name: self._distribution(axis) for axis in axes}
        self._path = path
        try:
            self._study = self._open(path)
        except Exception as error:
            raise UserError(
                f"{path} cannot be opened ({str(error).splitlines()[0]}); move it away, or use "
                "another --workdir"
            ) from error

    def _open(self, path: Path | None) -> Any:
        pruners = self._optuna.pruners
        median = pruners.MedianPruner(STARTUP, _UNPRUNED)
        return self._optuna.create_study(
            study_name="sweep",
            storage=None if path is None else f"sqlite:///{path}",
            direction="maximize" if is_accuracy(self.objective) else "minimize",
            pruner=median if self.prune else pruners.NopPruner(),
            load_if_exists=True,
        )

    def retry_failed(self) -> int:
        """Make failed trials running ones, which a `Driver` that is created later starts again.

        Optuna cannot change a trial that has ended, so this writes a new study and replaces the
        file in one step.

        Returns:
          The number of failed trials.
        """
        trials, states = self._study.get_trials(deepcopy=False), self._optuna.trial.TrialState
        failed = sum(trial.state == states.FAIL for trial in trials)
        if not failed:
            return 0
        new = self._path and self._path.with_name(f"{self._path.name}.new")
        if new:
            new.unlink(missing_ok=True)
        copy = self._open(new)
        for trial in trials:
            again = self._optuna.trial.create_trial(
                state=states.RUNNING, params=trial.params, distributions=trial.distributions
            )
            copy.add_trial(again if trial.state == states.FAIL else trial)
        if new and self._path:
            copy = self._open(new.replace(self._path))
        self._study = copy
        return failed

    def trials(self) -> list[Trial]:
        """Return all trials that have been begun, in their order."""
        return [self._row(each) for each in self._study.get_trials(deepcopy=False)]

    def begin(self, choice: Choice | None) -> Trial:
        """Begin a trial of these values; None: where the TPE expects the best result."""
        params = self._suggested() if choice is None else self._params(choice)
        # One write: a kill leaves the trial with all its values, or none.
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=self._optuna.trial.TrialState.RUNNING,
                params=params,
                distributions=self._distributions,
            )
        )
        return self._row(self._study.get_trials(deepcopy=False)[-1])

    def _suggested(self) -> dict[str, Any]:
        """Draw values with the TPE, in a copy of the study."""
        known = self._study.get_trials(deepcopy=False)
        with _quiet():
            # A sampler of its own seed for each trial: a resumed sweep draws the same.
            sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=0, seed=self._seed + 7919 * len(known), constant_liar=True
            )
            copy = self._optuna.create_study(direction=self._study.direction, sampler=sampler)
            copy.add_trials(known)
            return copy.ask(self._distributions).params

    def report(self, number: int, values: Sequence[float]) -> bool:
        """Record the evaluations of a trial so far; return whether to prune it."""
        trial = self._running(number)
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        for ordinal in range(len(known), len(values)):
            trial.report(values[ordinal], ordinal)
        return bool(values) and trial.should_prune()

    def set_job(self, number: int, token: str) -> None:
        """Keep the name of the job that runs a trial."""
        self._running(number).set_user_attr("job", token)

    def job(self, number: int) -> str:
        """Return the name of the job that runs a trial; empty without one."""
        return self._study.get_trials(deepcopy=False)[number].user_attrs.get("job", "")

    def tell(self, trial: Trial, result: Outcome) -> None:
        """End a trial; NaN, which Optuna refuses, counts as the worst value."""
        value = result.value
        if value is not None and math.isnan(value):
            value = worst(self.objective)
        row = dataclasses.asdict(trial) | dataclasses.asdict(result)
        row["value"] = None if value is None else repr(value)
        self._running(trial.number).set_user_attr("row", row)
        known = self._optuna.trial.TrialState
        state = {"pruned": known.PRUNED, "failed": known.FAIL}.get(result.state, known.COMPLETE)
        with _quiet():
            self._study.tell(trial.number, value if state == known.COMPLETE else None, state=state)

    def draw(self, directory: Path) -> list[str]:
        """Draw ``parallel.png`` and ``importance.png`` of the trials that have a finite value.

        The first shows each trial as a line through its values. The second shows the share of the
        objective's variance that each axis explains, by fANOVA (Hutter et al. 2014).

        Returns:
          The names of the files; a figure that has too few trials is left out.
        """
        values = [trial.value for trial in self.trials() if trial.value is not None]
        finite = [value for value in values if math.isfinite(value)]
        drawn: dict[str, tuple[str, dict[str, Any]]] = {}
        if finite:
            drawn["parallel.png"] = ("plot_parallel_coordinate", {})
        if len(self._axes) > 1 and len(finite) >= 4 and len(set(finite)) > 1:
            evaluator = self._optuna.importance.FanovaImportanceEvaluator(seed=0)
            drawn["importance.png"] = ("plot_param_importances", {"evaluator": evaluator})
        for name, (kind, options) in drawn.items():
            with _quiet():
                from matplotlib import pyplot
                from optuna.visualization import matplotlib as figures

                pyplot.switch_backend("agg")  # no display is needed
                with pyplot.rc_context():
                    plot = getattr(figures, kind)
                    title = _TITLES.get(self.objective, self.objective)
                    made = plot(self._study, target_name=title, **options)
                    made.figure.savefig(directory / name, dpi=130, bbox_inches="tight")
                    pyplot.close(made.figure)
        return [*drawn]

    def _running(self, number: int) -> Any:
        frozen = self._study.get_trials(deepcopy=False)[number]
        return self._optuna.trial.Trial(self._study, frozen._trial_id)

    def _row(self, trial: Any) -> Trial:
        if trial.state == self._optuna.trial.TrialState.RUNNING:
            return Trial(trial.number, self._choice(trial.params), "running")
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
                choice |= axis.choice(axis.points[list(map(_label, axis.points)).index(value)])
        return choice

    def _params(self, choice: Choice) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for axis in self._axes:
            if axis.range is None:
                params[axis.name] = _label([choice[key] for key in axis.keys])
            else:
                number = float(choice[axis.name].split()[0])
                params[axis.name] = int(number) if axis.range.whole else number
        return params

    def _distribution(self, axis: Axis) -> Any:
        known, found = self._optuna.distributions, axis.range
        if found is None:
            return known.CategoricalDistribution([_label(point) for point in axis.points])
        if found.whole:
            return known.IntDistribution(int(found.low), int(found.high), log=found.shape == "log")
        return known.FloatDistribution(found.low, found.high, log=found.shape == "log")


def _label(point: Sequence[str]) -> str:
    return "; ".join(point)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of features that may change, and of values that are not finite."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="optuna")
        warnings.filterwarnings("ignore", category=optuna().exceptions.ExperimentalWarning)
        yield
