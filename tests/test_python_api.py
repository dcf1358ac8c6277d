"""Training and loading from Python: the example of docs/api/index.md, and what else is accepted."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import largebatch
from largebatch.config import default_config, freeze
from largebatch.errors import ConfigError

ROOT = Path(largebatch.__file__).parents[1]


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/api/index.md").read_text()
    train, callback = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(train, "index.md", "exec"), names)
    *_, summary, share = capsys.readouterr().out.splitlines()
    status, _, top1 = summary.split()
    assert status == "complete"
    assert float(share) == pytest.approx(float(top1), abs=1e-6)
    assert float(top1) > 0.5
    exec(compile(callback, "index.md", "exec"), names)
    ended, best = capsys.readouterr().out.splitlines()  # nothing else: it is quiet
    assert ended.startswith("complete: ")
    found = json.loads(Path("runs/best/summary.json").read_text())
    assert float(best) >= found["top1"] > 0.2


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


def test_only_callbacks_are_taken(tmp_path):
    for wrong in (print, largebatch.Callback):
        with pytest.raises(ConfigError, match="callbacks"):
            largebatch.train("digits", workdir=tmp_path, callbacks=[wrong])
    assert not any(tmp_path.iterdir())


def test_the_import_is_light():
    code = "import sys, largebatch; print({'jax', 'flax', 'rich', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_mistake_names_the_option(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.seed"):
        largebatch.train("digits", workdir=tmp_path, overrides={"run.sede": 1})
