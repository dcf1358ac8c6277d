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

from largebatch.config import Facts, freeze, resolve

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
        "--config.comm.xla_options=xla_backend_optimization_level=0",
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
