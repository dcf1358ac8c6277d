"""The command line of a sweep, and one of real trainings: stopped, resumed, done."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sweep

import train
from largebatch.fault_tolerance import PREEMPTED
from largebatch.tools.sweep.session import Request

ROOT = Path(__file__).parents[2]
DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"
TINY = (
    "--config.batch.microbatch=8",
    "--config.model.name=resnet10",
    "--config.model.width=4",
    "--config.schedule.length=4 steps",
    "--config.schedule.warmup=1 steps",
    "--config.run.evaluate_every=4 steps",
    "--config.run.checkpoint_every=4 steps",
    "--config.run.log_every=1 steps",
)


def test_options_are_checked_before_jax_is_imported():
    script = (
        "import sys; sys.path.insert(0, 'scripts'); import sweep\n"
        "assert sweep.main(['digits', '--sweep', 'schedule.peek=1,2']) == 2\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.parametrize("flags", [[], ["--dry_run"]])
def test_a_missing_package_is_the_first_error(capsys, tmp_path, monkeypatch, flags):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep.main([DIGITS, f"--workdir={tmp_path / 'sweep'}", *flags]) == 2
    assert ".[sweep]" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_dry_run_lists_the_trials_and_starts_none(capsys, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    recipe = str(ROOT / "configs" / "sweeps" / "lr_warmup.py")
    assert sweep.main(["--sweep", "lr_warmup", "--dry_run", "--config.run.seed=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("trial ") for line in lines) == 15
    words = shlex.split(lines[-1].partition(f"python {ROOT}/train.py ")[2])
    flags, overrides = train.parse(words)
    assert (str(flags.config), flags.workdir.name) == (recipe, "0000")
    assert dict(overrides) == {"run.seed": "3", "schedule.peak": "0.5", "schedule.warmup": "5 %"}
    averaged = ["--sweep", "schedule.ema=5 epochs,10 epochs", "--objective=ema_top1", "--dry_run"]
    assert sweep.main([DIGITS, *averaged]) == 0
    assert not any(tmp_path.iterdir())


def test_the_command_runs_extends_and_repeats_a_sweep(capsys, tmp_path, monkeypatch):
    """With a stand-in for train.py."""
    pytest.importorskip("optuna")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    fake = ROOT / "tests" / "tools" / "sweep" / "fake_train.py"
    command = (sys.executable, "-S", str(fake))
    monkeypatch.setattr(Request, "command", lambda _, choice, workdir: (*command, str(workdir)))
    (tmp_path / "script.json").write_text('{"1": [{"top1": 0.75}], "2": [{"code": 3}]}')
    axes = ("--sweep", "schedule.peak=log:0.5:8", "--search=quasi")
    arguments = [DIGITS, f"--workdir={tmp_path}", *axes]
    assert sweep.main([*arguments, "--trials=2"]) == 0
    assert sweep.main([*arguments, "--trials=1"]) == 2
    assert "--trials=1" in capsys.readouterr().err
    assert sweep.main([*arguments, "--trials=3", "--jobs=2"]) == 0
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["1", "0", "2"]
    assert sweep.main([f"--workdir={tmp_path}", "--best"]) == 0
    assert f"--config.schedule.peak={rows[0]['schedule.peak']}" in capsys.readouterr().out
    (tmp_path / "script.json").write_text("{}")
    assert sweep.main([*arguments, "--trials=3", "--retry_failed"]) == 0
    assert (tmp_path / "starts.txt").read_text().split() == ["0", "1", "2", "2"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_sweep_of_real_trainings_stopped_and_resumed(tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    workdir = tmp_path / "sweep"
    axes = ("--sweep", "schedule.peak=0.25,0.5")
    arguments = (DIGITS, f"--workdir={workdir}", *axes, *TINY)
    output = tmp_path / "first.txt"
    with output.open("w") as stream:
        first = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "sweep.py"), *arguments],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(os.environ),
        )
    try:
        until = time.monotonic() + 240
        while "trial 1 running" not in output.read_text() and first.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.1)
        first.send_signal(signal.SIGTERM)
        assert first.wait(600) == PREEMPTED, output.read_text()
    finally:
        first.kill()
        first.wait()
    done = (workdir / "trials" / "0000" / "output.txt").read_text()

    assert sweep.main(arguments) == 0
    capsys.readouterr()
    assert (workdir / "trials" / "0000" / "output.txt").read_text() == done
    rows = list(csv.DictReader((workdir / "results.csv").read_text().splitlines()))
    assert sorted(row["trial"] for row in rows) == ["0", "1"]
    for row in rows:
        folder = workdir / "trials" / f"{int(row['trial']):04d}"
        summary = json.loads((folder / "summary.json").read_text())
        kept = json.loads((folder / "config.json").read_text())["config"]
        assert (row["state"], summary["status"], summary["steps"]) == ("complete", "complete", 4)
        assert float(row["value"]) == summary["top1"]
        assert float(row["schedule.peak"]) == kept["schedule"]["peak"]
    assert float(rows[0]["value"]) >= float(rows[1]["value"])
    assert sweep.main([*arguments, "--config.run.seed=1"]) == 2
    assert "--config.run.seed" in capsys.readouterr().err
