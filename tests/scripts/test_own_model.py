"""The example of docs/own_model.md through its commands, as its reader would do it."""

import re
import shlex
from pathlib import Path

import evaluate
import export
import numpy as np
import plan
from safetensors.numpy import load_file

import train
from largebatch import weights
from largebatch.trees import flatten_paths
from tests.weights.evaluation.devices import one_quick_device

PAGE = (Path(train.__file__).parent / "docs" / "own_model.md").read_text()
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


def test_the_page_from_training_to_export(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_net.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    words = commands()
    with one_quick_device():
        assert train.main([*words["train.py"], *SHORT]) == 0
        assert "my_net:Net, float32, 682 parameters" in capsys.readouterr().out
        assert evaluate.main(words["scripts/evaluate.py"]) == 0
        assert export.main([*words["scripts/export.py"], "--verify"]) == 0
        found, read = load_file("my_net.safetensors"), weights.read("runs/my_net", trust="my_net")
        for path, array in (flatten_paths(read.params) | flatten_paths(read.stats)).items():
            np.testing.assert_array_equal(found[path], array)
        refused = ["runs/my_net", "--trust=my_net", "--to=x.safetensors", "--format=torchvision"]
        assert export.main(refused) == 2
        assert "--format=flax" in capsys.readouterr().err
        recipe = [word for word in words["train.py"] if not word.startswith("--workdir")]
        assert plan.main(recipe) == 0
        assert "no prediction for" in " ".join(capsys.readouterr().out.split())
        other = [*recipe, "--workdir=runs/other"]
        for option in ("model.name=my_net:Nett", "model.width=8"):
            assert train.main([*other, f"--config.{option}"]) == 2
            assert option.partition("=")[0] in capsys.readouterr().err
        assert not Path("runs/other").exists()
