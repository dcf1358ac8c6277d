"""Backward against the operations that JAX traces, and two streams against a clock that ticks."""

import dataclasses
import math
import random

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from largebatch.models import Model
from largebatch.parallel.clusters import HARDWARE
from largebatch.parallel.timeline import (
    Compute,
    Done,
    Start,
    backward_seconds,
    replay,
    without_frozen,
)
from tests.planning.networks import network, parameters

# A device that does one operation a second: seconds are FLOPs.
COUNTING = dataclasses.replace(
    HARDWARE["v100"], flops={"float32": 1.0}, bandwidth=math.inf, sustained=1.0
)
# And one that moves a byte a second.
MOVING = dataclasses.replace(COUNTING, flops={"float32": math.inf}, bandwidth=1.0)


def traced_flops(jaxpr):
    """FLOPs of all convolutions and matrix products of a program, two for a multiplication."""
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "conv_general_dilated":
            kernel = equation.invars[1].aval
            out_features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            total += 2 * equation.outvars[0].aval.size * kernel.size // out_features
        elif name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[i] for i in contracted)
        for inner in jaxprs_in_params(equation.params):
            total += traced_flops(inner)
    return total


def test_flops_are_those_of_the_traced_network():
    name, stem, shape = "resnet18", "conv7", (225, 187, 3)  # odd sides are halved upwards
    model = Model(name, classes=1000, stem=stem)
    params, stats = jax.eval_shape(model.init, 0)
    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    forward = traced_flops(jax.make_jaxpr(model.apply)(params, stats, images).jaxpr)
    found = backward_seconds(network(name, stem=stem), COUNTING, images=2, image_shape=shape)
    # In the order of backward.
    assert list(found) == [path for path, _ in reversed(parameters(name, stem=stem))]
    # Backward is twice the forward pass, except that the images need no gradient.
    assert sum(found.values()) + found["stem/conv/kernel"] == 2 * forward
    assert all(s == 0 for path, s in found.items() if "bn" in path)


def test_bytes_are_near_the_known_traffic_of_batch_norm_and_convolutions():
    # docs/performance.md and DESIGN: at least 386 MB an image in bf16 for both passes, 262 MB of
    # them BN, ReLU and sums. Backward's part by the same count: 5 of the 8 passes that BN takes
    # over 11.1 M activations (forward: two reads, one write), and 3 of 5 of the convolutions'.
    found = backward_seconds(network(), MOVING, images=1000, image_shape=(224, 224, 3))
    norm = sum(s for path, s in found.items() if "bn" in path) / 1000 / 2  # two bytes an element
    rest = sum(s for path, s in found.items() if "bn" not in path) / 1000 / 2
    assert norm == pytest.approx(5 * 2 * 11.1e6, rel=0.07)  # the pool's gradient adds to it
    assert 60e6 < rest < 100e6


def test_a_frozen_parameter_delays_the_next_gradient():
    """Backward passes through it, unless no later gradient needs that."""
    seconds = {"b": 0.25, "a": 1.0}
    assert without_frozen(seconds, ["b"]) == {"a": 1.25}
    assert without_frozen(seconds, ["a"]) == {"b": 0.25}


# ---- two streams


def ticked(operations):
    """The same program, a second at a time: (total, exposed, hidden)."""
    left = list(operations)
    queue, ended, clock, exposed, hidden = [], set(), 0, 0, 0
    working = 0
    while left or queue or working:
        while not working and left:
            head = left[0]
            if isinstance(head, Compute):
                working = head.seconds
            elif isinstance(head, Start):
                queue.append([head.name, head.seconds])
            elif head.name not in ended:
                break
            left.pop(0)
        while queue and not queue[0][1]:
            ended.add(queue.pop(0)[0])
        if not working and not queue:
            continue
        if queue:
            queue[0][1] -= 1
            hidden += bool(working)
            exposed += not working
        working = max(0, working - 1)
        clock += 1
        while queue and not queue[0][1]:
            ended.add(queue.pop(0)[0])
    return clock, exposed, hidden


def test_random_programs_go_as_a_clock_that_ticks():
    draw = random.Random(0)
    for _ in range(300):
        program, started, waited = [], [], []
        for i in range(draw.randint(1, 14)):
            kind = draw.choice(["compute", "start", "done"])
            if kind == "compute":
                program.append(Compute(str(i), draw.randint(0, 4)))
            elif kind == "start":
                started.append(str(i))
                program.append(Start(str(i), draw.randint(0, 9), draw.randint(1, 4)))
            elif open_ := [name for name in started if name not in waited]:
                waited.append(draw.choice(open_))
                program.append(Done(waited[-1]))
        found = replay(program)
        hidden = sum(transfer.hidden_s for transfer in found.transfers)
        assert (found.total_s, found.exposed_s, hidden) == ticked(program), program
        assert found.exposed_s + hidden == found.network_s
