"""docs/launch/record.md: every command is run with stand-ins, and every prediction compared."""

import json
import re
import subprocess
from pathlib import Path

import plan
import prepare_imagenet
import pytest
import reproduce

import train as entry
from largebatch.config import load
from largebatch.tools.reproduce import reproduction
from tests.data.prepare import fakes
from tests.scripts.test_launch import FAKES, JOB, Launch

ROOT = Path(entry.__file__).parent
PAGE = (ROOT / "docs" / "launch" / "record.md").read_text()
STEPS = dict(re.findall(r"^## (\d+)\. .+?\n\n```\n(.+?)\n```", PAGE, re.MULTILINE | re.DOTALL))
ONE_HOST = re.search(r"^## One host.+?```\n(.+?)\n```", PAGE, re.MULTILINE | re.DOTALL)[1]


class Cluster(Launch):
    """Stand-ins on PATH; what would start a program only notes it."""

    def __init__(self, folder):
        super().__init__(folder)
        (self.bin / "sbatch").symlink_to(FAKES / "sbatch")
        for name in ("python", "pip"):
            (self.bin / name).symlink_to(FAKES / "recorder")

    def shell(self, command):
        """Run a line of the page; what it called, each process once."""
        here = {"/shared": f"{self.folder}/shared", "/local": f"{self.folder}/local"}
        for known, own in here.items():
            command = command.replace(known, own)
        before = len(self.calls)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=self.environment(**{**JOB, "PYTHON": "python"}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = []
        for name, *words in self.calls[before:]:
            if name == "python" and words[:-1] not in found:
                found.append(words[:-1])
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """With the tars, and the folders that the last steps find."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    fakes.write_tars(made.folder / "shared" / "tars")
    activate = made.folder / "shared" / "venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("")
    return made


@pytest.fixture
def requests(monkeypatch):
    """What scripts/reproduce.py was asked for."""
    found = []
    monkeypatch.setattr(reproduction, "reproduce", lambda request, *_, **__: found.append(request))
    return found


def job(words, requests):
    """A program of the job accepts its arguments; its resolved configuration."""
    script, *arguments = words
    if script == "train.py":
        flags, overrides = entry.parse(arguments)
        return load(ROOT / flags.config, overrides)
    assert script == "scripts/reproduce.py"
    assert reproduce.main(arguments) == 0
    return load(requests[-1].recipe, requests[-1].overrides)


def column(number):
    """A column of the table of what to expect, by the name of its row."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    return {name: cells[number] for name, *cells in rows}


@pytest.mark.parametrize(
    ("command", "number", "hosts"),
    [pytest.param(STEPS["2"], 0, 8, marks=pytest.mark.slow), (ONE_HOST.splitlines()[0], 1, 1)],
    ids=["64", "8"],
)
def test_predictions_are_those_of_the_plan(command, number, hosts, cluster, tmp_path):
    (words,) = cluster.shell(command)
    out = tmp_path / "plan.json"
    assert words[0] == "scripts/plan.py"
    data = f"--config.data.data_dir={tmp_path}"
    assert plan.main([*words[1:], data, f"--json={out}"]) == 0
    kept = json.loads(out.read_text())["plan"]
    found, need, shown = kept["prediction"], kept["input"], column(number)
    assert need["hosts"] == hosts
    clock, low, high = (f"{found[key]:,.1f}" for key in ("clock_s", "low_s", "high_s"))
    assert shown["time of a run, by MLPerf's clock"] == f"{clock} s ({low} to {high})"
    assert shown["step"] == f"{1e3 * found['step_s']:.2f} ms"
    five = 5 * found["clock_s"]
    assert shown["five runs"] == (f"{five / 60:.0f} min" if hosts > 1 else f"{five / 3600:.1f} h")
    assert shown["device-hours of a run"] == f"{found['device_hours']:.2f}"
    assert shown["decoded images/s of each host"] == f"{need['images_per_s']:,.0f}"
    cores = [f"{round(count)}" for count in need["cores"].values()]
    names = ("CPU cores of each host, full-size JPEGs", "… JPEGs of 256 pixels")
    assert [shown[name] for name in names] == cores
    # Of the training tar, 147.9 GB for 1,281,167 images.
    read = need["images_per_s"] * 147.9 / 1_281_167
    assert shown["read from each host's disk, full-size JPEGs"] == f"{read:.1f} GB/s"
    assert int(shown["workers of 40 images on each GPU"]) * kept["devices"] == 2048


@pytest.fixture(scope="module")
def prepared(cluster):
    """Steps 4 and 5, on a few images."""
    for step, more in (("4", ["--allow-partial"]), ("5", [])):
        (words,) = cluster.shell(STEPS[step])
        assert words[0] == "scripts/prepare_imagenet.py"
        assert prepare_imagenet.main([*words[1:], "--processes=1", *more]) == 0
    return cluster.folder / "shared" / "data" / "imagenet2012"


@pytest.mark.parametrize(("step", "script"), [("6", "train.py"), ("7", "scripts/reproduce.py")])
def test_jobs_copy_the_data_and_start_what_they_name(step, script, prepared, cluster, requests):
    (words,) = cluster.shell(STEPS[step])
    assert words[0] == script
    local = cluster.folder / "local" / "data"
    assert fakes.contents(local / "imagenet2012") == fakes.contents(prepared)
    config = job(words, requests)
    assert (config.data.data_dir, config.batch.images) == (str(local), 81_920)
    assert any(word.startswith(f"--workdir={cluster.folder}/shared/runs") for word in words)
    asked = cluster.called("sbatch")[-1]
    assert "--nodes=8" in asked
    assert "--no-requeue" in asked
    if step == "7":
        (request,) = requests
        assert (request.runs, request.scale, request.cluster) == (5, "full", "dgx-h100")
        assert str(request.out) == f"{cluster.folder}/shared/records"
    if step == "6":
        assert "--dry_run" in words
