"""A package that an option needs and that is missing: refused before anything is compiled."""

import sys

import jax
import pytest

from largebatch.errors import CheckpointError, UserError
from largebatch.training.session import Request, run
from largebatch.training.stage import Stage
from tests.training import worlds

DIGITS = {"model": worlds.SMALL, "data": {"source": "digits"}}
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


def message(config, workdir, remedy):
    with pytest.raises(UserError, match=remedy) as caught:
        run(config, Request(recipe=None, workdir=workdir), devices=jax.devices()[:1])
    return str(caught.value)


@pytest.mark.parametrize(("package", "options", "remedy"), CASES)
def test_the_error_is_one_line_with_the_remedy(package, options, remedy, tmp_path, hide):
    hide(package)
    config = worlds.config(**(DIGITS | options))
    source = config.data.source.replace("PLACE", str(tmp_path))
    config = worlds.changed(config, data__source=source)
    assert "\n" not in message(config, tmp_path / "run", remedy)


def test_mlperf_is_needed_only_where_its_log_is_written(tmp_path, hide, monkeypatch):
    hide("mlperf_logging")
    config = worlds.config(**DIGITS, run={"mlperf_log": "open"})
    with pytest.raises(CheckpointError):  # there is nothing to evaluate: what is checked next
        run(config, Request(None, tmp_path, eval_only=True), devices=jax.devices()[:1])
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(CheckpointError):
        run(config, Request(None, tmp_path, resume="must"), devices=jax.devices()[:1])
