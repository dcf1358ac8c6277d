"""Pace and remaining time against hand arithmetic, and the lines and bars that show them."""

import pytest
from rich.console import Console as RichConsole

from largebatch.tracking.progress import PlainProgress, Progress


class Clock:
    """Time that moves only by assignment."""

    now = 100.0

    def __call__(self):
        return self.now


def report(progress, step, *, loss=2.3456, images_per_s=12_345.0, **more):
    progress.update(step, loss=loss, images_per_s=images_per_s, epoch=step / 100, **more)


def test_remaining_time_leaves_out_the_first_step_and_counts_down():
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


def test_remaining_time_of_a_resumed_run_counts_only_its_own_steps():
    clock = Clock()
    progress = Progress(1000, 900, samples_per_step=64, clock=clock)
    assert progress.fields()["step"] == "step  900/1000"
    report(progress, 900)  # no step behind it
    clock.now += 30.0
    report(progress, 901)
    clock.now += 4.0
    report(progress, 903)  # 2 s a step; 97 remain
    assert progress.fields()["eta"] == "eta 0:03:14"


def plain(total, lines, clock):
    return PlainProgress(total, 0, samples_per_step=64, clock=clock, emit=lines.append, every_s=10)


def test_lines_are_rare_and_end_with_the_last_step():
    clock, lines = Clock(), []
    progress = plain(40, lines, clock)
    progress.finish()
    assert lines == []
    for step in range(1, 41):
        clock.now += 3.0
        report(progress, step)
    # The first report, then every fourth (12 s ≥ 10 s), then the last at once.
    assert [int(line.split("/")[0].split()[1]) for line in lines] == [*range(1, 41, 4), 40]
    assert lines[1] == "step  5/40  epoch 0.05  loss 2.3456  12,345 images/s  eta 0:01:45"
    progress.finish()
    assert len(lines) == 11


def test_a_run_that_stops_early_prints_its_last_step():
    clock, lines = Clock(), []
    progress = plain(540, lines, clock)
    report(progress, 119)
    clock.now += 0.25
    report(progress, 120, loss=None)
    assert len(lines) == 1
    progress.finish()
    progress.finish()
    assert lines[1:] == ["step 120/540  epoch 1.20  12,345 images/s  eta 0:01:45"]


@pytest.mark.parametrize(
    ("width", "has_bar", "last"),
    [
        (200, True, "0:00:20"),
        (83, True, "epoch 1.21"),
        (27, False, "eta 0:01:10"),
    ],
)
def test_a_narrow_terminal_keeps_the_step_and_the_remaining_time(width, has_bar, last):
    clock = Clock()
    progress = Progress(541, 0, samples_per_step=64, clock=clock)
    report(progress, 1)
    clock.now += 20.0
    report(progress, 121)  # 420 × 20 s / 120
    console = RichConsole(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(progress.bar(width))
    (line,) = captured.get().splitlines()
    assert line.startswith("step 121/541")
    assert len(line) <= width
    assert line.rstrip().endswith(last)
    assert ("━" in line) == has_bar
