"""What the directory of a sweep keeps: its settings, the results, the command of the winner."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.environment import command_path
from largebatch.errors import ConfigError, DataError
from largebatch.files import plain, read_json, write_json
from largebatch.tools.sweep.seeds import best
from largebatch.tools.sweep.space import Choice
from largebatch.tools.sweep.trial import ENDED, Objective, Trial, worst

NAME, RESULTS = "sweep.json", "results.json"


def is_sweep(workdir: Path) -> bool:
    """Return whether a directory is that of a sweep."""
    return (workdir / NAME).is_file()


def trial(workdir: Path, number: int) -> Path:
    """Return the run directory of a trial."""
    return workdir / "trials" / f"{number:04d}"


def trials(workdir: Path) -> list[Path]:
    """Return the run directories of a sweep by number; none if the directory is not a sweep's."""
    found = (workdir / "trials").glob("*") if is_sweep(workdir) else ()
    return sorted((path for path in found if path.name.isdecimal()), key=lambda p: int(p.name))


def is_trial(path: Path) -> bool:
    """Return whether a path has the place of a trial in a sweep."""
    return path.parent.name == "trials" and is_sweep(path.parent.parent)


def row_of(path: Path) -> Mapping[str, Any]:
    """Return what `results.json` has of the trial of a run directory; empty if it has nothing."""
    try:
        rows = _read(path.parent.parent / RESULTS)["trials"] if is_trial(path) else []
        return next((row for row in rows if row.get("number") == int(path.name)), {})
    except (DataError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def train_options(
    recipe: Path, overrides: Sequence[tuple[str, str]], choice: Choice, workdir: Path
) -> tuple[str, ...]:
    """Return the arguments of train.py that run a trial."""
    pairs = [*overrides, *choice.items()]
    options = (f"--config.{key}={value}" for key, value in pairs)
    return (f"--config={recipe}", f"--workdir={workdir}", *options)


def pasteable(arguments: Sequence[str]) -> str:
    """Return the command line of train.py with these arguments, quoted for a shell."""
    parts = [argument.partition("=") for argument in arguments]
    train = shlex.join(["python", command_path("train.py")])
    return " ".join([train, *(f"{a}{b}{shlex.quote(c)}" for a, b, c in parts)])


def best_command(workdir: Path) -> tuple[str, int, int]:
    """Return the command line of train.py that runs the winner of a sweep again.

    Returns:
      The command; the number of trials that have ended; the number of all.

    Raises:
      DataError: there is no sweep, or none of its trials has a result.
    """
    about, results = _read(workdir / NAME), _read(workdir / RESULTS)
    try:
        trials = [_restored(Trial(**row), about["objective"]) for row in results["trials"]]
        found = best(trials, about["objective"])
        recipe, overrides = Path(about["recipe"]), [(key, text) for key, text in about["overrides"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{workdir / RESULTS} is damaged ({error}); run the sweep again") from error
    if found is None:
        raise DataError(f"none of the {len(trials)} trials in {workdir} has a result yet")
    command = pasteable(train_options(recipe, overrides, found.values, workdir / "best"))
    ended = sum(trial.state in ENDED for trial in trials)
    return command, ended, results.get("total", len(trials))


def _restored(trial: Trial, objective: Objective) -> Trial:
    """Return a trial with an infinite value, which JSON cannot hold."""
    if trial.state in ("complete", "diverged") and trial.value is None:
        return dataclasses.replace(trial, value=worst(objective))
    return trial


def keep_results(workdir: Path, trials: Sequence[Trial], total: int) -> None:
    """Write ``results.json``: every trial in its present state, and the number of trials."""
    rows = [dataclasses.asdict(trial) for trial in trials]
    write_json(workdir / RESULTS, {"trials": rows, "total": total})


def keep(workdir: Path, about: Mapping[str, Any]) -> bool:
    """Write the description of a sweep, or compare it to the one that is there.

    Args:
      workdir: directory of the sweep.
      about: recipe, overrides, objective, and ``settings``: option → value, with what must stay
        the same when the sweep is resumed.

    Returns:
      Whether the sweep was begun before.

    Raises:
      ConfigError: the directory holds another sweep, with what differs.
      DataError: the file is damaged.
    """
    path = workdir / NAME
    if not path.exists():
        if (workdir / "study.db").exists():
            raise DataError(f"{path} is missing beside a study; use another --workdir")
        write_json(path, about)
        return False
    was, now = _read(path).get("settings"), plain(about["settings"])
    if not isinstance(was, dict):
        raise DataError(f"{path} is damaged; use another --workdir")
    for key in {**now, **was}:
        old, new = was.get(key, "not given"), now.get(key, "not given")
        if old != new:
            raise ConfigError(
                f"{workdir} holds another sweep: {key} was {old}, now {new}; use another --workdir"
            )
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; use the --workdir of a sweep") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); use another --workdir") from error
