"""Evaluations: averaged weights, further sets, running statistics, and the best checkpoint."""

import json

import numpy as np
import pytest

from largebatch import data, weights
from largebatch.checkpoint.checkpoints import path_of, steps_in
from largebatch.checkpoint.place import LocalPlace
from largebatch.config import Facts
from largebatch.config.resolution import resolve
from largebatch.errors import CheckpointError, ConfigError, DataError, UserError
from largebatch.tracking import Summary
from largebatch.training.statistics import moving_average, share_kept
from tests.training import worlds
from tests.training.worlds import changed, digests, rows, train

HALF = 180  # images
SETS = f"half={__name__}:half:{HALF},same=digits"
CONFIG = worlds.digits(
    20,
    4,
    data={"validation_sets": SETS.split(",")},
    norm={"statistics": "ema"},
    # The learning rate is far too large at the end, so that the best evaluation is not the last.
    schedule={
        "peak": 50.0,
        "warmup": "0 steps",
        "decay": "pieces",
        "points": ("0 steps: 0.01", "12 steps: 1"),
        "ema": "2 steps",
    },
    run={"keep_checkpoints": 1, "keep_best": True},
    health={"divergence": 0.0, "stuck_after": ""},
)
SHORT = worlds.digits(4, 4, schedule={"ema": "5 steps"})


class Part(data.Source):
    """The first examples of a source."""

    def __init__(self, source, count):
        self._source, self._count = source, count
        self.name, self.image_shape = source.name, source.image_shape
        self.mean, self.std = source.mean, source.std
        self.classes = self.renamed or source.classes

    renamed = ()

    def __len__(self):
        return self._count

    def read(self, ids):
        return self._source.read(ids)


def half(argument, split, options):
    return Part(data.open_source("digits", split, options), int(argument))


class Renamed(Part):
    renamed = tuple(map(str, range(9, -1, -1)))


def renamed(argument, split, options):
    return Renamed(data.open_source("digits", split, options), int(argument))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("evaluations") / "run"
    return workdir, train(CONFIG, workdir)


def test_results_are_beside_those_of_the_weights_on_the_main_set(trained):
    """The same images give the same numbers; a part is exact for any batch."""
    workdir, summary = trained
    for row in rows(workdir):
        evaluated = row["step"] % 4 == 0
        assert ("validation/ema_top1" in row) == ("half/top1" in row) == evaluated
        if evaluated:
            for name in ("loss", "top1", "top5", "ema_loss", "ema_top1", "ema_top5"):
                assert row[f"same/{name}"] == row[f"validation/{name}"]
            assert row["half/loss"] != row["same/loss"]
            assert row["half/top1"] * HALF == pytest.approx(round(row["half/top1"] * HALF))
    last, written = rows(workdir)[-1], worlds.summary(workdir)
    for name in ("loss", "top1", "top5"):
        assert written[f"ema_{name}"] == last[f"validation/ema_{name}"]
        assert written[f"half/{name}"] == last[f"half/{name}"]
    assert written["ema_loss"] != written["loss"]
    assert Summary.read(workdir) == summary
    again = train(CONFIG, workdir, eval_only=True)
    assert (again.sets, again.ema_loss, again.loss) == (
        summary.sets,
        summary.ema_loss,
        summary.loss,
    )
    assert json.loads((workdir / "evaluation.json").read_text())["half/top1"] == last["half/top1"]
    alone = train(CONFIG, workdir, devices=1, eval_only=True)
    for name, value in summary.sets.items():  # sums of float32 in another order
        assert alone.sets[name] == pytest.approx(value, rel=1e-5)


def test_the_training_does_not_depend_on_them(trained, tmp_path):
    """Without averages and sets, and resumed with the sets."""
    workdir, summary = trained
    plain = tmp_path / "plain"
    train(changed(CONFIG, schedule__ema="", data__validation_sets=""), plain)
    expected = digests(workdir, 20)
    without = {path: digest for path, digest in expected.items() if not path.startswith("ema/")}
    assert digests(plain, 20) == without != expected
    beside = ("half/", "same/", "validation/ema_")
    found = [
        {key: value for key, value in row.items() if not key.startswith(beside)}
        for row in rows(workdir)
    ]
    assert rows(plain) == found
    resumed = tmp_path / "resumed"
    train(changed(CONFIG, data__validation_sets="", run__stop_after="4 steps"), resumed)
    assert train(CONFIG, resumed).sets == summary.sets
    assert digests(resumed, 20) == expected


def test_the_best_evaluation_has_a_checkpoint_beside_the_newest(trained):
    workdir, _ = trained
    top1 = {row["step"]: row["validation/ema_top1"] for row in rows(workdir) if "half/top1" in row}
    step = max(top1, key=top1.get)
    assert step < 20
    assert steps_in(LocalPlace(workdir)) == [20, step]
    assert worlds.manifest(workdir, step)["progress"]["validation_top1"] == top1[step]
    best = weights.read(workdir, best=True, trust="tests")
    assert best.origin.startswith(str(workdir / path_of(step)))
    assert weights.read(workdir, trust="tests").origin.endswith("/20.safetensors")


def test_a_run_without_an_average(tmp_path):
    train(changed(SHORT, schedule__ema=""), tmp_path)
    with pytest.raises(UserError, match=r"schedule\.ema"):
        weights.read(tmp_path, ema=True, trust="tests")
    with pytest.raises(CheckpointError, match=r"schedule\.ema"):
        train(SHORT, tmp_path)


def test_precise_statistics_are_those_of_the_averaged_weights(tmp_path):
    train(changed(SHORT, norm__statistics="precise"), tmp_path)
    plain, average = (weights.read(tmp_path, ema=ema, trust="tests") for ema in (False, True))
    assert np.any(plain.stats["norm"]["mean"] != average.stats["norm"]["mean"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("digits", ConfigError),
        ("validation=digits", ConfigError),
        ("a/b=digits", ConfigError),
        ("a=digits,a=digits", ConfigError),
        (f"a={__name__}:renamed:10", DataError),
        ("a=folder:absent-{train,validation}", DataError),
    ],
)
def test_sets_that_are_refused(text, error, tmp_path):
    with pytest.raises(error, match=r"^data\.validation_sets: "):
        train(changed(SHORT, data__validation_sets=text), tmp_path)


def test_the_last_batchs_statistics_keep_nothing_of_the_past():
    made = worlds.digits(20, 20, norm={"statistics": "last", "momentum": 0.9})
    last = resolve(made, Facts(1000, 100, 7, (8, 8, 1), devices=1))
    assert last.first_stage.norm_momentum == 0
    before, batch = ({"mean": np.full(5, value, np.float32)} for value in (3.0, 0.7))
    after = moving_average(before, batch, share_kept(1000, last.first_stage.norm_momentum))
    np.testing.assert_array_equal(after["mean"], batch["mean"])


@pytest.mark.parametrize(
    ("asked", "steps", "used"),
    [("auto", 499, "precise"), ("auto", 500, "ema"), ("ema", 10, "ema"), ("last", 10, "last")],
)
def test_statistics_of_short_runs_are_recomputed(asked, steps, used):
    made = worlds.digits(steps, steps, norm={"statistics": asked})
    assert resolve(made, Facts(1000, 100, 7, (8, 8, 1), devices=1)).norm_statistics == used
