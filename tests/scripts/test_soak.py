"""The soak's own judgement: moments, what was hit, what counts as lost; and one short soak."""

import dataclasses
import json
import random
import re
import sys

import pytest
import soak
from soaking.evidence import Evidence, differences, untimed
from soaking.kills import Kill, hit, resume, table
from soaking.moments import Moment, draw
from soaking.turns import Turn, take_turn

from largebatch.checkpoint import manifest
from largebatch.config import Facts, freeze, resolve
from largebatch.files import write_json

PLAN = resolve(
    freeze(
        {
            "batch": {"workers": 1, "images_per_worker": 10},
            "schedule": {"length": "20 steps", "warmup": "1 steps", "peak": 1.0},
            "run": {"evaluate_every": "5 steps", "checkpoint_every": "4 steps"},
        }
    ),
    Facts(100, 10, 10, (8, 8, 1), devices=1),
)
ROW = {"step": 1, "loss": 2.5, "images_per_s": 7.0, "input_wait": 0.1}
WHOLE = Evidence(
    status="complete",
    steps=20,
    checkpoint=20,
    arrays={"params/a": ((2,), "float32", "aa"), "params/b": ((1,), "float32", "bb")},
    metrics=[untimed(ROW), {"step": 2, "loss": 2.0}],
    layers=[{"step": 2, "samples": 20, "layers": {}}],
    leftovers=[],
)


def test_moments_are_of_all_kinds_and_repeat_with_their_seed():
    times = {"start_s": 4.0, "left_s": 16.0}
    drawn = [draw(random.Random(n), **times, saves_left=9) for n in range(400)]
    assert drawn == [draw(random.Random(n), **times, saves_left=9) for n in range(400)]
    by_aim = {aim: [m for m in drawn if m.aim == aim] for aim in ("any time", "save", "start-up")}
    assert {aim: round(len(found) / 400, 1) for aim, found in by_aim.items()} == {
        "any time": 0.6,
        "save": 0.3,
        "start-up": 0.1,
    }
    anywhere = sorted(m.after_s for m in by_aim["any time"])
    assert 0 <= anywhere[0] < 1
    assert 19 < anywhere[-1] <= 20
    assert 8 < anywhere[len(anywhere) // 2] < 12
    assert all(m.after_s <= 4 for m in by_aim["start-up"])
    assert {m.saves for m in by_aim["save"]} == {1, 2, 3, 4}
    assert not {m.saves for m in drawn if m.aim != "save"} - {0}
    assert all(draw(random.Random(n), **times, saves_left=0).saves == 0 for n in range(50))


@pytest.mark.parametrize(
    ("log", "row", "saving", "wanted"),
    [
        ("", 0, False, "start-up"),
        ("compiling all: done once\n", 0, False, "compile"),
        ("compiling all\ncompiled all in 3 s\n", 2, False, "step"),
        ("compiled all\n", 4, False, "evaluation"),
        ("compiled all\n", 5, False, "step"),
        ("compiled all\n", 19, False, "evaluation"),  # the last step always has one
        ("compiled all\n", 20, False, "closing"),
        ("compiled all\n", 4, True, "save"),
    ],
)
def test_what_was_hit(log, row, saving, wanted):
    assert hit(Turn(None, "", 1.0, None, log, saving), row, PLAN) == wanted


def test_where_a_turn_went_on():
    def resumed(log):
        return Turn(None, "", 1.0, None, log, False).resumed

    assert resumed("resuming from /tmp/7/checkpoints/120\ncompiled all in 2 s\n") == 120
    assert resumed("compiled all in 2 s\n") == 0
    assert resumed("compiling all\n") is None


def kill(**changes):
    return dataclasses.replace(Kill(1, 1, "save", 2.0, "", "save", row=9, checkpoint=8), **changes)


def test_what_a_kill_may_cost():
    first, second = kill(), kill(turn=2, row=8, hit="start-up")
    assert resume([first, second], 8, 4) == []
    assert (first.resumed, first.repeated, second.repeated) == (8, 1, 0)
    (said,) = resume([kill()], 4, 4)
    assert "it went on from step 4, the newest checkpoint was that of 8" in said
    (said,) = resume([kill(row=17)], 8, 4)  # nine steps, and checkpoints every four
    assert "9 steps were repeated, checkpoints are 4 apart" in said
    assert resume([kill(row=16)], 8, 4) == []
    shown = table([first, second, kill(turn=3)]).splitlines()
    assert shown[1].split() == ["start-up", "1", "0,", "0"]
    assert shown[5].split() == ["save", "2", "1,", "1"]
    assert shown[-1].split() == ["all", "3", "1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"status": "preempted"}, "it is preempted at step 20, not complete at 20"),
        ({"steps": 19}, "it is complete at step 19"),
        ({"checkpoint": 16}, "its newest checkpoint is 16, not 20"),
        (
            {"arrays": WHOLE.arrays | {"params/b": ((1,), "float32", "cc")}},
            "1 of 2 arrays of that checkpoint differ: params/b",
        ),
        ({"arrays": {"params/a": WHOLE.arrays["params/a"]}}, "1 of 2 arrays .*: params/b"),
        ({"metrics": WHOLE.metrics[:1]}, r"metrics\.jsonl has rows of other steps \(1 for 2\)"),
        (
            {"metrics": [*WHOLE.metrics, WHOLE.metrics[1]]},
            r"metrics\.jsonl has rows of other steps \(3 for 2\)",
        ),
        (
            {"metrics": [WHOLE.metrics[0], {"step": 2, "loss": 2.0000001}]},
            r"rows of metrics\.jsonl differ at 1 steps: 2",
        ),
        ({"layers": [WHOLE.layers[0] | {"samples": 21}]}, r"rows of layers\.jsonl differ"),
        ({"leftovers": [".16.partial"]}, r"left among the checkpoints: \.16\.partial"),
    ],
)
def test_what_counts_as_lost(change, said):
    found = differences(WHOLE, dataclasses.replace(WHOLE, **change))
    if said is None:
        assert found == []
    else:
        assert len(found) == 1
        assert re.search(said, found[0]), found


def test_times_are_not_compared():
    assert untimed(ROW) == {"step": 1, "loss": 2.5}


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

    def turn(name, moment, limit_s=30.0):
        return take_turn(
            [str(tmp_path / "sleeper.py")],
            tmp_path / name,
            tmp_path / f"{name}.log",
            moment,
            processes=1,
            limit_s=limit_s,
            rng=random.Random(0),
        )

    killed = turn("third", Moment("save", 0.0, saves=3))
    assert (killed.code, killed.saving, killed.log) == (None, True, "begun\n")
    assert len(list((tmp_path / "third" / "checkpoints").iterdir())) in (3, 4)
    killed = turn("timed", Moment("any time", 0.5))
    assert killed.code is None
    assert killed.after_s >= 0.5
    with pytest.raises(TimeoutError, match="does not end within 1 s"):
        turn("hung", None, limit_s=0.6)
    (tmp_path / "sleeper.py").write_text("import sys; sys.exit(3)")
    assert turn("ended", Moment("any time", 50.0)).code == 3


# Trains nothing: rows, and manifests that the test has made, with the faults that a soak must find.
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
rows.write_text("".join(row for row in kept if json.loads(row)["step"] <= done))
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
(workdir / "summary.json").write_text(json.dumps({"status": "complete", "steps": 40}))
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a trainer in the place of ours; its files and the soak's folder."""
    facts = Facts(100, 10, 10, (8, 8, 1), devices=1)
    schedule = {"length": "40 steps", "warmup": "1 steps", "peak": 1.0}
    run = {"checkpoint_every": "10 steps", "evaluate_every": "20 steps"}
    batch = {"workers": 1, "images_per_worker": 10}
    plan = resolve(freeze({"batch": batch, "schedule": schedule, "run": run}), facts)
    for name, digit in (("same", "a"), ("other", "b")):
        for step in range(10, 41, 10):
            about = manifest.described(manifest.Progress(step=step), plan)
            arrays = {"params/x": manifest.Array((2,), "float32", 32 * digit)}
            text = manifest.encode(dataclasses.replace(about, arrays=arrays))
            (tmp_path / f"{name}_{step}.json").write_bytes(text)
    kept = {"config": dataclasses.asdict(plan.config), "facts": dataclasses.asdict(facts)}
    write_json(tmp_path / "config.json", kept | {"plan": {"microbatch": 1}, "environment": {}})
    (tmp_path / "train.py").write_text(STAND_IN)
    (tmp_path / "soak").mkdir()
    monkeypatch.setattr(soak, "TRAIN", tmp_path / "train.py")
    monkeypatch.setattr(soak.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "soak"))
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    return tmp_path


def test_a_trainer_that_loses_nothing(stand_in, monkeypatch, capsys):
    monkeypatch.setenv("KIND", "sound")
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
        ("forgetful", "1 of 1 arrays of that checkpoint differ: params/x"),
        ("lazy", "it went on from step"),
        ("crashing", "ends with code 1"),
    ],
)
def test_a_trainer_that_does_is_found_out(stand_in, monkeypatch, capsys, kind, said):
    monkeypatch.setenv("KIND", kind)
    monkeypatch.setattr(soak, "draw", lambda *_, **__: Moment("save", 0.0, saves=3))
    assert soak.main(["--kills=1", f"--out={stand_in / 'record.json'}"]) == 1
    assert said in capsys.readouterr().err
    record = json.loads((stand_in / "record.json").read_text())
    assert said in record["lost"]
    assert record["kills"]
    assert (stand_in / "soak" / "run_1").is_dir()  # the evidence


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_short_soak(tmp_path, monkeypatch, capfd):
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
    code = soak.main(["--kills=2", "--seed=3", f"--out={out}", *short])
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
