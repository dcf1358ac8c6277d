"""The example of docs/own_model.md through every command, as its reader would do it."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import evaluate
import export
import numpy as np
import plan
import predict
import pytest
from PIL import Image
from safetensors.numpy import load_file

import train
from largebatch import weights
from largebatch.trees import flatten_paths
from tests.weights.evaluation.devices import one_quick_device

ROOT = Path(train.__file__).parent
PAGE = (ROOT / "docs" / "own_model.md").read_text()
SHORT = (
    "--config.schedule.length=12 steps",
    "--config.schedule.warmup=2 steps",
    "--config.run.evaluate_every=6 steps",
    "--config.run.checkpoint_every=6 steps",
)


def commands():
    """The arguments of the page's commands, by script."""
    (block,) = re.findall(r"```\n(python train.*?)```", PAGE, re.DOTALL)
    return {line.split()[1]: shlex.split(line)[2:] for line in block.splitlines()}


@pytest.fixture(scope="module", autouse=True)
def _one_device():
    with one_quick_device():
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A directory with the page's module and a trained run."""
    directory = tmp_path_factory.mktemp("own")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (directory / "my_net.py").write_text(code)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(directory)
        assert train.main([*commands()["train.py"], *SHORT]) == 0
    assert "my_net:Net, float32, 682 parameters" in printed.getvalue()
    return directory


def test_evaluation_counts_what_training_counted(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    assert evaluate.main(commands()["scripts/evaluate.py"]) == 0
    printed = capsys.readouterr().out
    summary = json.loads((here / "runs" / "my_net" / "summary.json").read_text())
    assert f"{100 * summary['top1']:.2f} %" in printed or f"{summary['top1']:.2%}" in printed


def test_an_export_holds_the_arrays_by_their_paths(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    assert export.main([*commands()["scripts/export.py"], "--verify"]) == 0
    assert "my_net:Net, 10 classes" in capsys.readouterr().out
    found = load_file(here / "my_net.safetensors")
    assert found["conv/kernel"].shape == (3, 3, 1, 32)
    read = weights.read("runs/my_net", trust="my_net")
    for path, array in (flatten_paths(read.params) | flatten_paths(read.stats)).items():
        np.testing.assert_array_equal(found[path], array)


def test_formats_of_resnets_are_refused(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    words = ["runs/my_net", "--trust=my_net", "--to=x.safetensors"]
    assert export.main([*words, "--format=torchvision"]) == 2
    assert "model.name=my_net:Net" in (said := capsys.readouterr().err)
    assert "--format=flax" in said
    assert not (here / "x.safetensors").exists()


def test_a_file_cannot_name_code_to_import(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    export.main(["runs/my_net", "--trust=my_net", "--to=y.safetensors", "--format=flax"])
    assert evaluate.main(["y.safetensors"]) == 2
    assert "--trust=my_net" in capsys.readouterr().err
    assert evaluate.main(["y.safetensors", "--trust=my_net"]) == 0


def test_prediction(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("zero.png")
    assert predict.main(["runs/my_net", "zero.png", "--trust=my_net"]) == 0
    assert "zero.png" in capsys.readouterr().out


def test_its_weights_begin_another_run(here, monkeypatch):
    monkeypatch.chdir(here)
    arguments = [a for a in commands()["train.py"] if not a.startswith("--workdir")]
    more = ["--workdir=runs/second", "--init_from=runs/my_net", "--dry_run", *SHORT]
    assert train.main([*arguments, *more]) == 0


def test_a_plan_has_no_time(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    arguments = [a for a in commands()["train.py"] if not a.startswith("--workdir")]
    assert plan.main(arguments) == 0
    assert "no prediction for model.name=my_net:Net" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("model.name=my_net:Nett", "did you mean 'Net'?"),
        ("model.width=8", "--config.model.width=64"),
    ],
)
def test_mistakes_are_one_line(here, option, said, monkeypatch, capsys):
    monkeypatch.chdir(here)
    arguments = [a for a in commands()["train.py"] if not a.startswith("--workdir")]
    assert train.main([*arguments, "--workdir=runs/other", f"--config.{option}"]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert not Path("runs/other").exists()
