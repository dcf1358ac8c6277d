"""The loop of a sweep with processes of a trivial training: every end, kills, two at once."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from largebatch.checkpoint import lock
from largebatch.errors import ConfigError, UserError
from largebatch.tools.sweep import session
from largebatch.tools.sweep.results import keep_description, read_importance, read_results
from largebatch.tools.sweep.session import gpus_here, shares
from largebatch.tools.sweep.space import from_text, grid, quasi
from largebatch.tools.sweep.study import STARTUP, Share, Study, exclusive

optuna = pytest.importorskip("optuna")
ROOT = Path(__file__).parents[3]
FAKE = Path(__file__).with_name("fake_train.py")
AXES = [from_text("schedule.peak=1,2,4"), from_text("run.seed=0,1")]
PROCESS = """
import sys
from pathlib import Path
from tests.tools.sweep.test_study import made, run
print(run(made(Path(sys.argv[1])), jobs=int(sys.argv[2])))
"""


def made(workdir, script=None, axes=AXES, planned=None, total=None, **options):
    """A study of a grid, or of planned trials, which follow a script."""
    planned = grid(axes) if planned is None else planned
    if script is not None:
        (workdir / "script.json").write_text(json.dumps(script))
    with exclusive(workdir):
        study = Study(workdir, axes, options.pop("objective", "top1"), **options)
        study.plan(planned, total or len(planned))
    return study


def run(study, jobs=2, grace_s=30.0):
    command = lambda choice, workdir: (sys.executable, "-S", str(FAKE), str(workdir))  # noqa: E731
    return study.run(command, [Share()] * jobs, grace_s)


def states(study):
    return [trial.state for trial in study.trials()]


def starts(workdir):
    return sorted(map(int, (workdir / "starts.txt").read_text().split()))


def wait_until(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def begin_process(workdir, jobs=1):
    command = [sys.executable, "-c", PROCESS, str(workdir), str(jobs)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_every_end_is_a_row_and_nothing_runs_twice(tmp_path):
    script = {
        0: [{"evaluations": [0.2, 0.4], "top1": 0.8}],
        1: [{"code": 1, "output": "Traceback\nKeyError: 'x'"}],
        2: [{"code": 2, "output": "error: batch.processes=3: no"}],
        3: [{"code": 2, "unhealthy": "the loss is not finite", "output": "error: y"}],
        4: [{"code": 75}, {"evaluations": [0.1], "code": 75}, {"top1": 0.9}],
        5: [{"code": 70, "output": "no progress"}],
    }
    study = made(tmp_path, script)
    assert run(study) == ""
    found = study.trials()
    expected = ["complete", "failed", "failed", "diverged", "complete", "failed"]
    assert states(study) == expected
    assert [list(trial.values.values()) for trial in found] == [
        [peak, seed] for peak in "124" for seed in "01"
    ]
    assert [trial.value for trial in found] == [0.8, None, None, 0.0, 0.9, None]
    errors = ["", "KeyError: 'x'", "batch.processes=3: no", "the loss is not finite", ""]
    assert [trial.error for trial in found] == [*errors, "no progress"]
    assert starts(tmp_path) == [0, 1, 2, 3, 4, 4, 4, 5]
    assert sorted(read_results(tmp_path), key=lambda trial: trial.number) == found
    # Another process reads the same, and has nothing to do.
    again = made(tmp_path)
    assert run(again) == ""
    assert again.trials() == found
    assert len(starts(tmp_path)) == 8


def test_failed_trials_run_again_in_their_directories(tmp_path):
    fails = {"code": 70, "output": "error: disk full"}
    script = {n: [fails, {"top1": 0.75}] for n in (1, 4)} | {2: [{"code": 69}]}
    study = made(tmp_path, script)
    run(study)
    before = study.trials()
    study = made(tmp_path)
    assert study.retry_failed() == 3
    run(study)
    assert starts(tmp_path) == [0, 1, 1, 2, 2, 3, 4, 4, 5]
    assert [trial.values for trial in study.trials()] == [trial.values for trial in before]
    assert [study.trials()[n].value for n in (1, 4)] == [0.75, 0.75]
    assert [study.trials()[n] for n in (0, 3, 5)] == [before[n] for n in (0, 3, 5)]
    assert study.retry_failed() == 1  # trial 2 fails each time


def test_a_signal_stops_trials_which_continue_later(tmp_path):
    """One saves, one does not end in time."""
    study = made(tmp_path, {0: [{"wait": True}, {}], 1: [{"wait": True, "deaf": True}, {}]})
    outputs = [tmp_path / "trials" / f"{n:04d}" / "output.txt" for n in range(2)]

    def stop():
        wait_until(lambda: all(o.exists() and "waiting" in o.read_text() for o in outputs))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert run(study, grace_s=1.0) == "SIGTERM"
    thread.join()
    assert states(study)[:2] == ["running", "running"]
    assert ["saved" in output.read_text() for output in outputs] == [True, False]
    study = made(tmp_path)
    assert run(study) == ""
    assert states(study) == ["complete"] * 6
    assert starts(tmp_path) == [0, 0, 1, 1, 2, 3, 4, 5]


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="processes follow their parent on Linux")
def test_a_killed_sweep_continues_and_runs_nothing_twice(tmp_path):
    """Killed with one trial at its end and two on their way, of which one has ended since."""
    slow = {"wait": True}
    made(tmp_path, {1: [slow, {"top1": 0.6}], 2: [slow, {"top1": 0.6}]})
    first = begin_process(tmp_path, jobs=2)
    trials = tmp_path / "trials"
    outputs = [trials / f"{n:04d}" / "output.txt" for n in (1, 2)]
    wait_until(lambda: all(path.exists() and "waiting" in path.read_text() for path in outputs))
    first.kill()
    first.communicate()
    wait_until(lambda: all("saved" in path.read_text() for path in outputs))
    summary = json.loads((trials / "0000" / "summary.json").read_text())
    (trials / "0001" / "summary.json").write_text(json.dumps(summary | {"top1": 0.7}))
    with (tmp_path / "study.log").open("a") as stream:
        stream.write('{"op_code":')  # the part of a line that a kill may leave
    with lock.hold(trials / "0002", note=pytest.fail):  # a process that still saves
        second = begin_process(tmp_path, jobs=2)
        wait_until(lambda: (trials / "0005" / "summary.json").exists())
        assert starts(tmp_path).count(2) == 1
    assert second.wait(60) == 0
    second.communicate()
    study = made(tmp_path)
    assert states(study) == ["complete"] * 6
    assert [trial.value for trial in study.trials()] == [0.5, 0.7, 0.6, 0.5, 0.5, 0.5]
    assert starts(tmp_path) == [0, 1, 2, 2, 3, 4, 5]


@pytest.mark.multiprocess
def test_two_processes_share_a_sweep(tmp_path):
    """They start at once; one takes the trial of another one that is killed."""
    script = {n: [{"evaluations": [0.1], "pause": 0.05}] for n in range(5)}
    made(tmp_path, script | {5: [{"wait": True}, {}]})
    processes = [begin_process(tmp_path) for _ in range(2)]
    wait_until(lambda: (tmp_path / "starts.txt").exists() and 5 in starts(tmp_path))
    output = tmp_path / "trials" / "0005" / "output.txt"
    with output.open("ab") as stream, pytest.raises(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    wait_until(lambda: any(each.poll() is not None for each in processes))
    ended, running = sorted(processes, key=lambda each: each.poll() is None)
    assert states(made(tmp_path)) == [*["complete"] * 5, "running"]
    running.kill()
    for each in (ended, running):
        each.communicate()
    third = begin_process(tmp_path)
    third.communicate(timeout=60)
    assert states(made(tmp_path)) == ["complete"] * 6
    assert starts(tmp_path) == [0, 1, 2, 3, 4, 5, 5]


def test_the_median_prunes(tmp_path):
    """The first eight come to their end; a later one below their median is ended, one above not."""
    axes = [from_text("schedule.peak=log:0.1:10")]
    good = {n: [{"evaluations": [0.5, 0.6], "top1": 0.6}] for n in range(STARTUP)}
    script = good | {
        STARTUP: [{"evaluations": [0.2, 0.3], "wait": True}],
        STARTUP + 1: [{"evaluations": [0.7, 0.8], "top1": 0.8}],
    }
    planned = quasi(axes, STARTUP, 0)
    study = made(tmp_path, script, axes, planned, STARTUP + 2, prune=True)
    assert run(study) == ""
    assert states(study) == ["complete"] * STARTUP + ["pruned", "complete"]
    assert study.trials()[STARTUP].value is None
    assert starts(tmp_path) == list(range(STARTUP + 2))
    # A larger number of trials extends the sweep.
    study = made(tmp_path, None, axes, planned, STARTUP + 3, prune=True)
    assert states(study)[-1] == "waiting"


def test_a_search_draws_after_the_planned_trials_and_the_same_again(tmp_path):
    axes = [from_text("schedule.peak=log:0.1:10"), from_text("run.seed=0,1")]
    planned, total, found = quasi(axes, STARTUP, 1), STARTUP + 4, []
    for name in "ab":
        (tmp_path / name).mkdir()
        study = made(tmp_path / name, {}, axes, planned, total, objective="loss", seed=1)
        assert run(study, jobs=1) == ""
        found.append([trial.values for trial in study.trials()])
    assert found[0] == found[1]
    assert found[0][:STARTUP] == planned
    assert len(found[0]) == total


def test_a_sweep_whose_trials_were_all_ended_has_a_best_one(tmp_path, capsys):
    ill = {"code": 2, "unhealthy": "the loss is above 3.1", "output": "error: y"}
    script = {n: [{"evaluations": [0.1, 0.65 - n / 100], **ill}] for n in range(1, 6)}
    study = made(tmp_path, script | {0: [ill]})
    about = {"recipe": "r.py", "overrides": [], "objective": "top1", "settings": {}}
    keep_description(tmp_path, about)
    run(study)
    assert [trial.value for trial in study.trials()] == [0.0, 0.64, 0.63, 0.62, 0.61, 0.6]
    session._conclude(tmp_path, AXES, study.trials(), study)
    assert "--config.schedule.peak=2 --config.run.seed=0" in capsys.readouterr().out  # by its mean
    assert [trial.number for trial in read_results(tmp_path)] == [1, 2, 3, 4, 5, 0]
    shares = read_importance(tmp_path)
    assert set(shares) == {"schedule.peak", "run.seed"}
    assert sum(shares.values()) == pytest.approx(1)
    assert (tmp_path / "seeds.csv").read_text().count("\n") == 4
    with pytest.raises(UserError):
        session._conclude(tmp_path, AXES, study.trials()[:1], study)


def test_a_damaged_study_is_one_line_that_names_its_file(tmp_path):
    (tmp_path / "study.log").write_bytes(b"not a journal" * 100)
    with pytest.raises(UserError, match=r"study\.log .*--workdir"):
        Study(tmp_path, AXES, "top1")
    assert (tmp_path / "study.log").read_bytes() == b"not a journal" * 100
    (tmp_path / "study.log").write_bytes(b"")  # killed while it was created
    assert Study(tmp_path, AXES, "top1").trials() == []


def test_gpus_are_named_without_being_opened_and_divided():
    assert gpus_here({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0"}) == []
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "3, GPU-5f"}) == ["3", "GPU-5f"]
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "1,-1,2"}) == ["1"]
    assert shares(None, [0, 1], ["a"]) == [Share()]
    assert shares(2, [0, 1, 2, 5, 7], []) == [Share("0,1"), Share("2,5,7")]
    assert shares(None, [0], ["a", "b"]) == [Share("", "a"), Share("", "b")]
    assert [share.gpus for share in shares(2, [], ["a", "b", "c", "d"])] == ["a,b", "c,d"]
    for jobs in (0, 3):
        with pytest.raises(ConfigError, match="--jobs"):
            shares(jobs, [0, 1, 2], ["0", "1"])
