"""A stage that is ready to start: its data and its programs."""

import dataclasses
import functools
from collections.abc import Generator, Mapping, Sequence

import jax
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config import StagePlan
from largebatch.data.open import augment_of
from largebatch.parallel.transfer import OnDevices, on_devices
from largebatch.training.programs import Programs
from largebatch.training.state import TrainState


def stage_at(stages: "Sequence[Stage]", step: int) -> "Stage":
    """Return the stage of step number ``step``, from 1."""
    return next((s for s in reversed(stages) if step > s.plan.first_step), stages[0])


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage that is ready to start: its data and its programs."""

    train_source: data.Source
    validation_source: data.Source
    programs: Programs
    unreadable: Mapping[str, data.Unreadable] = dataclasses.field(default_factory=dict)
    """By split, the examples that could not be decoded; the same objects for all stages. Without
    one, the first such example ends the run."""
    further_sets: Mapping[str, data.Source] = dataclasses.field(default_factory=dict)
    """The further validation sets (``data.validation_sets``) by name."""

    @property
    def plan(self) -> StagePlan:
        """The plan of the stage."""
        return self.programs.steps.plan

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.programs.steps.mesh

    def placed(self, state: TrainState) -> TrainState:
        """Return a state with the shardings that this stage's programs expect."""
        return jax.device_put(state, parallel.placed(self.mesh, self.programs.steps.specs))

    @functools.cached_property
    def order(self) -> data.Order:
        """The order of the examples by sample position."""
        return data.Order(
            self.plan.config.run.seed,
            len(self.train_source),
            shuffle=self.plan.config.data.shuffle,
            epoch_samples=self.plan.epoch_samples,
        )

    @functools.cached_property
    def validation_sets(self) -> Mapping[str, data.Source]:
        """All validation sets by name; the first one, ``validation``, is the main one."""
        return {"validation": self.validation_source, **self.further_sets}

    @functools.cached_property
    def views_of_sets(self) -> Mapping[str, tuple[data.View, ...]]:
        """The examples of each validation set by the shape at which they are seen."""
        options = self.plan.config.data
        return {
            name: data.rectangular_views(source, self._reading, options.evaluation_size)
            if options.rectangular
            else data.square_views(source, options.evaluation_size)
            for name, source in self.validation_sets.items()
        }

    @property
    def validation_views(self) -> tuple[data.View, ...]:
        """Those of the main validation set."""
        return self.views_of_sets["validation"]

    @property
    def evaluation_shapes(self) -> tuple[tuple[int, int], ...]:
        """Heights and widths of the images of all evaluations."""
        views = self.views_of_sets.values()
        return tuple(dict.fromkeys(view.shape for each in views for view in each))

    def local_microbatches(self, start: int, stop: int) -> Generator[data.Microbatch]:
        """Yield this process's rows of the microbatches from position ``start`` to ``stop``."""
        options = self.plan.config.data
        return data.train_microbatches(
            self.train_source,
            self.order,
            augment_of(self.plan.config, self.train_source.mean),
            start=start,
            stop=stop,
            microbatch=self.plan.microbatch_samples,
            rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
            reading=self._reading,
            crops=options.crops,
            centre=options.train_crop == "centre",
            unreadable=self.unreadable.get("train"),
        )

    def train_microbatches(
        self, start: int, stop: int, patience: float | None = None
    ) -> Generator[OnDevices | None]:
        """Yield the microbatches from sample position ``start`` to ``stop``, on the devices.

        With ``patience``, also yield None whenever that many seconds passed without one.
        """
        return on_devices(self.mesh, self.local_microbatches(start, stop), patience)

    def validation_batches(
        self, patience: float | None = None, name: str = "validation"
    ) -> Generator[OnDevices | None]:
        """Yield every batch of a validation set, on the devices.

        Args:
          patience: as in `train_microbatches`.
          name: of the set, in `validation_sets`.
        """
        return on_devices(
            self.mesh,
            data.evaluation_batches(
                self.validation_sets[name],
                batch=self.plan.microbatch_samples,
                rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
                reading=self._reading,
                crops=self.plan.config.data.crops,
                views=self.views_of_sets[name],
                unreadable=self.unreadable.get(name),
            ),
            patience,
        )

    @property
    def _reading(self) -> data.Reading:
        """Threads, processes and read-ahead."""
        options = self.plan.config.data
        threads, memory = options.threads or data.cores(), options.memory_mib * 2**20
        readers = threads * max(1, options.processes)
        return data.Reading(
            threads=threads,
            processes=options.processes,
            memory_bytes=memory,
            piece_bytes=min(data.PIECE, memory // (2 * readers)),  # two pieces for each reader
        )
