"""The console in a log file and in a terminal; pace and remaining time by hand arithmetic."""

import io
import re
import sys
import types

import pytest
from rich.progress import Progress as RichProgress

from largebatch.tracking import Console, console
from largebatch.tracking.console import Progress

CHECKPOINT = "/gpfs/work/group/experiments/imagenet/resnet50/record/checkpoints/1408.safetensors"
COMMAND = f"python scripts/export.py --checkpoint {CHECKPOINT} --format 'a  b'"
ANSI = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that moves only by assignment."""
    clock = types.SimpleNamespace(now=100.0)
    fake = types.SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("largebatch.tracking.console.time", fake)
    return clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def everything(console, clock):
    """A short run that uses every part."""
    console.plan("record", [("workers", "2,048"), ("seed", "7")], changed={"seed"})
    with console.compiling("training step"):
        clock.now += 12.34
    with console.progress(540, 0, samples_per_step=64) as progress:
        for step in (1, 119, 540):
            clock.now += 20.0
            progress.update(step, loss=2.3456, images_per_s=12_345.0, epoch=step / 432)
            if step == 119:
                console.evaluation(
                    119, epoch=0.275, loss=1.25, top1=0.7508, top5=0.9231, seconds=3.21
                )
                with console.compiling("evaluation"):
                    clock.now += 1.0
                console.warn("one host is slow")
    console.note("saved [1] :x: checkpoint")
    console.closing([("top-1", "75.08%"), ("next", "python x.py")], "finished")


@pytest.fixture
def rendered(clock, monkeypatch):
    def render(width=80, file=None, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        file = file or io.StringIO()
        everything(Console(file=file, **options), clock)
        return file.getvalue()

    return render


def test_plain_output_exactly(rendered):
    assert rendered().splitlines() == [
        "╭─ record ──────────╮",
        "│   workers  2,048  │",
        "│ * seed     7      │",
        "│ * not the default │",
        "╰───────────────────╯",
        "compiling training step: may take minutes the first time",
        "compiled training step in 12.3 s",
        "step   1/540  epoch 0.00  loss 2.3456  12,345 images/s",
        "step 119/540  epoch 0.28  loss 2.3456  12,345 images/s  eta 0:01:12",
        "validation at step 119  epoch 0.28  loss 1.2500  top-1 75.08%  top-5 92.31%  3.2 s",
        "compiling evaluation: may take minutes the first time",
        "compiled evaluation in 1.0 s",
        "warning: one host is slow",
        "step 540/540  epoch 1.25  loss 2.3456  12,345 images/s  eta 0:00:00",
        "saved [1] :x: checkpoint",
        "╭─ finished ─────────╮",
        "│ top-1  75.08%      │",
        "│ next   python x.py │",
        "╰────────────────────╯",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "terminal"),
    [
        ("FORCE_COLOR", "1", io.StringIO),
        ("TTY_INTERACTIVE", "1", io.StringIO),
        ("TERM", "dumb", Terminal),
    ],
)
def test_no_control_codes_without_a_terminal(rendered, monkeypatch, variable, value, terminal):
    monkeypatch.setenv(variable, value)
    assert not CONTROL.search(rendered(file=terminal()))


def test_a_terminal_has_a_bar_and_its_cursor_again(rendered):
    text = rendered(file=Terminal(), width=100)
    assert "━" in text
    assert "compiled evaluation in 1.0 s" in ANSI.sub("", text)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    # The line of the step is drawn over: each redraw erases its line first.
    assert text.count("540/540") <= text.count("\x1b[2K")


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
@pytest.mark.parametrize("width", [20, 200])
def test_paths_and_commands_can_be_pasted(monkeypatch, kind, width):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    file = kind()
    console = Console(file=file)
    console.closing(
        [("top-1", "75.08%"), ("checkpoint", CHECKPOINT), ("next", COMMAND)], "finished"
    )
    console.note(COMMAND)
    console.warn(COMMAND)
    lines = ANSI.sub("", file.getvalue()).splitlines()
    assert any(CHECKPOINT in line for line in lines)
    assert sum(COMMAND in line for line in lines) == 3
    boxed = any(line.startswith("╭") for line in lines)
    assert boxed == (width == 200)


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_brief_prints_warnings_and_the_last_line(rendered, kind):
    text = ANSI.sub("", rendered(brief=True, file=kind()))
    assert text.splitlines() == ["warning: one host is slow", "finished  top-1 75.08%"]


def test_streams_are_given_back_after_a_live_display(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    console = Console()

    def fail():
        with console.progress(5, 0, samples_per_step=1):
            print("a stray line")
            print("[red] :x: and a half", end="", flush=True)
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert sys.stdout is out
    assert sys.stderr is err
    # Printed above the bar, on a line of its own.
    assert "a stray line\n" in out.getvalue()
    assert "[red] :x: and a half\n" in out.getvalue()
    with console.compiling("evaluation"):  # the display is free again
        pass
    assert "compiled evaluation" in out.getvalue()


@pytest.mark.parametrize(("job", "steps"), [("17", [2, 4]), (None, [1, 4])])
def test_in_a_slurm_job_each_row_of_the_log_has_a_line(clock, job, steps, monkeypatch):
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    file = io.StringIO()
    with Console(file=file).progress(4, 0, samples_per_step=8) as progress:
        for step in (1, 2, 3, 4):
            clock.now += 0.1
            progress.update(step, loss=1.0, images_per_s=None, epoch=0.1, has_row=step % 2 == 0)
    assert [int(line[5]) for line in file.getvalue().splitlines()] == steps


# ---- Progress


def report(progress, step, *, loss=2.3456, images_per_s=12_345.0, **more):
    progress.update(step, loss=loss, images_per_s=images_per_s, epoch=step / 100, **more)


def started(total, first=0):
    """The progress of a run and its lines."""
    lines, shown = [], RichProgress(disable=True, get_time=console.time.monotonic)
    return Progress(shown, total, first, 64, lines.append), lines


def test_remaining_time_of_a_resumed_run_counts_only_its_own_steps(clock):
    shown, lines = started(1000, 900)
    report(shown, 900)  # no step behind it
    clock.now += 30.0
    report(shown, 901)
    clock.now += 14.0
    report(shown, 908, images_per_s=None)  # 2 s a step; 92 remain
    assert lines[-1] == "step  908/1000  epoch 9.08  loss 2.3456  32.0 images/s  eta 0:03:04"


def test_a_run_that_stops_early_prints_its_last_step(clock):
    shown, lines = started(540)
    report(shown, 119)
    clock.now += 0.25
    report(shown, 120, loss=None)
    assert len(lines) == 1
    shown.finish()
    shown.finish()
    assert lines[1:] == ["step 120/540  epoch 1.20  12,345 images/s  eta 0:01:45"]
