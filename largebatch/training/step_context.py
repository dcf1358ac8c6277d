"""What the step functions share: buckets, factors of learning rates, objective and update."""

import dataclasses
import functools
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from largebatch import parallel
from largebatch.config import StagePlan
from largebatch.errors import ConfigError
from largebatch.models import Model
from largebatch.optim import multipliers, with_kinds, with_multipliers
from largebatch.parallel import REPLICATED, Bucket
from largebatch.parallel.backward_times import shapes_of
from largebatch.parallel.bucket_planner import gradient_buckets
from largebatch.parallel.clusters import reduces_in_turn
from largebatch.training.objective import Objective, layer_of
from largebatch.training.state import TrainState
from largebatch.training.update import Partial, Replicated, Sharded, Update
from largebatch.trees import flatten_paths, without_paths

PyTree = Any


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What the step functions of a plan on a mesh share."""

    plan: StagePlan
    model: Model
    optimizer: optax.GradientTransformationExtraArgs
    mesh: Mesh
    mean: tuple[float, ...]
    """Mean of each channel, in grey levels 0 to 255."""
    std: tuple[float, ...]
    dtype: str = "float32"
    """Dtype of parameters, statistics and sums; tests prove equalities in float64."""

    @property
    def has_control_flags(self) -> bool:
        """Whether each step all-reduces stop requests and numbers of microbatches left out."""
        return self.plan.facts.processes > 1 or bool(self.plan.config.batch.deadline_s)

    @property
    def computes_alone(self) -> bool:
        """Whether a step has microbatches that need no collective."""
        return self.plan.microbatches > 1 and self.plan.members == 1

    @property
    def fast_compile_options(self) -> dict[str, int] | None:
        """XLA options that skip CPU optimization, for large programs that run rarely."""
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        return {"xla_backend_optimization_level": 0} if on_cpu else None

    @functools.cached_property
    def own_devices(self) -> int:
        """Number of devices of this process; cached, since a pod has thousands of devices."""
        start, stop = parallel.local_rows(self.mesh, self.mesh.size)
        return stop - start

    @functools.cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The static gradient buckets."""
        return gradient_buckets(
            shapes_of(self.model, self.plan.facts.image_shape),
            self.plan.config.comm,
            tuple(self.mesh.devices.flat),
            images=self.plan.local_images,
            image_shape=self.plan.facts.image_shape,
            dtype=self.plan.config.model.dtype,
            model=self.model,
            frozen=self.frozen,
        )

    @functools.cached_property
    def multipliers(self) -> dict[str, float]:
        """Learning rate factor of each parameter; 0 for statistics that stay (`frozen`)."""
        params, stats = map(flatten_paths, self.model.shapes())
        return multipliers(self.plan.config.optimizer.lr_mults, params, stats)

    @functools.cached_property
    def frozen(self) -> frozenset[str]:
        """Paths of parameters and of BatchNorm statistics that training does not change.

        A frozen layer normalizes with its statistics, like ``trainable = False`` in Keras.
        """
        zero = {path for path, factor in self.multipliers.items() if factor == 0}
        stats = flatten_paths(self.model.shapes()[1])
        layers = {layer_of(path) for path in zero if path in stats}
        return frozenset(zero | {path for path in stats if layer_of(path) in layers})

    def trained(self, tree: PyTree) -> PyTree:
        """Return parameters or statistics without those that are frozen."""
        return without_paths(tree, self.frozen)

    @functools.cached_property
    def objective(self) -> Objective:
        """The function that is differentiated."""
        return Objective(self.plan, self.model, self.mean, self.std, self.dtype, self.frozen)

    @functools.cached_property
    def update(self) -> Update:
        """The update of the parameters: replicated or sharded.

        Raises:
          ConfigError: a sharded update on TPUs.
        """
        sharded = self.plan.config.optimizer.update == "sharded"
        if sharded and self.mesh.devices.flat[0].platform == "tpu":
            raise ConfigError(
                "optimizer.update: expected replicated on TPUs, got 'sharded'; their compiler sums "
                "whole buckets on every device and gathers each parameter after backward; use "
                "optimizer.update=replicated"
            )
        rule = with_kinds(self.optimizer, self.model.kinds())
        if any(factor not in (0, 1) for factor in self.multipliers.values()):
            rule = with_multipliers(rule, self.multipliers)
        parts = rule, self.buckets, self.plan.config.comm.wire
        in_turn = reduces_in_turn(self.mesh.devices.flat)
        update = Sharded(*parts, self.mesh.size) if sharded else Replicated(*parts, in_turn)
        return Partial(update, self.frozen) if self.frozen else update

    @functools.cached_property
    def specs(self) -> TrainState:
        """Partition specs of the state, a prefix of its tree."""
        params, _ = self.model.shapes()
        state = jax.eval_shape(self.update.init, params)
        return TrainState(REPLICATED, REPLICATED, self.update.specs(state), REPLICATED)
