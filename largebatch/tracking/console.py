"""What a person sees of a run: the plan, the progress, the outcome."""

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.rule import Rule
from rich.table import Column
from rich.text import Text

from largebatch.environment import discard

EVERY_S = 10.0
"""Least time, in seconds, between two progress lines without a terminal. In a SLURM job there is a
line for each row of the log instead."""
_CHANGED = "bold yellow"
_GAP = "  "
_LARGE_LOSS = 1e5
_LINE_CELLS = 72  # a line with step, time, epoch, loss and images/s, without the bar


class _Output(RichConsole):
    """A console that a run does not need: what reads it, such as ``head`` or ``tee``, may end."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on; the default ends the process with exit code 1."""
        self.quiet = True
        discard(self.file)


class Console:
    """Prints for a person: animated in a terminal, plain lines anywhere else.

    If the output is not a terminal (a file, a pipe, a notebook, TERM=dumb), nothing moves and no
    control code is written, whatever FORCE_COLOR says. NO_COLOR removes colour. Lines are never
    wrapped or cut, so that paths and commands can be pasted.
    """

    def __init__(
        self, quiet: bool = False, file: TextIO | None = None, *, brief: bool = False
    ) -> None:
        """Inspect the output; print nothing.

        Args:
            quiet: print nothing at all, for processes other than 0.
            file: where to print; standard output if None.
            brief: print only warnings and the last line.
        """
        terminal = _is_terminal(file or sys.stdout)
        self._quiet, self._brief = quiet, quiet or brief
        self._to_stdout = file is None
        self._out = _Output(
            file=file,
            force_terminal=terminal,
            markup=False,  # brackets and colons are printed as they are
            emoji=False,
            highlight=False,
            force_jupyter=False,
        )
        self._animates = terminal and self._out.is_interactive and not self._brief
        """Whether a live display may begin: a terminal has one at a time."""

    def plan(
        self, title: str, rows: Sequence[tuple[str, str]], changed: Collection[str] = ()
    ) -> None:
        """Print the resolved recipe.

        Args:
            title: one line.
            rows: (label, value), in order.
            changed: labels whose values are not the default; they are marked `*` and highlighted.
        """
        marked = any(label in changed for label, _ in rows)
        lines = []
        for label, value, pad in _aligned(rows):
            is_changed = label in changed
            line = Text(("* " if is_changed else "  ") if marked else "")
            line.append(label + pad).append(value)
            line.stylize(_CHANGED if is_changed else "")
            lines.append(line)
        if marked:
            lines.append(Text("* not the default", style="dim"))
        self._box(title, lines)

    def note(self, text: str) -> None:
        """Print a line."""
        self._line(Text(text))

    def warn(self, text: str) -> None:
        """Print a line that begins with `warning:`."""
        self._print(Text.assemble(("warning:", "bold yellow"), " ", text))

    @contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Show that something compiles, and how long it took.

        Args:
            what: what is compiled, such as `training step`.
        """
        started = time.monotonic()
        self.note(f"compiling {what}: may take minutes the first time")
        columns = SpinnerColumn("line"), f"compiling {what}", TimeElapsedColumn()
        try:
            with self._display(*columns, transient=True) as shown:
                shown.add_task("")
                yield
        except BaseException:
            self.note(f"compiling {what} stopped after {time.monotonic() - started:.1f} s")
            raise
        self.note(f"compiled {what} in {time.monotonic() - started:.1f} s")

    @contextmanager
    def progress(
        self, total_steps: int, first_step: int, *, samples_per_step: int
    ) -> Iterator["Progress"]:
        """Show training progress while the body runs.

        Args:
            total_steps: steps of the complete run.
            first_step: steps completed before: 0, or the step resumed from.
            samples_per_step: the global batch, in images.

        Yields:
            The object to report to.
        """
        columns = (
            "step {task.completed}/{task.total}",
            BarColumn(bar_width=max(10, min(40, self._out.width - _LINE_CELLS))),
            "eta",
            TimeRemainingColumn(),
            TextColumn("{task.fields[line]}", table_column=Column(no_wrap=True, ratio=1)),
        )
        emit = None if self._animates else self.note
        with self._display(*columns) as shown:
            progress = Progress(shown, total_steps, first_step, samples_per_step, emit)
            try:
                yield progress
            finally:
                progress.finish()

    def evaluation(
        self,
        step: int,
        *,
        epoch: float,
        loss: float,
        top1: float,
        top5: float | None,
        seconds: float,
        ema_top1: float | None = None,
        sets: Mapping[str, float] | None = None,
        target: str = "",
    ) -> None:
        """Print the result of an evaluation, also while progress is shown.

        Args:
            step: steps completed.
            epoch: epochs consumed.
            loss: validation loss, nats per image.
            top1: accuracy, a fraction.
            top5: the same within the first five guesses; None is not shown.
            seconds: duration of the evaluation.
            ema_top1: accuracy of the averaged weights, a fraction; None is not shown.
            sets: accuracies of further validation sets, fractions by name; None: no sets.
            target: remark on the target accuracy, or ''.
        """
        accuracies = {"top-1": top1, "top-5": top5, "EMA top-1": ema_top1}
        accuracies |= {f"{name} top-1": value for name, value in (sets or {}).items()}
        fields = (
            f"validation at step {step}",
            f"epoch {epoch:.2f}",
            f"loss {loss_text(loss)}",
            *(f"{name} {value:.2%}" for name, value in accuracies.items() if value is not None),
            f"{seconds:.1f} s",
            *([target] if target else []),
        )
        self._line(Text(_GAP.join(fields), style="bold"))

    def closing(self, rows: Sequence[tuple[str, str]], title: str) -> None:
        """Print the outcome; paths and commands can be pasted whatever the width.

        Args:
            rows: (label, value), such as top-1, time, images/s, checkpoint, next command.
            title: one line.
        """
        if self._brief:
            first = (f"{label} {value}" for label, value in rows[:1])
            self._print(Text(_GAP.join((title, *first))))
            return
        lines = [
            Text.assemble(label + pad, (value, "bold")) for label, value, pad in _aligned(rows)
        ]
        self._box(title, lines)

    def _line(self, text: Text) -> None:
        if not self._brief:
            self._print(text)

    def _print(self, text: Text) -> None:
        if not self._quiet:
            self._out.print(text, soft_wrap=True)

    def _box(self, title: str, lines: Sequence[Text]) -> None:
        """Print lines in a box, or between two rules if they are too long for one."""
        if self._brief:
            return
        heading = Text(title, style="bold")
        # Two borders and a space inside each; the title is within the upper border.
        needed = max(cell_len(text) for text in [title + "  ", *(line.plain for line in lines)]) + 4
        if needed <= self._out.width:
            body = Text("\n").join(lines)
            self._out.print(Panel(body, title=heading, title_align="left", expand=False))
            return
        self._out.print(Rule(heading, align="left", style=""))
        for line in lines:
            self._line(line)
        self._out.print(Rule(style=""))

    @contextmanager
    def _display(
        self, *columns: str | ProgressColumn, transient: bool = False
    ) -> Iterator[RichProgress]:
        """Draw a line below the others while the body runs, if the terminal is free.

        Args:
            columns: what the line shows.
            transient: whether it is removed at the end.
        """
        shown = RichProgress(
            *columns,
            console=self._out,
            refresh_per_second=4,
            speed_estimate_period=math.inf,
            transient=transient,
            redirect_stdout=self._to_stdout,
            # `2> file` must still receive what is written to standard error.
            redirect_stderr=_is_terminal(sys.stderr),
            get_time=time.monotonic,
            disable=not self._animates,
            expand=True,
        )
        if not self._animates:
            yield shown
            return
        self._animates = False
        try:
            with shown:
                yield shown
        finally:
            self._animates = True


class Progress:
    """Takes reports of a run's progress; prints lines where no terminal shows them.

    The first report ends the first step, which includes compilation, so the pace is measured from
    there. It includes evaluations and checkpoints, as the remaining time will.
    """

    def __init__(
        self,
        shown: RichProgress,
        total_steps: int,
        first_step: int,
        samples_per_step: int,
        emit: Callable[[str], None] | None,
    ) -> None:
        """Start.

        Args:
            shown: measures the pace, and draws it in a terminal.
            total_steps: see `Console.progress`, as the next two.
            first_step: steps completed before.
            samples_per_step: the global batch, in images.
            emit: prints a line; None: a terminal shows them.
        """
        self._shown, self._samples_per_step, self._emit = shown, samples_per_step, emit
        self._number = shown.add_task("", total=total_steps, completed=first_step, line="")
        (self._task,) = shown.tasks
        # A job's output is read afterwards, beside the log: one line for each row there.
        self._every_s = None if "SLURM_JOB_ID" in os.environ else EVERY_S
        self._emitted_step, self._emitted_at = first_step, -math.inf

    def update(
        self,
        step: int,
        *,
        loss: float | None,
        images_per_s: float | None,
        epoch: float,
        wait: float | None = None,
        has_row: bool = False,
    ) -> None:
        """Report progress; print a line if one is due.

        Args:
            step: steps completed.
            loss: training loss, or None.
            images_per_s: throughput; None shows the mean since the first step instead.
            epoch: epochs consumed.
            wait: fraction of the training time spent waiting for data, or None.
            has_row: whether the log has a row of this step.
        """
        self._shown.update(self._number, completed=step)
        if images_per_s is None and self._task.speed:
            images_per_s = self._samples_per_step * self._task.speed
        texts = [
            f"epoch {epoch:.2f}",
            *([] if loss is None else [f"loss {loss_text(loss)}"]),
            *([] if images_per_s is None else [images_per_s_text(images_per_s)]),
            *([] if wait is None else [f"input wait {wait:.0%}"]),
        ]
        self._shown.update(self._number, line=_GAP.join(texts))
        due = has_row
        if self._every_s is not None:
            due = time.monotonic() - self._emitted_at >= self._every_s
        if due or self._task.finished:
            self.finish()

    def finish(self) -> None:
        """Print the last report, unless it has been printed or a terminal shows it."""
        task, step = self._task, int(self._task.completed)
        if self._emit is None or step == self._emitted_step:
            return
        left = task.time_remaining
        eta = [] if left is None else [f"eta {duration(left)}"]
        place = f"step {step:{len(str(task.total))}}/{task.total}"
        self._emit(_GAP.join((place, task.fields["line"], *eta)))
        self._emitted_step, self._emitted_at = step, time.monotonic()


def duration(seconds: float) -> str:
    """Return a time as `h:mm:ss`, rounded to the second; hours are not folded into days."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}"


def loss_text(loss: float) -> str:
    """Return a loss with four decimals, or in scientific notation if it is large."""
    return f"{loss:.4f}" if abs(loss) < _LARGE_LOSS else f"{loss:.4g}"


def images_per_s_text(rate: float) -> str:
    """Return a throughput with its unit: `12,345 images/s`, below a hundred `12.3 images/s`."""
    return f"{rate:,.0f} images/s" if rate >= 100 else f"{rate:.1f} images/s"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _aligned(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """(label, value, padding) such that the values are in one column."""
    widest = max((cell_len(label) for label, _ in rows), default=0)
    return [(label, value, " " * (widest - cell_len(label)) + _GAP) for label, value in rows]
