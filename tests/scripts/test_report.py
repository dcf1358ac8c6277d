"""The command: what it prints, writes and refuses."""

import subprocess
import sys
from pathlib import Path

import report

from tests.tools.report import made_up

SCRIPTS = Path(report.__file__).parent


def test_a_run_in_another_folder(tmp_path, capsys):
    folder = made_up.write(tmp_path / "one", metrics=[], events=made_up.EVENTS[:1])
    (folder / "layers.jsonl").unlink()
    assert report.main([str(folder), f"--out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert "one: complete, step 40, top-1 86.00 %\n" in printed
    assert printed.endswith(f"report: {tmp_path / 'out' / 'report.html'}\n")


def test_mistakes_are_found_without_jax():
    code = "import sys, report; print(report.main([]), report.main(['--x']), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True)
    assert done.stdout == "2 2 False\n"


def test_a_sweep_stands_for_its_trials(tmp_path, capsys):
    sweep, workers = tmp_path / "lr", range(1, 3)
    for count in workers:
        trial = sweep / "trials" / f"{count:04}"
        made_up.write(trial, metrics=[], events=[], batch__workers=count)
        (trial / "layers.jsonl").unlink()
    (sweep / "trials" / "0010").mkdir()  # a trial that has not started
    (sweep / "sweep.json").write_text("{}")
    assert report.main([str(sweep)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["batch.workers=1", "batch.workers=2"]
    assert last == f"report: {sweep / 'report' / 'report.html'}"
