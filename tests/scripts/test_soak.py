"""The soak: moments of kills, what counts as lost, a stand-in trainer, and one short soak."""

import dataclasses
import json
import random
import sys

import pytest
import soak
from soaking.runs import Moment, attempt, differences, evidence

from largebatch.checkpoint import manifest
from largebatch.config import Facts, freeze, resolve
from largebatch.files import write_json
from largebatch.tracking import Summary
from tests.object_servers import Gateway

FACTS = Facts(100, 10, 10, (8, 8, 1), devices=1)
OPTIONS = {
    "batch": {"workers": 1, "images_per_worker": 10},
    "schedule": {"length": "40 steps", "warmup": "1 steps", "peak": 1.0},
    "run": {"checkpoint_every": "10 steps", "evaluate_every": "20 steps"},
}
PLAN = resolve(freeze(OPTIONS), FACTS)


def test_moments_are_at_any_time_and_in_saves_and_repeat_with_their_seed():
    def draw(step):
        made = soak.Soak((), soak.Path(), "", 60.0, random.Random(0), PLAN, whole_s=20.0)
        return [made._draw(step, 10) for _ in range(400)]

    drawn = draw(0)
    assert drawn == draw(0)
    saves = [moment for moment in drawn if moment.save]
    assert abs(len(saves) / 400 - soak.SAVES) < 0.1
    assert {moment.save for moment in saves} == {1, 2, 3, 4}
    assert 19 < max(moment.after_s for moment in drawn) <= 20
    assert not any(moment.save for moment in draw(40))


def finished(workdir, digit="a"):
    """Write what a run leaves; return its directory."""
    folder = workdir / "checkpoints" / "40"
    folder.mkdir(parents=True)
    about = manifest.described(manifest.Progress(step=40), PLAN)
    arrays = {"params/x": manifest.Array((2,), "float32", 32 * digit)}
    arrays["params/y"] = manifest.Array((2,), "float32", 32 * "a")
    encoded = manifest.encode(dataclasses.replace(about, arrays=arrays))
    (folder / manifest.NAME).write_bytes(encoded)
    Summary("complete", 0.5, 0.9, 1.0, 40, 400, 9.0, 1.0, 100.0).write(workdir)
    (workdir / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "images_per_s": 7.0}\n')
    (workdir / "layers.jsonl").write_text('{"step": 1, "layers": {}}\n')
    return workdir


def test_what_counts_as_lost(tmp_path):
    whole = evidence(finished(tmp_path / "whole"))
    assert differences(whole, evidence(finished(tmp_path / "again"))) == []
    other = evidence(finished(tmp_path / "array", "b"))
    assert differences(whole, other) == ["array params/x"]
    run = finished(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "images_per_s": 8.0}\n')
    assert differences(whole, evidence(run)) == []  # times may differ
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.1}\n{"step": 1, "loss": 2.1}\n')
    found = differences(whole, evidence(run))
    assert found == ["metrics.jsonl row 0", "metrics.jsonl row 1"]
    (run / "checkpoints" / ".30.partial").mkdir()
    assert "left over" in differences(whole, evidence(run))


SLEEPER = """
import pathlib, sys, time
workdir = pathlib.Path(sys.argv[-1].removeprefix("--workdir="))
(workdir / "checkpoints").mkdir(parents=True)
print("begun", flush=True)
for number in range(1, 50):
    time.sleep(0.05)
    (workdir / "checkpoints" / f".{number}.partial").mkdir()
time.sleep(60)
"""


def test_a_process_is_killed_at_the_save_that_was_meant(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)

    def run(name, moment, limit_s=30.0):
        command = [str(tmp_path / "sleeper.py")]
        return attempt(command, tmp_path / name, tmp_path / f"{name}.log", moment, limit_s)

    killed = run("third", Moment(0.0, save=3))
    assert (killed.code, killed.saving, killed.log) == (None, True, "begun\n")
    assert len(list((tmp_path / "third" / "checkpoints").iterdir())) >= 3
    killed = run("timed", Moment(0.5))
    assert killed.code is None
    assert killed.seconds >= 0.5
    with pytest.raises(TimeoutError):
        run("hung", None, limit_s=0.6)
    (tmp_path / "sleeper.py").write_text("import sys; sys.exit(3)")
    assert run("ended", Moment(50.0)).code == 3


# Trains nothing: it writes rows and prepared manifests, with the faults that a soak must find.
STAND_IN = """
import json, os, pathlib, shutil, sys, time
given, kind = pathlib.Path(os.environ["STAND_IN"]), os.environ["KIND"]
workdir = pathlib.Path(sys.argv[-1].partition("=")[2])
checkpoints, rows = workdir / "checkpoints", workdir / "metrics.jsonl"
time.sleep(0.1)
print("compiling", flush=True)
checkpoints.mkdir(parents=True, exist_ok=True)
for left in checkpoints.glob(".*.partial"):
    shutil.rmtree(left)
done = max((int(path.name) for path in checkpoints.glob("[0-9]*")), default=0)
if done and kind == "crashing":
    sys.exit(1)
if done and kind == "lazy":
    shutil.rmtree(checkpoints / str(done))
    done -= 10
kept = rows.read_text().splitlines(True) if done else []
earlier = workdir / "metrics.earlier"
earlier.write_text("".join(row for row in kept if json.loads(row)["step"] <= done))
earlier.replace(rows)
(workdir / "layers.jsonl").touch()
shutil.copy(given / "config.json", workdir)
if done:
    print(f"resuming from {checkpoints}/{done}")
print("compiled in 0 s", flush=True)
with rows.open("a", buffering=1) as stream:
    for step in range(done + 1, 41):
        time.sleep(0.01)
        stream.write(json.dumps({"step": step, "loss": 1 / step, "images_per_s": time.time()}))
        stream.write(chr(10))
        if step % 10 == 0:
            partial = checkpoints / f".{step}.partial"
            partial.mkdir()
            time.sleep(0.03)
            name = "other" if done and kind == "forgetful" else "same"
            shutil.copy(given / f"{name}_{step}.json", partial / "manifest.json")
            partial.rename(checkpoints / str(step))
shutil.copy(given / "summary.json", workdir)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Replace train.py; return the folder of its files and of the soak."""
    for name, digit in (("same", "a"), ("other", "b")):
        for step in range(10, 41, 10):
            about = manifest.described(manifest.Progress(step=step), PLAN)
            arrays = {"params/x": manifest.Array((2,), "float32", 32 * digit)}
            text = manifest.encode(dataclasses.replace(about, arrays=arrays))
            (tmp_path / f"{name}_{step}.json").write_bytes(text)
    kept = {"config": dataclasses.asdict(PLAN.config), "facts": dataclasses.asdict(FACTS)}
    write_json(tmp_path / "config.json", kept | {"plan": {"microbatch": 1}, "environment": {}})
    Summary("complete", 0.5, 0.9, 1.0, 40, 400, 9.0, 1.0, 100.0).write(tmp_path)
    (tmp_path / "train.py").write_text(STAND_IN)
    (tmp_path / "soak").mkdir()
    monkeypatch.setattr(soak, "TRAIN", tmp_path / "train.py")
    monkeypatch.setattr(soak.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "soak"))
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    return tmp_path


def test_a_trainer_that_loses_nothing(stand_in, monkeypatch, capsys):
    monkeypatch.setenv("KIND", "correct")
    assert soak.main(["--kills=4", f"--out={stand_in / 'record.json'}"]) == 0
    printed = capsys.readouterr().out
    assert "runs with 4 kills equal the one without: nothing was lost" in printed
    record = json.loads((stand_in / "record.json").read_text())
    assert (record["lost"], record["steps"], record["checkpoint_every_steps"]) == ("", 40, 10)
    assert len(record["kills"]) == 4
    assert all(kill["resumed"] == kill["checkpoint"] for kill in record["kills"])
    assert record["most_repeated"] <= 20
    assert not (stand_in / "soak").exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("forgetful", "array params/x"),
        ("lazy", "checkpoints are 10 steps apart"),
        ("crashing", "exit code 1"),
    ],
)
def test_a_trainer_that_loses_something_is_reported(stand_in, monkeypatch, capsys, kind, said):
    monkeypatch.setenv("KIND", kind)
    monkeypatch.setattr(soak.Soak, "_draw", lambda *_: Moment(0.0, save=3))
    assert soak.main(["--kills=1", f"--out={stand_in / 'record.json'}"]) == 1
    assert said in capsys.readouterr().err
    record = json.loads((stand_in / "record.json").read_text())
    assert said in record["lost"]
    assert record["kills"]
    assert (stand_in / "soak" / "run_1").is_dir()  # the evidence


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("store", ["", "s3"])
def test_a_short_soak(tmp_path, monkeypatch, capfd, moto, store):
    if store:
        gateway = Gateway(moto)
        for name, value in gateway.environment(store).items():
            monkeypatch.setenv(name, value)
        gateway.fault = lambda method, path, number: "503" if number % 10 == 0 else ""
    monkeypatch.setattr(soak.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "soak"))
    (tmp_path / "soak").mkdir()
    for name, value in {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "record.json"
    short = [
        "--config.schedule.length=300 steps",
        "--config.schedule.warmup=30 steps",
    ]
    kept = [f"--store={store}://bucket/soak"] if store else []
    code = soak.main(["--kills=2", "--seed=3", f"--out={out}", *kept, *short])
    printed = capfd.readouterr()
    assert code == 0, printed.err
    assert printed.out.rstrip().endswith("kills equal the one without: nothing was lost")
    record = json.loads(out.read_text())
    assert record["lost"] == ""
    assert record["steps"] == 300
    assert len(record["kills"]) == 2
    assert all(kill["resumed"] == kill["checkpoint"] for kill in record["kills"])
    assert record["environment"]["python"].startswith(f"{sys.version_info.major}.")
    assert not (tmp_path / "soak").exists()
