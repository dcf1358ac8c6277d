"""The command: what it prints, writes and refuses."""

import re
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


def test_errors_are_a_line(tmp_path, capsys):
    folder = made_up.write(tmp_path / "one")
    for arguments, words in (
        ([], "RUN"),
        ([str(tmp_path)], "metrics.jsonl"),
        ([str(folder), str(folder)], "twice"),
    ):
        assert report.main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line


def test_mistakes_are_found_without_jax():
    code = "import sys, report; print(report.main([]), report.main(['--x']), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True)
    assert done.stdout == "2 2 False\n"


def test_a_sweep_stands_for_its_trials(tmp_path, capsys):
    sweep, workers = tmp_path / "lr", range(1, 10)
    for count in workers:
        trial = sweep / "trials" / f"{count:04}"
        made_up.write(trial, metrics=[], events=[], batch__workers=count)
        (trial / "layers.jsonl").unlink()
    (sweep / "trials" / "0010").mkdir()  # a trial that has not started
    (sweep / "sweep.json").write_text("{}")
    assert report.main([str(sweep)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    names = [f"batch.workers={count}" for count in workers]
    assert lines == [f"{name}: complete, step 40, top-1 86.00 %" for name in names]
    assert last == f"report: {sweep / 'report' / 'report.html'}"
    # Of so many runs each is a row of the table of options.
    page = (sweep / "report" / "report.html").read_text()
    for count in workers:
        row = rf"batch\.workers={count}( ★)?</th><td>{count}</td></tr>"
        assert re.search(row, page), count
