"""A recipe's train step, compiled once for each variant and microbatch on a topology."""

import csv
import dataclasses
import functools
import itertools
from collections.abc import Sequence

from largebatch import data
from largebatch.config import Config, Facts
from largebatch.config.plan import microbatch_candidates
from largebatch.config.resolution import resolve
from largebatch.data.open import facts_of, known_split, open_split
from largebatch.errors import ConfigError, DataError
from largebatch.planning import compile as compiling
from largebatch.planning.compile import VARIANTS, Study, study, variant_of
from largebatch.planning.topologies import Topology
from largebatch.tracking import Console
from largebatch.training.memory import TOO_LARGE, USABLE, is_exhausted, large_that_fits


def sources(config: Config) -> tuple[data.Dataset, data.Dataset]:
    """Return the training and validation split, or the known facts of absent ones.

    Raises:
      DataError: they cannot be opened and are not known.
    """
    try:
        return open_split(config, "train"), open_split(config, "validation")
    except DataError as error:
        name, size = config.data.source, config.data.image_size
        known = [known_split(name, split, size) for split in ("train", "validation")]
        if None in known:
            raise DataError(
                f"{error} (a plan needs the numbers of examples: data.source=synthetic with "
                "data.examples, data.classes and data.image_size gives them)"
            ) from error
        return tuple(known)


Choice = tuple[tuple[str, str], ...]
"""Options and their values, as (key, text)."""


def parse_choices(texts: Sequence[str]) -> list[Choice]:
    """Return all combinations of ``section.key=A,B,…``, the last option varying fastest.

    A value with commas is in double quotes: ``section.key="A,B",C``.

    Raises:
      ConfigError: a text has another form, or an option is in two texts.
    """
    each: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        try:
            (found,) = csv.reader([values], strict=True)
        except (csv.Error, ValueError):  # ValueError: no row
            found = []
        if "." not in key or not found:
            raise ConfigError(f"--compare: expected section.key=VALUE,VALUE,…, got {text!r}")
        if key in each:
            raise ConfigError(f"--compare: expected {key} once, with all its values; got it twice")
        each[key] = [(key, value) for value in found]
    return list(itertools.product(*each.values()))


class Planning:
    """A recipe on a topology; each compilation is done once."""

    def __init__(self, config: Config, topology: Topology, **limits: float) -> None:
        """Reads the facts of the data; compiles nothing yet."""
        self.config, self.topology, self.console = config, topology, Console()
        train, validation = sources(config)
        self._moments = {"mean": tuple(train.mean), "std": tuple(train.std)}
        self.facts: Facts = facts_of(train, validation, topology.devices, topology.processes)
        self._limits = limits
        self._done: dict[tuple, Study] = {}

    def study(self, name: str, microbatch: int | None) -> Study:
        """Compile a variant with a number of workers at a time."""
        config, options = self._variant(name)
        key = config, tuple(options.items()), microbatch
        if key not in self._done:
            request = self._request(name, microbatch)
            with self.console.compiling(f"{name} ({VARIANTS[name]})"):
                self._done[key] = study(request, name, **self._limits)
            for option, why in self._done[key].compiled.refused.items():
                self.console.warn(f"the compiler refuses {option}, which is left out: {why}")
        return dataclasses.replace(self._done[key], name=name)

    def all_programs(self) -> compiling.Compiled:
        """Compile all that training calls on these devices, evaluation too."""
        request = self._request("ours", self.microbatch())
        request = dataclasses.replace(request, complete=True)
        return compiling.compile_step(request, **self._limits)

    def _request(self, name: str, microbatch: int | None) -> compiling.Request:
        config, options = self._variant(name)
        return compiling.Request(
            config,
            self.topology,
            self.facts,
            options=options,
            microbatch=microbatch,
            **self._moments,
        )

    @functools.cache  # noqa: B019 - lives as long as the process
    def _variant(self, name: str) -> tuple[Config, dict[str, str]]:
        return variant_of(self.config, name, self.topology.option_platform)

    def microbatch(self) -> int:
        """Return the configured workers at a time, or the most that fit the device's memory.

        Raises:
          ConfigError: not even one fits.
        """
        plan = resolve(self.config, self.facts)  # mistakes first
        if self.config.batch.microbatch != "auto":
            return plan.first_stage.microbatch
        candidates = microbatch_candidates(plan.config, self.facts)
        if len(candidates) == 1:
            return candidates[0]

        def needed(microbatch: int) -> int:
            try:
                return self.study("ours", microbatch).compiled.peak_bytes
            except compiling.CompileError as error:
                if not is_exhausted(error):  # TPU compilers refuse programs that do not fit
                    raise
                return TOO_LARGE

        available = int(self.topology.hardware.memory * USABLE)
        return large_that_fits(candidates, needed, available, fixed=0)
