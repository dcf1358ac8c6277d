"""The progress of a run: pace, remaining time, and the line or bar that shows them."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

GAP = "  "
_LARGE_LOSS = 1e5
_BAR_CELLS = (10, 40)  # least and greatest width of the bar
_IN_TERMINAL = ("step", "eta", "loss", "images_per_s", "epoch", "wait", "elapsed")


class Progress:
    """Takes reports of a run's progress and shows them as one line.

    The first report ends the first step, which includes compilation, so the pace is measured from
    there: with reports (s₁, t₁), …, (s, t) it is (t − t₁) / (s − s₁). It includes evaluations and
    checkpoints, as the remaining time will.
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int,
        *,
        samples_per_step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock; see `Console.progress`."""
        self._total, self._samples_per_step = total_steps, samples_per_step
        self._clock, self._started = clock, clock()
        self._origin = first_step
        self._first: tuple[int, float] | None = None
        # Replaced as a whole by each report: the thread that draws reads it at any time.
        self._reading: tuple[int, dict[str, str], float | None] = (first_step, {}, None)

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
        """Report progress.

        Args:
            step: steps completed.
            loss: training loss, or None.
            images_per_s: throughput; None shows the mean since the first step instead.
            epoch: epochs consumed.
            wait: fraction of the training time spent waiting for data, or None.
            has_row: whether the log has a row of this step.
        """
        now, pace = self._clock(), None
        if step > self._origin:  # earlier reports have no step of this run behind them
            self._first = self._first or (step, now)
            if step > self._first[0]:
                pace = (now - self._first[1]) / (step - self._first[0])
        if images_per_s is None and pace:
            images_per_s = self._samples_per_step / pace
        texts = {
            "epoch": f"epoch {epoch:.2f}",
            **({} if loss is None else {"loss": f"loss {loss_text(loss)}"}),
            **({} if images_per_s is None else {"images_per_s": images_per_s_text(images_per_s)}),
            **({} if wait is None else {"wait": f"input wait {wait:.0%}"}),
        }
        remaining = self._total - step
        end = now if remaining <= 0 else None if pace is None else now + remaining * pace
        self._reading = step, texts, end

    def fields(self) -> dict[str, str]:
        """Return what is known now, as texts by name, in the order in which they are shown."""
        (step, texts, end), now = self._reading, self._clock()
        return {
            "step": f"step {step:{len(str(self._total))}}/{self._total}",
            **texts,
            "elapsed": duration(now - self._started),
            **({} if end is None else {"eta": f"eta {duration(max(0.0, end - now))}"}),
        }

    def bar(self, width: int) -> RenderableType:
        """Return the line with a bar for a terminal of this width; the last fields may not fit."""
        fields = self.fields()
        texts = [fields[name] for name in _IN_TERMINAL if name in fields]

        def left() -> int:
            return width - sum(len(text) + len(GAP) for text in texts)

        while len(texts) > 2 and left() < _BAR_CELLS[0]:
            texts.pop()
        if left() < _BAR_CELLS[0]:
            return Text(GAP.join(texts), no_wrap=True, overflow="crop")
        row = Table.grid(padding=(0, len(GAP), 0, 0))
        cells = min(_BAR_CELLS[1], left())
        bar = ProgressBar(total=self._total, completed=self._reading[0], width=cells)
        row.add_row(Text(texts[0]), bar, Text(GAP.join(texts[1:])))
        return row


class PlainProgress(Progress):
    """Prints lines for a file: no more often than requested, and always the last."""

    def __init__(
        self, *steps: int, emit: Callable[[str], None], every_s: float | None, **options: Any
    ) -> None:
        """Take the arguments of `Progress` and how to print.

        Args:
            *steps: of `Progress`.
            emit: prints one line.
            every_s: least time between two lines, in seconds; None: a line for each row of the log.
            **options: of `Progress`.
        """
        super().__init__(*steps, **options)
        self._emit, self._every_s = emit, every_s
        self._emitted_at: float | None = None
        self._emitted_step = self._origin

    def update(self, step: int, *, has_row: bool = False, **reported: float | None) -> None:
        """See `Progress.update`; print a line if one is due."""
        super().update(step, **reported)
        due = has_row
        if self._every_s is not None:
            since = self._emitted_at
            due = since is None or self._clock() - since >= self._every_s
        if due or step >= self._total:
            self.finish()

    def finish(self) -> None:
        """Print the last report unless it has been printed."""
        if self._reading[0] == self._emitted_step:
            return
        fields = self.fields()
        del fields["elapsed"]
        self._emit(GAP.join(fields.values()))
        self._emitted_at, self._emitted_step = self._clock(), self._reading[0]


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
