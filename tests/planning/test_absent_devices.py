"""The train step compiled for absent GPUs and TPUs: its all-reduces stay separate.

Needs the extras compile-gpu and compile-tpu. Structure only: shares of such a small network say
nothing of a large one.
"""

import pytest

from largebatch.config import Facts
from largebatch.errors import ConfigError
from largebatch.planning.compile import Request, study, variant_of
from largebatch.planning.topologies import open_topology
from tests.training import worlds


def compiled(text, name):
    """A variant of a ResNet-18 of width 8 with buckets of 50 KiB."""
    try:
        topology = open_topology(text)
    except ConfigError as error:
        pytest.skip(str(error))
    config = worlds.config(
        model={"name": "resnet18", "width": 8, "stem": "small"},
        batch={"workers": topology.devices, "images_per_worker": 4},
    )
    facts = Facts(1000, 100, worlds.CLASSES, worlds.SHAPE, devices=topology.devices)
    config, options = variant_of(config, name, topology.option_platform)
    request = Request(config, topology, facts, worlds.MEAN, worlds.STD, options)
    return study(request, name, limit_s=300)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["v100:8", "h100:8"])
def test_on_gpus_buckets_are_asynchronous_and_under_backward(text):
    ours = compiled(text, "ours")
    gradients = ours.schedule.gradients
    assert len(ours.compiled.buckets) > 4
    assert sorted(g.gradient_elements for g in gradients) == sorted(ours.compiled.buckets)
    assert all(g.is_async for g in gradients)
    assert sum(g.is_overlapped for g in gradients) >= len(gradients) // 2
    assert gradients[0].convolutions_before < ours.schedule.convolutions
    assert ours.compiled.peak_bytes > 0


@pytest.mark.slow
def test_left_alone_the_gpu_compiler_merges_the_buckets():
    default = compiled("v100:8", "default")
    assert len(default.compiled.buckets) > 4
    assert len(default.schedule.gradients) == 1
    assert default.schedule.overlapped_share == 0


@pytest.mark.slow
def test_on_a_v5p_buckets_are_asynchronous_and_under_backward():
    ours = compiled("tpu:v5p:2x2x1", "ours")
    gradients = ours.schedule.gradients
    assert sorted(g.gradient_elements for g in gradients) == sorted(ours.compiled.buckets)
    assert any(g.is_overlapped for g in gradients)
    assert gradients[0].convolutions_before < gradients[-1].convolutions_before


@pytest.mark.slow
def test_on_a_v5e_each_bucket_has_its_own_all_reduce_in_the_order_of_backward():
    ours = compiled("tpu:v5e:2x2", "ours")
    found = [g.gradient_elements for g in ours.schedule.gradients]
    assert found == list(ours.compiled.buckets)
