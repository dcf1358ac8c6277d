"""A trace of a few steps, for XProf and ``scripts/report.py --trace``."""

from pathlib import Path
from typing import Any

import jax

PyTree = Any


class Profiler:
    """Traces the steps of a range; nothing else of the run is in the trace.

    What was dispatched before is waited for at both ends, so that the trace holds whole steps and
    those only; the steps in between overlap as they do without it.
    """

    def __init__(self, steps: tuple[int, int] | None, place: Path) -> None:
        """Trace steps ``steps``, the last one included, to ``place``; None traces nothing."""
        self._steps, self.place = steps, place
        self._tracing = False

    def before(self, step: int, state: PyTree) -> None:
        """Step number ``step`` is about to be dispatched, on ``state``.

        A turn that begins within the range traces the rest of it.
        """
        if self._steps is None or self._tracing or not self._steps[0] <= step <= self._steps[1]:
            return
        jax.block_until_ready(state)
        options = jax.profiler.ProfileOptions()
        # Calls of Python functions fill a trace with millions of events that no share is made of.
        options.python_tracer_level = 0
        jax.profiler.start_trace(str(self.place), profiler_options=options)
        self._tracing = True

    def after(self, step: int, state: PyTree) -> bool:
        """Step ``step`` leads to ``state``; whether the trace is now there."""
        if not self._tracing or step < self._steps[1]:
            return False
        jax.block_until_ready(state)
        self.close()
        return True

    def close(self) -> None:
        """End a trace that is under way: of a run that stops within the range."""
        if self._tracing:
            self._tracing = False
            self._steps = None
            jax.profiler.stop_trace()
