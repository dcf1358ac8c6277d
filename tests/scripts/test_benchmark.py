"""The benchmark's results, its races, its processes and the command for a GPU; nothing is timed."""

import argparse
import dataclasses
import json
import os
import shlex
import tarfile
import time
from pathlib import Path

import benchmark
import pytest
from benchmarks import gpu, step, training
from benchmarks.competitor import Absent, Competitor, Work, compete
from benchmarks.measure import Result

from tests.scripts import competitors

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins to cores: Linux")


# ---- results


def test_the_ratio_is_of_pairs():
    # Ratio of the medians: 10 / 10 = 1. Repeat by repeat ours is twice as fast.
    drifting = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 5.0, 1.0), "peer")
    assert drifting.ratios == (2.0, 2.0, 2.0)
    assert Result.from_json(drifting.as_json()) == drifting
    shuffled = Result("x", "images/s", (20.0, 10.0, 2.0), (10.0, 2.0, 20.0), "peer")
    assert shuffled.as_json()["ratio"]["median"] == 2.0
    assert Result("x", "ms", (10.0,), (30.0,), "peer").ratios == (3.0,)  # above 1 ours is better
    assert Result("x", "ms", (10.0,)).as_json()["ratio"] is None


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


@pytest.mark.slow
@linux
def test_a_peer_that_fails_or_hangs_is_absent_and_the_rest_is_measured():
    work = one_core(answer_s=120.0)
    quick = dataclasses.replace(work, answer_s=5.0)
    tasks = {
        "ours": (competitors.counting, work),
        "not here": (competitors.absent, work),
        "broken": (competitors.broken, work),
        "ending": (competitors.ending, work),
        "silent": (competitors.silent, quick),
    }
    race = compete(tasks, 2)
    assert race.column("calls") == (2, 3)  # after one to warm up
    assert set(race.absent) == {"not here", "broken", "ending", "silent"}
    assert "KeyError" in race.absent["broken"]
    with pytest.raises(Absent):
        compete({"ours": (competitors.absent, work)}, 1)


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
