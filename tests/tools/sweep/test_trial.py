"""What a trial's files and exit code mean, and which trial is the best."""

import dataclasses
import json
import math

import pytest

from largebatch.fault_tolerance import MISTAKE, PREEMPTED
from largebatch.tools.sweep.trial import Trial, TrialFiles, after, last_words, read_files
from largebatch.tracking.summary import Summary


def summary(status="complete", *, top1=0.5, loss=0.25, steps=9, wall_s=1.5, **others):
    """What a training leaves, after half a second of compiling."""
    return Summary(status, top1, 1.0, loss, steps, 8 * steps, wall_s, 0.5, 100.0, **others)


def evaluations(*pairs):
    return tuple({"top1": top1, "loss": loss} for top1, loss in pairs)


DONE = TrialFiles(step=9, summary=summary(top1=0.9, loss=0.5, target_s=7.0))
# A loss that is not finite is null in the files.
INFINITE = TrialFiles(
    evaluations=evaluations((0.1, 3.0), (0.1, None)), summary=summary(top1=0.1, loss=None)
)
LATE = TrialFiles(summary=summary(top1=0.1, target_s=None))
UNKNOWN = TrialFiles(summary=summary(top1=None, loss=None))
FURTHER = TrialFiles(summary=summary(top1=0.9, ema_top1=0.92, sets={"v2/loss": 1.5}))
ILL = TrialFiles(step=4, unhealthy="the loss is not finite")
ENDED = TrialFiles(
    evaluations=(
        {"top1": 0.7, "loss": 1.2, "v2/top1": 0.5},
        {"top1": 0.65, "loss": 1.5, "v2/top1": 0.4},
    ),
    unhealthy="the network has learned nothing",
)
GONE = dataclasses.replace(ENDED, evaluations=evaluations((0.7, 1.2), (0.1, None)))


@pytest.mark.parametrize(
    ("code", "asked", "seen", "objective", "expected"),
    [
        (0, "", INFINITE, "loss", ("diverged", math.inf, "")),
        (0, "", UNKNOWN, "target_s", ("failed", None, "run.evaluate_every")),
        (-9, "", TrialFiles(), "top1", ("failed", None, "9")),
        (0, "", DONE, "top1", ("complete", 0.9, "")),
        (0, "", DONE, "target_s", ("complete", 7.0, "")),
        (0, "", LATE, "target_s", ("complete", math.inf, "")),
        (0, "", FURTHER, "v2/loss", ("complete", 1.5, "")),
        (0, "", DONE, "v2/top1", ("failed", None, "run.evaluate_every")),
        (0, "prune", DONE, "top1", ("complete", 0.9, "")),  # it ended before the signal
        (PREEMPTED, "", ILL, "top1", ("running", None, "words")),
        (-9, "stop", TrialFiles(), "top1", ("running", None, "words")),
        (PREEMPTED, "prune", TrialFiles(), "top1", ("pruned", None, "")),
        (MISTAKE, "", ILL, "top1", ("diverged", 0.0, ILL.unhealthy)),
        (MISTAKE, "", ENDED, "top1", ("diverged", 0.65, ENDED.unhealthy)),
        (MISTAKE, "", ENDED, "v2/top1", ("diverged", 0.4, ENDED.unhealthy)),
        (MISTAKE, "", ENDED, "target_s", ("diverged", math.inf, ENDED.unhealthy)),
        (MISTAKE, "", GONE, "loss", ("diverged", math.inf, ENDED.unhealthy)),
        (MISTAKE, "", TrialFiles(), "top1", ("failed", None, "words")),
    ],
)
def test_what_an_end_means(code, asked, seen, objective, expected):
    row = after(Trial(0, {}, "running"), code, asked, seen, objective, "words")
    state, value, error = expected
    assert (row.state, row.value) == (state, value)
    assert error in row.error


def test_a_directory_at_all_times_of_its_life(tmp_path):
    assert read_files(tmp_path / "absent") == TrialFiles()
    rows = [{"step": 10}, {"step": 20, "validation/top1": 0.25, "validation/loss": 2.0}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 30, "loss": 2')
    (tmp_path / "summary.json").write_text("{")
    seen = read_files(tmp_path)
    assert (seen.step, seen.result("top1"), seen.result("loss"), seen.summary) == (
        20,
        0.25,
        2.0,
        None,
    )
    assert seen.evaluations == evaluations((0.25, 2.0))
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
    assert seen.result("top1") == 0.25  # of the last evaluation
    more = {"step": 40, "validation/top1": 0.5, "validation/ema_top1": 0.6, "v2/top1": 0.4}
    (tmp_path / "metrics.jsonl").write_text(text + json.dumps(more) + "\n")
    found = {"top1": 0.5, "ema_top1": 0.6, "v2/top1": 0.4}
    assert read_files(tmp_path).evaluations == (*evaluations((0.25, 2.0)), found)


def test_the_words_of_a_failure(tmp_path):
    path = tmp_path / "output.txt"
    assert last_words(path) == ""
    path.write_text("compiling\nTraceback:\n  x\nValueError: no\n\n")
    assert last_words(path) == "ValueError: no"
    path.write_text("a" * 100_000 + "\nerror: batch.workers=3: no\nbye\n")
    assert last_words(path) == "batch.workers=3: no"
