"""Schemes and wire formats: one registration reaches the options, the planner and the network."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch import parallel
from largebatch.config import freeze
from largebatch.config.registries import SCHEMES, WIRE_FORMATS, Scheme, WireFormat
from largebatch.config.sections import Comm
from largebatch.errors import ConfigError
from largebatch.parallel import REPLICATED, SPLIT, compiler, plan_buckets
from largebatch.parallel.bucket_planner import gradient_buckets

ELEMENTS = [(f"w{i}", (1000,)) for i in range(8)]


@pytest.fixture(autouse=True)
def _own(monkeypatch):
    for registry in (SCHEMES, WIRE_FORMATS):
        monkeypatch.setattr(registry, "_entries", dict(registry))
    WIRE_FORMATS.register("byte", WireFormat("float8_e5m2", 1))
    WIRE_FORMATS.register("brain", WireFormat("bfloat16", 2))
    SCHEMES.register("twice", Scheme(lambda elements: 2 * elements, separate=False))


@pytest.mark.parametrize("name", [n for n in WIRE_FORMATS if WIRE_FORMATS[n].dtype])
def test_bytes_are_those_of_the_dtype(name):
    assert Comm(wire=name).wire_bytes == jnp.dtype(WIRE_FORMATS[name].dtype).itemsize


def test_the_planner_counts_the_bytes_of_a_new_format():
    def count(wire):
        comm = Comm(wire=wire, bucket_mib=2000 / 2**20)
        options = {"images": 1, "image_shape": (8, 8, 3), "dtype": "float32"}
        return len(gradient_buckets(ELEMENTS, comm, tuple(jax.devices()[:2]), **options))

    assert [count(wire) for wire in ("float32", "float16", "byte")] == [8, 8, 4]


def test_a_new_scheme_has_its_buckets_and_options():
    flat = [(path, 1000) for path, _ in ELEMENTS]
    buckets = plan_buckets(flat, scheme="twice", least_bytes=4000, itemsize=4)
    assert [bucket.size for bucket in buckets] == [2000] * 4
    assert compiler.options_for("cuda", "twice") == compiler.options_for("cuda", "tree")
    assert math.isinf(SCHEMES["tree"].least(1))
    assert freeze({"comm": {"allreduce": "twice", "wire": "byte"}}).comm.wire_bytes == 1


def test_a_new_format_is_on_the_wire():
    mesh = parallel.make_mesh(jax.devices()[:4], 1)
    buckets = plan_buckets([("w", 6)], scheme="tree", least_bytes=0, itemsize=2)
    weights = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)

    def summed(wire):
        def gradient(w, own):
            def loss(w):
                hooked = parallel.reduce_gradients_in_backward({"w": w}, buckets, None, wire)
                return jnp.sum(hooked["w"] * own[0])

            return jax.grad(loss)(w)

        mapped = parallel.map_over(mesh, gradient, (REPLICATED, SPLIT), REPLICATED)
        return np.asarray(jax.jit(mapped)(jnp.ones(6), weights))

    np.testing.assert_array_equal(summed("brain"), summed("bfloat16"))
    np.testing.assert_allclose(summed("float32"), weights.sum(0), rtol=1e-6)
    assert np.abs(summed("brain") - summed("float32")).max() > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wire": "fp16"}, ["comm.wire", "'float16'"]),
        ({"wire": "float31"}, ["comm.wire", "'float32'"]),
        ({"allreduce": "buckets"}, ["comm.allreduce", "'bucket'"]),
    ],
)
def test_an_unknown_name_is_named(options, words):
    with pytest.raises(ConfigError) as caught:
        freeze({"comm": options})
    for word in words:
        assert word in str(caught.value)
