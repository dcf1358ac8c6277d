"""``train.py`` from the shell: one line for each mistake, and exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import train
from largebatch.config import freeze

ROOT = Path(train.__file__).parent
DIGITS = f"--config={ROOT / 'configs' / 'digits.py'}"


def fails(capsys, *arguments):
    """The one line that a call of train.py ends with."""
    assert train.main(list(arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--config.batch.wokers=4", ["batch.wokers", "'batch.workers'"]),
        ("--config.batch.workers=12", ["8 devices", "8 or 16 workers"]),
        ("--config.data.source=imagnet", ["imagnet", "digits", "synthetic"]),
        ("--config.optimizer.decay_skip=norm", ["optimizer.decay_skip", "'norm'", "bn"]),
        ("--coordinator=localhost:1", ["--processes", "--process"]),
    ],
)
def test_a_wrong_option(capsys, tmp_path, option, words):
    line = fails(capsys, DIGITS, f"--workdir={tmp_path / 'run'}", option)
    for word in words:
        assert word in line
    assert not (tmp_path / "run").exists()


def test_the_options_can_be_printed_without_jax(tmp_path):
    code = "import sys, train; print(train.main(sys.argv[1:]), 'jax' in sys.modules)"
    given = [DIGITS, "--print_config", "--config.run.seed=7", f"--workdir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=ROOT, capture_output=True, text=True, check=True
    )
    printed, ended = done.stdout.rstrip().rsplit("\n", 1)
    assert ended == "0 False"
    expected = train.load(Path(DIGITS.partition("=")[2]), [("run.seed", "7")])
    assert freeze(json.loads(printed)) == expected
    assert not (tmp_path / "run").exists()


def test_an_unwritable_workdir(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for workdir in (tmp_path / "file" / "run", "/proc/foo"):
        line = fails(capsys, DIGITS, f"--workdir={workdir}", "--config.batch.microbatch=1")
        assert f"--workdir={workdir}" in line


def test_weights_that_do_not_exist(capsys, tmp_path):
    given = (DIGITS, f"--workdir={tmp_path}", f"--init_from={tmp_path / 'absent.pth'}")
    line = fails(capsys, *given)
    assert f"model.init_from={tmp_path / 'absent.pth'}" in line
    # Of another run, whose options would otherwise be the first to differ.
    stored = {"config": {"model": {"init_from": "other.pth"}}}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert fails(capsys, *given) == line


def test_a_run_resumes_without_the_weights_it_began_with(capsys, tmp_path):
    absent = str(tmp_path / "absent.pth")
    (tmp_path / "config.json").write_text(json.dumps({"config": {"model": {"init_from": absent}}}))
    given = (DIGITS, f"--workdir={tmp_path}", f"--init_from={absent}")
    recipe = Path(DIGITS.partition("=")[2])
    begun = train.load(recipe, [("model.init_from", absent)])
    train.check(begun, train.Request(recipe, tmp_path))
    assert absent in fails(capsys, *given, "--resume=never")


def test_the_trainer_never_imports_tensorflow(tmp_path):
    code = """
import pathlib
import sys
import train
from largebatch.tracking import TensorBoardTracker
TensorBoardTracker(pathlib.Path(sys.argv[1]), resume_step=0).close()
from largebatch.data import open_source
open_source("digits", "train")
print([name for name in sys.modules if name.split(".")[0] in ("tensorflow", "torch")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
