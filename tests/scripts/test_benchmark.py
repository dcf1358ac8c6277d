"""The benchmark's results, its races, its processes and the command for a GPU; nothing is timed."""

import argparse
import dataclasses
import itertools
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import benchmark
import pytest
from benchmarks import gpu, step, training
from benchmarks.competitor import Absent, Competitor, FailedError, Race, Work, compete, interleave
from benchmarks.measure import Result, figure, summary, table

from largebatch.errors import DataError
from tests.scripts import competitors

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins to cores: Linux")


# ---- results


def test_summary_of_repeats():
    assert summary([3.0, 1.0, 2.0]) == {
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "spread": 1.0,
        "repeats": [3.0, 1.0, 2.0],
    }
    assert summary([-3.0, -2.0, -1.0])["spread"] == 1.0
    assert summary([]) is None


def test_the_ratio_is_of_pairs():
    # Ratio of the medians: 10 / 10 = 1. Repeat by repeat ours is twice as fast.
    drifting = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 5.0, 1.0), "peer")
    assert drifting.ratios == (2.0, 2.0, 2.0)
    assert Result.from_json(drifting.as_json()) == drifting
    shuffled = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 2.0, 20.0), "peer")
    assert shuffled.as_json()["ratio"]["median"] == 2.0
    assert Result("x", "ms", (10.0,), (30.0,), "peer").ratios == (3.0,)  # above 1 ours is better
    assert Result("x", "ms", (10.0,)).as_json()["ratio"] is None


def test_competitors_are_interleaved():
    turns = itertools.count()
    found = interleave({"a": lambda: {"n": next(turns)}, "b": lambda: {"n": next(turns)}}, 2)
    assert found == {"a": [{"n": 0}, {"n": 2}], "b": [{"n": 1}, {"n": 3}]}


def test_a_race_has_ours_then_what_each_peer_shares():
    figures = {"ours": [{"images/s": 4.0, "s": 1.0}] * 2, "p": [{"images/s": 2.0, "GiB": 3.0}] * 2}
    race = Race(figures, {"q": "no q"}, {"ours": "how"})
    assert race.results("x") == [
        Result("x", "images/s", (4.0, 4.0), note="how"),
        Result("x", "s", (1.0, 1.0)),
        Result("x vs p", "images/s", (4.0, 4.0), (2.0, 2.0), "p"),
        Result("x vs q", "images/s", peer_name="q", absent="no q"),
    ]


def test_the_table_shows_medians():
    assert figure([1.0, 2.0, 3.0]) == "2 ±50%"
    assert figure([-0.05, 0.01, 0.05]) == "0.01 ±0.05"
    results = [
        Result("a", "images/s", (3000.4,), (1000.0,), "p"),
        Result("c", "ms", peer_name="p", absent="not here"),
    ]
    columns = {column.header: list(column.cells) for column in table("t", results).columns}
    assert columns["ours"] == ["3,000", "–"]
    assert columns["ratio"] == ["3", "–"]
    assert columns["peer"] == ["1,000", "absent"]


# ---- processes


def one_core(**more):
    return Work(cores=(min(os.sched_getaffinity(0)),), **more)


@linux
def test_a_competitor_is_pinned_and_stopped_between_its_repeats():
    work = one_core()
    with Competitor(competitors.counting, work) as competitor:
        assert competitor.about == "counts"
        for calls in (1, 2):
            found = competitor.repeat()
            assert found["calls"] == calls
            assert found["cores"] == set(work.cores)
            stat = Path(f"/proc/{found['pid']}/stat")
            for _ in range(1000):  # the signal may be on its way
                if (state := stat.read_text().rpartition(")")[2].split()[0]) == "T":
                    break
                time.sleep(0.01)
            assert state == "T"
    assert not stat.exists()


@linux
@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (competitors.absent, Absent),
        (competitors.without_data, DataError),
        (competitors.broken, FailedError),
        (competitors.ending, FailedError),
    ],
)
def test_how_a_competitor_fails(prepare, error):
    with pytest.raises(error):
        Competitor(prepare, one_core())


@pytest.mark.slow
@linux
def test_a_peer_that_fails_or_hangs_is_absent_and_the_rest_is_measured():
    work = one_core(answer_s=120.0)
    quick = dataclasses.replace(work, answer_s=5.0)
    tasks = {
        "ours": (competitors.counting, work),
        "not here": (competitors.absent, work),
        "broken": (competitors.broken, work),
        "silent": (competitors.silent, quick),
    }
    race = compete(tasks, 2)
    assert race.column("calls") == (2, 3)  # after one to warm up
    assert set(race.absent) == {"not here", "broken", "silent"}
    assert "KeyError" in race.absent["broken"]
    with pytest.raises(Absent):
        compete({"ours": (competitors.absent, work)}, 1)


@linux
def test_a_competitor_ends_with_its_parent_though_it_is_stopped():
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\n"
            "from benchmarks.competitor import Competitor, Work\n"
            "from tests.scripts.competitors import counting\n"
            f"one = Competitor(counting, Work(cores={one_core().cores!r}))\n"
            "print(one._process.pid, flush=True)\n"
            "time.sleep(600)\n",
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = Path(f"/proc/{int(parent.stdout.readline())}")
    assert child.exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(1000):
        if not child.exists() or child.joinpath("stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("it is still there")


# ---- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["step", "--batch", "32,x"], "--batch"),
        (["step", "--peer", "flaks"], "did you mean 'flax'"),
        (["step", "--nonsense"], "--nonsense"),
        (["step", "--variant", "matmul"], "--variant"),
        (["step", "--variant", "model.stem='x"], "--variant"),
        (["step", "--variant", "model.rematt=norms"], "model.remat"),
        (["input", "--config.run.seed=1"], "benchmark input"),
        (["gpu", "--out", "x", "--parts", "stop"], "--parts stop"),
        (["optimizer", "--sets", "0"], "--sets"),
    ],
)
def test_a_wrong_option_is_one_line_and_code_2(capsys, options, words):
    assert benchmark.main(options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


# ---- the measurement of a GPU


def test_a_part_that_fails_or_hangs_costs_only_itself(tmp_path, monkeypatch):
    script = tmp_path / "benchmark.py"  # executes its first argument
    script.write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.setattr(gpu, "COMMAND", script)
    kept = Result("batch 4", "images/s", (3.0, 2.0), (1.0, 1.0), "flax")
    rest = Result("batch 4", "ms a step", (3.0,))
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"results": [kept.as_json(), rest.as_json()]}))

    def part(code, limit_s=30.0, **more):
        return gpu.Part(shlex.quote(code), limit_s, **more)

    parts = {
        "bad": part("print('why'); raise SystemExit(3)"),
        "slow": part("import time; time.sleep(600)", limit_s=1.0),
        "good": part(
            f"import os, shutil; shutil.copy({str(record)!r}, sys.argv[3]); os.mkdir(sys.argv[5])",
            traces=True,
        ),
        "late": part("raise SystemExit(0)"),
    }
    monkeypatch.setitem(gpu.SIZES, "tiny", parts)
    out = tmp_path / "out"
    flags = argparse.Namespace(out=out, parts="bad,slow,good", limit_s=60.0, size="tiny")
    bad, slow, good = gpu.run(flags)  # a result without rate or peer is in the record alone
    assert "exit code 3" in bad.absent
    assert "limit of 1 s" in slow.absent
    assert good == dataclasses.replace(kept, name="good: batch 4")
    assert {path.name for path in out.iterdir()} == {"good.json", "output.txt", "good.tgz"}
    assert "why\n" in (out / "output.txt").read_text()
    with tarfile.open(out / "good.tgz") as tar:
        assert "good" in tar.getnames()
    flags.limit_s, flags.parts = -1.0, "late"
    (late,) = gpu.run(flags)
    assert late.absent.endswith(f"benchmark.py gpu --out {out} --parts late --size tiny")
    assert "why\n" in (out / "output.txt").read_text()  # a later call appends to it


def test_a_variant_is_our_step_with_other_options():
    work = step.StepWork(overrides=(("run.seed", "3"),), profile="traces")
    made = step.variant(work, "model.remat=norms --config.comm.xla_options='a=1, b='")
    assert made.overrides == (
        ("run.seed", "3"),
        ("model.remat", "norms"),
        ("comm.xla_options", "a=1, b="),
    )
    assert not made.profile


def test_all_parts_are_commands_and_the_first_fit_into_a_call():
    full, tiny = gpu.SIZES["full"], gpu.SIZES["tiny"]
    assert list(full) == list(tiny)
    assert sum(each.limit_s for each in list(full.values())[:3]) <= gpu.LIMIT_S
    assert all(each.limit_s < gpu.LIMIT_S for each in full.values())
    for each in [*full.values(), *tiny.values()]:
        words = shlex.split(each.words) + (["--trace", "folder"] if each.traces else [])
        flags, others = benchmark.parser([words[0]]).parse_known_args(words)
        for options in getattr(flags, "variant", []):
            assert training.config(step.variant(step.StepWork.of(flags, batch=4), options))
        assert flags.name == words[0]
        assert all(word.startswith("--config.") for word in others)
        assert flags.overridable or not others
