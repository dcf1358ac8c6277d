"""The benchmark of the training step: its arithmetic, its work, and tiny runs of its processes."""

import json
import math

import benchmark
import numpy as np
import pytest
from benchmarks import correctness, step, training
from benchmarks.training import BATCHES, StepWork, batches

from largebatch.errors import ConfigError
from tests.scripts.test_benchmark import linux

TINY = ["--image_size=32", "--network=resnet10", "--width=8", "--classes=10", "--seconds=0.05"]


# ---- arithmetic


def test_a_repeat_is_complete_steps_of_at_least_the_time_asked_for(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])
    queued, done = [], []

    def wait():
        clock[0] += 0.25 * len(queued)
        done.extend(queued)
        queued.clear()
        return 1.5

    repeat = training.timed_steps(lambda: queued.append(1), wait, StepWork(batch=6, seconds=5.1))
    assert len(done) == 2  # the second to see how long one takes
    assert repeat() == {"images/s": 6 / 0.25, "ms a step": 250.0}
    assert len(done) == 2 + 2 + 21  # a tenth before those that are timed


def test_a_step_that_does_not_learn_is_not_measured():
    repeat = training.timed_steps(lambda: None, lambda: math.nan, StepWork(seconds=1e-9))
    with pytest.raises(RuntimeError, match="the loss is nan"):
        repeat()


def test_the_memory_of_an_image_is_the_slope():
    (found,) = step.memory_of_an_image({64: 1.5, 256: 3.0, 100: 7.0})
    assert found.ours == pytest.approx((1.5 * 2**30 / 192 / 1e6,), rel=1e-12)
    assert "1.00 GiB independent of the batch" in found.note
    assert step.memory_of_an_image({64: 1.0}) == []


def test_errors_of_gradients_and_values_that_are_not_finite():
    reference = {"a": np.array([3.0, 4.0]), "b": np.array([0.0, 12.0]), "zero": np.zeros(2)}
    found = {"a": np.array([3.0, 4.5]), "b": np.array([0.0, 12.0]), "zero": np.array([0, 1e-7])}
    exact, near = correctness.Step(2.0, reference), correctness.Step(2.01, found)
    total, worst, loss = correctness.compared("float32", [exact] * 2, [near, exact])
    assert total.ours == pytest.approx((np.hypot(0.5, 1e-7) / 13, 0), rel=1e-12)
    assert worst.ours == pytest.approx((0.1, 0), rel=1e-12)
    assert loss.ours == pytest.approx((5e-3, 0), rel=1e-9)
    assert total.note.endswith("NO")
    assert correctness.compared("bfloat16", [exact], [near])[0].note.endswith("yes")
    broken = correctness.Step(2.0, found | {"b": np.array([0.0, np.nan])})
    assert correctness.compared("bfloat16", [exact], [broken])[0].note.endswith("NO")


# ---- work


def test_peers_get_the_same_images_normalised():
    work = StepWork(batch=3, image_size=16, classes=5)
    raw, ready = batches(work), batches(work, normalise=True)
    assert len({images.tobytes() for images, _ in raw}) == BATCHES
    images = np.concatenate([images for images, _ in ready])
    assert images.dtype == np.float32
    assert abs(images.mean()) < 0.3  # twelve images of their classes' own brightness
    assert 0.5 < images.std() < 1.5
    for (_, labels), (_, same) in zip(raw, ready, strict=True):
        assert np.array_equal(labels, same)


def test_the_recipe_of_a_step():
    made = training.config(StepWork(batch=8, overrides=(("run.seed", "4"),)))
    assert (made.batch.workers, made.batch.images_per_worker) == (1, 8)
    assert made.run.seed == 4
    with pytest.raises(ConfigError, match=r"--config\.batch: expected 8 .* got 16"):
        training.config(StepWork(batch=8, overrides=(("batch.images_per_worker", "16"),)))


# ---- tiny runs


@pytest.fixture(scope="module")
def quick():
    """Competitors compile each program once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.mark.slow
@linux
def test_a_tiny_race_with_a_profile(quick, tmp_path):
    kept, folder = tmp_path / "step.json", tmp_path / "trace"
    command = ["step", *TINY, "--batch=4", "--repeats=2"]
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
    assert "sgd" in found["batch 4", "images/s"]["note"]
    assert found["batch 4", "GiB by the compiler"]["ours"]["median"] > 0
    assert found["batch 4 vs torch_eager", "images/s"]["absent"]
    for name in ("ours", "flax"):
        assert list((folder / "batch4" / name).rglob("*.xplane.pb"))
