"""What a sweep leaves: settings, results, figures, the command of the winner."""

import csv
import dataclasses
import math
import shlex

import pytest

from largebatch.cli import split_overrides
from largebatch.config import load
from largebatch.errors import ConfigError, DataError
from largebatch.tools.sweep.results import (
    best,
    best_command,
    groups,
    keep_description,
    pasteable,
    print_results,
    ranked,
    read_results,
    trials_by_number,
    write_results,
)
from largebatch.tools.sweep.space import from_text
from largebatch.tools.sweep.trial import Trial
from tests.tools.sweep.test_space import ROOT

AXES = (from_text("schedule.peak=log:0.5:8"), from_text("schedule.warmup=5 epochs,40 %"))
KEYS = [axis.name for axis in AXES]
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


def about(**settings):
    return {
        "recipe": str(ROOT / "configs" / "digits.py"),
        "overrides": (("model.width", "4"), ("run.seed", "1")),
        "objective": "top1",
        "settings": {"--search": "grid", "--sweep": " ".join(map(str, AXES)), "--seed": 0}
        | settings,
    }


def test_the_command_of_the_winner_reads_back(tmp_path):
    """A shell splits it into what train.py reads, quotes, blanks and all."""
    keep_description(tmp_path, about())
    write_results(tmp_path, TRIALS, KEYS)
    command, ended, total = best_command(tmp_path)
    assert (ended, total) == (4, 5)
    words = shlex.split(command)
    assert words[:2] == ["python", "train.py"]
    assert words[2:4] == [f"--config={ROOT}/configs/digits.py", f"--workdir={tmp_path}/best"]
    config = load(ROOT / "configs" / "digits.py", split_overrides(words[4:])[0])
    assert (config.model.width, config.run.seed) == (4, 1)
    assert (config.schedule.peak, config.schedule.warmup) == (2.0, "40 %")
    odd = ("--config=a b/it's.py", "--workdir=$HOME", "--config.data.source=folder:x;y")
    assert tuple(shlex.split(pasteable(odd))[2:]) == odd


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"--config.run.seed": "1"}, "--config.run.seed was not given, now 1"),
        ({"--sweep": str(AXES[0])}, "40 %, now schedule.peak=log:0.5:8;"),
    ],
)
def test_another_sweep_is_refused_with_what_differs(tmp_path, settings, named):
    for _ in range(2):
        keep_description(tmp_path, about())
    with pytest.raises(ConfigError) as error:
        keep_description(tmp_path, about(**settings))
    assert named in str(error.value)


def test_damaged_files(tmp_path):
    with pytest.raises(DataError, match=r"sweep\.json"):
        best_command(tmp_path)
    keep_description(tmp_path, about())
    write_results(tmp_path, TRIALS[2:], KEYS)
    with pytest.raises(DataError, match=str(tmp_path)):
        best_command(tmp_path)
    for text in ("trial\n0\n", "trial,state\nx,complete\n", "trial\n\x00\n"):
        (tmp_path / "results.csv").write_text(text)
        assert trials_by_number(tmp_path) == {}
        with pytest.raises(DataError, match=r"results\.csv"):
            read_results(tmp_path)
    for text in ("{", "{}"):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(DataError, match=r"sweep\.json .*--workdir"):
            keep_description(tmp_path, about())
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(DataError, match="missing"):
        keep_description(tmp_path, about())


def test_the_table_and_the_file(tmp_path, capsys):
    order = ranked(TRIALS, "top1")
    print_results(order, KEYS, "top1")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[1:6]] == ["1", "0", "2", "3", "4"]
    infinite = dataclasses.replace(order[0], value=math.inf)
    write_results(tmp_path, [infinite, *order[1:]], KEYS)
    assert read_results(tmp_path) == [infinite, *order[1:]]
    (row, *_) = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    assert (row["schedule.warmup"], row["value"]) == ("40 %", "inf")


def test_ranks():
    states = [
        ("failed", None, None),
        ("complete", 0.5, 0.5),
        ("pruned", None, 0.9),
        ("complete", 0.7, 0.7),
        ("diverged", 0.0, 0.1),
        ("pruned", None, 0.95),
        ("running", None, None),
        ("complete", 0.7, 0.7),
        ("diverged", 0.7, 0.7),
        ("diverged", 0.9, 0.9),
    ]
    trials = [Trial(i, {}, s, value=v, top1=t) for i, (s, v, t) in enumerate(states)]
    assert [t.number for t in ranked(trials, "top1")] == [9, 3, 7, 8, 1, 4, 5, 2, 0, 6]
    assert best(trials, "top1").number == 3  # it can be trained to its end again
    ended = [trial for trial in trials if trial.state == "diverged"]
    assert best(ended, "top1").number == 9
    assert best(ended[:1], "top1") is None  # never evaluated
    assert best(trials, "loss").number == 1
    assert best(trials[:1], "top1") is None


def repeated(values):
    """Trials of each choice x with the seeds 0, 1, …; None has failed."""
    return [
        Trial(
            10 * i + seed,
            {"x": x, "run.seed": str(seed)},
            "failed" if value is None else "complete",
            value,
        )
        for i, (x, found) in enumerate(values.items())
        for seed, value in enumerate(found)
    ]


def test_choices_are_compared_by_their_means():
    trials = repeated({"a": (0.5, 0.9, 0.1), "b": (0.6, 0.5, 0.7), "c": (0.95, None, None)})
    found = groups(trials, "top1")
    assert [group.values["x"] for group in found] == ["b", "a", "c"]  # c lacks two seeds
    assert (found[0].mean, found[0].deviation) == pytest.approx((0.6, 0.1), abs=1e-15)
    assert (found[2].mean, found[2].deviation, len(found[2].trials)) == (0.95, None, 1)
    # The best single trial is not of the best choice.
    assert best(trials, "top1").number == 12
    assert best(trials[:6], "loss").number == 2
