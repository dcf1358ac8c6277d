"""scripts/evaluate.py: the counts of training's own evaluation, other data, names, and mistakes."""

import contextlib
import csv
import io
import json
import re
from pathlib import Path

import evaluate
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import train
from largebatch import weights
from tests.weights.evaluation import cases
from tests.weights.evaluation.devices import one_quick_device

ROOT = Path(train.__file__).parent
TINY = (
    "--config.model.name=tests.training.own_models:resnet_grey",
    "--config.model.width=64",
    "--config.model.stem=conv7",
    "--config.batch.microbatch=8",
    "--config.optimizer.trust_coefficient=0.05",
    "--config.schedule.length=12 steps",
    "--config.schedule.warmup=2 steps",
    "--config.run.evaluate_every=12 steps",
    "--config.run.checkpoint_every=12 steps",
    "--config.comm.bucket_mib=0.05",
)


@pytest.fixture(scope="module", autouse=True)
def _one_device():
    with one_quick_device():
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run, its directory and its arguments."""
    workdir = tmp_path_factory.mktemp("runs") / "digits, short"
    arguments = [f"--config={ROOT / 'configs' / 'digits.py'}", f"--workdir={workdir}", *TINY]
    assert train.main(arguments) == 0
    return workdir, arguments


def found(capsys, *arguments):
    """What is printed by a call that goes well."""
    assert evaluate.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def fails(capsys, *arguments):
    """The one line that a call ends with."""
    assert evaluate.main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def stub(monkeypatch, made):
    """Have these weights read, whatever the path."""
    monkeypatch.setattr(weights, "read", lambda path, **_: made)


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """The run evaluated by the script: what it wrote, and what it printed."""
    out, printed = tmp_path_factory.mktemp("evaluated"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert evaluate.main([str(trained[0]), f"--out={out}", "--batch=72", "--trust=tests"]) == 0
    return out, printed.getvalue()


def test_the_counts_are_those_of_training(trained, evaluated):
    workdir, arguments = trained
    assert train.main([*arguments, "--eval_only"]) == 0
    theirs = json.loads((workdir / "evaluation.json").read_text())
    ours = json.loads((evaluated[0] / "summary.json").read_text())
    assert 0.1 < theirs["top1"] < 1  # neither chance nor perfection
    assert (ours["top1"], ours["top5"], ours["images"]) == (theirs["top1"], theirs["top5"], 360)
    assert ours["label_smoothing"] == 0.1
    # float32 sums of a batch there, float64 sums of float32 losses here.
    assert ours["smoothed_loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["loss"] < ours["smoothed_loss"]
    assert ours["weights"] == str(workdir / "checkpoints" / "12.safetensors")
    assert f"{ours['top1_count']} of 360" in evaluated[1]


def test_a_run_keeps_its_summary(trained, capsys):
    workdir, _ = trained
    before = (workdir / "summary.json").read_bytes()
    for out in (workdir, workdir / "checkpoints"):
        assert str(out) in fails(capsys, workdir, f"--out={out}")
    assert (workdir / "summary.json").read_bytes() == before


def test_the_same_digits_from_files(trained, evaluated, tmp_path, capsys):
    """Of class folders that sort otherwise, for a network of one channel."""
    digits = load_digits()
    for index in range(0, 200, 5):
        path = tmp_path / "set" / "val" / str(digits.target[index]) / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[index] * 15).astype(np.uint8)).save(path)
    source = f"--source=folder:{tmp_path / 'set'}"
    found(capsys, trained[0], source, f"--out={tmp_path}", "--trust=tests")
    own, files = (rows(place / "predictions.csv") for place in (evaluated[0], tmp_path))
    assert len(files) == 40
    for row in files:
        same = own[int(Path(row["name"]).stem) // 5]
        assert (row["label"], row["top1"]) == (same["label"], same["top1"])
        # float32 in batches of another size, written with seven digits.
        assert float(row["loss"]) == pytest.approx(float(same["loss"]), rel=1e-5)


def rows(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Twelve pictures of three classes, one of which no decoder takes."""
    place = tmp_path_factory.mktemp("photographs")
    draw = np.random.default_rng(0)
    for index in range(12):
        path = place / "val" / ("n01440764", "n02102040", "n03028079")[index % 3] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.normal(90 + 5 * index, 60, (40 + index, 60, 3)).clip(0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    (place / "val" / "n02102040" / "4.jpg").write_bytes(b"no picture")
    return place


def test_unreadable_pictures_are_counted_and_named(photographs, tmp_path, capsys, monkeypatch):
    stub(monkeypatch, cases.weights(("n01440764", "n02102040", "n03028079")))
    source = f"--source=folder:{photographs}"
    line = fails(capsys, "x", source, "--max_unreadable=0")
    assert re.search(r"4\.jpg.* --max_unreadable=0\.2", line)
    printed = found(capsys, "x", source, "--max_unreadable=0.1", f"--out={tmp_path}")
    assert f"warning: {photographs}/val/n02102040/4.jpg" in printed
    kept = json.loads((tmp_path / "summary.json").read_text())
    assert (kept["images"], kept["top5"]) == (12, 1.0)
    assert [Path(each["name"]).name for each in kept["unreadable"]] == ["4.jpg"]
    grey = [row["name"] for row in rows(tmp_path / "predictions.csv") if row["unreadable"] == "1"]
    assert [Path(name).name for name in grey] == ["4.jpg"]


def test_imagenets_thousand_on_three_of_its_classes(photographs, tmp_path, capsys, monkeypatch):
    stub(monkeypatch, cases.weights((), 1000))
    source = (f"--source=folder:{photographs}", "--max_unreadable=0.1")
    found(capsys, "x", *source, f"--out={tmp_path / 'all'}")
    assert {row["label"] for row in rows(tmp_path / "all" / "classes.csv")} == {"0", "217", "497"}
    everything = rows(tmp_path / "all" / "predictions.csv")
    found(capsys, "x", *source, "--among=source", f"--out={tmp_path / 'own'}")
    own = rows(tmp_path / "own" / "predictions.csv")
    for one, other in zip(own, everything, strict=True):
        assert one["class"] == other["class"]
        # p(label) among three is p(label) among all, divided by what the three have of it.
        assert float(one["probability"]) >= float(other["probability"])
    total = [sum(float(row[f"top{k}_probability"]) for k in (1, 2, 3)) for row in own]
    assert total == pytest.approx([1] * 12, abs=1e-6)
