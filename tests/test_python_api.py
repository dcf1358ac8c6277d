"""Training and loading from Python: the example of docs/api/index.md, and what else is accepted."""

import re
from pathlib import Path

import pytest

import largebatch
from largebatch.config import default_config, freeze
from largebatch.errors import ConfigError

ROOT = Path(largebatch.__file__).parents[1]


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/api/index.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "index.md", "exec"), {})
    *_, summary, share = capsys.readouterr().out.splitlines()
    status, _, top1 = summary.split()
    assert status == "complete"
    assert float(share) == pytest.approx(float(top1), abs=1e-6)
    assert float(top1) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda config: config, freeze], ids=["ConfigDict", "Config"])
def test_a_configuration_made_in_python(tmp_path, make, capsys):
    config = default_config()
    config.data.source = "digits"
    config.model.name, config.model.width, config.model.stem = "resnet10", 4, "small"
    config.batch.workers, config.batch.images_per_worker = 8, 16
    config.schedule.length, config.schedule.warmup, config.schedule.peak = "4 steps", "1 steps", 1.0
    given = {"workdir": tmp_path, "overrides": {"run.stop_after": "2 steps", "data.shuffle": False}}
    stopped = largebatch.train(make(config), **given)
    assert (stopped.status, stopped.steps) == ("stopped", 2)
    given["overrides"].pop("run.stop_after")
    assert largebatch.train(make(config), **given).steps == 4
    assert largebatch.train(make(config), **given).status == "complete"
    assert "--config=" not in capsys.readouterr().out  # there is no recipe file to name


def test_a_mistake_names_the_option(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.seed"):
        largebatch.train("digits", workdir=tmp_path, overrides={"run.sede": 1})
