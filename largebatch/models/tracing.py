"""The work of a backward pass by parameter, from the traced forward pass, and FLOPs of programs."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from largebatch.models.functional import Model
from largebatch.optim.parameters import path_names
from largebatch.trees import flatten_paths

_BRANCHING = ("scan", "while", "cond")
_OWN_GRADIENT = "custom_vjp_call"


@dataclasses.dataclass
class Work:
    """Work of backward between the gradient of a parameter and that of the next, for one image."""

    flops: float = 0.0
    """FLOPs of matrix products and convolutions."""
    elements: float = 0.0
    """Number of activation elements, and of gradients of activations, read and written."""


class _Value(NamedTuple):
    """What a value of the forward pass is computed from."""

    parameters: frozenset[str] = frozenset()
    """Paths; a value without any needs no gradient."""
    is_activation: bool = False
    """Whether it depends on the images."""


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


def shapes_of(
    model: Model, image_shape: Sequence[int] | None = None
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return (path, shape) of a model's parameters, in the order of the forward pass.

    Args:
      model: the network.
      image_shape: height, width and channels, on which a user's module is traced for the order;
        None takes the order in which its constructor made the layers.
    """
    shapes = {path: leaf.shape for path, leaf in flatten_paths(model.shapes()[0]).items()}
    traced = image_shape is not None and not model.is_resnet
    paths = backward_work(model, tuple(image_shape)) if traced else model.parameter_paths()
    return tuple((path, shapes[path]) for path in paths)


@functools.lru_cache(maxsize=64)
def backward_work(model: Model, image_shape: tuple[int, int, int]) -> Mapping[str, Work]:
    """Return the work of backward by parameter path, in the order of first use in forward.

    An operation belongs to the parameter used most recently before it: its gradients are computed
    between those of this parameter and of the next one. Parameters without a use come last.

    Each gradient of a product is a product of the same size, which reads or writes the same arrays;
    images need none. Other operations are counted by their arrays as compilers fuse them:

    - A summand such as BatchNorm's bias: one pass over its input and its output's gradient for the
      sums that are its own gradient, and that of a factor before it.
    - A factor such as BatchNorm's scale: another pass over both, which writes the input's gradient.
    - Reductions and functions with a gradient of their own (max-pools) read and write their arrays.
    - The rest (ReLU, shortcuts, conversions) is part of the operations beside it.

    Args:
      model: the network.
      image_shape: height, width and channels.

    Raises:
      ConfigError: the network does not accept such images.
    """
    model.check(image_shape)
    params, stats = model.shapes()
    images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda p, s, x: model.apply(p, s, x))(params, stats, images).jaxpr
    paths = jax.tree.leaves(path_names(params))  # jax.tree sorts the keys at each level
    given = [_Value(frozenset({path})) for path in paths]
    given += [_Value()] * (len(jaxpr.invars) - len(paths) - 1)
    walk = _Walk()
    walk.through(jaxpr, [*given, _Value(is_activation=True)])
    unused = {path: Work() for path in flatten_paths(params) if path not in walk.found}
    return walk.found | unused


class _Walk:
    """Traversal of the equations in order."""

    def __init__(self) -> None:
        self.found: dict[str, Work] = {}

    def through(self, jaxpr: Any, given: Sequence[_Value]) -> list[_Value]:
        """Return what each output is computed from."""
        made = dict(zip(jaxpr.invars, given, strict=True))

        def of(variable: Any) -> _Value:
            return _Value() if isinstance(variable, Literal) else made.get(variable, _Value())

        for equation in jaxpr.eqns:
            inputs = [of(variable) for variable in equation.invars]
            inner = list(_inner(equation))
            is_opaque = equation.primitive.name in _BRANCHING or (
                equation.primitive.name == _OWN_GRADIENT
                and all(value.is_activation for value in inputs)
            )
            if len(inner) == 1 and len(inner[0].invars) == len(inputs) and not is_opaque:
                outputs = self.through(inner[0], inputs)
            else:
                outputs = [self._take(equation, inputs, inner)] * len(equation.outvars)
            made.update(zip(equation.outvars, outputs, strict=True))
        return [of(variable) for variable in jaxpr.outvars]

    def _take(self, equation: Any, inputs: Sequence[_Value], inner: Sequence[Any]) -> _Value:
        """Count the work of an operation; return what its outputs are computed from."""
        output = _Value(
            frozenset().union(*(value.parameters for value in inputs)),
            any(value.is_activation for value in inputs),
        )
        used = frozenset().union(*(v.parameters for v in inputs if not v.is_activation))
        if not output.is_activation:
            return output
        for path in sorted(used - self.found.keys()):
            self.found[path] = Work()
        name, repeats = equation.primitive.name, equation.params.get("length", 1)
        flops = product_flops(equation) + sum(
            repeats * product_flops(each) for jaxpr in inner for each in equations(jaxpr)
        )
        passes = name.startswith("reduce_") or name == _OWN_GRADIENT
        if output.parameters and (flops or used or passes):
            gradients = sum(bool(value.parameters) for value in inputs)
            read = sum(
                variable.aval.size
                for variable, value in zip(equation.invars, inputs, strict=True)
                if value.is_activation
            )
            arrays = read + sum(variable.aval.size for variable in equation.outvars)
            work = next(reversed(self.found.values()))
            if flops:
                work.flops += gradients * flops
                work.elements += gradients * arrays
            elif name in ("add", "sub"):
                work.elements += arrays
            else:
                work.elements += arrays + (gradients - 1) * read
        return output


def _inner(equation: Any) -> list[Any]:
    """The jaxprs inside an equation."""
    found = []
    for value in equation.params.values():
        for each in value if isinstance(value, list | tuple) else (value,):
            jaxpr = getattr(each, "jaxpr", each)
            if hasattr(jaxpr, "eqns"):
                found.append(jaxpr)
    return found
