"""What a sweep is, so that the same command goes on with it and another one is told."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from largebatch.config import Config, changed
from largebatch.errors import ConfigError, DataError
from largebatch.files import plain, read_json, write_json
from largebatch.tools.sweep.outcome import ENDED, Objective, Trial, best
from largebatch.tools.sweep.space import Axis

Search = Literal["grid", "quasi", "tpe"]
NAME, RESULTS = "sweep.json", "results.json"
_SHOWN = 6  # values of an axis in a message


@dataclasses.dataclass(frozen=True)
class Description:
    """A sweep, as its directory keeps it.

    Attributes:
        recipe: its file.
        overrides: options of all trials, as the command line has them.
        axes: what is swept.
        search: how trials are chosen.
        objective: what is sought.
        seed: of the search.
        options: of the swept configuration, those that are not at their defaults.
    """

    recipe: str
    overrides: tuple[tuple[str, str], ...]
    axes: tuple[Axis, ...]
    search: Search
    objective: Objective
    seed: int
    options: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """What ``sweep.json`` holds."""
        return plain(dataclasses.asdict(self))


def describe(
    recipe: Path,
    overrides: Sequence[tuple[str, str]],
    config: Config,
    axes: Sequence[Axis],
    **search: Any,
) -> Description:
    """The description of a sweep of ``config``, which recipe and overrides came to."""
    return Description(
        str(recipe), tuple(overrides), tuple(axes), options=changed(config), **search
    )


def keep(workdir: Path, mine: Description) -> bool:
    """Write the description, or compare it to the one that is there.

    Returns:
      Whether the sweep was begun before.

    Raises:
      ConfigError: the directory holds another sweep, with what differs.
      DataError: the file is damaged.
    """
    path = workdir / NAME
    if not path.exists():
        if (workdir / "study.db").exists():
            raise DataError(f"{path} is missing beside a study; give another --workdir")
        write_json(path, mine.as_json())
        return False
    stored, new = _read(path), mine.as_json()
    for field in dataclasses.fields(Description):
        old, now = stored.get(field.name), new[field.name]
        if old == now:
            continue
        if field.name == "options" and isinstance(old, dict):
            key = next(k for k in {**old, **now} if old.get(k) != now.get(k))
            was, is_ = old.get(key, "its default"), now.get(key, "its default")
            raise ConfigError(_another(workdir, key, was, is_))
        if field.name == "axes":
            raise ConfigError(_another(workdir, "--sweep", *_changed_axes(old, now)))
        if field.name == "overrides":
            was, is_ = dict(old or ()), dict(now)
            keys = [key for key in {**was, **is_} if was.get(key) != is_.get(key)]
            if not keys:
                continue  # given twice, or in another order
            texts = (each.get(keys[0], "not given") for each in (was, is_))
            raise ConfigError(_another(workdir, f"--config.{keys[0]}", *texts))
        raise ConfigError(_another(workdir, field.name, old, now))
    return True


def _another(workdir: Path, name: str, was: Any, now: Any) -> str:
    return (
        f"{workdir} holds another sweep: {name} was {was} and is now {now}; give another --workdir"
    )


def _changed_axes(old: list[dict] | None, new: list[dict]) -> tuple[str, str]:
    """The axes that differ between two sweeps, with their values."""
    texts = [{_axis_name(axis): _axis_values(axis) for axis in axes or ()} for axes in (old, new)]
    names = [name for name in {**texts[0], **texts[1]} if texts[0].get(name) != texts[1].get(name)]
    if not names:  # the same axes in another order
        names = list(texts[0])
    was, is_ = (
        ", ".join(f"{name}={each[name]}" for name in each if name in names) or "not swept"
        for each in texts
    )
    return was, is_


def _axis_name(axis: dict[str, Any]) -> str:
    return ",".join(axis["keys"])


def _axis_values(axis: dict[str, Any]) -> str:
    texts = [":".join(point) for point in axis["points"]]
    shown = ",".join(texts[:_SHOWN]) + (",…" if len(texts) > _SHOWN else "")
    if axis["range"] is None:
        return shown
    return f"{axis['range']['shape']}:{axis['range']['low']:g}:{axis['range']['high']:g}"


def keep_results(workdir: Path, trials: Sequence[Trial], total: int) -> None:
    """Write ``results.json``: every trial as it stands, and the number of trials planned."""
    rows = [dataclasses.asdict(trial) for trial in trials]
    write_json(workdir / RESULTS, {"trials": rows, "total": total})


def progress(workdir: Path) -> tuple[int, int]:
    """Return the number of trials of a sweep that have ended, and of all.

    Raises:
      DataError: there is no sweep.
    """
    results = _read(workdir / RESULTS)
    rows = results.get("trials", ())
    return sum(row.get("state") in ENDED for row in rows), results.get("total", len(rows))


def winner(workdir: Path) -> tuple[dict[str, Any], Trial]:
    """The description of a sweep, as its file has it, and its best trial so far.

    Raises:
      DataError: there is no sweep, or none of its trials is complete yet.
    """
    stored, results = _read(workdir / NAME), _read(workdir / RESULTS)
    try:
        rows = [Trial(**row) for row in results["trials"]]
        found = best(rows, stored["objective"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{workdir / RESULTS} is damaged ({error}); run the sweep again") from error
    if found is None:
        raise DataError(f"none of the {len(rows)} trials in {workdir} is complete yet")
    return stored, found


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; give the --workdir of a sweep") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); give another --workdir") from error
