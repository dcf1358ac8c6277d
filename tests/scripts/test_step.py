"""The benchmark of the training step: its arithmetic, its goals, and tiny runs of its processes."""

import argparse
import dataclasses
import json
import math
import os
import sys

import benchmark
import numpy as np
import pytest
from benchmarks import correctness, end_to_end, gpu, microbatch, pace, profiles, training
from benchmarks.competitor import Competitor
from benchmarks.measure import Result
from benchmarks.peers import torch_step
from benchmarks.race import Race
from benchmarks.recorder import STEPS
from benchmarks.step_results import Setting, activations, of_races
from benchmarks.step_work import BATCHES, StepWork, batches, normalised
from benchmarks.workload import Absent, loads

from largebatch.errors import ConfigError
from largebatch.tools.report.provenance import Origin
from largebatch.tools.report.trace import IDLE, Kernel, Profile

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins to cores: Linux")
TINY = ["--image_size", "32", "--network", "resnet18", "--width", "8", "--classes", "10"]


def figures(rate, **more):
    return {"images": 10.0 * rate, "wall_s": 10.0, "steps": 5.0, "compile_s": 3.0} | more


def race(*rates, peer=(), program_bytes=2**30):
    found = {"ours": [figures(rate, program_bytes=program_bytes) for rate in rates]}
    if peer:
        found["flax"] = [figures(rate, peak_bytes=2.0**31) for rate in peer]
    return Race(found, {"torch_eager": "no torch"}, {"ours": "LARS", "flax": "plain"})


def by_name(results):
    found = {(result.name, result.unit): result for result in results}
    assert len(found) == len(results)  # a name and its unit name one figure
    return found


# ---- arithmetic and goals


def test_a_repeat_is_whole_steps_of_at_least_the_time_asked_for(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    queued, done = [], []

    def wait():
        clock[0] += 0.25 * len(queued)
        done.extend(queued)
        queued.clear()
        return 1.5

    repeat = pace.timed_steps(lambda: queued.append(1), wait, StepWork(batch=6, seconds=5.1))
    assert len(done) == 2  # the second to see how long one takes
    assert repeat() == {"images": 21 * 6, "wall_s": 21 * 0.25, "steps": 21, "loss": 1.5}
    assert len(done) == 2 + 2 + 21  # a tenth before what is timed


def test_what_learns_nothing_is_not_measured():
    repeat = pace.timed_steps(lambda: None, lambda: math.nan, StepWork(seconds=1e-9))
    with pytest.raises(RuntimeError, match="the loss is nan"):
        repeat()


def test_rates_shares_and_goals_of_a_gpu():
    work = StepWork(dtype="bfloat16")
    setting = Setting(work, "NVIDIA H200", peak=1e15)
    races = {512: race(5600.0, 5400.0, 5700.0), 40: race(4000.0, 3700.0, 3900.0)}
    found = by_name(of_races(races, ["torch_eager"], setting))
    assert found["batch 512", "images/s"].goal == 5500
    assert found["batch 512", "images/s"].reached is True
    assert found["batch 40", "images/s"].goal is None
    assert found["batch 512", "ms a step"].ours == (2000.0, 2000.0, 2000.0)
    assert found["batch 512", "share of peak FLOP/s"].ours[0] == pytest.approx(
        5600 * 24.3e9 / 1e15, rel=1e-12
    )
    small = found["rate at 40 of that at 512", "share"]
    assert small.ours == pytest.approx((4000 / 5600, 3700 / 5400, 3900 / 5700), rel=1e-12)
    assert small.goal == 0.7
    assert small.reached is False  # 0.684 in the middle
    assert found["batch 512 vs torch_eager", "images/s"].absent == "no torch"


@pytest.mark.parametrize(
    ("changes", "device"),
    [
        ({"dtype": "float32"}, "NVIDIA H200"),
        ({"image_size": 192}, "NVIDIA H200"),
        ({"network": "resnet101"}, "NVIDIA H200"),
        ({}, "NVIDIA A100"),
    ],
)
def test_the_goal_of_images_is_of_one_device_and_one_step(changes, device):
    work = dataclasses.replace(StepWork(dtype="bfloat16"), **changes)
    assert Setting(work, device, peak=None).rate_goal(256) is None
    assert Setting(StepWork(dtype="bfloat16"), "NVIDIA H200", None).rate_goal(256) == 5500


def test_beside_a_peer():
    races = {32: race(20.0, 30.0, peer=(10.0, 20.0))}
    found = by_name(of_races(races, ["flax"], Setting(StepWork(), "cpu", None)))
    flax = found["batch 32 vs flax", "images/s"]
    assert flax.ratios == (2.0, 1.5)
    assert flax.goal == 1
    assert flax.note == "plain; 3.0 s to compile; 2.00 GiB in use"
    assert found["batch 32", "TFLOP/s"].ours[0] == pytest.approx(20 * 24.3e9 / 1e12, rel=1e-12)
    assert ("batch 32", "share of peak FLOP/s") not in found


def test_the_memory_of_an_image_is_the_slope():
    (found,) = activations({64: 2**30 + 64 * 1e6, 256: 2**30 + 256 * 1e6, 100: 7.0})
    assert found.ours == pytest.approx((1.0,), rel=1e-12)
    assert "1.00 GiB whatever the batch" in found.note
    assert activations({64: 1.0}) == []


def test_profiles_stand_side_by_side():
    def profile(seconds):
        kernels = [Kernel(k, Origin(k, "", ""), s, 3) for k, s in seconds.items()]
        busy = sum(seconds.values())
        return Profile(tuple(kernels), window_s=2 * busy, busy_s=busy)

    ours = profile({"convolution": 0.3, "pooling": 0.06})
    theirs = profile({"convolution": 0.6})
    found = {r.name: r for r in profiles.by_class(32, {"ours": ours, "flax": theirs})}
    assert found["batch 32: convolution"].ours == pytest.approx((1e3 * 0.3 / STEPS,), rel=1e-12)
    assert found["batch 32: convolution"].ratios == pytest.approx((2.0,), rel=1e-12)
    assert found["batch 32: pooling"].peer == ()
    assert found[f"batch 32: {IDLE}"].ratios == pytest.approx((0.6 / 0.36,), rel=1e-12)
    assert profiles.by_class(32, {"flax": theirs}) == []
    title, heading, first, *_, last = profiles.longest("batch 32: ours", ours)
    assert title.startswith("batch 32: ours")
    assert first.split()[:4] == ["100.000", "83.3%", "3", "convolution"]
    assert len(heading.split()) > 4
    assert "idle 50.0%" in last


def test_a_whole_batch_is_measured_against_its_microbatch():
    whole = [figures(90.0, wait_s=1.0, program_bytes=2.2 * 2**30)] * 2
    alone = [figures(100.0, program_bytes=2.0 * 2**30)] * 2
    setting = Setting(StepWork(batch=10), "cpu", None)
    race = Race({"ours": whole, "microbatch alone": alone}, {}, {"ours": "LARS"})
    found = by_name(end_to_end.results(race, 900, setting))
    rate = found["one step of 900 images", "images/s"]
    assert rate.ratios == (0.9, 0.9)
    assert rate.reached is False  # of 0.95
    assert rate.note.startswith("90 microbatches of 10 images")
    assert found["one step of 900 images", "share of it waiting for images"].ours == (0.1, 0.1)
    memory = found["one step of 900 images", "GiB by the compiler"]
    assert memory.ratios == pytest.approx((2.0 / 2.2,), rel=1e-12)


@pytest.mark.parametrize(
    ("needed", "following", "fits"),
    [(95, 180, 0), (80, 120, 0), (80, 99, 1), (95, 99, 0), (50, math.inf, 0)],
)
def test_what_auto_chose_is_near_the_most_or_all_there_is(needed, following, fits):
    facts = {"workers": 2.0, "images": 80.0, "budget": 100.0, "compile_s": 1.0}
    found = by_name(microbatch.results(facts | {"needed": needed, "next": following}))
    assert found["larger choices that fit", "choices"].ours == (fits,)
    assert found["larger choices that fit", "choices"].reached is (fits == 0)
    assert found["share of the budget", "share"].ours == (needed / 100,)


def test_errors_of_gradients_and_what_is_not_finite():
    reference = {"a": np.array([3.0, 4.0]), "b": np.array([0.0, 12.0]), "zero": np.zeros(2)}
    found = {"a": np.array([3.0, 4.5]), "b": np.array([0.0, 12.0]), "zero": np.array([0, 1e-7])}
    exact, near = correctness.Step(2.0, reference), correctness.Step(2.01, found)
    total, worst, loss = correctness.compared("float32", [exact] * 3, [near, near, exact])
    assert total.ours == pytest.approx((np.hypot(0.5, 1e-7) / 13,) * 2 + (0,), rel=1e-12)
    assert worst.note == "a, a, a"
    assert worst.ours == pytest.approx((0.1, 0.1, 0), rel=1e-12)
    assert loss.ours == pytest.approx((5e-3, 5e-3, 0), rel=1e-9)
    assert (total.reached, loss.reached) == (False, False)
    broken = correctness.Step(2.0, found | {"b": np.array([0.0, np.nan])})
    total, worst, loss = correctness.compared("bfloat16", [exact], [broken])
    assert (total.reached, loss.reached) == (False, True)
    assert worst.note == "b"


# ---- work and options


def test_work_travels_as_text():
    work = StepWork(batch=7, overrides=("a.b=1", "c.d=2"), cores=(0, 1), seconds=0.5)
    assert loads(work.dumps()) == work


def test_peers_get_the_same_images_normalised():
    work = StepWork(batch=3, image_size=16, classes=5)
    raw, ready = batches(work), normalised(work)
    assert len(raw) == BATCHES
    assert len({images.tobytes() for images, _ in raw}) == BATCHES
    images = np.concatenate([images for images, _ in ready])
    assert images.dtype == np.float32
    assert abs(images.mean()) < 0.3  # twelve images of their classes' own brightness
    assert 0.5 < images.std() < 1.5
    for (pixels, labels), (floats, same) in zip(raw, ready, strict=True):
        assert np.array_equal(labels, same)
        # The same affine map of every pixel of a channel.
        scale = np.ptp(floats[..., 0]) / np.ptp(pixels[..., 0])
        assert np.allclose(
            np.diff(floats[0, 0, :, 0]), scale * np.diff(pixels[0, 0, :, 0].astype(int)), atol=1e-5
        )


def test_the_recipe_of_a_step():
    made = training.config(StepWork(batch=8, workers=2, microbatches=3, overrides=("run.seed=4",)))
    batch = made.batch
    assert (batch.workers, batch.images_per_worker, batch.microbatch) == (6, 4, 2)
    assert made.run.seed == 4
    with pytest.raises(ConfigError, match="3 workers cannot share 8 images"):
        training.config(StepWork(batch=8, workers=3))
    with pytest.raises(ConfigError, match="makes 16 images of a step, the other options 8"):
        training.config(StepWork(batch=8, overrides=("batch.images_per_worker=16",)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["step", "--batch", "32,x"], ["--batch 32,x", "'x'"]),
        (["step", "--batch", "0"], ["--batch 0"]),
        (["step", "--peer", "flaks"], ["--peer flaks", "did you mean 'flax'"]),
        (["step", "--nonsense"], ["unknown argument '--nonsense'"]),
        (["input", "--config.run.seed=1"], ["benchmark input takes no"]),
        (["end_to_end", "--workers", "3"], ["--workers 3", "--total 2048"]),
        (["end_to_end", "--images", "0"], ["--images is 0"]),
        (["gpu", "--out", "x", "--parts", "stop"], ["--parts stop"]),
    ],
)
def test_a_wrong_option_is_told_in_a_line(capsys, options, words):
    assert benchmark.main(options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for word in ["error: ", *words]:
        assert word in line


def test_torch_that_is_not_installed_makes_a_peer_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Absent, match="torch cannot be imported"):
        torch_step.need()
    with pytest.raises(Absent, match="at width 64, not 8"):
        torch_step.network(StepWork(width=8))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(Absent, match=r"torchvision: .*; timm: "):
        torch_step.network(StepWork())


# ---- the day on a GPU


def part(code, limit_s=30.0):
    return gpu.Part((code,), limit_s)


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A scripts/benchmark.py that executes its first argument."""
    (tmp_path / "benchmark.py").write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.setattr(gpu, "SCRIPTS", tmp_path)
    return tmp_path


def test_a_part_that_fails_or_hangs_costs_only_itself(scripts, monkeypatch, capsys):
    kept = Result("batch 4", "images/s", (3.0, 2.0), (1.0, 1.0), "flax", goal=2.0).as_json()
    rest = Result("batch 4", "ms a step", (3.0,), better="less").as_json()
    monkeypatch.setitem(
        gpu.SIZES,
        "tiny",
        {
            "bad": part("print('why'); raise SystemExit(3)"),
            "slow": part("import time; time.sleep(600)", limit_s=1.0),
            "good": part(
                "import json; open(sys.argv[3], 'w').write(json.dumps("
                f"{{'results': [{kept!r}, {rest!r}]}}))"
            ),
            "late": part("raise SystemExit(0)"),
        },
    )
    monkeypatch.setattr(gpu, "_LEAST_S", 0.0)
    out = scripts / "out"
    flags = argparse.Namespace(out=out, parts="bad,slow,good", limit_s=60.0, size="tiny")
    found = gpu.run(flags)
    bad, slow, good = found  # what has neither goal nor rate is in the record alone
    assert "failed (exit code 3)" in bad.absent
    assert (out / "bad.txt").read_text() == "why\n"
    assert "limit of 1 s" in slow.absent
    assert good == Result("good: batch 4", "images/s", (3.0, 2.0), (1.0, 1.0), "flax", goal=2.0)
    assert "good: done" in capsys.readouterr().out
    flags.limit_s, flags.parts = -1.0, "late"
    (late,) = gpu.run(flags)
    assert "no time was left" in late.absent


def test_both_sizes_have_the_same_parts_that_the_command_line_takes():
    assert list(gpu.FULL) == list(gpu.TINY)
    for parts in gpu.SIZES.values():
        for each in parts.values():
            name = each.arguments[0]
            more = ["--trace", "folder"] if each.traces else []
            flags, others = benchmark.parser([name]).parse_known_args([*each.arguments, *more])
            assert flags.name == name
            assert all(word.startswith("--config.") for word in others)
            assert flags.overridable or not others
    assert sum(each.limit_s for each in gpu.FULL.values()) > 530  # limits are not the plan


# ---- tiny runs


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Competitors compile fast, and each program once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@linux
def test_a_tiny_race_with_a_profile(quick, tmp_path, capsys):
    kept, folder = tmp_path / "step.json", tmp_path / "trace"
    short = ["--batch", "4", "--repeats", "2", "--seconds", "0.05", "--second_batch", "0"]
    peers = ["--peer", "flax,torch_eager", "--trace", str(folder)]
    command = ["step", *short, *TINY, *peers, "--json", str(kept)]
    assert benchmark.main([*command, "--config.optimizer.name=sgd"]) == 0

    record = json.loads(kept.read_text())
    assert {"driver", "xla_flags", "commit", "device"} <= record["environment"].keys()
    found = {(result["name"], result["unit"]): result for result in record["results"]}
    assert len(found) == len(record["results"])
    flax = found["batch 4 vs flax", "images/s"]
    assert len(flax["ours"]["repeats"]) == len(flax["peer"]["repeats"]) == 2
    ratios = [a / b for a, b in zip(flax["ours"]["repeats"], flax["peer"]["repeats"], strict=True)]
    assert flax["ratio"]["repeats"] == pytest.approx(ratios, rel=1e-12)
    assert "flax.nnx layers" in flax["note"]
    assert "sgd" in found["batch 4", "images/s"]["note"]
    assert found["batch 4", "GiB by the compiler"]["ours"]["median"] > 0
    assert "width 64, not 8" in found["batch 4 vs torch_eager", "images/s"]["absent"] or (
        "torch cannot be imported" in found["batch 4 vs torch_eager", "images/s"]["absent"]
    )
    # Both were profiled, and both convolve, normalise and update.
    for kind in ("convolution", "norm, ReLU, add", "optimizer"):
        result = found[f"batch 4: {kind}", "ms of a profiled step"]
        assert result["ours"]["median"] > 0
        assert result["peer"]["median"] > 0
    shown = capsys.readouterr().out
    for name in ("ours", "flax"):
        assert f"batch 4: {name}: the 25 longest kernels" in shown
        kernels = json.loads((folder / "batch4" / name / "kernels.json").read_text())["kernels"]
        assert any("batch_norm" in k["source"] or "normalization" in k["source"] for k in kernels)


@linux
def test_a_tiny_whole_batch(quick, tmp_path):
    kept = tmp_path / "end_to_end.json"
    sizes = ["--total", "3", "--images", "4", "--workers", "1", "--repeats", "1"]
    command = ["end_to_end", *sizes, "--seconds", "0.05", *TINY, "--json", str(kept)]
    assert benchmark.main([*command, "--config.optimizer.name=sgd"]) == 0
    found = {r["unit"]: r for r in json.loads(kept.read_text())["results"]}
    rate = found["images/s"]
    assert rate["name"] == "one step of 12 images"
    assert "3 microbatches of 4 images" in rate["note"]
    assert rate["ours"]["median"] > 0
    assert rate["peer"]["median"] > 0
    # The accumulated gradients, and no more than a few times those.
    extra = (1 / found["GiB by the compiler"]["ratio"]["median"]) - 1
    assert 0 < extra < 1


@linux
def test_the_step_of_a_peer_from_a_checkout(quick, tmp_path):
    inside = tmp_path / "examples" / "imagenet"
    inside.mkdir(parents=True)
    (inside / "models.py").write_text(
        "import flax.linen as nn\n"
        "class ResNet18(nn.Module):\n"
        "    num_classes: int\n"
        "    num_filters: int\n"
        "    dtype: type\n"
        "    @nn.compact\n"
        "    def __call__(self, x, train=True):\n"
        "        x = nn.Conv(self.num_filters, (3, 3), dtype=self.dtype)(x)\n"
        "        x = nn.BatchNorm(not train, axis_name='batch', dtype=self.dtype)(x)\n"
        "        return nn.Dense(self.num_classes)(x.mean((1, 2)))\n"
    )
    work = StepWork(
        batch=4,
        image_size=16,
        classes=3,
        network="resnet18",
        width=8,
        seconds=0.01,
        flax_examples=str(tmp_path),
    )
    with Competitor("benchmarks.peers.flax_step", work) as competitor:
        assert "models.py" in competitor.about
        found = competitor.repeat()
    assert found["images"] == found["steps"] * 4
    assert 0 < found["loss"] < 5
    with pytest.raises(Absent, match="the example has no ResNet50"):
        Competitor("benchmarks.peers.flax_step", dataclasses.replace(work, network="resnet50"))
