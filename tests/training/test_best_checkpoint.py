"""The checkpoint of the best evaluation (``run.keep_best``)."""

import jax
import pytest

from largebatch import weights
from largebatch.checkpoint.checkpoints import path_of, steps_in
from largebatch.checkpoint.place import LocalPlace
from largebatch.training.session import Request, run
from tests.training import worlds
from tests.training.worlds import rows

CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 10, "microbatch": 1},
    data={"source": "digits"},
    # The learning rate is far too large at the end, so that the best evaluation is not the last.
    schedule={
        "length": "24 steps",
        "warmup": "0 steps",
        "peak": 50.0,
        "decay": "pieces",
        "points": ("0 steps: 0.01", "14 steps: 1"),
    },
    run={
        "evaluate_every": "2 steps",
        "checkpoint_every": "24 steps",
        "keep_checkpoints": 1,
        "keep_best": True,
    },
    health={"divergence": 0.0, "stuck_after": ""},
)


def train(config, workdir):
    return run(config, Request(recipe=None, workdir=workdir), devices=jax.devices()[:2])


def accuracies(workdir, name="top1"):
    found = {row["step"]: row.get(f"validation/{name}") for row in rows(workdir)}
    return {step: top1 for step, top1 in found.items() if top1 is not None}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("best") / "run"
    train(CONFIG, workdir)
    return workdir


def test_the_best_evaluation_has_a_checkpoint_beside_the_newest(trained):
    top1 = accuracies(trained)
    assert list(top1) == list(range(2, 25, 2))
    step = max(top1, key=top1.get)
    assert step < 24
    assert steps_in(LocalPlace(trained)) == [24, step]
    assert worlds.manifest(trained, step)["progress"]["validation_top1"] == top1[step]
    best = weights.read(trained, best=True, trust="tests")
    assert best.origin == str(trained / path_of(step))
    assert weights.read(trained, trust="tests").origin.endswith("/24.safetensors")
