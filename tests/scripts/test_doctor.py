"""``scripts/doctor.py`` as it is called, alone and as two processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import doctor
import pytest
import reproduce

import train as entry

ROOT = Path(entry.__file__).parent
DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"
QUICK = (DIGITS, "--seconds=0.2", "--config.run.compile_cache=off")


def lines_of(path):
    return {line["name"]: line for line in json.loads(path.read_text())["lines"]}


def test_all_is_well_here_and_nothing_is_left(tmp_path, capsys):
    out = tmp_path / "page.json"
    assert doctor.main([*QUICK, f"--workdir={tmp_path / 'run'}", f"--json={out}"]) == 0
    printed = capsys.readouterr().out
    assert "no problem found" in printed
    assert "\x1b" not in printed
    found = lines_of(out)
    assert found["devices"]["found"] == "8 × cpu, 1 process(es) of 8"
    assert "counts as published" in found["dataset"]["found"]
    assert found["decoding"]["verdict"] == "OK"
    assert "--measure_step" in found["step time"]["found"]
    assert found["all-reduce"]["found"].startswith("8 devices")
    kept = json.loads(out.read_text())
    assert kept["well"]
    assert kept["environment"]["devices"] == 8
    assert [path.name for path in tmp_path.iterdir()] == ["page.json"]


def test_ctrl_c_is_a_line_and_code_130(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "check_parent", interrupt)
    assert doctor.main([DIGITS, "--json=page.json"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_problems_are_told_with_what_to_do_and_code_1(tmp_path, capsys):
    options = [f"--config.data.source=folder:{tmp_path / 'none'}", "--devices=16"]
    assert doctor.main([*QUICK, f"--workdir={tmp_path / 'run'}", *options]) == 1
    page = capsys.readouterr().out
    assert "8 devices instead of 16" in page
    assert "correct --devices" in page  # the remedy
    assert str(tmp_path / "none") in page
    assert "2 problem(s)" in page
    assert "Traceback" not in page


@pytest.mark.parametrize(
    ("option", "word"),
    [("--config.batch.wokers=1", "did you mean"), ("--speed=3", "--config.section.key=value")],
)
def test_a_mistake_on_the_command_line_is_one_line_and_code_2(capsys, option, word):
    assert doctor.main([DIGITS, option]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert word in line


def test_mistakes_are_found_without_jax():
    code = "import sys, doctor; print(doctor.main(['--x']), 'jax' in sys.modules)"
    scripts = ROOT / "scripts"
    done = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True)
    assert done.stdout == "2 False\n"


def test_an_unknown_xla_flag_ends_the_page_before_a_device_is_touched(tmp_path):
    out = tmp_path / "page.json"
    done = subprocess.run(
        [sys.executable, "scripts/doctor.py", DIGITS, f"--json={out}"],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": "--xla_no_such=1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert "--xla_no_such=1" in done.stdout
    kept = json.loads(out.read_text())
    assert kept["environment"] is None
    assert "devices" not in lines_of(out)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_make_one_page_and_measure_a_step_together(tmp_path):
    out = tmp_path / "page.json"
    command = [sys.executable, "scripts/launch_local.py", "--processes=2", "--"]
    tiny = [
        "--config.model.name=resnet10",
        "--config.model.width=4",
        "--config.batch.workers=2",
        "--config.batch.microbatch=1",
    ]
    asked = [f"--workdir={tmp_path / 'run'}", f"--json={out}", "--measure_step", *tiny]
    done = subprocess.run(
        [*command, "scripts/doctor.py", *QUICK, *asked],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    # On a machine at work decoding may be slow; all else is well.
    found = lines_of(out)
    bad = [name for name, line in found.items() if line["verdict"] == "PROBLEM"]
    assert done.returncode == bool(bad), done.stdout[-3000:] + done.stderr[-2000:]
    assert bad in ([], ["input"])
    assert found["devices"]["found"] == "2 × cpu, 2 process(es) of 1"
    assert found["XLA_FLAGS"]["found"] == "--xla_backend_optimization_level=0"
    assert found["hosts agree"]["found"].startswith("2 processes: configuration ")
    assert found["clocks"]["verdict"] == "OK"
    assert found["shared directory"]["verdict"] == "OK"
    assert found["all-reduce"]["found"].startswith("2 devices")
    assert "(measured, without input)" in found["step time"]["found"]
    assert "images/s that a process needs" in found["input"]["found"]
    assert done.stdout.count(" skipped") == 1  # process 0 alone prints
    assert list(tmp_path.iterdir()) == [out]


VALUES = {
    "--config": "configs/digits.py",
    "--resume": "auto",
    "--scale": "laptop",
    "--runs": "2",
    "--processes": "2",
    "--process": "0",
}


@pytest.mark.parametrize("command", [entry.main, reproduce.main], ids=["train", "reproduce"])
def test_the_argument_list_of_the_job_is_accepted(command, capsys):
    """``DOCTOR=1 scripts/launch/slurm.sh`` gives the doctor what the job is given."""
    with pytest.raises(SystemExit):
        command(["--help"])
    names = re.findall(r"^  (--\w+)( [A-Z{]\S*)?", capsys.readouterr().out, re.MULTILINE)
    assert len(names) >= 5
    given = [f"{name}={VALUES.get(name, 'x')}" if value else name for name, value in names]
    flags, options = doctor.parse([*given, "--config.run.seed=3"])
    assert ("run.seed", "3") in options
    assert flags.config == Path("configs/digits.py")


def test_flags_that_are_options_count_as_such():
    given = ["fujitsu2019_81920", "--scale=laptop", "--init_from=runs/a", "--config.run.seed=3"]
    flags, options = doctor.parse(given)
    assert flags.config == Path("configs/fujitsu2019_81920.py")
    assert dict(options) == {"run.scale_to": "laptop", "run.seed": "3", "model.init_from": "runs/a"}
    assert doctor.parse(["mine/own.py"])[0].config == Path("mine/own.py")
