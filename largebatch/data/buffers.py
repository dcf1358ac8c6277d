"""Arrays for batch after batch without asking the system for memory each time."""

import collections
import math
import weakref

import numpy as np

_SPARE = 2  # of each size


class Buffers:
    """Arrays whose memory is used again once nothing refers to them or to a view of them.

    A new array costs as much as copying into it, since the kernel clears its pages. Safe to use
    from several threads; pickled, it is empty.
    """

    def __init__(self) -> None:
        self._free: dict[int, collections.deque[np.ndarray]] = {}

    def __reduce__(self) -> tuple:
        return Buffers, ()

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """An array that nobody else refers to.

        Args:
            shape: Of the array.

        Returns:
            uint8 of that shape, uninitialised.
        """
        length = math.prod(shape)
        free = self._free.setdefault(length, collections.deque(maxlen=_SPARE))
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(length, np.uint8)
        # Over a memoryview: views then refer to `whole`, not past it to `memory`.
        whole = np.frombuffer(memoryview(memory), np.uint8)
        weakref.finalize(whole, free.append, memory).atexit = False
        return whole.reshape(shape)
