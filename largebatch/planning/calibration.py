"""Fit of the cost model's parameters to published runs, and its error on held-out runs.

Least squares of log(predicted / published rate) over the rows, and of the logarithm of each
parameter over its expected value, which decides where rows are few.
"""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Literal

import numpy as np

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import cluster_in, machine
from largebatch.planning.step_time import FAMILIES, SIZE, Load, Parameters, Site, family_of

IMAGES = 1_281_167
VALIDATION = 50_000
_EPOCHS_BETWEEN_EVALUATIONS = 4
_ROW_ERROR = 0.06  # expected, of the logarithm of a row


@dataclasses.dataclass(frozen=True)
class Row:
    """A published run; devices and images count chips."""

    run: str
    cluster: str
    round: str
    devices: int
    images: int
    images_per_s: float
    """Per chip, over the logged time."""
    epochs: float
    tag: str
    image_size: int = SIZE
    wire_bytes: int = 2
    algorithm: str = "auto"

    @property
    def clock_s(self) -> float:
        """The logged time."""
        return self.epochs * IMAGES / (self.images_per_s * self.devices)

    @property
    def family(self) -> str:
        """Family of its hardware.

        Raises:
          ConfigError: the hardware has none.
        """
        family = family_of(machine(self.cluster).hardware)
        if family is None:
            raise ConfigError(f"calibration.toml: {self.run!r}: {self.cluster} has no family")
        return family


@dataclasses.dataclass(frozen=True)
class Prior:
    """The expected value of a parameter before any row is seen."""

    value: float
    spread: float
    """Standard deviation of the logarithm."""
    unit: str
    meaning: str
    source: str


@dataclasses.dataclass(frozen=True)
class OffClock:
    """Times that the clock does not hold since v0.6; seconds."""

    gpu: float
    tpu: float
    construction: float
    """The part that the clock of v0.5 held."""
    parameters_per_s: float


@dataclasses.dataclass(frozen=True)
class Table:
    """The contents of ``calibration.toml``."""

    rows: tuple[Row, ...]
    priors: Mapping[str, Prior]
    rounds: Mapping[str, float]
    """Year of each MLPerf round."""
    off_clock: OffClock


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A row predicted by parameters that were fitted without it."""

    row: Row
    images_per_s: float
    fitted_images_per_s: float
    """By parameters fitted to all rows."""

    @property
    def error(self) -> float:
        """Predicted over published rate, less 1."""
        return self.images_per_s / self.row.images_per_s - 1


@functools.cache
def table() -> Table:
    """Read ``calibration.toml``."""
    text = (resources.files("largebatch.planning") / "calibration.toml").read_text(encoding="utf-8")
    read = tomllib.loads(text)
    return Table(
        rows=tuple(Row(**row) for row in read["run"]),
        priors={name: Prior(**prior) for name, prior in read["prior"].items()},
        rounds=read["round"],
        off_clock=OffClock(**read["off_clock"]),
    )


def rate_of(parameters: Parameters, row: Row) -> float:
    """Predict a row's images/s per chip, over the time of its clock: start, steps, evaluations."""
    of = machine(row.cluster)
    chips = of.hardware.devices_per_chip
    cluster = cluster_in(of, row.devices * chips)
    site = Site(parameters, cluster, table().rounds[row.round])
    load = Load(
        row.images / chips, row.image_size, wire_bytes=row.wire_bytes, algorithm=row.algorithm
    )
    steps = row.epochs * IMAGES / (row.images * row.devices)
    evaluations = row.epochs / _EPOCHS_BETWEEN_EVALUATIONS
    training = site.start_s + steps * site.step(load).total_s
    clock = training + evaluations * site.evaluation_s(VALIDATION)
    if row.round == "v0.5":  # its clock held construction too
        clock += table().off_clock.construction
    return row.epochs * IMAGES / (clock * row.devices)


def fit(
    rows: Sequence[Row], *, robust: bool = True, priors: Mapping[str, Prior] | None = None
) -> Parameters:
    """Fit the parameters.

    Args:
      rows: published runs.
      robust: a row that is far off pulls no harder than one at the expected error.
      priors: None takes those of the table.
    """
    from scipy.optimize import least_squares

    priors = priors or table().priors
    names = [f"sustained/{family}" for family in FAMILIES]  # a share for each family
    names += [name for name in priors if name != "sustained"]
    each = [priors[name.partition("/")[0]] for name in names]
    means = np.log([prior.value for prior in each])
    spreads = np.asarray([prior.spread for prior in each])

    def residuals(logs: np.ndarray) -> np.ndarray:
        parameters = _parameters(names, logs)
        found = [math.log(rate_of(parameters, row) / row.images_per_s) for row in rows]
        scaled = np.asarray(found) / _ROW_ERROR
        if robust:  # pseudo-Huber
            scaled = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
        return np.concatenate([scaled, (logs - means) / spreads])

    return _parameters(names, least_squares(residuals, means, max_nfev=60).x)


def held_out(rows: Sequence[Row], by: Literal["run", "family"]) -> tuple[HeldOut, ...]:
    """Predict each row by parameters fitted to the rows of other runs, or of other families."""
    everything = fit(rows)
    fits = {
        key: fit([row for row in rows if getattr(row, by) != key])
        for key in dict.fromkeys(getattr(row, by) for row in rows)
    }
    return tuple(
        HeldOut(row, rate_of(fits[getattr(row, by)], row), rate_of(everything, row)) for row in rows
    )


def quantile(errors: Sequence[HeldOut], share: float) -> float:
    """Return a quantile of |log(predicted / published rate)|."""
    return float(np.quantile([abs(math.log1p(each.error)) for each in errors], share))


def _parameters(names: Sequence[str], logs: np.ndarray) -> Parameters:
    values = dict(zip(names, np.exp(logs).tolist(), strict=True))
    shares = {family: values.pop(f"sustained/{family}") for family in FAMILIES}
    return Parameters(sustained=shares, **values)
