"""The console in a log file and in a terminal."""

import io
import re
import sys

import pytest

from largebatch.tracking import Console

CHECKPOINT = "/gpfs/work/group/experiments/imagenet/resnet50/record/checkpoints/1408.safetensors"
COMMAND = f"python scripts/export.py --checkpoint {CHECKPOINT} --format 'a  b'"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;[\d;]+)m")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


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


def rendered(**options):
    clock, file = Clock(), io.StringIO()
    everything(Console(file=file, clock=clock, **options), clock)
    return file.getvalue()


def test_plain_output_exactly():
    assert rendered(width=80).splitlines() == [
        "╭─ record ──────────╮",
        "│   workers  2,048  │",
        "│ * seed     7      │",
        "│ * not the default │",
        "╰───────────────────╯",
        "compiling training step: may take minutes the first time",
        "compiled training step in 12.3 s",
        "step   1/540  epoch 0.00  loss 2.3456  12,345 images/s",
        "step 119/540  epoch 0.28  loss 2.3456  12,345 images/s  eta 0:01:11",
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
    [("FORCE_COLOR", "1", None), ("TTY_INTERACTIVE", "1", None), ("TERM", "dumb", True)],
)
def test_no_control_codes_without_a_terminal(monkeypatch, variable, value, terminal):
    monkeypatch.setenv(variable, value)
    assert not CONTROL.search(rendered(width=80, force_terminal=terminal))


def test_terminal_has_colour_bar_and_every_line():
    text = rendered(force_terminal=True, width=100)
    assert COLOUR.search(text)
    assert "━" in text
    for line in ("compiled evaluation in 1.0 s", "top-1 75.08%", "540/540", "eta 0:00:00"):
        assert line in text
    # Nothing is left hidden: the cursor that the live display hides is shown again.
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    # The line of the step is drawn over, not repeated: each redraw erases its line first.
    assert text.count("540/540") <= text.count("\x1b[2K")


def test_no_color_removes_colour_only(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = rendered(force_terminal=True, width=100)
    assert not COLOUR.search(text)
    assert "\x1b[1m" in text


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [20, 200])
def test_paths_and_commands_can_be_pasted(monkeypatch, terminal, width):
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width)
    console.closing(
        [("top-1", "75.08%"), ("checkpoint", CHECKPOINT), ("next", COMMAND)], "finished"
    )
    console.note(COMMAND)
    console.warn(COMMAND)
    lines = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue()).splitlines()
    assert any(CHECKPOINT in line for line in lines)
    assert sum(COMMAND in line for line in lines) == 3
    boxed = any(line.startswith("╭") for line in lines)
    assert boxed == (width == 200)


def test_quiet_prints_nothing(capsys):
    clock, file = Clock(), io.StringIO()
    for options in ({"file": file, "force_terminal": True}, {"force_terminal": False}):
        console = Console(quiet=True, clock=clock, **options)
        everything(console, clock)
    assert file.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_brief_prints_warnings_and_the_last_line():
    for terminal in (False, True):
        text = re.sub(r"\x1b\[[\d;]*m", "", rendered(brief=True, force_terminal=terminal))
        assert text.splitlines() == ["warning: one host is slow", "finished  top-1 75.08%"]


def test_failed_compilation_is_not_called_done():
    for terminal in (False, True):
        clock, file = Clock(), io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=80, clock=clock)

        def fail(console=console, clock=clock):
            with console.compiling("training step"):
                clock.now += 2.0
                raise RuntimeError("out of memory")

        with pytest.raises(RuntimeError, match="out of memory"):
            fail()
        assert "compiling training step stopped after 2.0 s" in file.getvalue()
        assert "compiled" not in file.getvalue()


def test_streams_are_given_back_after_a_live_display(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    console = Console(width=80)

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


def test_an_encoding_without_box_characters():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    clock = Clock()
    everything(Console(file=file, width=60, clock=clock), clock)
    everything(Console(file=file, width=60, clock=clock, force_terminal=True), clock)
    assert b"75.08%" in raw.getvalue()


@pytest.mark.parametrize(("job", "steps"), [("17", [2, 4]), (None, [1, 4])])
def test_in_a_slurm_job_each_row_of_the_log_has_a_line(job, steps, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, width=80, clock=clock)
    with console.progress(4, 0, samples_per_step=8) as progress:
        for step in (1, 2, 3, 4):
            clock.now += 0.1
            progress.update(step, loss=1.0, images_per_s=None, epoch=0.1, has_row=step % 2 == 0)
    assert [int(line[5]) for line in file.getvalue().splitlines()] == steps
