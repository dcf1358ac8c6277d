"""Further validation sets (``data.validation_sets``), evaluated beside the main one."""

import json

import jax
import pytest

from largebatch import data
from largebatch.errors import ConfigError, DataError
from largebatch.tracking import Summary
from largebatch.training.session import Request, run
from tests.training import worlds
from tests.training.worlds import changed, digests, rows

HALF = 180  # images
CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 10, "microbatch": 1},
    data={"source": "digits"},
    schedule={"length": "8 steps", "warmup": "2 steps", "peak": 1.0, "ema": "5 steps"},
    run={"log_every": "1 steps", "evaluate_every": "4 steps", "checkpoint_every": "4 steps"},
)
SETS = f"half=tests.training.test_validation_sets:half:{HALF},same=digits"


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


def train(config, workdir, devices=2, **request):
    devices = jax.devices()[:devices]
    return run(config, Request(recipe=None, workdir=workdir, **request), devices=devices)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("sets") / "run"
    return workdir, train(changed(CONFIG, data__validation_sets=SETS), workdir)


def test_results_are_beside_those_of_the_main_set(trained):
    """The same images give the same numbers; a part is exact for any batch."""
    workdir, summary = trained
    for row in rows(workdir):
        assert ("half/top1" in row) == (row["step"] % 4 == 0)
        if "half/top1" in row:
            for name in ("loss", "top1", "top5", "ema_loss", "ema_top1", "ema_top5"):
                assert row[f"same/{name}"] == row[f"validation/{name}"]
            assert row["half/loss"] != row["same/loss"]
            assert row["half/top1"] * HALF == pytest.approx(round(row["half/top1"] * HALF))
    last, written = rows(workdir)[-1], worlds.summary(workdir)
    for name in ("loss", "top1", "ema_top1"):
        assert written[f"half/{name}"] == last[f"half/{name}"]
    assert Summary.read(workdir) == summary
    again = train(changed(CONFIG, data__validation_sets=SETS), workdir, eval_only=True)
    assert again.sets == summary.sets
    assert json.loads((workdir / "evaluation.json").read_text())["half/top1"] == last["half/top1"]


def test_the_training_does_not_depend_on_them(trained, tmp_path):
    """One device instead of two, without sets first, resumed with them."""
    workdir, summary = trained
    train(changed(CONFIG, run__stop_after="4 steps"), tmp_path)
    found = train(changed(CONFIG, data__validation_sets=SETS), tmp_path)
    assert digests(tmp_path, 8) == digests(workdir, 8)
    assert found.sets == summary.sets
    alone = train(changed(CONFIG, data__validation_sets=SETS), workdir, devices=1, eval_only=True)
    for name, value in summary.sets.items():  # sums of float32 in another order
        assert alone.sets[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("digits", ConfigError),
        ("validation=digits", ConfigError),
        ("a/b=digits", ConfigError),
        ("a=digits,a=digits", ConfigError),
        ("a=tests.training.test_validation_sets:renamed:10", DataError),
        ("a=folder:absent-{train,validation}", DataError),
    ],
)
def test_sets_that_are_refused(text, error, tmp_path):
    with pytest.raises(error, match=r"^data\.validation_sets: "):
        train(changed(CONFIG, data__validation_sets=text), tmp_path)
