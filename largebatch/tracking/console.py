"""What a person sees of a run: the plan, the progress, the outcome."""

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.spinner import Spinner
from rich.text import Text

from largebatch.tracking.progress import GAP, PlainProgress, Progress, duration, loss_text

CHANGED = "bold yellow"
EVERY_S = 10.0
"""Least time, in seconds, between two progress lines without a terminal. In a SLURM job there is a
line for each row of the log instead."""


class Console:
    """Prints for a person: animated in a terminal, plain lines anywhere else.

    If the output is not a terminal (a file, a pipe, a notebook, TERM=dumb), nothing moves and no
    control code is written, whatever FORCE_COLOR says. NO_COLOR removes colour. Lines are never
    wrapped or cut, so that paths and commands can be pasted.
    """

    def __init__(
        self,
        quiet: bool = False,
        file: TextIO | None = None,
        force_terminal: bool | None = None,
        width: int | None = None,
        *,
        brief: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Inspect the output; print nothing.

        Args:
            quiet: print nothing at all, for processes other than 0.
            brief: print only warnings and the last line.
            file: where to print; standard output if None.
            force_terminal: treat the output as a terminal or not; None asks it.
            width: terminal cells; None asks the terminal.
            clock: a monotonic clock, in seconds.
        """
        terminal = _is_terminal(file or sys.stdout) if force_terminal is None else force_terminal
        self._quiet, self._brief = quiet, quiet or brief
        self._to_stdout = file is None
        # A job's output is read afterwards, beside the log: one line for each row there.
        self._every_s = None if "SLURM_JOB_ID" in os.environ else EVERY_S
        self._clock = clock
        self._out = RichConsole(
            file=file,
            force_terminal=terminal,
            width=width,
            markup=False,  # brackets and colons are printed as they are
            emoji=False,
            highlight=False,
            force_jupyter=False,
        )
        self._animates = terminal and self._out.is_interactive and not self._brief
        self._animating = False

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
            line.stylize(CHANGED if is_changed else "")
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
        started = self._clock()

        def elapsed() -> float:
            return self._clock() - started

        spinner = Spinner("line")  # of ASCII characters

        def waiting() -> RenderableType:
            spinner.update(text=f"compiling {what}{GAP}{duration(elapsed())}")
            return spinner

        self.note(f"compiling {what}: may take minutes the first time")
        animated = self._may_animate()
        try:
            with (
                self._animate(get_renderable=waiting, transient=True) if animated else nullcontext()
            ):
                yield
        except BaseException:
            self.note(f"compiling {what} stopped after {elapsed():.1f} s")
            raise
        self.note(f"compiled {what} in {elapsed():.1f} s")

    @contextmanager
    def progress(
        self, total_steps: int, first_step: int, *, samples_per_step: int
    ) -> Iterator[Progress]:
        """Show training progress while the body runs.

        Args:
            total_steps: steps of the complete run.
            first_step: steps completed before: 0, or the step resumed from.
            samples_per_step: the global batch, in images.

        Yields:
            The object to report to.
        """
        steps: dict[str, Any] = {"samples_per_step": samples_per_step, "clock": self._clock}
        if self._may_animate():
            progress = Progress(total_steps, first_step, **steps)
            with self._animate(get_renderable=lambda: progress.bar(self._out.width)):
                yield progress
            return
        lines = PlainProgress(
            total_steps, first_step, **steps, emit=self.note, every_s=self._every_s
        )
        try:
            yield lines
        finally:
            lines.finish()

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
        fields = (
            f"validation at step {step}",
            f"epoch {epoch:.2f}",
            f"loss {loss_text(loss)}",
            f"top-1 {top1:.2%}",
            *([] if top5 is None else [f"top-5 {top5:.2%}"]),
            *([] if ema_top1 is None else [f"EMA top-1 {ema_top1:.2%}"]),
            *(f"{name} top-1 {value:.2%}" for name, value in (sets or {}).items()),
            f"{seconds:.1f} s",
            *([target] if target else []),
        )
        self._line(Text(GAP.join(fields), style="bold"))

    def closing(self, rows: Sequence[tuple[str, str]], title: str) -> None:
        """Print the outcome; paths and commands can be pasted whatever the width.

        Args:
            rows: (label, value), such as top-1, time, images/s, checkpoint, next command.
            title: one line.
        """
        if self._brief:
            first = (f"{label} {value}" for label, value in rows[:1])
            self._print(Text(GAP.join((title, *first))))
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

    def _may_animate(self) -> bool:
        """Whether a live display can be started: a terminal has one at a time."""
        return self._animates and not self._animating

    @contextmanager
    def _animate(self, **options: Any) -> Iterator[None]:
        self._animating = True
        try:
            with Live(
                console=self._out,
                refresh_per_second=4,
                redirect_stdout=self._to_stdout,
                # `2> file` must still receive what is written to standard error.
                redirect_stderr=_is_terminal(sys.stderr),
                **options,
            ):
                yield
        finally:
            self._animating = False


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _aligned(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """(label, value, padding) such that the values are in one column."""
    widest = max((cell_len(label) for label, _ in rows), default=0)
    return [(label, value, " " * (widest - cell_len(label)) + GAP) for label, value in rows]
