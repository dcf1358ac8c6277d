"""Reading recipes, their tags, and what is said of a plan."""

import re

import pytest

from largebatch.config import Facts, freeze, resolve
from largebatch.errors import ConfigError
from largebatch.recipes import forecast, load_recipe, sources, text
from largebatch.train.making import model_of

RECIPE = '''"""A title.

More of it.
"""
from largebatch.config import default_config
from largebatch.recipes import Published, sources
PUBLISHED = Published(source="here", provenance="S", devices="8 of them")
SOURCES = sources(S="schedule.peak {more}", U="norm.span")
def get_config():
    config = default_config()
    config.schedule.peak = 2.0
    config.optimizer.momentum = 0.8
    config.run.seed = 3
    return config
'''


@pytest.fixture
def recipe(tmp_path):
    def write(more=""):
        path = tmp_path / "mine.py"
        path.write_text(RECIPE.replace("{more}", more))
        return load_recipe(path)

    return write


def test_what_a_recipe_says(recipe):
    found = recipe()
    assert (found.name, found.title) == ("mine", "A title")
    assert found.published.devices == "8 of them"
    assert found.unverified == ("norm.span",)
    assert found.untagged() == ("optimizer.momentum",)
    shown = {key: tag for key, _, tag in text.values(found)}
    assert shown == {
        "schedule.peak": "S",
        "norm.span": "U",
        "optimizer.momentum": "–",
        "run.seed": "–",
    }


def test_tags_of_what_is_no_option(recipe):
    with pytest.raises(ConfigError, match=r"'norm\.spam' is no option; did you mean 'norm\.span'"):
        recipe("norm.spam")


def test_tags_are_unique_and_known():
    with pytest.raises(ConfigError, match="tagged S and M; keep one"):
        sources(S="a b", M="b")
    with pytest.raises(ConfigError, match="'X' is no tag"):
        sources(X="a")


def plan(**sections):
    base = {
        "model": {"name": "resnet50"},
        "batch": {"workers": 2048, "images_per_worker": 40},
        "schedule": {"peak": 1.0, "length": "10 epochs", "warmup": "1 epochs"},
    }
    for section, chosen in sections.items():
        base[section] = {**base.get(section, {}), **chosen}
    config = freeze(base)
    return config, resolve(config, Facts(1_281_167, 50_000, 1_000, (224, 224, 3), devices=1))


def test_flops_are_those_of_resnet50():
    """4.09 GMAC forward for 224×224, the figure of every table: 24.5 GFLOP to train."""
    _, made = plan()
    flops = forecast.flops_of(made, model_of(made))
    assert flops.of_image == pytest.approx(3 * 2 * 4.089e9, rel=1e-3)
    assert flops.of_training == pytest.approx(flops.of_image * made.samples)


def test_flops_of_stages_are_summed():
    _, small = plan(data={"image_size": 112})
    _, mixed = plan(batch={"stages": ("5 epochs: data.image_size=112",)}, data={"image_size": 224})
    _, large = plan(data={"image_size": 224})
    each = [forecast.flops_of(p, model_of(p)).of_image for p in (small, large)]
    first, second = (s.stage_steps * s.samples_per_step for s in mixed.stages)
    found = forecast.flops_of(mixed, model_of(mixed)).of_training
    assert found == pytest.approx(each[1] * first + each[0] * second)
    # A quarter, but for the last layers, of 4×4 pixels instead of 3.5×3.5.
    assert each[0] == pytest.approx(each[1] / 4, rel=0.06)


def test_a_forecast_is_of_the_plans_own_stages():
    _, made = plan(batch={"stages": ("5 epochs: data.image_size=112",)}, data={"image_size": 224})
    work = forecast.workload_of(made, 2048)
    assert [(s.images_per_device, s.image_size) for s in work.segments] == [(40, 224), (40, 112)]
    assert sum(s.steps for s in work.segments) == made.steps
    whole = forecast.forecast(plan(data={"image_size": 224})[1], 2048, "abci")
    assert forecast.forecast(made, 2048, "abci").clock_s < whole.clock_s
    with pytest.raises(ConfigError, match=r"2048 cannot be shared evenly by 1000 devices"):
        forecast.workload_of(made, 1000)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({}, r"validation set \(50,000 images\) is smaller than a batch \(81,920\)"),
        ({"schedule": {"warmup": "6 epochs"}}, "warm-up takes 60% of the training"),
        ({"batch": {"images_per_worker": 50}}, "outside of the published points for LARS"),
        ({"batch": {"workers": 8}}, "outside of the published points for LARS"),
        ({"optimizer": {"trust_skip": ()}}, "trust ratios too"),
    ],
)
def test_doubts(sections, said):
    found = forecast.doubts(*plan(**sections))
    assert any(re.search(said, line) for line in found), found


def test_no_doubts_where_all_is_usual():
    config, made = plan(batch={"workers": 64, "images_per_worker": 64}, data={"epoch_end": "drop"})
    assert forecast.doubts(config, made) == []
