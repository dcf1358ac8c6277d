"""Trainings that begin with weights instead of fresh parameters."""

import contextlib

import jax
import numpy as np
import pytest

from largebatch import weights
from largebatch.errors import UserError
from largebatch.tracking import Console
from largebatch.training.initialization import initial_state
from largebatch.training.session import Request, run
from tests.training import worlds
from tests.training.worlds import build, changed
from tests.weights import samples

SECTIONS = {
    "model": worlds.SMALL,
    "batch": {"workers": 2, "images_per_worker": 4, "microbatch": 2},
    "data": {"source": "digits"},
    "schedule": {"length": "2 steps", "warmup": "1 steps", "peak": 0.5},
}
CONFIG = worlds.config(**SECTIONS)


def made(config):
    return build(config, Console(quiet=True), jax.devices()[:1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    run(CONFIG, Request(recipe=workdir, workdir=workdir), devices=jax.devices()[:1])
    return workdir


def test_the_state_is_that_of_the_weights_and_the_rest_is_fresh(trained):
    read = weights.read(trained, trust="tests")
    begun = jax.device_get(initial_state(made(changed(CONFIG, model__init_from=str(trained)))))
    for ours, theirs in ((begun.params, read.params), (begun.stats, read.stats)):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert not any(np.any(v) for v in jax.tree.leaves(begun.optimizer.momentum))
    fresh = jax.device_get(initial_state(made(CONFIG)))
    assert np.any(fresh.params["stem"]["kernel"] != begun.params["stem"]["kernel"])


def test_random_values_are_not_frozen_silently(capsys):
    frozen = changed(CONFIG, optimizer__lr_mults="stem/.*: 0")
    initial_state(build(frozen, Console(), jax.devices()[:1]))
    assert "--init_from" in capsys.readouterr().out
    resnet = {"name": "resnet10", "width": 4, "stem": "small", "init_from": "drawn"}
    head = worlds.config(**SECTIONS | {"model": resnet}, optimizer={"lr_mults": ("head/.*: 0",)})
    with pytest.raises(UserError, match=r"head/\.\*: 1"):
        initial_state(made(head), samples.sample())


def test_another_network_is_refused_before_compiling(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("largebatch.training.run.Run.build", pytest.fail)
    other = changed(CONFIG, model__init_from=str(trained))
    other = changed(other, model__name="tests.training.own_models:resnet_grey")
    with pytest.raises(UserError, match=r"model\.name=tests\.training\.own_models:Small"):
        run(other, Request(recipe=trained, workdir=tmp_path / "run"), devices=jax.devices()[:1])


def test_a_run_that_would_be_archived_cannot_give_its_weights(trained):
    config = changed(CONFIG, model__init_from=str(trained / "checkpoints" / "2.safetensors"))
    request = Request(recipe=trained, workdir=trained, resume="never")
    with pytest.raises(UserError, match=r"model\.init_from=.*--resume=never"):
        run(config, request, devices=jax.devices()[:1])
    assert (trained / "checkpoints").is_dir()


def test_a_resumed_run_reads_no_weights(trained, tmp_path):
    """Its checkpoint has everything; the file may be gone by then."""
    place = tmp_path / "copy"
    place.symlink_to(trained)
    config = changed(CONFIG, model__init_from=str(place))
    request = Request(recipe=tmp_path, workdir=tmp_path / "run")
    first = changed(config, run__stop_after="1 steps")
    assert run(first, request, devices=jax.devices()[:1]).status == "stopped"
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    assert run(config, request, devices=jax.devices()[:1]).status == "complete"
