"""Reading a run imports nothing that only the run's own files name."""

import contextlib
import dataclasses
import json
import shutil
import sys

import evaluate
import export
import predict
import pytest
import report
from PIL import Image
from safetensors.numpy import load_file

import largebatch
import train
from largebatch import weights
from largebatch.checkpoint import file
from largebatch.checkpoint.checkpoints import manifest_of, path_of
from largebatch.checkpoint.place import LocalPlace
from largebatch.environment import ROOT
from largebatch.errors import UserError
from largebatch.models import functional
from largebatch.weights import names
from tests.weights.evaluation.devices import one_quick_device

EVIL = """
import pathlib
from flax import nnx
pathlib.Path(__file__).with_suffix(".ran").touch()

class Net(nnx.Module):
    def __init__(self, classes, *, rngs, dtype=None):
        self.conv = nnx.Conv(1, 8, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, images):
        return self.head(nnx.relu(self.norm(self.conv(images))).mean((1, 2)))

def source(argument, split, options):
    from largebatch.data import open_source
    return open_source("digits", split)
"""
SHORT = (
    "--config.schedule.length=4 steps",
    "--config.schedule.warmup=1 steps",
    "--config.schedule.ema=2 steps",
    "--config.run.evaluate_every=4 steps",
    "--config.run.checkpoint_every=4 steps",
)
OWN = ("--config.model.name=evil:Net", "--config.model.width=64", "--config.model.stem=conv7")


@pytest.fixture(scope="module", autouse=True)
def _one_device():
    with one_quick_device():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a recipe, a module beside it, and a run and an export of its network."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "recipes").mkdir()
    (folder / "recipes" / "evil.py").write_text(EVIL)
    recipe = folder / "recipes" / "mine.py"
    recipe.write_text((ROOT / "configs" / "digits.py").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        assert train.main([f"--config={recipe}", "--workdir=run", *OWN, *SHORT]) == 0
        words = ["run", "--ema", "--to=own.safetensors", "--format=flax", "--verify"]
        assert export.main([*words, "--trust=evil"]) == 0
    sys.modules.pop("evil")
    (folder / "recipes" / "evil.ran").unlink()
    return folder


@pytest.fixture
def here(made, monkeypatch):
    """The folder ``made`` as the working directory; the module is not imported yet.

    ``evil.py`` is beside the recipe, in the run, in the working directory and on the import path.
    """
    monkeypatch.chdir(made)
    # As after an earlier command: the directory of the recipes is there already.
    monkeypatch.setattr(sys, "path", [*sys.path, str(made / "installed"), str(ROOT / "configs")])
    functional._shapes.cache_clear()
    names.shapes.cache_clear()
    for folder in ("run", ".", "installed"):
        (made / folder).mkdir(exist_ok=True)
        (made / folder / "evil.py").write_text(EVIL)
    Image.new("L", (8, 8)).save("zero.png")
    yield made
    sys.modules.pop("evil", None)
    for mark in made.rglob("evil.ran"):
        mark.unlink()


def ran(folder):
    """The modules that have run, by folder."""
    return [str(mark.parent.relative_to(folder)) for mark in folder.rglob("evil.ran")]


READERS = {
    "evaluate": lambda path: evaluate.main([path]),
    "predict": lambda path: predict.main([path, "zero.png"]),
    "export": lambda path: export.main([path, "--to=copy.safetensors", "--format=flax"]),
    "init_from": lambda path: train.main(
        ["--config=digits", "--workdir=new", f"--init_from={path}", *SHORT]
    ),
}


@pytest.mark.parametrize("path", ["run", "own.safetensors"])
@pytest.mark.parametrize("reader", READERS)
def test_a_network_is_imported_only_if_the_user_names_it(reader, path, here, capsys):
    before = list(sys.path)
    assert READERS[reader](path) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "model.name=evil:Net" in line
    assert "--trust=" in line
    assert "evil" not in sys.modules
    assert ran(here) == []
    assert sys.path == before


def test_the_python_interface(here):
    with pytest.raises(largebatch.errors.ConfigError, match="--trust="):
        largebatch.load("run")
    assert "evil" not in sys.modules
    assert type(largebatch.load("run", trust="evil")).__name__ == "Net"
    assert ran(here) == ["installed"]


@pytest.mark.parametrize("word", ["evil", "recipes/evil.py"])
def test_what_the_user_names_is_imported(word, here, capsys):
    sys.path.remove(str(here / "installed"))
    assert evaluate.main(["run", f"--trust={word}"]) == 0
    assert predict.main(["own.safetensors", "zero.png", f"--trust={word}"]) == 0
    assert ran(here) == ["recipes" if "/" in word else "."]


NAMING = {
    "model.name": "evil:Net",
    "data.source": "evil:source",
    "optimizer.name": "evil:source",
    "loss.kind": "evil:source",
    "augment.policy": "evil:source",
    "comm.allreduce": "evil:source",
    "comm.wire": "evil:source",
    "run.trackers": ("evil:source",),
    "data.validation_sets": ("more=evil:source",),
    "batch.stages": ("2 steps: data.source=evil:source",),
}


def test_a_report_imports_nothing(here):
    written = json.loads((here / "run" / "config.json").read_text())
    for option, value in NAMING.items():
        section, _, key = option.partition(".")
        written["config"][section][key] = value
    (here / "run" / "config.json").write_text(json.dumps(written))
    assert report.main(["run"]) == 0
    assert ran(here) == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of a built-in network."""
    run = tmp_path_factory.mktemp("plain") / "run"
    assert train.main(["--config=digits", f"--workdir={run}", *SHORT, "--quiet"]) == 0
    return run


@pytest.mark.parametrize(
    "option",
    [pytest.param(key, marks=pytest.mark.slow if i > 1 else ()) for i, key in enumerate(NAMING)],
)
def test_every_option_of_a_runs_files(option, plain, here, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(plain, run)
    section, _, key = option.partition(".")
    about = manifest_of(LocalPlace(run), 4)
    config = {**about.config, section: {**about.config[section], key: NAMING[option]}}
    arrays = load_file(run / path_of(4))
    content = file.encode(dataclasses.replace(about, config=config), arrays)
    (run / path_of(4)).write_bytes(content)
    written = json.loads((run / "config.json").read_text())
    del written["source"]  # what the run recorded of its data, which are opened without it
    written |= {"config": config, "recipe": str(here / "recipes" / "mine.py")}
    (run / "config.json").write_text(json.dumps(written))
    before = list(sys.path)
    with contextlib.suppress(UserError):
        weights.read(run)
    evaluate.main([str(run)])
    train.main(["--config=digits", f"--workdir={run}", "--resume=must", *SHORT])
    assert ran(here) == []
    assert "evil" not in sys.modules
    assert "Traceback" not in capsys.readouterr().err
    assert sys.path == before
