"""Predicted runs: their parts, limits and directions, and runs that are refused."""

import dataclasses
import math
import tomllib

import pytest

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import HARDWARE, Cluster
from largebatch.planning.calibration import table
from largebatch.planning.prediction import (
    Segment,
    Workload,
    fitted_text,
    known_clusters,
    load_fitted,
    predict,
)
from largebatch.planning.step_time import Parameters, Site
from tests.planning.networks import network

SEGMENT = Segment(steps=1440, images_per_device=40, devices=2048)
WORKLOAD = Workload((SEGMENT,), evaluations=23, evaluation_images=50_000)
EXACT = 1e-12


def with_segment(**changes):
    return dataclasses.replace(WORKLOAD, segments=(dataclasses.replace(SEGMENT, **changes),))


def test_parts_add_up():
    found = predict(WORKLOAD, "abci")
    parts = (found.compute_s, found.exposed_s, found.optimizer_s, found.straggler_s)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(found.step_s, rel=EXACT)
    assert found.clock_s == pytest.approx(found.train_s + found.evaluation_s, rel=EXACT)
    assert found.total_s == pytest.approx(found.clock_s + found.start_up_s, rel=EXACT)
    assert found.images_per_s == pytest.approx(1440 * 81_920 / found.clock_s, rel=EXACT)
    assert found.device_hours == pytest.approx(2048 * found.total_s / 3600, rel=EXACT)
    assert found.low_s < found.clock_s < found.high_s
    assert found.high_s / found.clock_s == pytest.approx(math.exp(load_fitted().error), rel=EXACT)


@pytest.mark.parametrize(("cluster", "dtype"), [("abci", "float16"), ("tpu-v4", "bfloat16")])
def test_the_fitted_network_is_taken_as_it_was_fitted(cluster, dtype):
    given = dataclasses.replace(WORKLOAD, network=network(dtype=dtype))
    assert predict(given, cluster) == predict(WORKLOAD, cluster)


def test_microbatches_cost_an_overhead_each():
    one, four = (predict(with_segment(images_per_device=640, passes=p), "abci") for p in (1, 4))
    parameters, year = load_fitted().parameters, table().rounds["v0.6"]
    each = Site(parameters, Cluster(HARDWARE["v100"], 1), year).overhead_s
    assert four.compute_s - one.compute_s == pytest.approx(3 * each, rel=1e-9)
    assert four.exposed_s >= one.exposed_s  # the last microbatch alone hides the network


def test_stages_follow_each_other():
    small = Segment(100, 32, 1024, image_size=128)
    both = dataclasses.replace(WORKLOAD, segments=(small, SEGMENT))
    found, alone = predict(both, "abci"), predict(WORKLOAD, "abci")
    first = predict(dataclasses.replace(WORKLOAD, segments=(small,)), "abci")
    assert found.step_s == first.step_s
    assert found.train_s == pytest.approx(alone.train_s + 100 * first.step_s, rel=EXACT)
    assert found.evaluation_s == alone.evaluation_s  # on the devices of the largest stage
    images = 100 * 32 * 1024 + 1440 * 81_920
    assert found.images_per_s == pytest.approx(images / found.clock_s, rel=EXACT)


def test_every_named_cluster_has_predictions():
    for name in known_clusters():
        found = predict(with_segment(devices=8, images_per_device=64), name)
        again = predict(with_segment(devices=8, images_per_device=256), name)
        assert 1e-3 < found.step_s < min(1, again.step_s) < 4 * found.step_s, name


def test_directions():
    base = predict(WORKLOAD, "abci")
    float32 = predict(dataclasses.replace(WORKLOAD, network=network(dtype="float32")), "abci")
    longer = [
        float32,
        predict(with_segment(images_per_device=41), "abci"),
        predict(with_segment(devices=4096), "abci"),
        predict(with_segment(image_size=256), "abci"),
        predict(dataclasses.replace(WORKLOAD, wire_bytes=4), "abci"),
        predict(WORKLOAD, "abci", algorithm="ring"),
        predict(WORKLOAD, "abci", round="v0.5"),
    ]
    assert all(each.step_s > base.step_s for each in longer)
    assert predict(WORKLOAD, "dgx1-v100").exposed_s < base.exposed_s  # no oversubscription
    assert predict(WORKLOAD, "dgx-h100").clock_s < base.clock_s
    # 15.7 TFLOP/s instead of 125, where half precision is bound by memory: published programs train
    # some 390 images/s in float32 and 1,376 in float16.
    assert 2.5 < float32.compute_s / base.compute_s < 4.5
    assert float32.optimizer_s == pytest.approx(base.optimizer_s, rel=EXACT)
    assert float32.high_s / float32.clock_s == pytest.approx(math.exp(load_fitted().unseen_error))


@pytest.mark.slow
def test_another_network_goes_by_its_flops_bytes_and_gradients():
    base = predict(WORKLOAD, "abci")
    larger = dataclasses.replace(WORKLOAD, network=network("resnet152", dtype="float16"))
    found = predict(larger, "abci")
    # 11.5 against 4.1 GFLOP forward, with traffic that grows less than the FLOPs.
    assert 1 < found.compute_s / base.compute_s < 11.5 / 4.1 * 1.1
    parameters = 60_192_808 / 25_557_032
    assert found.optimizer_s / base.optimizer_s == pytest.approx(parameters, rel=EXACT)


def test_construction_is_before_the_clock_except_by_the_rules_of_v05():
    base = predict(WORKLOAD, "abci")
    found = predict(WORKLOAD, "abci", construction_on_clock=True)
    assert found.clock_s - base.clock_s == pytest.approx(2.5 + 25_557_032 / 50e6, rel=1e-9)
    assert found.total_s == base.total_s
    assert base.start_up_s == 20.8  # published, with the same seed
    assert predict(with_segment(devices=4096), "tpu-v4").start_up_s == 137.5
    sent = [
        predict(with_segment(devices=devices), "abci", initialization="broadcast").start_up_s
        for devices in (1, 4, 64, 2048, 4096)
    ]
    assert sent[0] == 20.8
    assert sent == sorted(set(sent))
    # 102 MB once over a node's links, once over the network: 18 ms at least, and no second.
    assert 4 * 25_557_032 * (1 / 150e9 + 1 / 6.25e9) <= sent[-1] - 20.8 < 0.2


def test_the_parameters_survive_their_file():
    fitted = load_fitted()
    read = tomllib.loads(fitted_text(fitted))
    parameters = Parameters(**read["parameters"])
    assert (parameters, read["error"]) == (fitted.parameters, fitted.error)


@pytest.mark.parametrize(
    ("workload", "name", "options", "words"),
    [
        (WORKLOAD, "abc", {}, "'abci'"),
        (WORKLOAD, "abci", {"round": "v9"}, "round: .*'v9'"),
        (with_segment(devices=6), "abci", {}, "6 devices of v100"),
    ],
)
def test_impossible_runs_are_refused(workload, name, options, words):
    with pytest.raises(ConfigError, match=words):
        predict(workload, name, **options)
