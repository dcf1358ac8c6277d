"""The benchmark of the all-reduce: what it reduces, its arithmetic and its record; no times."""

import json

import benchmark
import jax
import numpy as np
import pytest
from benchmarks import allreduce

from largebatch import parallel
from largebatch.parallel.clusters import Link
from largebatch.parallel.network import ring_s

LINK = Link(bandwidth=3e9, latency=7e-6)
SHAPES = {"stem/conv/kernel": (3, 3, 2, 8), "stem/bn/scale": (8,), "head/kernel": (8, 5)}
OVERRIDES = {"model.name": "resnet10", "model.width": "4", "model.stem": "small"}
FLAGS = ["--image_size", "16", "--images", "2"]
TINY = [*FLAGS, *(f"--config.{key}={text}" for key, text in OVERRIDES.items())]


@pytest.fixture
def mesh():
    return parallel.make_mesh(jax.devices()[:4], 1)


def buckets_of(shapes, scheme="bucket"):
    sizes = [(path, int(np.prod(shape))) for path, shape in shapes.items()]
    return parallel.plan_buckets(sizes, scheme=scheme, least_bytes=300, itemsize=4)


# ---- what is reduced


def test_ours_and_the_peers_reduce_the_same(mesh):
    gradients = allreduce.random_gradients(mesh, SHAPES)
    for path, shape in SHAPES.items():
        assert gradients[path].shape == (4, *shape)
        # Different ones on every device.
        assert len(np.unique(np.asarray(gradients[path]))) == gradients[path].size
    exact = {path: np.asarray(x, np.float64).sum(0) for path, x in gradients.items()}
    found = {
        "ours": allreduce.in_buckets(mesh, buckets_of(SHAPES), "float32")(gradients),
        "leaf": allreduce.per_leaf(mesh, "float32")(gradients),
        "tree": allreduce.whole_tree(mesh, "float32")(gradients),
        "flat": allreduce.flat_sum(mesh)(gradients),
    }
    for name, reduced in found.items():
        for path, expected in exact.items():
            got = np.asarray(reduced[path]) * (mesh.size if name == "leaf" else 1)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)  # four terms of order one


# ---- the fitted link


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_link_is_found_again_from_its_own_times(ranks):
    points = [(4.0**k, ring_s(ranks, 4.0**k, LINK)) for k in range(5, 13)]
    found = allreduce.fit_link(ranks, points)
    assert found.bandwidth == pytest.approx(LINK.bandwidth, rel=1e-9)
    assert found.latency == pytest.approx(LINK.latency, rel=1e-9)


# ---- the command


def test_the_record_has_ours_peers_and_ratios(tmp_path, capsys):
    path = tmp_path / "allreduce.json"
    arguments = ["allreduce", *TINY, "--devices", "2", "--wire", "bfloat16", "--repeats", "2"]
    arguments += ["--calls", "1", "--sizes_kib", "1,64", "--config.comm.bucket_mib=0.02"]
    assert benchmark.main([*arguments, "--json", str(path)]) == 0
    capsys.readouterr()
    results = {result["name"]: result for result in json.loads(path.read_text())["results"]}
    for peer in ("pmean per leaf", "one psum of all"):
        found = results[f"gradients, bfloat16 vs {peer}"]
        assert (found["peer_name"], found["unit"]) == (peer, "ms")
        pairs = zip(found["ours"]["repeats"], found["peer"]["repeats"], strict=True)
        assert found["ratio"]["repeats"] == [theirs / ours for ours, theirs in pairs]
    note = results["gradients, bfloat16"]["note"]
    assert note == "resnet10, 3 buckets, 0.1 MiB; 2 devices of 1 process"
    assert len(results["psum of 64 KiB"]["ours"]["repeats"]) == 2
    assert "by the table for cpu" in results["psum of 1 KiB"]["note"]
    assert results["fitted latency of a hop"]["ours"]["median"] >= 0
    assert 2.0**-13 < results["error of the sum, bfloat16, all"]["ours"]["median"] < 2.0**-7
