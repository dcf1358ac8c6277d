"""What the programs contain: the collectives, and nothing that should not be there."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.extend.core import Var

from largebatch.errors import ConfigError
from largebatch.training.stage import Stage
from tests.training import worlds


def finish_text(devices, microbatch, **sections):
    """The train step as it is handed to the compiler, and its step functions."""
    sections = {"model": worlds.RESNET} | sections
    sections["comm"] = {"bucket_mib": 0.001} | sections.get("comm", {})
    made = worlds.steps(worlds.config(**sections), devices, microbatch, "float32")
    lowered = made.finish.lower(*Stage(made).finish_arguments)
    return lowered.as_text(), made


def events(text):
    """All-reduces (elements, type) and convolutions ('conv'), in program order."""
    found = []
    for match in re.finditer(
        r"stablehlo\.convolution|"
        r"stablehlo\.all_reduce(?:.|\n)*?\}\) : \(tensor<([0-9x]*?)x?(f32|bf16)>\)",
        text,
    ):
        if match[0] == "stablehlo.convolution":
            found.append("conv")
        else:
            size = 1
            for side in filter(None, match[1].split("x")):
                size *= int(side)
            found.append((size, match[2]))
    return found


@pytest.mark.parametrize(("scheme", "microbatch"), [("bucket", 1), ("leaf", 2), ("tree", 1)])
def test_all_reduces_are_those_of_the_bucket_plan(scheme, microbatch):
    text, made = finish_text(4, microbatch, comm={"allreduce": scheme})
    assert text.count('"stablehlo.all_reduce"') == len(made.buckets) + 1
    sizes = [event[0] for event in events(text) if event != "conv"]
    # Besides: one for the BatchNorm statistics, four sums of the metrics and one of the noise.
    stats = sum(x.size for x in jax.tree.leaves(jax.eval_shape(made.model.init, 0)[1]))
    expected = [bucket.size for bucket in made.buckets]
    assert sorted(sizes) == sorted([*expected, stats + 5])
    gradients = [size for size in sizes if size != stats + 5]
    assert gradients == expected


def overlap(scheme):
    """For each bucket's psum, the share of all convolutions that it need not wait for.

    Where a compiler puts a reduction follows from data dependence alone, so that is what is looked
    at: the ancestors of each psum in the step's equations.
    """
    config = worlds.config(model={"name": "resnet18"}, comm={"allreduce": scheme})
    made = worlds.steps(config, 4, 1, "float32")
    outer = jax.make_jaxpr(made.finish)(*Stage(made).finish_arguments)
    jaxpr = outer.jaxpr
    while not any(e.primitive.name.startswith("psum") for e in jaxpr.eqns):
        (jaxpr,) = (
            getattr(e.params["jaxpr"], "jaxpr", e.params["jaxpr"])
            for e in jaxpr.eqns
            if "jaxpr" in e.params
        )
    maker, ancestors = {}, []
    for index, equation in enumerate(jaxpr.eqns):
        before = {maker[v] for v in equation.invars if isinstance(v, Var) and v in maker}
        ancestors.append(before.union(*(ancestors[i] for i in before)))
        maker.update(dict.fromkeys(equation.outvars, index))
    names = [e.primitive.name for e in jaxpr.eqns]
    # 1×1 convolutions are matrix products on CPUs, as the head is anywhere.
    products = ("conv_general_dilated", "dot_general")
    convolutions = {i for i, name in enumerate(names) if name in products}
    assert len(convolutions) == 3 * 21 - 1  # no gradient of the images
    sizes = {bucket.size for bucket in made.buckets}
    return [
        len(convolutions - ancestors[i]) / len(convolutions)
        for i, name in enumerate(names)
        if name.startswith("psum") and jaxpr.eqns[i].outvars[0].aval.size in sizes
    ]


def test_each_bucket_may_leave_while_backward_goes_on():
    free = overlap("bucket")
    assert len(free) == 3
    assert free == sorted(free, reverse=True)
    assert free[0] > 0.5  # of forward and backward; backward is two thirds
    assert free[-1] < 0.1
    assert overlap("tree") == [0.0]


def test_the_wire_type_is_that_of_the_gradients_all_reduces():
    text, made = finish_text(4, 1, comm={"wire": "bfloat16"})
    types = [event[1] for event in events(text) if event != "conv"]
    assert types.count("bf16") == len(made.buckets)
    assert types.count("f32") == 1


def test_a_sharded_update_reduces_only_parts():
    """A reduce-scatter a bucket, an all-gather an array, and one all-reduce of all norms."""
    text, made = finish_text(4, 1, optimizer={"update": "sharded"})
    assert len(made.buckets) > 1
    assert text.count('"stablehlo.reduce_scatter"') == len(made.buckets)
    assert text.count('"stablehlo.all_gather"') == len(made.model.parameter_paths())
    assert text.count('"stablehlo.all_reduce"') == 2  # and that of statistics and metrics


def test_a_sharded_update_is_refused_on_tpus():
    config = worlds.config(model=worlds.RESNET, optimizer={"update": "sharded"})
    made = worlds.steps(config, 1, 1, "float32")
    tpus = SimpleNamespace(devices=np.array([SimpleNamespace(platform="tpu")]), size=1)
    with pytest.raises(ConfigError, match=r"optimizer\.update=replicated"):
        dataclasses.replace(made, mesh=tpus).update  # noqa: B018


def test_a_span_over_devices_costs_one_reduction_a_layer_each_way():
    text, made = finish_text(4, 1, norm={"span": 2})
    norms = len(jax.tree.leaves(jax.eval_shape(made.model.init, 0)[1])) // 2
    assert norms == 6
    assert text.count('"stablehlo.all_reduce"') == len(made.buckets) + 1 + 2 * norms


def test_accumulation_crosses_no_network():
    made = worlds.steps(worlds.config(model=worlds.RESNET), 4, 1, "float32")
    stage = Stage(made)
    arguments = (stage.state.params, stage.state.stats, stage.carry, *stage.images)
    text = made.accumulate.lower(*arguments).as_text()
    assert "stablehlo.convolution" in text
    assert "all_reduce" not in text
