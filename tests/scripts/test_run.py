"""The benchmark of complete trainings: what peers are given, the clock, and a tiny run."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import benchmark
import numpy as np
import pytest
from benchmarks import epochs
from benchmarks import run as complete
from benchmarks.competitor import Absent, FailedError, Race
from benchmarks.peers import flax_train, torch_network, torch_train

from largebatch.data import SourceOptions
from largebatch.data.source import open_source
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


def test_positions_of_the_order_are_sorted_files(folder):
    source = open_source(f"folder:{folder}", "train", OPTIONS)
    files = sorted((folder / "train").glob("*/*"))
    classes = sorted({file.parent.name for file in files})
    _, labels = source.read(np.arange(160))
    assert [classes.index(file.parent.name) for file in files] == list(labels)
    # Each file alone is the image at its position.
    for position in (0, 77, 159):
        (content,), _ = open_source(f"folder:{folder}", "train", OPTIONS).read(np.array([position]))
        assert content == files[position].read_bytes()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("optimizer.name=lars", "optimizer.name: expected 'sgd', which the peers have, got 'lars'"),
        ("norm.span=1", "use --config.norm.span=all"),
        ("data.flip=false", "data.flip: expected True"),
        ("data.shift=4", "data.shift: expected 0"),
        ("data.epoch_end=drop", "data.epoch_end: expected"),
        ("data.evaluation_flip=true", "data.evaluation_flip: expected False"),
        ("model.stem=small", "model.stem: expected"),
        ("schedule.ema=1 epochs", "schedule.ema: expected"),
        ("norm.statistics=precise", "this benchmark sets it to ema; leave it out"),
        ("run.evaluate_every=2 epochs", "this benchmark sets it to 1 epochs; leave it out"),
    ],
)
def test_only_recipes_that_peers_have(folder, option, message):
    more = ["--config.optimizer.nesterov=false"] if "lars" in option else []
    with pytest.raises(ConfigError, match=message):
        work_of(flags(folder, f"--config.{option}", *more))


def test_one_epoch_is_too_short(folder):
    with pytest.raises(ConfigError, match="--epochs: expected 2 or more"):
        complete.run(flags(folder, "--epochs=1"))


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


def rows(*found):
    units = ("images/s", "top-1, %", "s since the start", epochs.MEMORY)
    return [dict(zip(units, each, strict=True)) for each in found]


def test_figures_of_the_whole_training():
    race = Race(
        {"ours": rows((9, 0, 20, 3), (8, 70, 30, 2)), "p": rows((4, 0, 40, 1), (4, 0, 60, 1))},
        {"q": "no q"},
        first={"ours": rows((1, 60, 10, 1))[0], "p": rows((1, 50, 20, 9))[0]},
    )
    found = {(each.name, each.unit): each for each in complete.results(race, 65, "x")}
    rate = found["x vs p", "images/s"]
    assert (rate.ours, rate.peer) == ((9, 8), (4, 4))
    assert found["x vs q", "images/s"].absent == "no q"
    accuracy = found["x: at the end vs p", "top-1, %"]
    assert (accuracy.ours, accuracy.peer, accuracy.ratios) == ((70,), (0,), ())
    assert found["x: training time vs p", "s"].ratios == (2.0,)
    assert found["x: memory vs p", epochs.MEMORY].ratios == (3.0,)
    assert found["x: time to 65 %", "s"].ours == (30,)
    assert found["x: time to 65 % vs p", "s"].absent == "p does not reach it"
    early = complete.results(race, 50, "x")[-1]
    assert (early.ours, early.peer) == ((10,), (20,))  # in the first epoch
    (late,) = complete.results(race, 80, "x")[-2:-1]
    assert late.absent == "ours does not reach it"


def test_a_time_that_only_a_peer_has():
    figures = {"ours": rows((1, 1, 1, 1)), "p": rows((1, 90, 7, 1))}
    found = complete.times_to(80, figures, "x")[-1]
    assert found.absent == "ours does not reach it, p does after 7 s"


def test_a_training_that_fails(folder, tmp_path):
    work = dataclasses.replace(work_of(flags(folder)), workdir=str(tmp_path), recipe="nothing")
    repeat, _ = epochs.ours(work)
    with pytest.raises(FailedError, match=r"train.py ended with code 2: .*nothing"):
        repeat()


def test_memory_of_this_session():
    alone = epochs.memory_gib(excluded=os.getpid())
    block = np.ones(1 << 26, np.uint8)
    found = epochs.memory_gib() - alone
    assert found > block.nbytes / 2**30


def test_peers_that_are_not_installed_are_absent(folder, monkeypatch):
    work = work_of(flags(folder))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Absent, match="torch cannot be imported"):
        torch_train.torchvision(work)
    with pytest.raises(Absent, match="give a checkout of google/flax"):
        flax_train.flax(work)


def test_files_of_a_folder_as_tfds_has_them(folder):
    made = flax_train.ClassFolders(str(folder))
    counts = {name: split.num_examples for name, split in made.info.splits.items()}
    assert counts == {"train": 160, "validation": 40}
    pairs = made.examples("train[0:160]")
    assert sorted(file for file, _ in pairs) == sorted(map(str, (folder / "train").glob("*/*")))
    assert all(forms.CLASSES[label] == Path(file).parent.name for file, label in pairs)
    assert [label for _, label in pairs] != sorted(label for _, label in pairs)


def test_narrow_networks_have_the_parameters_of_torchvision():
    models = pytest.importorskip("torchvision.models")
    for name in ("resnet18", "resnet50"):
        wide = models.get_model(name, num_classes=10)
        made = torch_network.narrow(*torch_network._DEPTHS[name], 64, 10)
        assert [tuple(p.shape) for p in made.parameters()] == [
            tuple(p.shape) for p in wide.parameters()
        ]


def test_a_tiny_race(folder, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(complete.tempfile, "tempdir", str(temporary))
    record = tmp_path / "record.json"
    arguments = ["run", "--data", str(folder), "--epochs", "2", "--target", "1", *TINY]
    assert benchmark.main([*arguments, "--peer", "flax", "--json", str(record)]) == 0
    results = json.loads(record.read_text())["results"]
    medians = {each["name"]: each["ours"] and each["ours"]["median"] for each in results}
    title = "imagenette_laptop, 2 epochs"
    assert medians[title] > 0
    assert 0 <= medians[f"{title}: at the end"] <= 100
    assert 0.05 < medians[f"{title}: memory"] < 20
    assert any("give a checkout" in (each["absent"] or "") for each in results)
    assert list(temporary.iterdir()) == []
