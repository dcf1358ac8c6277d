"""What people are shown, files and figures, and the command of the winner."""

import csv
import io
import math
import re
import shlex

import pytest
from rich.console import Console

from largebatch.config import command_line, load
from largebatch.errors import ConfigError, DataError
from largebatch.files import write_json
from largebatch.tools.sweep import command, plots, view
from largebatch.tools.sweep.description import describe, keep, keep_results, progress, winner
from largebatch.tools.sweep.outcome import Trial, ranked
from largebatch.tools.sweep.session import best_command
from largebatch.tools.sweep.space import from_text
from tests.tools.sweep.test_space import DIGITS, ROOT

AXES = (from_text("schedule.peak=log:0.5:8"), from_text("schedule.warmup=5 epochs,40 %"))
COMPLETE = {"state": "complete", "step": 9}
TRIALS = [
    Trial(number, {"schedule.peak": peak, "schedule.warmup": warmup}, **rest)
    for number, (peak, warmup, rest) in enumerate(
        [
            ("1", "5 epochs", COMPLETE | {"value": 0.5, "top1": 0.5, "seconds": 61.0}),
            ("2", "40 %", COMPLETE | {"value": 0.75, "top1": 0.75, "seconds": 62.0}),
            ("8", "40 %", {"state": "diverged", "value": 0.0, "error": "no, it's ill"}),
            ("0.5", "40 %", {"state": "pruned", "top1": 0.2}),
            ("4", "40 %", {"state": "running", "top1": 0.1, "step": 3}),
        ]
    )
]


def about(**changes):
    options = {"search": "grid", "objective": "top1", "seed": 0} | changes
    return describe(ROOT / "configs" / "digits.py", [("model.width", "4")], DIGITS, AXES, **options)


def test_the_command_of_the_winner_reads_back(tmp_path):
    """A shell splits it into what train.py reads, quotes, blanks and all."""
    keep(tmp_path, about())
    keep_results(tmp_path, TRIALS, 6)
    words = shlex.split(best_command(tmp_path))
    assert words[:2] == ["python", "train.py"]
    assert words[2:4] == [f"--config={ROOT}/configs/digits.py", f"--workdir={tmp_path}/best"]
    pairs = command_line.overrides(words[4:])
    assert pairs == [
        ("model.width", "4"),
        ("schedule.peak", "2"),
        ("schedule.warmup", "40 %"),
    ]
    config = load(ROOT / "configs" / "digits.py", pairs)
    assert (config.model.width, config.schedule.peak, config.schedule.warmup) == (4, 2.0, "40 %")
    odd = ("--config=a b/it's.py", "--workdir=$HOME", "--config.data.source=folder:x;y")
    assert tuple(shlex.split(command.pasteable(odd))[2:]) == odd


def test_another_sweep_is_told_from_this_one(tmp_path):
    assert not keep(tmp_path, about())
    assert keep(tmp_path, about())
    with pytest.raises(ConfigError, match="search was grid and is now tpe"):
        keep(tmp_path, about(search="tpe"))
    other = describe(
        ROOT / "configs" / "digits.py",
        [("model.width", "4")],
        load(ROOT / "configs" / "digits.py", [("schedule.length", "30 epochs")]),
        AXES,
        search="grid",
        objective="top1",
        seed=0,
    )
    with pytest.raises(ConfigError, match=r"schedule\.length was 40 epochs and is now 30 epochs"):
        keep(tmp_path, other)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        keep(tmp_path, about())
    (tmp_path / "sweep.json").unlink()
    (tmp_path / "study.db").touch()
    with pytest.raises(DataError, match="missing"):
        keep(tmp_path, about())


def test_progress_counts_the_trials_that_have_ended(tmp_path):
    keep_results(tmp_path, TRIALS, 6)
    assert progress(tmp_path) == (4, 6)
    write_json(tmp_path / "results.json", {"trials": []})  # of an older version
    assert progress(tmp_path) == (0, 0)


def test_no_winner_yet(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        winner(tmp_path)
    keep(tmp_path, about())
    keep_results(tmp_path, TRIALS[2:], 6)
    with pytest.raises(DataError, match="none of the 3 trials"):
        winner(tmp_path)


def test_plain_lines_tell_each_change_once():
    said, now = [], [0.0]
    show = view.PlainLines(AXES, "top1", 6, said.append, lambda: now[0])
    show(TRIALS)  # what ended before is not news
    assert said == ["trial 4 running: schedule.peak=4, schedule.warmup=40 %"]
    show(TRIALS)
    now[0] = 61.0
    show(TRIALS)
    assert said[1:] == ["2 complete, 1 diverged, 1 pruned, 1 running, 1 to come"]
    show([*TRIALS[:4], Trial(4, TRIALS[4].values, "failed", error="words")])
    assert said[2:] == ["trial 4 failed: schedule.peak=4, schedule.warmup=40 %: words"]
    show = view.PlainLines(AXES, "top1", 6, said.append, lambda: now[0])
    show([])
    show([TRIALS[1]])
    assert said[3:] == [
        "trial 1 complete: schedule.peak=2, schedule.warmup=40 % → top-1 75.00 %, step 9, 0:01:02"
    ]


def test_the_table_and_the_file(tmp_path):
    order = ranked(TRIALS, "top1")
    out = view.console()
    out.width = 90
    with out.capture() as shown:
        out.print(view.table(order, AXES, "top1"))
    lines = [line.split() for line in shown.get().splitlines()]
    assert lines[0] == ["trial", "peak", "warmup", "state", "step", "top-1", "time"]
    assert [line[0] for line in lines[1:]] == ["1", "0", "2", "3", "4"]
    assert lines[1][1:] == ["2", "40", "%", "complete", "9", "75.00", "%", "0:01:02"]
    assert view.errors(order) == ["trial 2 diverged: no, it's ill"]
    view.write_csv(tmp_path / "results.csv", order, AXES)
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["1", "0", "2", "3", "4"]
    assert rows[0]["schedule.warmup"] == "40 %"
    assert float(rows[0]["value"]) == 0.75
    assert rows[2]["error"] == "no, it's ill"
    assert rows[3]["value"] == ""


def test_a_terminal_has_a_live_table(monkeypatch):
    """What runs stands first; nothing of it stays."""
    shown = io.StringIO()
    out = Console(file=shown, force_terminal=True, width=90, height=12, legacy_windows=False)
    monkeypatch.setattr(view, "console", lambda: out)
    with view.watching(AXES, "top1", 6) as show:
        show(TRIALS)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).splitlines()
    first = lines.index(next(line for line in lines if line.startswith(" trial")))
    assert "2 complete, 1 diverged, 1 pruned, 1 running, 1 to come; 6 in all" in lines[first - 1]
    # The terminal has room for four rows of five.
    assert [line.split()[0] for line in lines[first + 1 : first + 5]] == ["4", "1", "0", "2"]
    assert shown.getvalue().endswith("\x1b[2K")
    monkeypatch.setattr(view, "console", lambda: Console(file=shown, force_terminal=False))
    with view.watching(AXES, "top1", 6) as show:
        assert isinstance(show, view.PlainLines)


def test_names_stay_apart():
    assert view.short_names(["optimizer.decay", "schedule.decay", "run.seed"]) == [
        "optimizer.decay",
        "schedule.decay",
        "seed",
    ]
    assert view.objective_text(math.inf, "target_s") == "never"
    assert view.objective_text(12.34, "target_s") == "12.3 s"
    assert view.objective_text(0.51234, "loss") == "0.5123"


@pytest.mark.parametrize("objective", ["top1", "target_s"])
def test_figures_are_drawn(tmp_path, objective):
    trials = TRIALS
    if objective == "target_s":
        trials = [Trial(5, TRIALS[0].values, "complete", math.inf), *TRIALS[:2]]
    assert plots.parallel(AXES, trials, objective, tmp_path / "parallel.png")
    assert not plots.parallel(AXES, TRIALS[2:3], objective, tmp_path / "none.png")
    plots.importance({"schedule.peak": 0.9, "schedule.warmup": 0.1}, 4, tmp_path / "importance.png")
    for name in ("parallel.png", "importance.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "none.png").exists()
    assert [round(plots.place(axis, TRIALS[1]), 3) for axis in AXES] == [0.5, 1.0]
