"""The update of the parameters, replicated on every device or sharded over the devices.

In a sharded update (Xu et al. 2020, arXiv 2004.13336) a device receives the gradient sums of its
own parts only, updates these parts of the parameters with velocities that no other device holds,
and sends them to all devices. The number of bytes on the network stays the same. The work, the
velocities and the second moments are divided by the number of devices. Each array is cut into parts
separately, so the rule sees a tree like the parameters; only its norms need a sum over devices.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from largebatch import parallel
from largebatch.optim import Rates
from largebatch.parallel import REPLICATED, SPLIT, Bucket
from largebatch.training.rules import check_state
from largebatch.trees import flatten_paths

PyTree = Any


class Update(Protocol):
    """What a step calls; from `handles` on inside ``parallel.map_over``.

    The parameters are those that are trained: frozen ones (``optimizer.lr_mults`` with 0) have no
    gradient, no moment, no trust ratio, no weight decay and no part in the norm of the gradient.
    """

    def init(self, params: PyTree) -> PyTree:
        """Return the optimizer's state before the first step."""

    def specs(self, state: PyTree) -> PyTree:
        """Return the partition specs of the optimizer's state, a prefix of its tree."""

    def to_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        """Return the optimizer's state as checkpoints hold it: velocities like the parameters."""

    def from_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        """Invert `to_checkpoint`."""

    def handles(self, params: PyTree) -> PyTree:
        """Return the arrays with respect to which gradients are taken."""

    def hook(
        self, params: PyTree, handles: PyTree, held: Sequence[jax.Array] | None
    ) -> dict[str, jax.Array]:
        """Return the parameters by path, for the computation of the loss.

        Args:
          params: the parameters.
          handles: the result of `handles`.
          held: for each bucket the flat sum of this device's earlier gradients, or None.
        """

    def apply(
        self, gradients: PyTree, state: PyTree, params: PyTree, rates: Rates
    ) -> tuple[PyTree, PyTree]:
        """Return new parameters and optimizer state, from gradients of the handles."""


@dataclasses.dataclass(frozen=True)
class Replicated:
    """Every device updates all parameters."""

    optimizer: optax.GradientTransformationExtraArgs
    buckets: Sequence[Bucket]
    wire: str
    in_turn: bool = False
    """As of ``parallel.reduce_gradients_in_backward``."""

    def init(self, params: PyTree) -> PyTree:
        return self.optimizer.init(params)

    def specs(self, state: PyTree) -> PyTree:
        del state
        return REPLICATED

    def to_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        del params
        return state

    def from_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        del params
        return state

    def handles(self, params: PyTree) -> PyTree:
        return params

    def hook(
        self, params: PyTree, handles: PyTree, held: Sequence[jax.Array] | None
    ) -> dict[str, jax.Array]:
        del params
        return parallel.reduce_gradients_in_backward(
            flatten_paths(handles), self.buckets, held, self.wire, in_turn=self.in_turn
        )

    def apply(
        self, gradients: PyTree, state: PyTree, params: PyTree, rates: Rates
    ) -> tuple[PyTree, PyTree]:
        updates, state = self.optimizer.update(gradients, state, params, rates=rates)
        return optax.apply_updates(params, updates), state


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Each device updates its part of each parameter."""

    optimizer: optax.GradientTransformationExtraArgs
    """Sums its norms over devices (``parallel.sum_over_devices``)."""
    buckets: Sequence[Bucket]
    wire: str
    devices: int

    def init(self, params: PyTree) -> PyTree:
        state = self.optimizer.init(self._cut(params))
        check_state(jax.eval_shape(self.optimizer.init, params), state, self.devices)
        return state

    def specs(self, state: PyTree) -> PyTree:
        return jax.tree.map(lambda x: SPLIT if self._is_cut(x) else REPLICATED, state)

    def to_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        whole = jax.eval_shape(self.optimizer.init, params)
        return jax.tree.map(
            lambda x, w: parallel.shards.join(x, w.shape) if self._is_cut(x) else x, state, whole
        )

    def from_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        cut = jax.eval_shape(lambda p: self.optimizer.init(self._cut(p)), params)
        return jax.tree.map(
            lambda x, c: parallel.shards.cut(x, self.devices) if self._is_cut(c) else x, state, cut
        )

    def handles(self, params: PyTree) -> PyTree:
        return jax.tree.map(
            lambda w: jnp.zeros((1, parallel.shards.part_size(w.size, self.devices)), w.dtype),
            params,
        )

    def hook(
        self, params: PyTree, handles: PyTree, held: Sequence[jax.Array] | None
    ) -> dict[str, jax.Array]:
        return parallel.scatter_gradients_in_backward(
            flatten_paths(params), flatten_paths(handles), self.buckets, held, self.wire
        )

    def apply(
        self, gradients: PyTree, state: PyTree, params: PyTree, rates: Rates
    ) -> tuple[PyTree, PyTree]:
        parts = parallel.own_parts(params)
        updates, state = self.optimizer.update(gradients, state, parts, rates=rates)
        return parallel.gather_parts(optax.apply_updates(parts, updates), params), state

    def _cut(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: parallel.shards.cut(x, self.devices), tree)

    def _is_cut(self, x: jax.Array | jax.ShapeDtypeStruct) -> bool:
        """Return whether an array of the state is in parts; counts and reports are not."""
        return len(x.shape) == 2 and x.shape[0] == self.devices
