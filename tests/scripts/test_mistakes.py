"""A wrong option of any command is one line that names it, and code 2; nothing is written."""

import importlib
import shutil

import pytest

from largebatch import weights
from tests.scripts.test_plan import DIGITS, arguments
from tests.tools.report import made_up
from tests.weights.evaluation import cases

RECORD = "fujitsu2019_81920"
PEAK = ["digits", "--sweep", "schedule.peak=1,2"]
TABLE = [
    ("benchmark", ["step", "--batch", "32,x"], "--batch"),
    ("benchmark", ["step", "--peer", "flaks"], "'flax'"),
    ("benchmark", ["step", "--variant", "model.stem='x"], "--variant"),
    ("benchmark", ["step", "--variant", "model.rematt=norms"], "model.remat"),
    ("benchmark", ["input"], "--data"),
    ("benchmark", ["input", "--config.run.seed=1"], "benchmark input"),
    ("benchmark", ["input", "--data", "synthetic", "--repeats", "0"], "--repeats"),
    ("benchmark", ["gpu", "--out", "x", "--parts", "stop"], "--parts stop"),
    ("benchmark", ["optimizer", "--sets", "0"], "--sets"),
    ("evaluate", ["x", "--source=nothing"], "data.source"),
    ("evaluate", ["x", "--source=digits", "--match=numbers", "--out={tmp}/file/x"], "file/x"),
    ("export", ["x", "--to={tmp}/x.pth"], "'.pth'"),
    ("export", ["x", "--to={tmp}/file"], "--force"),
    ("export", ["x", "--to=/proc/x.safetensors"], "/proc/x.safetensors"),
    ("plan", arguments("--variants=our"), "'ours'"),
    ("plan", arguments(topology="v101:4"), "'v100'"),
    ("plan", arguments(topology="cpu:3"), "3 devices"),
    ("plan", arguments("--config.data.source=tfds:imagenet2013"), "data.source=synthetic"),
    ("plan", arguments("--compare=model.remat=both"), "'blocks'"),
    ("plan", arguments("--compare=model.remat=none", "--variants=ours,tree"), "--variants"),
    ("plan", arguments("--compare=model.remat=none", "--compare=model.remat=none"), "model.remat"),
    ("plan", arguments("--limit_s=0.1"), "--limit_s"),
    ("plan", ["digits", "--compare=batch.images_per_worker=2,4"], "--topology"),
    ("plan", [RECORD, "--cluster=abcd"], "'abci'"),
    ("plan", [RECORD, "--cluster=abci", "--devices=2047"], "2,047 devices"),
    ("plan", [RECORD, "--devices=-8"], "--devices"),
    ("predict", ["x", "{tmp}/empty"], "no images"),
    ("predict", ["x", "{tmp}", "--top=0"], "--top=0"),
    ("predict", ["x", "{tmp}", "--crop=2"], "--crop"),
    ("predict", ["x", "{tmp}", "--std=50,50,0"], "--std"),
    ("predict", ["x", "{tmp}", "--mean=a"], "--mean"),
    ("recipes", ["fujitsu2019"], RECORD),
    ("recipes", ["--batch", "100"], "batch"),
    ("recipes", ["--run", "runs/digits"], "--batch"),
    ("report", [], "RUN"),
    ("report", ["{tmp}/empty"], "metrics.jsonl"),
    ("report", ["{tmp}/run", "{tmp}/run"], "twice"),
    ("reproduce", ["digits", "--runs=0"], "--runs=0"),
    ("reproduce", ["digits", "--cluster=h100"], "'dgx-h100'"),
    ("reproduce", ["digit"], "'digits'"),
    ("reproduce", ["digits", "--config.run.mlperf_log=closed"], "lars_opt_end_learning_rate"),
    ("reproduce", ["digits", "--config.data.source=folder:nowhere"], "nowhere"),
    ("reproduce", ["digits", "--out=s3://bucket/records"], "--out=s3://bucket/records"),
    ("reproduce", ["digits", "--workdir=gs://bucket/runs"], "--workdir=gs://bucket/runs"),
    ("study_synchrony", ["--quick", "--seeds=0,x"], "--seeds"),
    ("study_synchrony", ["--quick", "--seeds=-1"], "--seeds"),
    ("sweep", ["digits"], "--sweep"),
    ("sweep", ["digits", "--sweep", "schedule.peek=1,2"], "'schedule.peak'"),
    ("sweep", ["digits", "--sweep", "no/such.py"], "no/such.py"),
    ("sweep", ["digits", "--sweep", str(DIGITS)], "sweep()"),
    ("sweep", [*PEAK, "--trials=3"], "--trials"),
    ("sweep", [*PEAK, "--search=tpe"], "--trials=N"),
    ("sweep", [*PEAK, "--objective=target_s"], "--config.run.target"),
    ("sweep", [*PEAK, "--objective=v2/top1"], "data.validation_sets"),
    ("sweep", [*PEAK, "--jobs=0"], "--jobs=0"),
    ("sweep", [*PEAK, "--workdir=s3://bucket/lr"], "--workdir=s3://bucket/lr"),
    ("sweep", ["--best"], "--workdir"),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, with a file, an empty folder and a run; weights ``x``; no dataset."""
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    made_up.write(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    made = cases.weights(tuple("0123456789"))
    monkeypatch.setattr(weights, "read", lambda path, **_: made)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words", "named"), TABLE, ids=[f"{row[0]} {row[2]}" for row in TABLE]
)
def test_a_mistake_is_one_line(command, words, named, here, capsys):
    before = sorted(here.rglob("*"))
    words = [word.format(tmp=here) for word in words]
    assert importlib.import_module(command).main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert named in line
    assert sorted(here.rglob("*")) == before


def test_a_full_disk_is_found_before_a_reproduction(here, monkeypatch, capsys):
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    assert importlib.import_module("reproduce").main(["digits"]) == 2
    assert "1.0 MiB free" in capsys.readouterr().err
    assert not (here / "runs").exists()
