"""The benchmark of the training step: its arithmetic, its goals, and tiny runs of its processes."""

import argparse
import dataclasses
import json
import math
import os
import shlex
import sys
import tarfile

import benchmark
import numpy as np
import pytest
from benchmarks import correctness, gpu, microbatch, step, step_work
from benchmarks.competitor import Absent, Competitor, Race
from benchmarks.measure import Result
from benchmarks.peers import flax_step, torch_step
from benchmarks.step_work import BATCHES, TRACED_STEPS, StepWork, batches

from largebatch.errors import ConfigError
from largebatch.tools.report.provenance import Origin
from largebatch.tools.report.trace import IDLE, Kernel, Profile

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins to cores: Linux")
TINY = ["--image_size=32", "--network=resnet18", "--width=8", "--classes=10", "--seconds=0.05"]


def by_name(results):
    found = {(result.name, result.unit): result for result in results}
    assert len(found) == len(results)  # a name and its unit name one figure
    return found


# ---- arithmetic and goals


def test_a_repeat_is_complete_steps_of_at_least_the_time_asked_for(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(step_work.time, "perf_counter", lambda: clock[0])
    queued, done = [], []

    def wait():
        clock[0] += 0.25 * len(queued)
        done.extend(queued)
        queued.clear()
        return 1.5

    repeat = step_work.timed_steps(lambda: queued.append(1), wait, StepWork(batch=6, seconds=5.1))
    assert len(done) == 2  # the second to see how long one takes
    assert repeat() == {"images/s": 6 / 0.25, "ms a step": 250.0}
    assert len(done) == 2 + 2 + 21  # a tenth before those that are timed


def test_a_step_that_does_not_learn_is_not_measured():
    repeat = step_work.timed_steps(lambda: None, lambda: math.nan, StepWork(seconds=1e-9))
    with pytest.raises(RuntimeError, match="the loss is nan"):
        repeat()


def test_floating_point_operations_are_those_of_resnet50():
    found = step_work.with_flops({"images/s": 20.0}, StepWork(image_size=112))
    assert found["TFLOP/s"] == pytest.approx(20 * 24.3e9 / 4 / 1e12, rel=1e-12)
    assert step_work.with_flops({"images/s": 20.0}, StepWork(network="resnet18")) == {
        "images/s": 20.0
    }


def race(*rates, peer=()):
    figures = {"ours": [{"images/s": rate} for rate in rates]}
    if peer:
        figures["flax"] = [{"images/s": rate} for rate in peer]
    return Race(figures, {"torch_eager": "no torch"})


def test_goals_of_a_gpu():
    races = {
        512: race(5600.0, 5400.0, 5700.0, peer=(2800.0,) * 3),
        40: race(4000.0, 3700.0, 3900.0),
    }
    work = StepWork(dtype="bfloat16")
    found = by_name(step.results(races, work, "NVIDIA H200"))
    assert found["batch 512", "images/s"].goal == 5500
    assert found["batch 512", "images/s"].reached is True
    assert found["batch 40", "images/s"].goal is None
    assert found["batch 512 vs flax", "images/s"].goal == 1
    assert found["batch 512 vs torch_eager", "images/s"].absent == "no torch"
    small = found["rate at 40 of that at 512", "share"]
    assert small.ours == pytest.approx((4000 / 5600, 3700 / 5400, 3900 / 5700), rel=1e-12)
    assert small.reached is False  # 0.684 in the middle, of 0.7
    others = [dataclasses.replace(work, **x) for x in ({"dtype": "float32"}, {"image_size": 192})]
    for changed, device in [*((x, "NVIDIA H200") for x in others), (work, "NVIDIA A100")]:
        assert step.results(races, changed, device)[0].goal is None


def test_the_memory_of_an_image_is_the_slope():
    (found,) = step.memory_of_an_image({64: 1.5, 256: 3.0, 100: 7.0})
    assert found.ours == pytest.approx((1.5 * 2**30 / 192 / 1e6,), rel=1e-12)
    assert "1.00 GiB independent of the batch" in found.note
    assert step.memory_of_an_image({64: 1.0}) == []


def test_profiles_stand_side_by_side(tmp_path):
    def profile(seconds):
        kernels = [Kernel(k, Origin(k, "", ""), s, 3) for k, s in seconds.items()]
        busy = sum(seconds.values())
        return Profile(tuple(kernels), window_s=2 * busy, busy_s=busy)

    ours = profile({"convolution": 0.3, "pooling": 0.06})
    theirs = profile({"convolution": 0.6})
    found = {r.name: r for r in step.by_class(32, {"ours": ours, "flax": theirs})}
    assert found["batch 32: convolution"].ours == pytest.approx((300 / TRACED_STEPS,), rel=1e-12)
    assert found["batch 32: convolution"].ratios == pytest.approx((2.0,), rel=1e-12)
    assert found["batch 32: pooling"].peer == ()
    assert found[f"batch 32: {IDLE}"].ratios == pytest.approx((0.6 / 0.36,), rel=1e-12)
    assert step.by_class(32, {"flax": theirs}) == []
    _, _, first, *_, last = step.kernels(tmp_path / "kernels.json", "batch 32: ours", ours)
    assert first.split()[:4] == ["100.000", "83.3%", "3", "convolution"]
    assert "idle 50.0%" in last


@pytest.mark.parametrize(
    ("used", "following", "fits"),
    [(0.95, 1.8, 0), (0.8, 1.2, 0), (0.8, 0.99, 1), (0.95, 0.99, 0), (0.5, math.inf, 0)],
)
def test_auto_chooses_most_of_the_budget_or_all_there_is(used, following, fits):
    assert microbatch.shares(used, following)[microbatch.CHOICES] == fits


def test_errors_of_gradients_and_values_that_are_not_finite():
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


def test_peers_get_the_same_images_normalised():
    work = StepWork(batch=3, image_size=16, classes=5)
    raw, ready = batches(work), batches(work, normalise=True)
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
    work = StepWork(batch=8, workers=2, microbatches=3, overrides=("run.seed=4",))
    made = step_work.config(work)
    batch = made.batch
    assert (batch.workers, batch.images_per_worker, batch.microbatch) == (6, 4, 2)
    assert made.run.seed == 4
    with pytest.raises(ConfigError, match="3 workers"):
        step_work.config(StepWork(batch=8, workers=3))
    with pytest.raises(ConfigError, match=r"--config\.batch: expected 8 .* got 16"):
        step_work.config(StepWork(batch=8, overrides=("batch.images_per_worker=16",)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["step", "--batch", "32,x"], "--batch 32,x"),
        (["step", "--batch", "0"], "--batch 0"),
        (["step", "--peer", "flaks"], "did you mean 'flax'"),
        (["step", "--nonsense"], "--nonsense"),
        (["input", "--config.run.seed=1"], "benchmark input"),
        (["end_to_end", "--workers", "3"], "--workers 3"),
        (["end_to_end", "--images", "0"], "--images"),
        (["gpu", "--out", "x", "--parts", "stop"], "--parts stop"),
    ],
)
def test_a_wrong_option_is_one_line_and_code_2(capsys, options, words):
    assert benchmark.main(options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_torch_that_is_not_installed_makes_a_peer_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Absent, match="torch cannot be imported"):
        torch_step.require_torch()
    with pytest.raises(Absent, match="at width 64, not 8"):
        torch_step.network_of(StepWork(width=8))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(Absent, match=r"torchvision\.models: .*; timm: "):
        torch_step.network_of(StepWork())


# ---- the measurement of a GPU


def test_a_part_that_fails_or_hangs_costs_only_itself(tmp_path, monkeypatch, capsys):
    script = tmp_path / "benchmark.py"  # executes its first argument
    script.write_text("import sys\nexec(sys.argv[1])\n")
    monkeypatch.setattr(gpu, "COMMAND", script)
    kept = Result("batch 4", "images/s", (3.0, 2.0), (1.0, 1.0), "flax", goal=2.0)
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
    monkeypatch.setattr(gpu, "_LEAST_S", 0.0)
    out = tmp_path / "out"
    flags = argparse.Namespace(out=out, parts="bad,slow,good", limit_s=60.0, size="tiny")
    bad, slow, good = gpu.run(flags)  # a result without goal or rate is in the record alone
    assert "exit code 3" in bad.absent
    assert "limit of 1 s" in slow.absent
    assert good == dataclasses.replace(kept, name="good: batch 4")
    assert "good: done" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"good.json", "output.txt", "traces.tgz"}
    assert "why\n" in (out / "output.txt").read_text()
    with tarfile.open(out / "traces.tgz") as tar:
        assert "./good" in tar.getnames()
    flags.limit_s, flags.parts = -1.0, "late"
    (late,) = gpu.run(flags)
    assert "no time" in late.absent


def test_all_parts_are_commands_and_leave_at_most_8_files():
    full, tiny = gpu.SIZES["full"], gpu.SIZES["tiny"]
    assert list(full) == list(tiny)
    assert len(full) + len(["output.txt", "traces.tgz"]) <= 8
    for each in [*full.values(), *tiny.values()]:
        words = shlex.split(each.words) + (["--trace", "folder"] if each.traces else [])
        flags, others = benchmark.parser([words[0]]).parse_known_args(words)
        assert flags.name == words[0]
        assert all(word.startswith("--config.") for word in others)
        assert flags.overridable or not others


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
    command = ["step", *TINY, "--batch=4", "--repeats=2", "--second_batch=0"]
    command += ["--peer", "flax,torch_eager", "--trace", str(folder), "--json", str(kept)]
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
    assert found["batch 4 vs torch_eager", "images/s"]["absent"]
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
    command = ["end_to_end", *TINY, "--total=3", "--images=4", "--workers=1", "--repeats=1"]
    assert benchmark.main([*command, "--config.optimizer.name=sgd", "--json", str(kept)]) == 0
    results = json.loads(kept.read_text())["results"]
    found = {r["unit"]: r for r in results if r["peer_name"]}
    assert results[0]["name"] == "one step of 12 images"
    assert "3 microbatches of 4 images" in results[0]["note"]
    assert found["images/s"]["ours"]["median"] > 0
    assert found["images/s"]["peer"]["median"] > 0
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
    with Competitor(flax_step.flax, work) as competitor:
        assert "models.py" in competitor.about
        assert competitor.repeat()["images/s"] > 0
    with pytest.raises(Absent, match="the example has no ResNet50"):
        flax_step.flax(dataclasses.replace(work, network="resnet50"))
