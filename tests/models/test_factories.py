"""What a user's module may be, and the one line of each that it may not."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from largebatch.config import freeze
from largebatch.config.checks import check_ranges
from largebatch.errors import ConfigError
from largebatch.models import BatchMode, BatchNorm, Model
from largebatch.models.tracing import work_of
from largebatch.optim import KINDS
from largebatch.parallel.backward_times import estimate, shapes_of
from largebatch.parallel.hardware import HARDWARE

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


class Constant(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Cache(jnp.ones(4))

    def __call__(self, x):
        return x * self.table[...]


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


@nnx.vmap
def stacked(key):
    return nnx.BatchNorm(4, rngs=nnx.Rngs(key))


def of(layer):
    return functools.partial(Net, layer)


def flat_logits(classes, *, rngs, dtype):
    return nnx.Sequential(nnx.Linear(3, classes, rngs=rngs))


def not_a_module(classes, *, rngs, dtype):
    return "a network"


def without_dtype(classes, *, rngs):
    return None


def nothing(classes, *, rngs, dtype):
    return nnx.Sequential(nnx.relu)


def other_channels(classes, *, rngs, dtype):
    return nnx.Sequential(nnx.Linear(5, classes, rngs=rngs))


good = of(lambda rngs: nnx.BatchNorm(4, rngs=rngs))
dropout = of(lambda rngs: nnx.Dropout(0.5, rngs=rngs))
first_axis = of(lambda rngs: nnx.BatchNorm(4, axis=1, rngs=rngs))
named_axis = of(lambda rngs: nnx.BatchNorm(4, axis_name="batch", rngs=rngs))
own_norm = of(lambda rngs: OwnNorm(4, rngs=rngs))
many = of(lambda rngs: stacked(jax.random.split(rngs.params(), 2)))
constant, spread, unused, twice = map(of, (Constant, Spread, Unused, Twice))


def model(name):
    return Model(f"{HERE}:{name}", classes=5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flat_logits", r"expected logits of shape \(images, 5\), got \(2, 8, 8, 5\)"),
        ("not_a_module", r"expected a factory that returns an nnx\.Module, got str"),
        ("without_dtype", r"factory\(classes=5, .*raised TypeError: .*'dtype'"),
        ("nothing", r"nnx\.Param"),
        ("other_channels", r"float images \(2, 8, 8, 3\) raised"),
        ("dropout", r"layer\.rngs\..* is a random state"),
        ("first_axis", r"layer: .*axis=-1, got axis=1"),
        ("named_axis", r"layer: .*axis_name='batch'.*norm\.span"),
        ("own_norm", r"layer is a OwnNorm"),
        ("many", r"shape \(2, 4\).*nnx\.vmap"),
        ("constant", r"layer\.table: .*got Cache"),
        ("spread", r"layer\.spread is a statistic outside of nnx\.BatchNorm"),
        ("unused", r"layer/norm is not called with batch statistics"),
        ("twice", r"BatchNorm layer is called twice"),
        ("absent", r"no 'absent'"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(name, said):
    with pytest.raises(ConfigError, match=said) as error:
        model(name).check(SHAPE)
    assert str(error.value).startswith("model.name=")
    assert "\n" not in str(error.value)


def test_a_missing_module_is_named():
    with pytest.raises(ConfigError, match=r"model\.name='nowhere:net'"):
        Model("nowhere:net", classes=5).check(SHAPE)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "resnet5"}, r"model\.name='resnet5': .* 'resnet50'.*factory"),
        ({"name": "my.net"}, r"model\.name='my\.net': "),
        ({"name": "my:net", "width": 8}, r"model\.width=8: .*model\.width=64"),
        (
            {"name": "my:net", "stem": "small", "remat": "norms"},
            r"model\.stem=small, model\.remat=norms: .*stem=conv7 --config\.model\.remat=none",
        ),
    ],
)
def test_names_and_options_are_checked_before_anything_is_imported(options, said):
    with pytest.raises(ConfigError, match=said):
        check_ranges(freeze({"model": options}))


def test_norm_options_of_resnets_are_named():
    made = freeze({"model": {"name": "my:net"}, "norm": {"last_gamma": 0.0}})
    with pytest.raises(ConfigError, match=r"norm\.last_gamma=0\.0: "):
        check_ranges(made)


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
    made = Model("tests.training.own_models:ConvNext", classes=5)
    _, stats = jax.eval_shape(made.init, 0)
    assert stats == {}
    assert set(made.kinds().values()) == set(KINDS)


def test_work_is_in_the_order_of_first_use():
    """A vision transformer, by hand: 4 patches of 8 × 8 pixels and 2 channels."""
    made = Model("tests.training.own_models:VisionTransformer", classes=7, channels=2)
    found = work_of(made, (16, 16, 2))
    paths = list(found)
    assert paths[0] == "patches/kernel"
    assert paths.index("first_norm/scale") < paths.index("attention/query/kernel")
    assert paths.index("attention/out/kernel") < paths.index("second_norm/scale")
    assert set(paths[-2:]) == {"head/kernel", "head/bias"}
    assert sorted(paths) == sorted(made.parameter_paths())
    tokens, width = 4, 8
    assert found["patches/kernel"].flops == 2 * tokens * (8 * 8 * 2) * width
    assert found["mlp/layers/0/kernel"].flops == 2 * tokens * width * 16
    assert found["head/kernel"].flops == 2 * width * 7
    # Scores and the weighted mean of values, for which no parameter is read.
    attention = sum(w.flops for p, w in found.items() if p.startswith("attention"))
    assert attention == 4 * 2 * tokens * width * width + 2 * (2 * tokens * tokens * width)


def test_the_backward_estimate_serves_any_module():
    made = Model("tests.training.own_models:ConvNext", classes=7, channels=2)
    shapes = shapes_of(made, (16, 16, 2))
    found = estimate(
        shapes, HARDWARE["v100"], images=8, image_shape=(16, 16, 2), dtype="float16", model=made
    )
    assert list(found.seconds) == [path for path, _ in reversed(shapes)]
    assert found.total_s > 0
    assert all(seconds >= 0 for seconds in found.seconds.values())
