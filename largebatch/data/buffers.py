"""Arrays for batch after batch without asking the system for memory each time."""

import collections
import contextlib
import math
import weakref

import numpy as np

_SPARE = 2


class Buffers:
    """Arrays whose memory is used again once nothing refers to them or to a view of them.

    A new array costs as much as copying into it, since the kernel clears its pages. Two spare ones
    are kept, of the sizes given back last. Safe to use from several threads; pickled, it is empty.
    """

    def __init__(self) -> None:
        self._free: collections.deque[np.ndarray] = collections.deque(maxlen=_SPARE)

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
        memory = None
        with contextlib.suppress(IndexError):
            while memory is None or len(memory) != length:  # another size is not wanted any more
                memory = self._free.pop()
        if memory is None or len(memory) != length:
            memory = np.empty(length, np.uint8)
        # Over a memoryview: views then refer to `whole`, not past it to `memory`.
        whole = np.frombuffer(memoryview(memory), np.uint8)
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole.reshape(shape)
