"""Whether a training is under way in a directory, seen by its lock and without waiting."""

import time
from collections.abc import Callable
from pathlib import Path

from largebatch.checkpoint import lock
from largebatch.checkpoint.lock_holder import lives, parse, this_process


class Holding:
    """Looks at locks again and again.

    A process of this system is looked up. The heartbeat of one elsewhere counts, as for the lock
    itself: it is gone when its beat has not moved for a while under our eyes, and taken for alive
    until then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Has seen nothing yet.

        Args:
          clock: monotonic, in seconds.
        """
        self._clock = clock
        self._beats: dict[Path, tuple[bytes, float]] = {}
        self._here = this_process()

    def held(self, workdir: Path) -> bool:
        """Whether a process trains in there, as far as this look can tell."""
        path = workdir / lock.NAME
        try:
            text = path.read_bytes()
        except OSError:
            self._beats.pop(path, None)
            return False
        holder = parse(text)
        if holder and (holder.host, holder.system) == (self._here.host, self._here.system):
            return lives(holder)
        before, since = self._beats.get(path, (b"", 0.0))
        if before != text:
            self._beats[path] = (text, since := self._clock())
        return self._clock() - since < lock.PATIENCE_S
