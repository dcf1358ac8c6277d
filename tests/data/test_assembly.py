import gc

import jax
import numpy as np

from largebatch.data import feed
from largebatch.data.feed import Buffers


def test_memory_is_used_again_only_when_nothing_refers_to_it():
    made = Buffers()
    first = made.array((64, 5))
    first[:] = 7
    place = first.ctypes.data
    view, on_device = first[1:][:, ::2], jax.device_put(first)
    del first
    others = [made.array((64, 5)) for _ in range(5)]
    for other in others:
        other[:] = 0
    assert (view == 7).all()
    assert (np.asarray(on_device) == 7).all()
    assert place not in [other.ctypes.data for other in others]
    del view, on_device
    gc.collect()
    assert made.array((5, 64)).ctypes.data == place  # of the same size, whatever its shape


def test_spare_memory_is_bounded():
    made = Buffers()
    arrays = [made.array((100,)) for _ in range(9)]
    assert len({array.ctypes.data for array in arrays}) == 9
    del arrays
    assert len(made._free) == feed._SPARE
