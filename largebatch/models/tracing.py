"""FLOPs of a traced forward pass, and the order in which it uses parameters."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from largebatch.models.functional import Model
from largebatch.trees import flatten_paths

_BRANCHING = ("scan", "while", "cond")


@dataclasses.dataclass
class Work:
    """Work between the first use of a parameter and that of the next parameter, for one image."""

    flops: float = 0.0
    """FLOPs of matrix products and convolutions."""
    elements: float = 0.0
    """Number of activation elements that these and operations on parameters read and write."""


def product_flops(equation: Any) -> float:
    """Return the FLOPs of a convolution or matrix product in a jaxpr; 0 for other equations."""
    if equation.primitive.name == "conv_general_dilated":
        kernel, out = equation.invars[1].aval, equation.outvars[0].aval
        features = equation.params["dimension_numbers"].rhs_spec[0]
        return 2.0 * out.size * kernel.size / kernel.shape[features]
    if equation.primitive.name == "dot_general":
        left, right = (v.aval for v in equation.invars)
        (contracted, _), (batched, _) = equation.params["dimension_numbers"]
        summed = math.prod(left.shape[axis] for axis in contracted)
        shared = math.prod(left.shape[axis] for axis in batched)
        return 2.0 * left.size * right.size / (summed * shared)
    return 0.0


def equations(jaxpr: Any) -> list[Any]:
    """Return all equations of a jaxpr and of nested jaxprs."""
    found = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for inner in _inner(equation):
            found += equations(inner)
    return found


def work_of(model: Model, image_shape: Sequence[int]) -> dict[str, Work]:
    """Return the work of a forward pass by parameter path, in the order of first use.

    An operation belongs to the parameter used most recently before it. In backward, its gradient is
    computed between the gradients of this parameter and of the next one. Unused parameters come
    last. Operations on parameters alone are not counted.

    Args:
      model: the network.
      image_shape: height, width and channels.

    Raises:
      ConfigError: the network does not accept such images.
    """
    model.check(tuple(image_shape))
    params, stats = model.shapes()
    images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda p, x, s: model.apply(p, s, x))(params, images, stats).jaxpr
    # jax.tree sorts the keys at each level.
    paths = jax.tree.leaves(
        jax.tree.map_with_path(
            lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), params
        )
    )
    walk = _Walk()
    walk.through(jaxpr, [{path} for path in paths] + [None] * (len(jaxpr.invars) - len(paths)))
    unused = {path: Work() for path in flatten_paths(params) if path not in walk.found}
    return walk.found | unused


class _Walk:
    """Traversal of the equations in order."""

    def __init__(self) -> None:
        self.found: dict[str, Work] = {}

    def through(self, jaxpr: Any, given: Sequence[set[str] | None]) -> list[set[str] | None]:
        """Return the parameters that each output depends on; None if it also depends on data."""
        made = dict(zip(jaxpr.invars, given, strict=True))

        def of(variable: Any) -> set[str] | None:
            return set() if isinstance(variable, Literal) else made.get(variable, set())

        for equation in jaxpr.eqns:
            inputs = [of(variable) for variable in equation.invars]
            inner = list(_inner(equation))
            if (
                len(inner) == 1
                and len(inner[0].invars) == len(inputs)
                and equation.primitive.name not in _BRANCHING
            ):
                outputs = self.through(inner[0], inputs)
            else:
                outputs = [self._take(equation, inputs, inner)] * len(equation.outvars)
            made.update(zip(equation.outvars, outputs, strict=True))
        return [of(variable) for variable in jaxpr.outvars]

    def _take(
        self, equation: Any, inputs: Sequence[set[str] | None], inner: Sequence[Any]
    ) -> set[str] | None:
        if all(names is not None for names in inputs):
            return set().union(*inputs)
        used = set().union(*(names for names in inputs if names))
        for path in sorted(used - self.found.keys()):
            self.found[path] = Work()
        repeats = equation.params.get("length", 1)
        flops = product_flops(equation) + sum(
            repeats * product_flops(each) for jaxpr in inner for each in equations(jaxpr)
        )
        if self.found and (flops or used):
            work = next(reversed(self.found.values()))
            data = [v.aval.size for v, n in zip(equation.invars, inputs, strict=True) if n is None]
            work.flops += flops
            work.elements += sum(data) + sum(v.aval.size for v in equation.outvars)
        return None


def _inner(equation: Any) -> list[Any]:
    """The jaxprs inside an equation."""
    found = []
    for value in equation.params.values():
        for each in value if isinstance(value, list | tuple) else (value,):
            jaxpr = getattr(each, "jaxpr", each)
            if hasattr(jaxpr, "eqns"):
                found.append(jaxpr)
    return found
