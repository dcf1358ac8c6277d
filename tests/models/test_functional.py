"""Which modules of users can be trained, and which are refused."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from largebatch.errors import ConfigError
from largebatch.models import BatchMode, BatchNorm, Model
from largebatch.models.tracing import backward_work
from largebatch.optim import KINDS

HERE = __name__
SHAPE = (8, 8, 3)


class Net(nnx.Module):
    """One layer of the test's choice before a linear head."""

    def __init__(self, layer, classes, *, rngs, dtype=None):
        self.conv = nnx.Conv(3, 4, (3, 3), dtype=dtype, rngs=rngs)
        self.layer = layer(rngs)
        self.head = nnx.Linear(4, classes, rngs=rngs)

    def __call__(self, images):
        return self.head(self.layer(self.conv(images)).mean((1, 2)))


class OwnNorm(nnx.BatchNorm):
    """A subclass, whatever it computes."""


class Spread(nnx.Module):
    def __init__(self, rngs):
        self.spread = nnx.BatchStat(jnp.ones(4))

    def __call__(self, x):
        return x / self.spread[...]


class Unused(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return x


class Twice(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.norm(x))


class Faulty(nnx.Module):
    def __call__(self, x):
        return jnp.reshape(x, (3, 5))


def of(layer):
    return functools.partial(Net, layer)


def not_a_module(classes, *, rngs, dtype):
    return "a network"


good = of(lambda rngs: nnx.BatchNorm(4, rngs=rngs))
dropout = of(lambda rngs: nnx.Dropout(0.5, rngs=rngs))
first_axis = of(lambda rngs: nnx.BatchNorm(4, axis=1, rngs=rngs))
own_norm = of(lambda rngs: OwnNorm(4, rngs=rngs))
spread, unused, twice = map(of, (Spread, Unused, Twice))
faulty = of(lambda rngs: Faulty())


def model(name):
    return Model(f"{HERE}:{name}", classes=5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not_a_module", "not_a_module"),
        ("dropout", "layer"),
        ("first_axis", "axis=1"),
        ("own_norm", "OwnNorm"),
        ("spread", r"layer\.spread"),
        ("unused", "layer/norm"),
        ("twice", "layer"),
        ("faulty", r"\(2, 8, 8, 3\).*test_functional\.py:\d+\)"),
    ],
)
def test_what_cannot_be_trained_is_refused(name, words):
    with pytest.raises(ConfigError, match=rf"^model\.name=.*{words}"):
        model(name).check(SHAPE)


def test_plain_batch_norm_is_converted_with_its_names():
    made = model("good")
    params, stats = made.init(0)
    assert set(params["layer"]) == {"scale", "bias"}
    assert set(stats["layer"]) == {"mean", "var"}
    module = made.module(params, stats)
    assert type(module.layer) is BatchNorm
    assert isinstance(module.layer, nnx.BatchNorm)
    logits, batch = made.apply_train(params, stats, jnp.ones((4, *SHAPE)), BatchMode(2))
    assert logits.shape == (4, 5)
    assert batch["layer"]["mean"].shape == (2, 4)


def test_without_batch_norm_there_are_no_statistics():
    made = Model("tests.training.own_models:VisionTransformer", classes=5, channels=2)
    _, stats = jax.eval_shape(made.init, 0)
    assert stats == {}
    assert set(made.kinds().values()) == set(KINDS)


def test_work_is_in_the_order_of_first_use():
    """A vision transformer, by hand: 4 patches of 8 × 8 pixels and 2 channels."""
    made = Model("tests.training.own_models:VisionTransformer", classes=7, channels=2)
    found = backward_work(made, (16, 16, 2))
    paths = list(found)
    assert paths[0] == "patches/kernel"
    assert paths.index("first_norm/scale") < paths.index("attention/query/kernel")
    assert paths.index("attention/out/kernel") < paths.index("second_norm/scale")
    assert set(paths[-2:]) == {"head/kernel", "head/bias"}
    assert sorted(paths) == sorted(made.parameter_paths())
    tokens, width = 4, 8
    # Two gradients of each product; the images need none.
    assert found["patches/kernel"].flops == 2 * tokens * (8 * 8 * 2) * width
    assert found["mlp/layers/0/kernel"].flops == 2 * 2 * tokens * width * 16
    assert found["head/kernel"].flops == 2 * 2 * width * 7
    # Scores and the weighted mean of values, for which no parameter is read.
    attention = sum(w.flops for p, w in found.items() if p.startswith("attention"))
    assert attention == 2 * (4 * 2 * tokens * width * width + 2 * (2 * tokens * tokens * width))
