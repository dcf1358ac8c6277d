"""Recipes with their sources, forecasts of plans, and published learning rates."""

import json
from pathlib import Path

import pytest

from largebatch.config import Facts, freeze
from largebatch.config.recipes import load_recipe, sources
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError
from largebatch.parallel.clusters import HARDWARE
from largebatch.planning import forecast
from largebatch.tools import recipe_text as text
from largebatch.training.steps import model_of

RECIPE = '''"""A title.

More of it.
"""
from largebatch.config import default_config
from largebatch.config.recipes import Published, sources
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


def test_a_recipe_and_its_sources(recipe):
    found = recipe()
    assert (found.name, found.title) == ("mine", "A title")
    assert found.published.devices == "8 of them"
    assert found.unverified == ("norm.span",)
    shown = {key: tag for key, _, tag in text.values(found)}
    assert shown == {
        "schedule.peak": "S",
        "norm.span": "U",
        "optimizer.momentum": "–",
        "run.seed": "–",
    }


def test_a_source_of_an_unknown_option(recipe):
    with pytest.raises(ConfigError, match=r"norm\.span"):
        recipe("norm.spam")


def test_tags_are_unique_and_known():
    with pytest.raises(ConfigError, match="S and M"):
        sources(S="a b", M="b")
    with pytest.raises(ConfigError, match="X"):
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


def test_a_forecast_is_of_the_plans_own_stages():
    _, made = plan(batch={"stages": ("5 epochs: data.image_size=112",)}, data={"image_size": 224})
    model = model_of(made)
    work = forecast.workload_of(made, model, 2048)
    assert [(s.images_per_device, s.image_size) for s in work.segments] == [(40, 224), (40, 112)]
    assert sum(s.steps for s in work.segments) == made.steps
    whole = forecast.forecast(plan(data={"image_size": 224})[1], model, 2048, "abci")
    assert forecast.forecast(made, model, 2048, "abci").clock_s < whole.clock_s
    with pytest.raises(ConfigError, match=r"2048 .* 1,000"):
        forecast.workload_of(made, model, 1000)


@pytest.mark.parametrize(
    ("option", "value", "slower"),
    [("name", "resnet18", False), ("width", 128, True), ("dtype", "float32", True)],
)
def test_a_forecast_is_of_the_plans_own_network(option, value, slower):
    _, base = plan(model={"dtype": "float16"})
    _, made = plan(model={"dtype": "float16", option: value})
    model = model_of(made)
    expected = forecast.forecast(base, model_of(base), 2048, "abci").compute_s
    found = forecast.forecast(made, model, 2048, "abci").compute_s
    assert found != expected
    assert (found > expected) == slower
    (remark,) = forecast.assumptions(made, model, 2048, HARDWARE["v100"])
    assert f"model.{option}={value}" in remark
    assert forecast.assumptions(base, model_of(base), 2048, HARDWARE["v100"]) == []


def test_microbatches_are_in_the_forecast_or_named():
    _, auto = plan(model={"dtype": "float16"})
    _, one = plan(model={"dtype": "float16"}, batch={"microbatch": 1})
    model = model_of(auto)
    assert [s.passes for s in forecast.workload_of(one, model, 64).segments] == [32]
    found = [forecast.forecast(p, model, 64, "dgx-h100").step_s for p in (auto, one)]
    assert found[1] > 1.1 * found[0]
    (remark,) = forecast.assumptions(auto, model, 64, HARDWARE["h100"])
    assert "batch.microbatch=auto" in remark
    assert forecast.assumptions(one, model, 64, HARDWARE["h100"]) == []
    _, large = plan(batch={"microbatch": 64})
    with pytest.raises(ConfigError, match=r"batch\.microbatch=64"):
        forecast.workload_of(large, model, 64)


def test_small_images_have_no_forecast():
    _, made = plan(batch={"stages": ("5 epochs: data.image_size=64",)}, data={"image_size": 224})
    assert "64" in forecast.why_no_forecast(made)
    with pytest.raises(ConfigError, match=r"data\.image_size"):
        forecast.forecast(made, model_of(made), 2048, "abci")


def test_the_input_that_a_step_needs():
    """Of 64 H100 in 8 hosts."""
    need = forecast.input_need(445_890, forecast.hosts_of(64, "dgx-h100"))
    assert need.hosts == 8
    assert need.images_per_s == pytest.approx(55_736, abs=1)
    assert forecast.hosts_of(2048, "abci") == 512
    assert forecast.hosts_of(4, "dgx-h100") == 1
    assert forecast.hosts_of(8, "tpu-v3") == 1  # four chips of two devices


def test_rates_of_the_input_are_those_of_the_records():
    records = Path(__file__).parents[2] / "records"
    names = ("full", "side256")
    for name, rate in zip(names, forecast.IMAGES_PER_CPU_S.values(), strict=True):
        path = records / f"2026-11-21_input_{name}_cpu.json"
        measured = [
            row["ours"]["median"]
            for row in json.loads(path.read_text())["results"]
            if (row["name"], row["unit"]) == ("1 core", "images per CPU-second")
        ]
        assert rate == round(measured[0])


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        ({}, "81,920"),
        ({"schedule": {"warmup": "6 epochs"}}, "60%"),
        ({"batch": {"workers": 8}}, "LARS"),
    ],
)
def test_doubts(sections, word):
    assert any(word in line for line in forecast.doubts(*plan(**sections)))


def test_no_doubts_about_usual_options():
    config, made = plan(batch={"workers": 64, "images_per_worker": 64}, data={"epoch_end": "drop"})
    assert forecast.doubts(config, made) == []


def rates(name):
    """Learning rates of all steps of a recipe."""
    recipe = load_recipe(Path(__file__).parents[2] / "configs" / f"{name}.py")
    made = resolve(recipe.config, text.facts_of(recipe))
    return [made.rates(step).learning_rate for step in range(1, made.steps + 1)]


def test_rates_of_nvidias_v06_program():
    """PolySchedule of common/fit.py, which counts updates from 1."""
    peak, warmup, steps = 38.0, 25 * 24, 90 * 24

    def program(update):
        if update <= warmup:
            return peak * update / warmup
        return 1e-4 + (peak - 1e-4) * (1 - (update - warmup) / (steps - warmup)) ** 2

    expected = [program(i) for i in range(1, steps + 1)]
    assert rates("mlperf06_nvidia_54k") == pytest.approx(expected, rel=1e-9)


def test_rates_of_googles_v06_program_at_32k():
    """poly_rate_schedule of lars_util.py with run_and_time.sh's 2,983 steps, from step 0."""
    peak, steps, batch, images = 31.2, 2983, 32_768, 1_281_167
    warmup = 25 * images // batch

    def program(step):
        if step * batch / images <= 25:
            return peak * step * batch / images / 25
        done = max(1, step - warmup) / (steps - warmup + 1)
        return 1e-4 + (peak - 1e-4) * (1 - done) ** 2

    found = rates("mlperf06_google_32k")
    assert len(found) == steps
    # Whole steps of the program against samples of ours.
    assert found == pytest.approx([program(i) for i in range(steps)], abs=5e-4 * peak)
