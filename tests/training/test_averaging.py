"""The exponential moving average of the weights (``schedule.ema``)."""

import json

import jax
import numpy as np
import pytest

from largebatch import weights
from largebatch.errors import CheckpointError, UserError
from largebatch.training.session import Request, run
from tests.training import worlds
from tests.training.worlds import changed, digests, rows

CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 10, "microbatch": 1},
    data={"source": "digits"},
    schedule={"length": "12 steps", "warmup": "2 steps", "peak": 1.0, "ema": "5 steps"},
    norm={"statistics": "ema"},
    run={"log_every": "1 steps", "evaluate_every": "4 steps", "checkpoint_every": "4 steps"},
)


def train(config, workdir, **request):
    return run(config, Request(recipe=None, workdir=workdir, **request), devices=jax.devices()[:2])


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("averaged") / "run"
    return workdir, train(CONFIG, workdir)


def test_the_average_changes_nothing_in_the_training(averaged, tmp_path):
    workdir, _ = averaged
    summary = train(changed(CONFIG, schedule__ema=""), tmp_path)
    with_average = digests(workdir, 12)
    without = {path: d for path, d in with_average.items() if not path.startswith("ema/")}
    assert digests(tmp_path, 12) == without != with_average
    found = [{k: v for k, v in row.items() if "/ema_" not in k} for row in rows(workdir)]
    assert rows(tmp_path) == found
    assert not any(key.startswith("ema_") for key in summary.fields())


def test_results_of_the_average_are_beside_the_others(averaged):
    workdir, summary = averaged
    for row in rows(workdir):
        keys = {f"validation/ema_{name}" for name in ("loss", "top1", "top5")}
        assert (keys <= row.keys()) == (row["step"] % 4 == 0)
    last, written = rows(workdir)[-1], worlds.summary(workdir)
    for name in ("loss", "top1", "top5"):
        assert written[f"ema_{name}"] == last[f"validation/ema_{name}"]
    assert summary.ema_loss != summary.loss
    again = train(CONFIG, workdir, eval_only=True)
    assert (again.ema_loss, again.loss) == (summary.ema_loss, summary.loss)
    assert json.loads((workdir / "evaluation.json").read_text())["ema_top1"] == summary.ema_top1


def test_a_run_without_an_average(tmp_path):
    train(changed(CONFIG, schedule__ema="", schedule__length="4 steps"), tmp_path)
    with pytest.raises(UserError, match=r"schedule\.ema"):
        weights.read(tmp_path, ema=True, trust="tests")
    with pytest.raises(CheckpointError, match=r"schedule\.ema"):
        train(changed(CONFIG, schedule__length="4 steps"), tmp_path)


def test_precise_statistics_are_those_of_the_averaged_weights(tmp_path):
    train(changed(CONFIG, norm__statistics="precise", schedule__length="4 steps"), tmp_path)
    plain, average = (weights.read(tmp_path, ema=ema, trust="tests") for ema in (False, True))
    stats = [np.asarray(w.stats["norm"]["mean"], np.float64) for w in (plain, average)]
    assert np.any(stats[0] != stats[1])
    changed_by = worlds.digests(tmp_path, 4)
    assert changed_by["stats/norm/mean"] != changed_by["ema/stats/norm/mean"]
