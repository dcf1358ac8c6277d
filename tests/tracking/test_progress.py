"""Pace and remaining time against hand arithmetic, and what a line keeps when space is short."""

import pytest

from largebatch.tracking.progress import Pace, PlainProgress, Progress, duration, fit, loss_text


class Clock:
    """Time that moves only when told."""

    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now


def report(progress, step, *, loss=2.3456, images_per_s=12_345.0, epoch=None):
    progress.update(step, loss=loss, images_per_s=images_per_s, epoch=epoch or step / 100)


def test_a_large_loss_is_short():
    assert loss_text(2.34567) == "2.3457"
    assert loss_text(99_999.0) == "99999.0000"
    assert loss_text(2383562431004672.0) == "2.384e+15"
    assert loss_text(float("nan")) == "nan"


def test_pace_leaves_out_the_first_step():
    pace = Pace(first_step=0)
    pace.update(1, 90.0)  # 90 s of compilation
    assert pace.seconds_per_step() is None
    pace.update(3, 94.0)
    assert pace.seconds_per_step() == 2.0
    pace.update(11, 100.0)
    assert pace.seconds_per_step() == 1.0


def test_pace_passes_over_a_report_with_no_step_behind_it():
    pace = Pace(first_step=40)
    pace.update(40, 0.0)
    pace.update(41, 50.0)
    assert pace.seconds_per_step() is None
    pace.update(43, 51.0)
    assert pace.seconds_per_step() == 0.5


def test_eta_elapsed_and_countdown():
    clock = Clock()
    progress = Progress(110, 0, samples_per_step=64, clock=clock)
    clock.now += 60.0
    report(progress, 1)
    assert "eta" not in progress.fields()
    clock.now += 20.0
    report(progress, 11)  # 10 steps in 20 s; 99 remain
    assert progress.fields()["eta"] == "eta 0:03:18"
    assert progress.fields()["elapsed"] == "0:01:20"
    clock.now += 8.0  # no report since
    assert progress.fields()["eta"] == "eta 0:03:10"
    clock.now += 1000.0
    assert progress.fields()["eta"] == "eta 0:00:00"
    report(progress, 110)
    assert progress.fields()["eta"] == "eta 0:00:00"


def test_eta_of_a_resumed_run_counts_only_its_own_steps():
    clock = Clock()
    progress = Progress(1000, 900, samples_per_step=64, clock=clock)
    assert progress.fields()["step"] == "step  900/1000"
    clock.now += 30.0
    report(progress, 901)
    clock.now += 4.0
    report(progress, 903)  # 2 s a step; 97 remain
    assert progress.fields()["eta"] == "eta 0:03:14"


def test_throughput_falls_back_on_the_pace():
    clock = Clock()
    progress = Progress(100, 0, samples_per_step=81_920, clock=clock)
    clock.now += 60.0
    report(progress, 1, images_per_s=None)
    assert "images_per_s" not in progress.fields()
    clock.now += 2.0
    report(progress, 5, images_per_s=None)
    assert progress.fields()["images_per_s"] == "163,840 images/s"
    report(progress, 6, images_per_s=12.34)
    assert progress.fields()["images_per_s"] == "12.3 images/s"


def test_plain_lines_are_rare_and_end_with_the_last_step():
    clock, lines = Clock(), []
    progress = PlainProgress(
        40, 0, samples_per_step=64, clock=clock, emit=lines.append, every_s=10.0
    )
    for step in range(1, 41):
        clock.now += 3.0
        report(progress, step)
    # The first report, then every fourth (12 s ≥ 10 s), then the last at once.
    assert [int(line.split("/")[0].split()[1]) for line in lines] == [*range(1, 41, 4), 40]
    assert lines[1] == "step  5/40  epoch 0.05  loss 2.3456  12,345 images/s  eta 0:01:45"
    assert lines[-1] == "step 40/40  epoch 0.40  loss 2.3456  12,345 images/s  eta 0:00:00"
    progress.finish()
    assert len(lines) == 11


def test_plain_line_of_a_run_that_stops_early():
    clock, lines = Clock(), []
    progress = PlainProgress(
        540, 0, samples_per_step=64, clock=clock, emit=lines.append, every_s=10.0
    )
    report(progress, 119)
    clock.now += 0.25
    report(progress, 120, loss=None)
    assert len(lines) == 1
    progress.finish()
    progress.finish()
    assert lines[1:] == ["step 120/540  epoch 1.20  12,345 images/s  eta 0:01:45"]


def test_plain_progress_without_a_report_prints_nothing():
    lines = []
    PlainProgress(5, 5, samples_per_step=1, clock=Clock(), emit=lines.append, every_s=1.0).finish()
    assert lines == []


@pytest.mark.parametrize(
    ("width", "kept", "cells"),
    [
        (200, "step epoch loss images_per_s elapsed eta", 40),
        (100, "step epoch loss images_per_s elapsed eta", 22),
        (80, "step epoch loss images_per_s eta", 11),
        (67, "step loss images_per_s eta", 10),
        (60, "step loss images_per_s eta", 0),
        (40, "step loss eta", 0),
        (30, "step eta", 0),
        (10, "step eta", 0),
    ],
)
def test_fit(width, kept, cells):
    fields = {
        "step": "step 120/540",
        "epoch": "epoch 1.25",
        "loss": "loss 2.3456",
        "images_per_s": "12,345 images/s",
        "elapsed": "0:01:02",
        "eta": "eta 0:03:21",
    }
    fields, bar = fit(fields, width)
    assert (" ".join(fields), bar) == (kept, cells)


def test_duration():
    assert [duration(seconds) for seconds in (0, 59.6, 3599.4, 3600, 360_000)] == [
        "0:00:00",
        "0:01:00",
        "0:59:59",
        "1:00:00",
        "100:00:00",
    ]


def test_a_line_for_each_row_of_the_log():
    clock, lines = Clock(), []
    progress = PlainProgress(9, 0, samples_per_step=8, clock=clock, emit=lines.append, every_s=None)
    for step in range(1, 10):
        clock.now += 100.0
        progress.update(
            step, loss=1.0, images_per_s=None, epoch=0.0, wait=0.25, has_row=step % 4 == 0
        )
    assert [line[:8] for line in lines] == ["step 4/9", "step 8/9", "step 9/9"]
    assert all("input wait 25%" in line for line in lines)


def test_the_wait_gives_way_after_the_elapsed_time_and_before_the_epoch():
    fields = {"step": "step 1/9", "epoch": "epoch 1.25", "wait": "input wait 25%", "elapsed": "1"}
    for width, kept in ((51, 4), (50, 3), (47, 2)):
        assert len(fit(fields, width)[0]) == kept
    assert list(fit(fields, 47)[0]) == ["step", "epoch"]
