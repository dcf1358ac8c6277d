"""What a trial's files and exit code mean, and which trial is the best."""

import dataclasses
import json
import math

import pytest

from largebatch.fault_tolerance import MISTAKE, PREEMPTED
from largebatch.tools.sweep import seeds
from largebatch.tools.sweep.trial import (
    Outcome,
    Trial,
    TrialFiles,
    last_words,
    outcome,
    ranked,
    read_files,
)
from tests.tools.sweep.fakes import summary

DONE = TrialFiles(step=9, summary=summary(top1=0.9, loss=0.5, target_s=7.0))
# A loss that is not finite is null in the files.
INFINITE = TrialFiles(evaluations=((0.1, 3.0), (0.1, None)), summary=summary(top1=0.1, loss=None))
LATE = TrialFiles(summary=summary(top1=0.1, target_s=None))
FURTHER = TrialFiles(summary=summary(top1=0.9, ema_top1=0.92, sets={"v2/loss": 1.5}))
ILL = TrialFiles(step=4, unhealthy="the loss is not finite")
ENDED = TrialFiles(
    evaluations=((0.7, 1.2), (0.65, 1.5)),
    further=({"v2/top1": 0.5}, {"v2/top1": 0.4}),
    unhealthy="the network has learned nothing",
)
GONE = dataclasses.replace(ENDED, evaluations=((0.7, 1.2), (0.1, None)))
FAILURE = Outcome("failed", None, "words")


@pytest.mark.parametrize(
    ("code", "asked", "seen", "objective", "expected"),
    [
        (0, "", DONE, "top1", Outcome("complete", 0.9)),
        (0, "", DONE, "target_s", Outcome("complete", 7.0)),
        (0, "", LATE, "target_s", Outcome("complete", math.inf)),
        (0, "", FURTHER, "ema_top1", Outcome("complete", 0.92)),
        (0, "", FURTHER, "v2/loss", Outcome("complete", 1.5)),
        (
            0,
            "",
            DONE,
            "v2/top1",
            Outcome("failed", None, "it was never evaluated; see run.evaluate_every"),
        ),
        (0, "prune", DONE, "top1", Outcome("complete", 0.9)),  # it ended before the signal
        (PREEMPTED, "", ILL, "top1", Outcome("running")),
        (-9, "stop", TrialFiles(), "top1", Outcome("running")),
        (PREEMPTED, "prune", TrialFiles(), "top1", Outcome("pruned")),
        (MISTAKE, "", ILL, "top1", Outcome("diverged", 0.0, ILL.unhealthy)),
        (MISTAKE, "", ENDED, "top1", Outcome("diverged", 0.65, ENDED.unhealthy)),
        (MISTAKE, "", ENDED, "loss", Outcome("diverged", 1.5, ENDED.unhealthy)),
        (MISTAKE, "", ENDED, "v2/top1", Outcome("diverged", 0.4, ENDED.unhealthy)),
        (MISTAKE, "", ENDED, "target_s", Outcome("diverged", math.inf, ENDED.unhealthy)),
        (MISTAKE, "", GONE, "top1", Outcome("diverged", 0.1, ENDED.unhealthy)),
        (MISTAKE, "", GONE, "loss", Outcome("diverged", math.inf, ENDED.unhealthy)),
        (MISTAKE, "", TrialFiles(), "top1", FAILURE),
    ],
)
def test_what_an_end_means(code, asked, seen, objective, expected):
    assert outcome(code, asked, seen, objective, "words") == expected


def test_ends_without_a_value():
    found = outcome(0, "", INFINITE, "loss", "")
    assert (found.state, found.value) == ("diverged", math.inf)
    unknown = TrialFiles(summary=summary(top1=None, loss=None))
    assert outcome(0, "", unknown, "target_s", "").state == "failed"
    killed = outcome(-9, "", TrialFiles(), "top1", "words")
    assert killed.state == "failed"
    assert "9" in killed.error


def test_evaluations_that_are_not_finite_count_as_the_worst():
    seen = TrialFiles(evaluations=((0.5, 1.0), (None, None), (0.7, math.nan)))
    assert seen.values("top1") == [0.5, 0.0, 0.7]
    assert seen.values("loss") == [1.0, math.inf, math.inf]
    assert seen.values("target_s") == pytest.approx([0.5, math.inf, 0.3])
    assert seen.values("v2/top1") == [0.0] * 3
    assert TrialFiles(evaluations=((0.5, 1.0),), further=({"v2/loss": 2.0},)).values("v2/loss") == [
        2.0
    ]


def test_a_directory_at_all_times_of_its_life(tmp_path):
    assert read_files(tmp_path / "absent") == TrialFiles()
    rows = [{"step": 10}, {"step": 20, "validation/top1": 0.25, "validation/loss": 2.0}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 30, "loss": 2')
    (tmp_path / "summary.json").write_text("{")
    seen = read_files(tmp_path)
    assert (seen.step, seen.top1, seen.loss, seen.summary) == (20, 0.25, 2.0, None)
    assert seen.evaluations == ((0.25, 2.0),)
    events = [{"event": "train_start"}, {"event": "unhealthy", "why": "stuck"}, {"event": "times"}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    assert read_files(tmp_path).unhealthy == "stuck"
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('{"event": "train_start"}\n')  # another attempt
    assert read_files(tmp_path).unhealthy == ""
    summary("preempted", top1=None, steps=40, wall_s=2.0).write(tmp_path)
    assert read_files(tmp_path).summary is None
    summary(top1=None, steps=40, wall_s=2.0).write(tmp_path)
    seen = read_files(tmp_path)
    assert (seen.summary.status, seen.step, seen.seconds) == ("complete", 40, 2.0)
    assert Trial(0, {}).with_seen(seen).top1 == 0.25  # of the last evaluation
    more = {"step": 40, "validation/top1": 0.5, "validation/ema_top1": 0.6, "v2/top1": 0.4}
    (tmp_path / "metrics.jsonl").write_text(text + json.dumps(more) + "\n")
    assert read_files(tmp_path).further == ({}, {"ema_top1": 0.6, "v2/top1": 0.4})


def test_the_words_of_a_failure(tmp_path):
    path = tmp_path / "output.txt"
    assert last_words(path) == ""
    path.write_text("compiling\nTraceback:\n  x\nValueError: no\n\n")
    assert last_words(path) == "ValueError: no"
    path.write_text("a" * 100_000 + "\nerror: batch.workers=3: no\nbye\n")
    assert last_words(path) == "batch.workers=3: no"


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
    assert seeds.best(trials, "top1").number == 3  # it can be trained to its end again
    ended = [trial for trial in trials if trial.state == "diverged"]
    assert seeds.best(ended, "top1").number == 9
    assert seeds.best(ended[:1], "top1") is None  # never evaluated
    assert seeds.best(trials, "loss").number == 1
    assert seeds.best(trials[:1], "top1") is None


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
    found = seeds.groups(trials, "top1")
    assert [group.values["x"] for group in found] == ["b", "a", "c"]  # c lacks two seeds
    assert (found[0].mean, found[0].deviation) == pytest.approx((0.6, 0.1), abs=1e-15)
    assert (found[2].mean, found[2].deviation, len(found[2].trials)) == (0.95, None, 1)
    # The best single trial is not of the best choice.
    assert seeds.best(trials, "top1").number == 12
    assert seeds.best(trials[:6], "loss").number == 2


def test_choices_with_infinite_values():
    times = {"a": (math.inf, math.inf), "b": (10.0, math.inf), "c": (900.0, 800.0)}
    found = seeds.groups(repeated(times), "target_s")
    assert [group.values["x"] for group in found] == ["c", "b", "a"]
    assert [group.deviation is None for group in found] == [False, True, True]


def test_equal_choices_that_are_no_repetitions():
    same = [Trial(i, {"x": "a"}, "complete", 0.5) for i in range(2)]
    assert len(seeds.groups(same, "top1")) == 2  # without a seed
    twice = [Trial(i, {"x": "a", "run.seed": "0"}, "complete", 0.5) for i in range(2)]
    (group,) = seeds.groups(twice, "top1")
    assert [trial.number for trial in group.trials] == [0]
