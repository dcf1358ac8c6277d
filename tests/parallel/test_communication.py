"""Schemes and wire formats: one entry reaches the options, the planner and the network."""

import math

import jax
import pytest

from largebatch.config import freeze
from largebatch.config.registries import SCHEMES, WIRE_FORMATS, Scheme, WireFormat
from largebatch.config.sections import Comm
from largebatch.models import Model
from largebatch.parallel import plan_buckets, xla_options
from largebatch.parallel.buckets import gradient_buckets

MODEL = Model("resnet10", classes=10, width=8)


@pytest.fixture(autouse=True)
def _own(monkeypatch):
    monkeypatch.setitem(WIRE_FORMATS, "byte", WireFormat("float8_e5m2", 1))
    twice = Scheme(lambda elements: 2 * elements, separate=False)
    monkeypatch.setitem(SCHEMES, "twice", twice)


def test_the_planner_counts_the_bytes_of_a_new_format():
    def buckets(wire, least_bytes):
        comm = Comm(wire=wire, bucket_mib=least_bytes / 2**20)
        devices = tuple(jax.devices()[:2])
        return gradient_buckets(MODEL, comm, devices, images=1, image_shape=(32, 32, 3))

    assert buckets("float32", 8000) == buckets("float16", 4000) == buckets("byte", 2000)
    assert len(buckets("byte", 2000)) > len(buckets("byte", 8000)) > 1


def test_a_new_scheme_has_its_buckets_and_options():
    flat = [(f"w{i}", 1000) for i in range(8)]
    buckets = plan_buckets(flat, scheme="twice", least_bytes=4000, itemsize=4)
    assert [bucket.size for bucket in buckets] == [2000] * 4
    assert xla_options.options_for("cuda", "twice") == xla_options.options_for("cuda", "tree")
    assert math.isinf(SCHEMES["tree"].least(1))
    assert freeze({"comm": {"allreduce": "twice", "wire": "byte"}}).comm.wire_bytes == 1
