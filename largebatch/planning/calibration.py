"""The cost model's parameters, from published runs, and how wrong it is on runs it has not seen.

Least squares of log(predicted / published rate) over the rows and of the logarithm of each
parameter over its prior value: families with one or two rows keep what the others cannot tell near
what was expected.
"""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import cluster_in
from largebatch.parallel.hardware import machine
from largebatch.parallel.network import Algorithm
from largebatch.planning import step_time
from largebatch.planning.step_time import FAMILIES, Parameters, Step, family_of

IMAGES = 1_281_167
VALIDATION = 50_000
_EPOCHS_BETWEEN_EVALUATIONS = 4
_ROW_ERROR = 0.06  # expected of a row, of the logarithm


@dataclasses.dataclass(frozen=True)
class Row:
    """A published run; devices and images count chips."""

    run: str
    cluster: str
    round: str
    devices: int
    images: int
    images_per_s: float
    """Of each chip, over the logged time."""
    epochs: float
    tag: str
    image_size: int = step_time.SIZE
    wire_bytes: int = 2
    algorithm: Algorithm = "auto"

    @property
    def clock_s(self) -> float:
        """The logged time."""
        return self.epochs * IMAGES / (self.images_per_s * self.devices)

    @property
    def family(self) -> str:
        """Of its hardware."""
        family = family_of(machine(self.cluster).hardware)
        if family is None:
            raise ConfigError(f"calibration.toml, {self.run!r}: {self.cluster} has no family")
        return family


@dataclasses.dataclass(frozen=True)
class Prior:
    """What is expected of a parameter before any row is seen."""

    value: float
    spread: float
    """Of the logarithm."""
    unit: str
    meaning: str
    source: str


@dataclasses.dataclass(frozen=True)
class OffClock:
    """What the clock does not hold since v0.6; seconds."""

    gpu: float
    tpu: float
    construction: float
    """Of it what the clock of v0.5 held."""
    parameters_per_s: float


@dataclasses.dataclass(frozen=True)
class Table:
    """What the calibration rests on."""

    rows: tuple[Row, ...]
    priors: Mapping[str, Prior]
    rounds: Mapping[str, float]
    """Year of each MLPerf round."""
    off_clock: OffClock


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A row as predicted by parameters that were fitted to all others."""

    row: Row
    images_per_s: float
    fitted_images_per_s: float
    """With the row among those fitted to."""

    @property
    def error(self) -> float:
        """Predicted over published rate, less 1."""
        return self.images_per_s / self.row.images_per_s - 1


@functools.cache
def table() -> Table:
    """Rows, priors and rounds of ``calibration.toml``."""
    text = (resources.files("largebatch.planning") / "calibration.toml").read_text(encoding="utf-8")
    read = tomllib.loads(text)
    return Table(
        rows=tuple(Row(**row) for row in read["run"]),
        priors={name: Prior(**prior) for name, prior in read["prior"].items()},
        rounds=read["round"],
        off_clock=OffClock(**read["off_clock"]),
    )


@dataclasses.dataclass(frozen=True)
class Clock:
    """A run's parts that the clock holds; seconds."""

    step: Step
    train_s: float
    """Start on the clock and all steps."""
    evaluation_s: float

    @property
    def total_s(self) -> float:
        """From the clock's start to its stop."""
        return self.train_s + self.evaluation_s


def clock_of(parameters: Parameters, row: Row) -> Clock:
    """A row's run as the model has it; what v0.5 held besides, construction, is left out."""
    of = machine(row.cluster)
    chips = of.hardware.devices_per_chip
    cluster = cluster_in(of, row.devices * chips)
    year = table().rounds[row.round]
    step = step_time.step_of(
        parameters,
        cluster,
        images=row.images / chips,
        year=year,
        size=row.image_size,
        wire_bytes=row.wire_bytes,
        algorithm=row.algorithm,
    )
    steps = row.epochs * IMAGES / (row.images * row.devices)
    start = parameters.start_s * step_time.gain(parameters, year)
    evaluation = step_time.evaluation_s(parameters, cluster, images=VALIDATION, year=year)
    times = row.epochs / _EPOCHS_BETWEEN_EVALUATIONS
    return Clock(step, start + steps * step.total_s, times * evaluation)


def rate_of(parameters: Parameters, row: Row) -> float:
    """Images/s of a chip that the model gives a row, over the time that its clock held."""
    held = table().off_clock.construction if row.round == "v0.5" else 0.0
    return row.epochs * IMAGES / ((clock_of(parameters, row).total_s + held) * row.devices)


def fit(
    rows: Sequence[Row], *, robust: bool = True, priors: Mapping[str, Prior] | None = None
) -> Parameters:
    """The parameters that these rows and the priors agree on.

    Args:
      rows: to fit to.
      robust: a row far off pulls no harder than one at the expected error; else as its square.
      priors: other than the table's.
    """
    from scipy.optimize import least_squares

    names, means, spreads = _priors(priors or table().priors)

    def residuals(logs: np.ndarray) -> np.ndarray:
        parameters = _parameters(names, logs)
        found = [math.log(rate_of(parameters, row) / row.images_per_s) for row in rows]
        scaled = np.asarray(found) / _ROW_ERROR
        if robust:  # pseudo-Huber
            scaled = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
        return np.concatenate([scaled, (logs - means) / spreads])

    return _parameters(names, least_squares(residuals, means, max_nfev=60).x)


def held_out(rows: Sequence[Row]) -> tuple[HeldOut, ...]:
    """Each row from parameters fitted to the others."""
    everything = fit(rows)
    return tuple(
        HeldOut(
            row,
            rate_of(fit([other for other in rows if other is not row]), row),
            rate_of(everything, row),
        )
        for row in rows
    )


def held_out_families(rows: Sequence[Row]) -> tuple[HeldOut, ...]:
    """Each row from parameters fitted to the rows of other hardware."""
    everything = fit(rows)
    found = []
    for family in dict.fromkeys(row.family for row in rows):
        others = fit([row for row in rows if row.family != family])
        found += [
            HeldOut(row, rate_of(others, row), rate_of(everything, row))
            for row in rows
            if row.family == family
        ]
    return tuple(found)


def quantile(errors: Sequence[HeldOut], share: float) -> float:
    """Of |log(predicted / published rate)|."""
    return float(np.quantile([abs(math.log1p(each.error)) for each in errors], share))


def as_mapping(parameters: Parameters) -> dict[str, Any]:
    """The parameters as plain numbers, for a file."""
    return {**dataclasses.asdict(parameters), "sustained": dict(parameters.sustained)}


def _priors(priors: Mapping[str, Prior]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names, means and spreads of all logarithms that are fitted; a share for each family."""
    names = [f"sustained/{family}" for family in FAMILIES]
    names += [name for name in priors if name != "sustained"]
    each = [priors[name.partition("/")[0]] for name in names]
    return names, np.log([p.value for p in each]), np.asarray([p.spread for p in each])


def _parameters(names: Sequence[str], logs: np.ndarray) -> Parameters:
    values = dict(zip(names, np.exp(logs).tolist(), strict=True))
    shares = {family: values.pop(f"sustained/{family}") for family in FAMILIES}
    return Parameters(sustained=shares, **values)
