import random

import jax
import pytest

from largebatch.models import Model
from largebatch.parallel import plan_buckets
from largebatch.trees import flatten_paths


def test_buckets_are_cut_from_the_last_layer_backwards():
    layers = [("a", 5), ("b", 1), ("c", 2), ("d", 2), ("e", 9)]
    buckets = plan_buckets(layers, scheme="bucket", least_bytes=16, itemsize=4)
    assert [b.paths for b in buckets] == [("e",), ("d", "c"), ("b", "a")]
    assert [b.sizes for b in buckets] == [(9,), (2, 2), (1, 5)]


def test_the_last_bucket_may_be_small():
    buckets = plan_buckets([("a", 1), ("b", 8)], scheme="bucket", least_bytes=16, itemsize=4)
    assert [b.paths for b in buckets] == [("b",), ("a",)]


@pytest.mark.parametrize("scheme", ["bucket", "leaf", "tree"])
def test_every_parameter_is_in_exactly_one_bucket(scheme):
    draw = random.Random(0)
    for _ in range(100):
        layers = [(str(i), draw.randint(1, 5000)) for i in range(draw.randint(1, 200))]
        least = draw.choice([1, 4096, 65536, 10**9])
        buckets = plan_buckets(layers, scheme=scheme, least_bytes=least, itemsize=4)
        joined = [pair for b in buckets for pair in zip(b.paths, b.sizes, strict=True)]
        assert joined == layers[::-1]
        if scheme == "bucket":
            assert all(4 * b.size >= least for b in buckets[:-1])
            # No bucket is larger than it must be: without its last parameter it would be too small.
            assert all(4 * (b.size - b.sizes[-1]) < least for b in buckets)
        assert len(buckets) == {"leaf": len(layers), "tree": 1}.get(scheme, len(buckets))


def test_resnet50_makes_buckets_of_a_few_megabytes():
    model = Model("resnet50", classes=1000)
    sizes = {path: x.size for path, x in flatten_paths(jax.eval_shape(model.init, 0)[0]).items()}
    layers = [(path, sizes[path]) for path in model.parameter_paths()]
    buckets = plan_buckets(layers, scheme="bucket", least_bytes=4 * 2**20, itemsize=2)
    assert sum(b.size for b in buckets) == 25_557_032
    assert buckets[0].paths[:2] == ("head/bias", "head/kernel")
    assert buckets[-1].paths[-1] == "stem/conv/kernel"
    # 51 MB at 4 MiB; the largest kernels (512·512·9) are 4.7 MB by themselves.
    assert 8 <= len(buckets) <= 12
