"""What a training needs to begin: weights instead of fresh parameters, and packages."""

import sys

import jax
import numpy as np
import pytest

from largebatch import weights
from largebatch.errors import CheckpointError, UserError
from largebatch.tracking import Console
from largebatch.training.initialization import initial_state
from largebatch.training.stage import Stage
from tests.training import worlds
from tests.training.worlds import build, changed, train
from tests.weights import samples

CONFIG = worlds.digits(2, 2, schedule={"warmup": "1 steps"})


def made(config):
    return build(config, Console(quiet=True), jax.devices()[:1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    train(CONFIG, workdir)
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
    head = worlds.digits(4, 4, model=resnet, optimizer={"lr_mults": ("head/.*: 0",)})
    with pytest.raises(UserError, match=r"head/\.\*: 1"):
        initial_state(made(head), samples.sample())


def test_another_network_is_refused_before_compiling(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("largebatch.training.run.Run.build", pytest.fail)
    other = changed(CONFIG, model__init_from=str(trained))
    other = changed(other, model__name="tests.training.own_models:resnet_grey")
    with pytest.raises(UserError, match=r"model\.name=tests\.training\.own_models:Small"):
        train(other, tmp_path / "run")


def test_a_run_that_would_be_archived_cannot_give_its_weights(trained):
    config = changed(CONFIG, model__init_from=str(trained / "checkpoints" / "2.safetensors"))
    with pytest.raises(UserError, match=r"model\.init_from=.*--resume=never"):
        train(config, trained, resume="never")
    assert (trained / "checkpoints").is_dir()


def test_a_resumed_run_reads_no_weights(trained, tmp_path):
    """Its checkpoint has everything; the file may be gone by then."""
    place = tmp_path / "copy"
    place.symlink_to(trained)
    config = changed(CONFIG, model__init_from=str(place))
    first = changed(config, run__stop_after="1 steps")
    assert train(first, tmp_path / "run").status == "stopped"
    place.unlink()
    assert train(config, tmp_path / "run").status == "complete"


# ---- A package that an option needs and that is missing: refused before anything is compiled

CASES = [
    ("wandb", {"run": {"trackers": ("wandb",)}}, r"\[wandb\]"),
    ("mlperf_logging", {"run": {"mlperf_log": "open"}}, "mlperf-logging"),
    ("obstore", {"data": {"source": "arrayrecord:s3://bucket/photos"}}, r"\[storage\]"),
    ("pyarrow", {"data": {"source": "huggingface:PLACE"}}, r"\[huggingface\]"),
    ("tensorflow_datasets", {"data": {"source": "tfds:cifar10"}}, "tensorflow_datasets"),
]


@pytest.fixture
def hide(monkeypatch):
    """Make a package as good as not installed, and a compilation an error."""
    monkeypatch.setattr(Stage, "_compile", lambda *_, **__: pytest.fail("compiles"))

    def hidden(package):
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hidden


@pytest.mark.parametrize(("package", "options", "remedy"), CASES)
def test_the_error_is_one_line_with_the_remedy(package, options, remedy, tmp_path, hide):
    hide(package)
    config = worlds.digits(4, 4, **options)
    config = changed(config, data__source=config.data.source.replace("PLACE", str(tmp_path)))
    with pytest.raises(UserError, match=remedy) as caught:
        train(config, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_mlperf_is_needed_only_where_its_log_is_written(tmp_path, hide, monkeypatch):
    hide("mlperf_logging")
    config = worlds.digits(4, 4, run={"mlperf_log": "open"})
    with pytest.raises(CheckpointError):  # there is nothing to evaluate: what is checked next
        train(config, tmp_path, eval_only=True)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(CheckpointError):
        train(config, tmp_path, resume="must")
