"""The benchmark of complete trainings: what peers are given, the clock, and a tiny run."""

import json

import benchmark
import pytest
from benchmarks import epochs
from benchmarks import run as complete

from largebatch.data import SourceOptions
from largebatch.errors import ConfigError
from tests.data import forms

TINY = [
    "--config.model.name=resnet10",
    "--config.model.width=2",
    "--config.data.image_size=32",
    "--config.batch.microbatch=4",
]

OPTIONS = SourceOptions(image_size=32)


@pytest.fixture
def folder(tmp_path):
    forms.folder(tmp_path / "set")
    (tmp_path / "set" / "validation").rename(tmp_path / "set" / "val")
    return tmp_path / "set"


def flags(folder, *more):
    found, found.overrides = benchmark.parser(["run"]).parse_run(
        ["run", "--data", str(folder), "--epochs", "2", *TINY, *more]
    )
    return found


def work_of(found):
    return complete.work_of(found, "workdir")


def test_peers_get_the_numbers_of_our_training(folder):
    work = work_of(flags(folder, "--config.run.seed=3"))
    assert (work.network, work.width, work.classes) == ("resnet10", 2, 4)
    assert (work.batch, work.image_size) == (64, 32)
    # 160 images: 2.5 steps an epoch, nearest to 2, and 5 steps.
    assert work.evaluate_after == (2, 5)
    assert len(work.learning_rates) == 5
    assert max(work.learning_rates) <= 0.1
    assert work.learning_rates[-1] < work.learning_rates[1] / 2
    given = dict(work.overrides)
    assert given["run.compile_cache"] == "off"
    assert given["health.limit_s"] == "0"
    assert sorted(work.order[:160]) == list(range(160))
    assert sorted(work.order[160:320]) == list(range(160))
    assert list(work.order[:160]) != list(work.order[160:320])
    assert given["run.seed"] == "3"
    assert work.seed == 3
    work_of(flags(folder, "--config.data.resampling=antialias"))  # as torchvision resizes


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("optimizer.name=lars", "optimizer.name: expected 'sgd', which the peers have, got 'lars'"),
        ("data.shift=4", "data.shift: expected 0"),
        ("schedule.ema=1 epochs", "schedule.ema: expected"),
        ("run.evaluate_every=2 epochs", "this benchmark sets it to 1 epochs; leave it out"),
    ],
)
def test_only_recipes_that_peers_have(folder, option, message):
    more = ["--config.optimizer.nesterov=false"] if "lars" in option else []
    with pytest.raises(ConfigError, match=message):
        work_of(flags(folder, f"--config.{option}", *more))


def test_the_clock_counts_only_its_own_epochs(monkeypatch):
    times = iter([5.0, 100.0, 110.0, 500.0, 520.0])
    monkeypatch.setattr(epochs.time, "perf_counter", times.__next__)
    repeat = epochs.timed_epochs(iter([(40, 0.25), (60, 0.5)]), lambda: 1.5, start=3.0)
    assert repeat() == {
        "images/s": 4.0,
        "top-1, %": 25.0,
        "s since the start": 12.0,
        epochs.MEMORY: 1.5,
    }
    assert repeat()["s since the start"] == 32.0


@pytest.mark.slow
def test_a_tiny_race(folder, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(complete.tempfile, "tempdir", str(temporary))
    record = tmp_path / "record.json"
    arguments = ["run", "--data", str(folder), "--epochs", "2", *TINY]
    assert benchmark.main([*arguments, "--peer", "flax", "--json", str(record)]) == 0
    results = json.loads(record.read_text())["results"]
    medians = {each["name"]: each["ours"] and each["ours"]["median"] for each in results}
    title = "imagenette_laptop, 2 epochs"
    assert medians[title] > 0
    assert 0 <= medians[f"{title}: at the end"] <= 100
    assert 0.05 < medians[f"{title}: memory"] < 20
    assert any("give a checkout" in (each["absent"] or "") for each in results)
    assert list(temporary.iterdir()) == []
