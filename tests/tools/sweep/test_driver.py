"""The loop of a sweep with an executor that starts no processes."""

import csv
import math
from types import SimpleNamespace

import pytest

from largebatch.checkpoint import lock
from largebatch.errors import UserError
from largebatch.tools.sweep import driver as module
from largebatch.tools.sweep import session
from largebatch.tools.sweep.directory import keep, keep_results
from largebatch.tools.sweep.driver import Driver
from largebatch.tools.sweep.space import from_text, grid, quasi
from largebatch.tools.sweep.study import STARTUP, Study
from largebatch.tools.sweep.trial import Outcome
from tests.tools.sweep.fakes import FakeExecutor, summary

pytest.importorskip("optuna")
AXES = [from_text("schedule.peak=1,2,4"), from_text("run.seed=0,1")]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that sleeping moves."""
    now = [0.0]
    fake = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(module, "time", fake)
    return fake


def driver(study, executor, folder, planned=None, total=None):
    planned = grid(AXES) if planned is None else planned
    return Driver(
        study,
        executor,
        folder,
        lambda choice, workdir: ("train", *choice.values(), str(workdir)),
        planned,
        total=total or len(planned),
        grace_s=5.0,
    )


def run(made, ticks=None):
    """To the end, or asked to stop after some looks."""
    looks = []

    def stopping():
        looks.append(1)
        return ticks is not None and len(looks) > ticks

    return made.run(lambda trials: None, stopping)


def states(made):
    return [trial.state for trial in made.trials]


def test_a_grid_runs_in_order_and_every_end_is_recorded(tmp_path):
    executor = FakeExecutor(
        {
            0: [{"evaluations": [0.2, 0.4], "code": 0, "top1": 0.8}],
            1: [{"code": 1, "output": "Traceback\nKeyError: 'x'\n"}],
            2: [{"code": 2, "output": "error: batch.workers=3: no\n"}],
            3: [{"code": 2, "unhealthy": "the loss is not finite", "output": "error: y\n"}],
            4: [{"code": 75}, {"evaluations": [0.1], "code": 75}, {"code": 0, "top1": 0.9}],
            5: [{"code": 70, "output": "no progress\n"}],
        }
    )
    study = Study(tmp_path / "study.db", AXES, "top1")
    made = driver(study, executor, tmp_path)
    assert run(made)
    expected = ["complete", "failed", "failed", "diverged", "complete", "failed"]
    assert states(made) == expected
    assert [list(trial.values.values()) for trial in made.trials] == [
        [peak, seed] for peak in "124" for seed in "01"
    ]
    assert [trial.value for trial in made.trials] == [0.8, None, None, 0.0, 0.9, None]
    assert [trial.error for trial in made.trials] == [
        "",
        "KeyError: 'x'",
        "batch.workers=3: no",
        "the loss is not finite",
        "",
        "no progress",
    ]
    assert sorted(executor.started) == [0, 1, 2, 3, 4, 4, 4, 5]
    assert executor.most == 2
    # Another process reads the same from the file, and has nothing to do.
    again = driver(Study(tmp_path / "study.db", AXES, "top1"), FakeExecutor(), tmp_path)
    assert again.trials == made.trials
    assert run(again)
    assert not again._executor.started


def test_a_sweep_whose_trials_were_all_ended_has_a_best_one(tmp_path, capsys):
    ill = {"code": 2, "unhealthy": "the loss is above 3.1", "output": "error: y\n"}
    script = {n: [{"evaluations": [0.1, 0.65 - n / 100], **ill}] for n in range(1, 6)}
    study = Study(None, AXES, "top1")
    made = driver(study, FakeExecutor(script | {0: [ill]}), tmp_path)
    assert run(made)
    assert states(made) == ["diverged"] * 6
    # What the sampler knows of them, too.
    assert [trial.value for trial in study.trials()] == [0.0, 0.64, 0.63, 0.62, 0.61, 0.6]
    keep(tmp_path, {"recipe": "r.py", "overrides": [], "objective": "top1", "settings": {}})
    keep_results(tmp_path, made.trials, 6)
    session._conclude(tmp_path, AXES, made.trials, study)
    assert "--config.schedule.peak=2 --config.run.seed=0" in capsys.readouterr().out  # by its mean
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["1", "2", "3", "4", "5", "0"]
    assert {row["state"] for row in rows} == {"diverged"}
    with pytest.raises(UserError, match="none of the 1 trials"):
        session._conclude(tmp_path, AXES, made.trials[:1], study)


def test_a_killed_sweep_resumes_and_runs_nothing_twice(tmp_path):
    """Killed with one trial at its end, one on its way, one whose process goes on."""
    study, folder = Study(None, AXES, "top1"), tmp_path
    endless = [{"evaluations": [0.1]}]
    executor = FakeExecutor(dict.fromkeys((1, 2, 3), endless), at_once=4)
    made = driver(study, executor, folder)
    for _ in range(2):
        made.poll()
    assert states(made) == ["complete", *["running"] * 4]
    before = made.trials[0]
    # Its own end, after the kill of the sweep: trial 1 is complete.
    summary(top1=0.7).write(folder / "trials" / "0001")
    other = lock.hold(folder / "trials" / "0002", note=pytest.fail)
    other.__enter__()

    executor = FakeExecutor({3: [{"code": 0, "top1": 0.6}]}, at_once=4)
    made = driver(study, executor, folder)
    made.poll()
    assert made.trials[0] == before
    assert states(made)[1] == "complete"
    assert made.trials[1].value == 0.7
    assert 2 not in executor.started  # somebody trains there
    assert 1 not in executor.started
    assert 3 in executor.started
    other.__exit__(None, None, None)
    assert run(made)
    assert executor.started.count(2) == 1
    assert sorted(executor.started) == [2, 3, 4, 5]
    assert states(made) == ["complete"] * 6


def test_a_killed_begin_leaves_a_whole_trial_or_none(tmp_path):
    """One write makes a trial; it is there with all its values before its process starts."""
    study = Study(tmp_path / "study.db", AXES, "top1")
    for choice in (grid(AXES)[0], None):
        begun = study.begin(choice)  # and killed
        (*_, read) = Study(tmp_path / "study.db", AXES, "top1").trials()
        assert read == begun
        assert (read.state, set(read.values)) == ("running", {"schedule.peak", "run.seed"})


def test_a_directory_that_another_process_took_first_is_waited_for(tmp_path):
    """An orphan may take its lock only after it was looked for: ours then ends with a mistake."""
    executor = FakeExecutor({0: [{"code": 2, "output": "error: in use\n"}, {"code": 0, "top1": 1}]})
    made = driver(Study(None, AXES, "top1"), executor, tmp_path)
    made.poll()
    with lock.hold(tmp_path / "trials" / "0000", note=pytest.fail):
        for _ in range(4):
            made.poll()
        assert states(made)[0] == "running"
        assert executor.started.count(0) == 1
    assert run(made)
    assert states(made) == ["complete"] * 6
    assert executor.started.count(0) == 2


def test_failed_trials_run_again_in_their_directories_and_the_others_keep_their_results(tmp_path):
    path, fails = tmp_path / "study.db", {"code": 70, "output": "error: disk full\n"}
    script = {n: [fails, {"code": 0, "top1": 0.75}] for n in (1, 4)}
    executor = FakeExecutor(script | {2: [{"code": 69}]})
    made = driver(Study(path, AXES, "top1"), executor, tmp_path)
    assert run(made)
    before = made.trials
    study = Study(path, AXES, "top1")
    assert study.retry_failed() == 3
    made = driver(study, executor, tmp_path)
    assert states(made) == ["complete", "running", "running", "complete", "running", "complete"]
    assert run(made)
    assert executor.started[6:] == [1, 2, 4]
    assert [trial.values for trial in made.trials] == [trial.values for trial in before]
    assert [made.trials[n].value for n in (1, 4)] == [0.75, 0.75]
    assert [made.trials[n] for n in (0, 2, 3, 5)] == [before[n] for n in (0, 2, 3, 5)]
    assert Study(path, AXES, "top1").retry_failed() == 1  # trial 2 fails each time


def test_a_damaged_study_is_one_line_that_names_its_file(tmp_path):
    path = tmp_path / "study.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(UserError, match=r"study\.db cannot be opened .*another --workdir"):
        Study(path, AXES, "top1")
    path.write_bytes(b"")  # killed while it was created
    assert Study(path, AXES, "top1").retry_failed() == 0


def test_a_job_of_a_cluster_is_found_again(tmp_path):
    executor = FakeExecutor({0: [{"evaluations": [0.1] * 5, "code": 0, "top1": 0.5}]}, at_once=1)
    executor.token = "42_0"
    study = Study(None, AXES, "top1")
    driver(study, executor, tmp_path, grid(AXES)[:1]).poll()
    assert run(driver(study, executor, tmp_path, grid(AXES)[:1]))
    assert executor.started == [0]


def test_a_value_that_is_no_number_counts_as_the_worst(tmp_path):
    for objective, expected in (("top1", 0.0), ("loss", float("inf"))):
        study = Study(None, AXES, objective)
        study.tell(study.begin(grid(AXES)[0]), Outcome("complete", float("nan")))
        assert study.trials()[0].value == expected


def test_asked_to_stop_it_waits_for_what_runs_and_resumes_later(tmp_path, clock):
    study = Study(None, AXES, "top1")
    script = {0: [{}, {"code": 0, "top1": 0.5}], 1: [{"obeys": False}, {"code": 0, "top1": 0.4}]}
    executor = FakeExecutor(script)
    made = driver(study, executor, tmp_path)
    assert not run(made, ticks=3)
    assert executor.handles[0].asked
    assert executor.handles[1].ended == -9  # after the time that it had to save
    assert clock.monotonic() < 3 * 0.5 + 5.0 + 2.0
    assert states(made) == ["running", "running"]
    executor.running.clear()
    made = driver(study, executor, tmp_path)
    assert run(made)
    assert states(made) == ["complete"] * 6
    assert executor.started == [0, 1, 0, 1, 2, 3, 4, 5]


def test_a_trial_without_progress_is_given_up(tmp_path):
    executor = FakeExecutor({0: [{"code": 75, "output": "SIGTERM, with nothing to save yet\n"}]})
    made = driver(Study(None, AXES, "top1"), executor, tmp_path)
    assert run(made)
    assert executor.started.count(0) == 4
    assert made.trials[0].state == "failed"
    assert "4 times" in made.trials[0].error
    assert "nothing to save" in made.trials[0].error
    assert states(made)[1:] == ["complete"] * 5


def test_the_median_prunes(tmp_path):
    """The first eight come to their end; a later one below their median is ended, one above not."""
    axes = [from_text("schedule.peak=log:0.1:10")]
    good = {n: [{"evaluations": [0.5, 0.6], "code": 0, "top1": 0.6}] for n in range(STARTUP)}
    script = good | {
        STARTUP: [{"evaluations": [0.2, 0.3, 0.3, 0.3], "code": 0, "top1": 0.3}],
        STARTUP + 1: [{"evaluations": [0.7, 0.8], "code": 0, "top1": 0.8}],
    }
    study = Study(None, axes, "top1", prune=True)
    executor = FakeExecutor(script, at_once=1)
    made = driver(study, executor, tmp_path, quasi(axes, STARTUP, 0), STARTUP + 2)
    assert run(made)
    assert states(made) == ["complete"] * STARTUP + ["pruned", "complete"]
    assert executor.handles[STARTUP].polls == 3  # asked after its second evaluation
    assert made.trials[STARTUP].value is None
    assert executor.started == list(range(STARTUP + 2))


def test_tpe_finds_the_better_half_and_survives_divergence():
    """It draws most near the optimum, at 3 of 0.1 to 10, where a rate above 6 diverges."""
    axes = [from_text("schedule.peak=log:0.1:10"), from_text("run.seed=0,1")]
    found = []
    for _ in range(2):  # the same again: of the seed and what is known alone
        study = Study(None, axes, "loss", seed=1)
        begin = quasi(axes, STARTUP, 1)
        for n in range(24):
            trial = study.begin(begin[n]) if n < STARTUP else study.begin(None)
            peak = float(trial.values["schedule.peak"])
            off = abs(peak / 3 - 1)
            diverged = Outcome("diverged", math.inf)
            study.tell(trial, diverged if peak > 6 else Outcome("complete", off))
        found.append([t.values for t in study.trials()])
    assert found[0] == found[1]
    drawn = [float(v["schedule.peak"]) for v in found[0][STARTUP:]]
    near = sum(1 < peak < 6 for peak in drawn)
    assert near > len(drawn) * 0.6  # by chance 0.39
    assert study.trials()[0].values == begin[0]
