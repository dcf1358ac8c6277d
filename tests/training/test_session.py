"""Whole runs in their directory: resuming, evaluating, and what is left behind."""

import itertools
import json
import os
import re
import shutil

import jax
import numpy as np
import pytest

from largebatch import tracking
from largebatch.checkpoint import lock
from largebatch.config import freeze
from largebatch.errors import CheckpointError, UserError
from largebatch.models.loss import classification_sums
from largebatch.tracking import Console, read_rows
from largebatch.training.evaluation import (
    evaluate,
    precise_statistics,
    with_final_statistics,
)
from largebatch.training.stage import Stage
from tests import reference
from tests.training import worlds
from tests.training.worlds import TIMES, build, changed, digests, rows

CONFIG = worlds.digits(
    20, 4, data={"shift": 1}, schedule={"warmup": "3 steps"}, run={"layers_every": "2 steps"}
)


def train(config, workdir, devices=8, **request):
    return worlds.train(config, workdir, devices, **request)


pytestmark = pytest.mark.usefixtures("built_once")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
    return workdir, train(CONFIG, workdir)


def test_what_a_run_leaves(uninterrupted):
    workdir, summary = uninterrupted
    assert summary.fields() == worlds.summary(workdir)
    assert (summary.status, summary.steps, summary.samples) == ("complete", 20, 1600)
    assert 0 <= summary.top1 <= summary.top5 <= 1
    assert 0 < summary.compile_s < summary.wall_s
    assert sorted(int(p.stem) for p in (workdir / "checkpoints").iterdir()) == [12, 16, 20]
    found = read_rows(workdir / "metrics.jsonl")
    assert [row["step"] for row in found] == list(range(1, 21))
    for row in found:
        assert row["samples"] == 80 * row["step"]
        assert row["epoch"] == pytest.approx(row["samples"] / 1437)
        assert ("validation/top1" in row) == (row["step"] % 4 == 0)
        assert {"loss", "top1", "gradient_norm", "batch", "image_size", *TIMES} <= row.keys()
    assert found[0]["learning_rate"] == 0
    assert found[3]["learning_rate"] == 1.0
    assert found[-1]["validation/top1"] == summary.top1
    assert found[-1]["noise_scale"] == summary.noise_scale > 0
    assert found[-1]["noise_scale_error"] == summary.noise_scale_error > 0
    assert "noise_scale" not in found[0]  # a single step has no error
    layers = read_rows(workdir / "layers.jsonl")
    assert [row["step"] for row in layers] == list(range(2, 21, 2))
    paths = {"stem/kernel", "norm/scale", "norm/bias", "head/kernel", "head/bias"}
    assert layers[0]["layers"].keys() == paths | {"norm"}

    assert list((workdir / "tensorboard").glob("*tfevents*"))
    described = json.loads((workdir / "config.json").read_text())
    assert freeze(described["config"]) == CONFIG
    assert described["plan"]["steps"] == 20


def test_resumed_is_bitwise_uninterrupted(uninterrupted, tmp_path):
    workdir, summary = uninterrupted
    first = train(changed(CONFIG, run__stop_after="10 steps"), tmp_path)
    assert (first.status, first.steps) == ("stopped", 10)
    before = worlds.manifest(tmp_path, 10)["progress"]
    resumed = train(CONFIG, tmp_path)
    assert resumed.status == "complete"
    for name in ("wall_s", "train_s", "wait_s", "evaluation_s", "checkpoint_s"):
        assert getattr(resumed, name) > before[name] > 0  # of all attempts
    assert digests(tmp_path, 20) == digests(workdir, 20)
    # Step 10 was evaluated because the first attempt stopped there; all else is the same.
    again = rows(tmp_path)
    again[9] = {key: v for key, v in again[9].items() if not key.startswith("validation/")}
    assert again == rows(workdir)
    assert (resumed.loss, resumed.top1) == (summary.loss, summary.top1)


def test_resumed_on_half_the_devices_with_sharded_updates(uninterrupted, tmp_path):
    workdir, _ = uninterrupted
    train(changed(CONFIG, run__stop_after="12 steps"), tmp_path)
    other = changed(CONFIG, batch__microbatch="2", optimizer__update="sharded")
    train(other, tmp_path, devices=4)
    a, b = rows(workdir)[12:], rows(tmp_path)[12:]
    assert [row["samples"] for row in a] == [row["samples"] for row in b]
    # float32 sums in another order, 1e-7 each, amplified by eight more steps; from one step to the
    # next losses differ by ten times the tolerance and more.
    found = [abs(one["loss"] / other["loss"] - 1) for one, other in zip(a, b, strict=True)]
    assert max(found) < 1e-3
    assert max(abs(one["loss"] / two["loss"] - 1) for one, two in itertools.pairwise(a)) > 1e-2


def test_evaluation_only_compiles_no_train_step(uninterrupted, monkeypatch):
    workdir, summary = uninterrupted
    before = (workdir / "summary.json").read_text()
    for name in ("finish", "accumulate"):
        monkeypatch.setattr(Stage, name, property(lambda _: pytest.fail("a train step")))
    config = changed(CONFIG, batch__microbatch="auto")
    result = train(config, workdir, devices=2, eval_only=True)
    assert result.status == "evaluated"
    assert result.top1 == summary.top1
    assert result.loss == pytest.approx(summary.loss, rel=1e-5)  # f32, other order
    assert (workdir / "summary.json").read_text() == before
    assert json.loads((workdir / "evaluation.json").read_text())["top1"] == summary.top1


def test_other_mathematics_is_refused_with_a_table(uninterrupted):
    workdir, _ = uninterrupted
    before = sorted(p.name for p in workdir.iterdir())
    other = changed(CONFIG, run__seed="1", schedule__peak="2.0", data__threads="3")
    with pytest.raises(CheckpointError) as caught:
        train(other, workdir)
    lines = [line.split() for line in str(caught.value).splitlines()]
    assert ["schedule.peak", "1.0", "2.0", "changes"] in lines
    assert ["run.seed", "0", "1", "changes"] in lines
    assert ["data.threads", "0", "3", "same"] in lines
    assert "--resume=never" in str(caught.value)
    assert sorted(p.name for p in workdir.iterdir()) == before


def test_an_earlier_run_is_archived_on_request_and_where_it_cannot_resume(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    (tmp_path / "metrics.jsonl").write_text('{"step": 7}\n')
    short = changed(CONFIG, run__stop_after="1 steps")
    train(short, tmp_path)  # a log without a checkpoint
    moved = [str(p.relative_to(tmp_path)) for p in (tmp_path / "previous").rglob("*")]
    assert sorted(moved) == ["previous/1", "previous/1/metrics.jsonl"]
    assert train(short, tmp_path, resume="never").steps == 1
    assert (tmp_path / "previous" / "2" / "checkpoints" / "1.safetensors").exists()
    assert (tmp_path / "thesis.tex").exists()


def test_checkpoints_that_are_not_mounted_are_missed(tmp_path):
    short = changed(CONFIG, run__stop_after="5 steps")
    train(short, tmp_path, 1)
    (tmp_path / "checkpoints").rename(tmp_path / "unmounted")
    for resume in ("auto", "must"):
        with pytest.raises(UserError, match="--resume="):
            train(short, tmp_path, 1, resume=resume)
    (tmp_path / "unmounted").rename(tmp_path / "checkpoints")
    assert train(CONFIG, tmp_path, 1).steps == 20


def test_nothing_to_resume(tmp_path):
    with pytest.raises(CheckpointError, match=r"--workdir="):
        train(CONFIG, tmp_path, resume="must")
    with pytest.raises(CheckpointError, match="nowhere"):
        train(CONFIG, tmp_path / "nowhere", eval_only=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_dry_run_deletes_nothing_of_others(tmp_path):
    mine = tmp_path / ".dry_run" / "checkpoints" / "7" / "model.bin"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(UserError, match="dry_run"):
        train(CONFIG, tmp_path, dry_run=True)
    assert mine.read_text() == "mine"


def test_a_dry_run_leaves_nothing_and_tells_where_a_training_would_start(tmp_path, capsys):
    workdir = tmp_path / "runs" / "dry"
    assert train(CONFIG, workdir, dry_run=True) is None
    assert list(tmp_path.iterdir()) == []
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("compile", "GiB", "ETA", "20 steps"))
    train(changed(CONFIG, run__stop_after="1 steps"), workdir)
    before = worlds.summary(workdir)
    with lock.hold(workdir, note=print):
        train(CONFIG, workdir, dry_run=True)
    assert f"in use by process {os.getpid()}" in capsys.readouterr().out
    train(CONFIG, workdir, dry_run=True)
    assert re.search(r"run directory .*resumes from step 1\b", capsys.readouterr().out)
    assert worlds.summary(workdir) == before


def test_running_out_of_memory_names_the_microbatch_to_use(tmp_path, monkeypatch):
    def exhausted(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")

    monkeypatch.setattr("largebatch.training.loop.run_step", exhausted)
    config = changed(CONFIG, batch__microbatch="4")
    with pytest.raises(UserError, match=r"batch\.microbatch=4 .*batch\.microbatch=2"):
        train(config, tmp_path, devices=2)
    assert worlds.summary(tmp_path)["status"] == "failed"


def test_evaluation_with_the_mirror_image_takes_the_mean_of_both_logits():
    config = worlds.config(
        model=worlds.SMALL,
        batch={"workers": 8, "images_per_worker": 45},
        data={"source": "digits", "evaluation_size": 9, "evaluation_flip": True},
    )
    made = build(config, Console(quiet=True), jax.devices()[:1]).first_stage
    current = made.init(np.int32(0))
    result = evaluate(made, current)
    images, labels, _ = made.splits.validation.read_centres(np.arange(360), (9, 9))
    pixels = (images.astype(np.float32) - made.splits.train.mean) / made.splits.train.std
    model = made.steps.model
    logits = [model.apply(current.params, current.stats, x) for x in (pixels, pixels[:, :, ::-1])]
    assert abs(logits[0] - logits[1]).max() > 1e-3  # digits are not symmetric
    sums = classification_sums(sum(logits) / 2, labels, np.ones(360, np.float32), 0.1)
    assert round(result.top1 * 360) == int(sums.top1)
    assert result.loss == pytest.approx(float(sums.loss) / 360, rel=1e-5)  # f32, another order


@pytest.mark.parametrize("validation", [33, pytest.param(1, marks=pytest.mark.slow)])
def test_every_validation_image_counts_once(validation, tmp_path):
    # 32 images a batch: a remainder of 1, and a batch larger than the split.
    config = worlds.config(
        model=worlds.SMALL | {"name": "tests.training.own_models:resnet_colour"},
        batch={"workers": 8, "images_per_worker": 4, "microbatch": 2},
        data={"source": "synthetic", "image_size": 16, "examples": validation * 5},
    )
    results = []
    for devices in (1, 4):
        made = build(changed(config), Console(quiet=True), jax.devices()[:devices]).first_stage
        assert len(made.splits.validation) == validation
        current = made.init(np.int32(0))
        counts = np.zeros(len(made.splits.validation.classes), np.int32)
        results.append(evaluate(made, current, counts=counts))
        assert results[-1].images == validation
        images, labels, _ = made.splits.validation.read_centres(np.arange(validation))
        assert counts.tolist() == np.bincount(labels, minlength=len(counts)).tolist()
    params, stats = jax.device_get((current.params, current.stats))
    with jax.enable_x64(True):
        loss, top1, top5 = reference.evaluate(
            *jax.tree.map(lambda x: x.astype(np.float64), (params, stats)),
            images,
            labels,
            depth=6,
            mean=made.splits.train.mean,
            std=made.splits.train.std,
            epsilon=1e-5,
            label_smoothing=0.1,
        )
    for result in results:
        assert (round(result.top1 * validation), round(result.top5 * validation)) == (top1, top5)
        assert result.loss == pytest.approx(loss / validation, rel=1e-4)  # f32 against f64


def test_precise_statistics_are_those_of_the_pooled_batches(tmp_path):
    config = changed(
        CONFIG,
        model__name="tests.training.own_models:resnet_grey",
        norm__statistics="precise",
        norm__precise_batches="2",
    )
    made = build(config, Console(quiet=True), jax.devices()[:2]).first_stage
    current = made.init(np.int32(0))
    got = precise_statistics(made, current, 400)["stem"]["bn"]
    part = list(made.train_microbatches(400 - 160, 400))  # the two batches before position 400
    images = np.concatenate([m.images for m in part]).astype(np.float64)
    images = (images - made.splits.train.mean) / made.splits.train.std
    kernel = np.asarray(current.params["stem"]["conv"]["kernel"], np.float64)
    with jax.enable_x64(True):
        x = np.asarray(reference.convolve(images, kernel, 1, 1))
    np.testing.assert_allclose(got["mean"], x.mean((0, 1, 2)), rtol=1e-4, atol=1e-5)  # f32
    np.testing.assert_allclose(got["var"], x.var((0, 1, 2)), rtol=1e-4)
    # Evaluation uses them: the moving average, still at its start, gives another result.
    final = with_final_statistics(made, current, 400)
    np.testing.assert_array_equal(final.stats["stem"]["bn"]["mean"], got["mean"])
    assert abs(evaluate(made, final).loss - evaluate(made, current).loss) > 1e-3


def test_evaluation_takes_the_checkpoints_statistics_or_computes_them(uninterrupted):
    """Of 20 steps: auto is precise. The average is not stored, and so it is refused."""
    workdir, summary = uninterrupted
    found = train(CONFIG, workdir, eval_only=True)
    assert (found.loss, found.top1) == (summary.loss, summary.top1)
    for statistics in ("ema", "last"):
        with pytest.raises(CheckpointError, match=rf"norm\.statistics={statistics}.*=precise"):
            train(changed(CONFIG, norm__statistics=statistics), workdir, eval_only=True)


def test_a_row_has_the_means_over_all_images_since_the_row_before(uninterrupted, tmp_path):
    """Float64 means of equal weights: equal up to rounding; a row of one step is exact."""
    single = {row["step"]: row for row in rows(uninterrupted[0])}
    train(changed(CONFIG, run__log_every="3 steps"), tmp_path)
    found, before = rows(tmp_path), 0
    assert [row["step"] for row in found] == [3, 4, 6, 8, 9, 12, 15, 16, 18, 20]
    for row in found:
        steps = range(before + 1, row["step"] + 1)
        for name in ("loss", "top1", "top5"):
            expected = np.mean([single[step][name] for step in steps])
            assert row[name] == pytest.approx(expected, rel=1e-14)
            assert row["validation/loss"] if row["step"] % 4 == 0 else True
        for name in ("gradient_norm", "learning_rate", "fingerprint"):
            assert row[name] == single[row["step"]][name]
        before = row["step"]


def test_a_complete_run_is_extended_on_request(tmp_path, uninterrupted):
    short, made = changed(CONFIG, schedule__length="10 steps"), CONFIG
    assert train(short, tmp_path).status == "complete"
    with pytest.raises(CheckpointError, match=r"--resume=extend[^\n]*\n.*\n.*schedule\.length"):
        train(made, tmp_path)
    with pytest.raises(CheckpointError, match=r"data\.shift"):
        train(changed(made, data__shift="2"), tmp_path, resume="extend")
    with pytest.raises(CheckpointError, match=r"schedule\.length='8 steps' ends at step 8.* 10"):
        train(changed(short, schedule__length="8 steps"), tmp_path, resume="extend")
    with pytest.raises(CheckpointError, match="--resume=extend"):
        train(made, tmp_path / "other", resume="extend")
    found = train(made, tmp_path, resume="extend")
    assert (found.status, found.steps) == ("complete", 20)
    (event,) = (r for r in read_rows(tmp_path / "events.jsonl") if r["event"] == "schedule")
    assert (event["step"], event["samples"]) == (10, 800)
    # From there on the schedule is that of the longer run, and the examples are the next ones.
    longer = {row["step"]: row for row in rows(uninterrupted[0])}
    added = [row for row in rows(tmp_path) if row["step"] > 10]
    assert [row["step"] for row in added] == list(range(11, 21))
    for row in added:
        for name in ("learning_rate", "fingerprint", "samples"):
            assert row[name] == longer[row["step"]][name]
    # The same command again, by a launcher: nothing is left to do.
    assert train(made, tmp_path, resume="extend").steps == 20
    assert train(made, tmp_path).steps == 20


def test_an_unfinished_run_is_extended_as_if_it_had_been_longer_from_its_end_on(tmp_path):
    made = changed(CONFIG, schedule__decay="constant", schedule__warmup="0 steps")
    train(made, tmp_path / "longer")
    short = changed(made, schedule__length="15 steps", run__stop_after="9 steps")
    train(short, tmp_path / "extended")
    train(made, tmp_path / "extended", resume="extend")
    # At a constant rate the two schedules are one: the extension itself changes nothing.
    assert digests(tmp_path / "extended", 20) == digests(tmp_path / "longer", 20)


def test_an_extension_that_moves_a_stage_that_has_begun_is_refused(tmp_path):
    grown = changed(CONFIG, batch__stages="50 %: batch.workers=16", schedule__length="1 epochs")
    grown = changed(grown, schedule__warmup="0.1 epochs", run__log_every="0.1 epochs")
    for interval in ("layers_every", "evaluate_every", "checkpoint_every"):
        grown = changed(grown, **{f"run__{interval}": "0.2 epochs"})
    train(changed(grown, run__stop_after="0.8 epochs"), tmp_path)
    longer = changed(grown, schedule__length="2 epochs")
    with pytest.raises(CheckpointError, match=r"batch\.stages.*epochs"):
        train(longer, tmp_path, resume="extend")


class Removes(tracking.Callback):
    """Removes or renames the run directory, or a file of it, in the middle of the run."""

    def __init__(self, act):
        self.act = act

    def on_log(self, step, row):
        if step == 6:
            self.act()


@pytest.mark.parametrize("what", ["removed", "renamed", "replaced"])
def test_a_run_directory_that_goes_away_is_noticed(what, tmp_path):
    workdir, aside = tmp_path / "run", tmp_path / "aside"

    def act():
        workdir.rename(aside)
        if what == "removed":
            shutil.rmtree(aside, ignore_errors=True)  # a checkpoint is being written there
        if what == "replaced":
            workdir.mkdir()

    with pytest.raises(UserError, match="removed, renamed or replaced"):
        train(CONFIG, workdir, 1, callbacks=(Removes(act),))
    assert list(workdir.rglob("*")) == []
    if what == "renamed":
        assert [row["step"] for row in rows(aside)][-1] == 6
        (aside / "lock.json").unlink()  # as of a process that has ended
        aside.rename(workdir)
        assert train(CONFIG, workdir, 1).status == "complete"


# ---- Callbacks receive what the log and the disk have, and change nothing of the run


class Recording(tracking.Callback):
    def __init__(self):
        self.rows, self.evaluations, self.checkpoints, self.ends = [], [], [], []

    def on_log(self, step, row):
        self.rows.append({"step": step, **row})
        row.clear()  # what a callback does with its copy is its own affair

    def on_evaluation(self, step, result):
        self.evaluations.append((step, result))

    def on_checkpoint(self, step, path):
        assert path.is_file()
        assert path.name == f"{step}.safetensors"
        self.checkpoints.append(step)

    def on_end(self, found):
        self.ends.append(found)


class Failing(tracking.Callback):
    def on_evaluation(self, step, result):
        if step == 12:
            raise KeyError("no such table")


def test_callbacks_receive_the_log_and_change_no_bit(uninterrupted, tmp_path):
    recording = Recording()
    found = train(CONFIG, tmp_path, callbacks=(recording,))
    assert digests(tmp_path, 20) == digests(uninterrupted[0], 20)
    assert rows(tmp_path) == rows(uninterrupted[0])
    written = read_rows(tmp_path / "metrics.jsonl")
    assert recording.rows == written
    assert recording.evaluations == [
        (row["step"], {key: row[f"validation/{key}"] for key in ("loss", "top1", "top5")})
        for row in written
        if "validation/top1" in row
    ]
    assert [step for step, _ in recording.evaluations] == [4, 8, 12, 16, 20]
    assert recording.checkpoints == [4, 8, 12, 16, 20]
    assert recording.ends == [found]


def test_an_exception_ends_the_run_and_the_same_call_resumes_it(uninterrupted, tmp_path):
    with pytest.raises(UserError, match=r"callbacks: Failing\.on_evaluation ") as e:
        train(CONFIG, tmp_path, callbacks=(Recording(), Failing()))
    assert isinstance(e.value.__cause__, KeyError)
    assert "\n" not in str(e.value)
    assert (worlds.summary(tmp_path)["status"], worlds.summary(tmp_path)["steps"]) == ("failed", 12)
    resumed = Recording()
    train(CONFIG, tmp_path, callbacks=(resumed,))
    assert digests(tmp_path, 20) == digests(uninterrupted[0], 20)
    assert resumed.rows[0]["step"] == 9  # after the newest checkpoint, that of step 8
    train(CONFIG, tmp_path, callbacks=(Failing(),))  # complete: nothing is called
