"""The update of the parameters, replicated on every device or sharded over the devices.

In a sharded update (Xu et al. 2020, arXiv 2004.13336) a device receives the gradient sums of its
own parts only, updates these parts of the parameters with velocities that no other device holds,
and sends them to all devices. The number of bytes on the network stays the same. The work, the
velocities and the second moments are divided by the number of devices. Each array is cut into parts
separately, so the rule sees a tree like the parameters; only its norms need a sum over devices.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from largebatch import parallel
from largebatch.optim import Rates
from largebatch.parallel import REPLICATED, SPLIT, Bucket
from largebatch.parallel.mesh import cut_parts, join_parts, part_size
from largebatch.training.rules import check_state
from largebatch.trees import flatten_paths

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Update:
    """The update of a step; `hook` and `apply` are called inside ``parallel.map_over``.

    The parameters are those that are trained: frozen ones (``optimizer.lr_mults`` with 0) have no
    gradient, no moment, no trust ratio, no weight decay and no part in the norm of the gradient.
    """

    rule: optax.GradientTransformationExtraArgs
    """With parts, it sums its norms over devices (``parallel.sum_over_devices``)."""
    buckets: Sequence[Bucket]
    wire: str
    parts: int = 0
    """Number of devices among which each array is cut; 0 for a replicated update."""
    in_turn: bool = False
    """As of ``parallel.reduce_gradients_in_backward``."""

    def init(self, params: PyTree) -> PyTree:
        """Return the optimizer's state before the first step.

        Raises:
          ConfigError: an array of the state does not follow the parameters.
        """
        state = self.rule.init(self._cut(params))
        if self.parts:
            check_state(jax.eval_shape(self.rule.init, params), state, self.parts)
        return state

    def specs(self, params: PyTree) -> PyTree:
        """Return the partition specs of the optimizer's state, a prefix of its tree."""
        if not self.parts:
            return REPLICATED
        state = jax.eval_shape(self.init, params)
        return jax.tree.map(lambda x: SPLIT if self._is_cut(x) else REPLICATED, state)

    def to_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        """Return the optimizer's state as checkpoints hold it: velocities like the parameters."""
        whole = jax.eval_shape(self.rule.init, params)
        return jax.tree.map(
            lambda x, w: join_parts(x, w.shape) if self._is_cut(x) else x, state, whole
        )

    def from_checkpoint(self, state: PyTree, params: PyTree) -> PyTree:
        """Invert `to_checkpoint`."""
        cut = jax.eval_shape(self.init, params)
        return jax.tree.map(
            lambda x, c: cut_parts(x, self.parts) if self._is_cut(c) else x, state, cut
        )

    def handles(self, params: PyTree) -> PyTree:
        """Return the arrays with respect to which gradients are taken."""
        if not self.parts:
            return params
        return jax.tree.map(
            lambda w: jnp.zeros((1, part_size(w.size, self.parts)), w.dtype), params
        )

    def hook(
        self,
        params: PyTree,
        handles: PyTree,
        held: Sequence[jax.Array] | None,
        square: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return the parameters by path, for the computation of the loss.

        Args:
          params: the parameters.
          handles: the result of `handles`.
          held: for each bucket the flat sum of this device's earlier gradients, or None.
          square: as of ``parallel.reduce_gradients_in_backward``.
        """
        flat = flatten_paths(handles)
        if self.parts:
            return parallel.scatter_gradients_in_backward(
                flatten_paths(params), flat, self.buckets, held, self.wire, square
            )
        return parallel.reduce_gradients_in_backward(
            flat, self.buckets, held, self.wire, square, in_turn=self.in_turn
        )

    def apply(
        self, gradients: PyTree, state: PyTree, params: PyTree, rates: Rates
    ) -> tuple[PyTree, PyTree]:
        """Return new parameters and optimizer state, from gradients of the handles."""
        mine = parallel.own_parts(params) if self.parts else params
        updates, state = self.rule.update(gradients, state, mine, rates=rates)
        mine = optax.apply_updates(mine, updates)
        return parallel.gather_parts(mine, params) if self.parts else mine, state

    def _cut(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: cut_parts(x, self.parts), tree) if self.parts else tree

    def _is_cut(self, x: jax.Array | jax.ShapeDtypeStruct) -> bool:
        """Return whether an array of the state is in parts; counts and reports are not."""
        return self.parts > 0 and len(x.shape) == 2 and x.shape[0] == self.parts
