"""How far a run is: pace, remaining time, and the line or bar that says so."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

GAP = "  "
_LARGE_LOSS = 1e5
BAR_CELLS = (10, 40)
"""Least and greatest width of the bar, in terminal cells."""


class Pace:
    """Time per step, from the second report on.

    The first report ends the first step, which holds compilation and warm-up and would spoil the
    estimate for a long time; the pace is measured from there: with reports (s₁, t₁), …, (s, t) it
    is (t − t₁) / (s − s₁). Evaluations and checkpoints in between are part of it, as they will be
    of the time that remains.
    """

    def __init__(self, first_step: int) -> None:
        """Starts with no report.

        Args:
            first_step: steps completed before the run started; a report of this step or an
                earlier one has no step behind it and is passed over.
        """
        self._origin = first_step
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def update(self, step: int, now: float) -> None:
        """Takes a report: `step` steps are completed at time `now`, in seconds."""
        if step > self._origin:
            self._first = self._first or (step, now)
            self._last = (step, now)

    def seconds_per_step(self) -> float | None:
        """Returns the pace, or None before two different steps were reported."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


@dataclass(frozen=True)
class Reading:
    """What was last reported.

    Attributes:
        step: steps completed.
        epoch: epochs consumed; None before the first report.
        loss: training loss; None when not reported.
        images_per_s: throughput; None when unknown.
        due: time of the clock, in seconds, at which the last step should end; None when unknown.
        wait: share of the training time that was waiting for data; None when unknown.
    """

    step: int
    epoch: float | None = None
    loss: float | None = None
    images_per_s: float | None = None
    due: float | None = None
    wait: float | None = None


class Progress:
    """Takes reports and shows itself as one line with a bar in a live rich display."""

    def __init__(
        self,
        total_steps: int,
        first_step: int,
        *,
        samples_per_step: int,
        clock: Callable[[], float],
    ) -> None:
        """Starts the clock.

        Args:
            total_steps: steps of the whole run.
            first_step: steps completed before: 0, or the step resumed from.
            samples_per_step: the global batch, in images.
            clock: a monotonic clock, in seconds.
        """
        self._total = total_steps
        self._samples_per_step = samples_per_step
        self._clock = clock
        self._started = clock()
        self._pace = Pace(first_step)
        # Replaced whole at each report: the thread that draws reads it at any time.
        self._reading = Reading(first_step)

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
        """Reports progress.

        Args:
            step: steps completed.
            loss: training loss, or None.
            images_per_s: throughput; None shows the mean since the first step instead.
            epoch: epochs consumed, fractions included.
            wait: share of the training time that was waiting for data, or None.
            has_row: whether the log has a row of this step.
        """
        now = self._clock()
        self._pace.update(step, now)
        pace = self._pace.seconds_per_step()
        if images_per_s is None and pace:
            images_per_s = self._samples_per_step / pace
        remaining = self._total - step
        due = now if remaining <= 0 else None if pace is None else now + remaining * pace
        self._reading = Reading(step, epoch, loss, images_per_s, due, wait)

    def fields(self) -> dict[str, str]:
        """Returns what is known now, as texts in the order in which they are shown."""
        reading, now = self._reading, self._clock()
        fields = {"step": f"step {reading.step:{len(str(self._total))}}/{self._total}"}
        if reading.epoch is not None:
            fields["epoch"] = f"epoch {reading.epoch:.2f}"
        if reading.loss is not None:
            fields["loss"] = f"loss {loss_text(reading.loss)}"
        if reading.images_per_s is not None:
            fields["images_per_s"] = images_per_s_text(reading.images_per_s)
        if reading.wait is not None:
            fields["wait"] = f"input wait {reading.wait:.0%}"
        fields["elapsed"] = duration(now - self._started)
        if reading.due is not None:
            fields["eta"] = f"eta {duration(max(0.0, reading.due - now))}"
        return fields

    def __rich_console__(
        self, console: RichConsole, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        fields, cells = fit(self.fields(), options.max_width)
        if not cells:
            yield Text(GAP.join(fields.values()), no_wrap=True, overflow="crop")
            return
        row = Table.grid(padding=(0, len(GAP), 0, 0))
        bar = ProgressBar(total=self._total, completed=self._reading.step, width=cells)
        row.add_row(Text(fields.pop("step")), bar, Text(GAP.join(fields.values())))
        yield row


class PlainProgress(Progress):
    """Shows itself as lines, for a log file: no more often than asked, and always the last."""

    def __init__(
        self,
        total_steps: int,
        first_step: int,
        *,
        samples_per_step: int,
        clock: Callable[[], float],
        emit: Callable[[str], None],
        every_s: float | None,
    ) -> None:
        """See `Progress`.

        Args:
            total_steps: steps of the whole run.
            first_step: steps completed before.
            samples_per_step: the global batch, in images.
            clock: a monotonic clock, in seconds.
            emit: prints one line.
            every_s: least time between two lines, in seconds; None: a line for each row of the log.
        """
        super().__init__(total_steps, first_step, samples_per_step=samples_per_step, clock=clock)
        self._emit = emit
        self._every_s = every_s
        self._emitted_at: float | None = None
        self._emitted_step = first_step

    def update(self, step: int, *, has_row: bool = False, **reported: float | None) -> None:
        """See `Progress.update`; prints a line when one is due."""
        super().update(step, has_row=has_row, **reported)
        if self._every_s is None:
            due = has_row
        else:
            silent_s = None if self._emitted_at is None else self._clock() - self._emitted_at
            due = silent_s is None or silent_s >= self._every_s
        if due or step >= self._total:
            self.finish()

    def finish(self) -> None:
        """Prints the last report unless that was done."""
        if self._reading.step == self._emitted_step:
            return
        fields = self.fields()
        del fields["elapsed"]
        self._emit(GAP.join(fields.values()))
        self._emitted_at, self._emitted_step = self._clock(), self._reading.step


def fit(fields: dict[str, str], width: int) -> tuple[dict[str, str], int]:
    """Chooses what of a line fits a terminal.

    The bar gives way after elapsed time, the wait and epoch, and before throughput and loss; the
    step and the remaining time stay.

    Args:
        fields: name → text, in order.
        width: terminal cells.

    Returns:
        The fields kept, and the cells left for the bar (0: none).
    """
    least, greatest = BAR_CELLS
    droppable = ("elapsed", "wait", "epoch", "images_per_s", "loss")
    for bar, count in (
        *((True, dropped) for dropped in range(4)),
        *((False, dropped) for dropped in range(3, 6)),
    ):
        kept = {name: text for name, text in fields.items() if name not in droppable[:count]}
        room = width - len(GAP.join(kept.values()))
        if bar and room >= least + len(GAP):
            return kept, min(greatest, room - len(GAP))
        if not bar and room >= 0:
            break
    return kept, 0


def duration(seconds: float) -> str:
    """Returns a time as `h:mm:ss`, rounded to the second; hours are not folded into days."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}"


def loss_text(loss: float) -> str:
    """A loss with four decimals, or in scientific notation where it is large."""
    return f"{loss:.4f}" if abs(loss) < _LARGE_LOSS else f"{loss:.4g}"


def images_per_s_text(rate: float) -> str:
    """Returns a throughput with its unit: `12,345 images/s`, below a hundred `12.3 images/s`."""
    return f"{rate:,.0f} images/s" if rate >= 100 else f"{rate:.1f} images/s"
