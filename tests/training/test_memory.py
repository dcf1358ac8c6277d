import dataclasses
import math
from types import SimpleNamespace

import jax
import pytest

from largebatch.config.plan import microbatch_candidates
from largebatch.errors import ConfigError
from largebatch.parallel.transfer import WAITING
from largebatch.tracking import Console
from largebatch.training import memory
from largebatch.training.memory import (
    device_bytes,
    large_that_fits,
)
from largebatch.training.stage import Stage
from tests.training import worlds


def test_a_large_one_with_bytes_that_are_no_line():
    # ResNet-50 on an H100, GiB, of which 0.3 are fixed.
    sizes = {40: 2.0, 80: 3.7, 160: 8.0, 320: 14.0}
    for available, expected in ((14.5, 320), (9.5, 160), (8.5, 80), (4.9, 80), (2.5, 40)):
        asked = []

        def needed(m, asked=asked):
            asked.append(m)
            return sizes[m]

        assert large_that_fits(tuple(sizes), needed, available, 0.3) == expected
        assert len(asked) <= 2
    with pytest.raises(ConfigError):
        large_that_fits(tuple(sizes), sizes.__getitem__, 1.9, 0.3)


def test_a_cpu_computes_no_more_images_at_a_time_than_its_caches_hold(monkeypatch):
    monkeypatch.setitem(memory._MOST_PIXELS, "cpu", 32 * 16 * 16)
    made = worlds.config(
        batch={"workers": 64, "images_per_worker": 8},
        data={"source": "synthetic", "image_size": 16, "examples": 1000},
    )
    chosen = worlds.build(made, Console(quiet=True), jax.devices()[:1]).plan.first_stage
    assert chosen.microbatch * chosen.config.batch.images_per_worker == 32


def test_memory_of_a_device():
    device = jax.devices()[0]
    assert device_bytes(device, 4) * 2 == pytest.approx(device_bytes(device, 2), abs=8)
    # What an H200 reports, of which JAX reserves three quarters; some backends report nothing.
    limited = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 112_000, "bytes_in_use": 7})
    assert device_bytes(limited, 4) == 112_000
    for stats in (None, {"bytes_in_use": 7}):
        silent = SimpleNamespace(memory_stats=lambda stats=stats: stats)
        assert device_bytes(silent, 4) == device_bytes(device, 4)


@pytest.mark.slow
def test_auto_is_large_and_fits_by_the_compilers_own_account(monkeypatch):
    made = worlds.config(
        batch={"workers": 16, "images_per_worker": 8},
        data={"source": "synthetic", "image_size": 16, "examples": 1000},
    )

    def run(**batch):
        changed = dataclasses.replace(made, batch=dataclasses.replace(made.batch, **batch))
        return worlds.build(changed, Console(quiet=True), jax.devices()[:2])

    needed = {}
    for m in microbatch_candidates(made, run(microbatch=1).plan.facts):
        one = run(microbatch=m).first_stage
        _ = one.finish
        waiting = WAITING * one.plan.local_images * 16 * 16 * 3
        needed[m] = one.bytes["train step"] + waiting
    assert list(needed) == [1, 2, 4, 8]
    for best, following in zip(needed, [*list(needed)[1:], None], strict=True):
        most = needed[following] if following else 2 * needed[best]
        for budget in (needed[best] + 8, (needed[best] + most) // 2, most - 8):
            # What rounding adds is less than the 8 bytes.
            limit = math.ceil(budget / memory.USABLE)
            monkeypatch.setattr(memory, "device_bytes", lambda *_, limit=limit: limit)
            chosen = run().plan.first_stage.microbatch
            assert chosen in (best, best // 2)  # the reserve may exclude the best
    monkeypatch.undo()
    assert run().plan.first_stage.microbatch == 8


def bytes_of(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.fixture
def heavy():
    """Programs of two microbatches, of many parameters and few pixels."""
    made = worlds.config(
        model=worlds.SMALL | {"name": "tests.training.own_models:resnet_wide"},
        batch={"workers": 2, "images_per_worker": 1, "microbatch": 1},
        comm={"bucket_mib": 0.3},
    )
    return Stage(worlds.steps(made, 1, 1, "float32"))


def test_nothing_is_held_twice(heavy):
    """State and carry are updated where they lie.

    Beside them gradients exist as backward makes them and joined into the buckets that are
    reduced: no third time, and parameters no second.
    """
    state, carry = heavy.state, heavy.carry
    changed = bytes_of((state.params, state.stats, state.optimizer.momentum))
    finish, accumulate = (p.memory_analysis() for p in (heavy.finish, heavy.accumulate))
    # The rest of the state is what the last update reports: written, never read.
    assert changed <= finish.alias_size_in_bytes <= bytes_of(state)
    assert accumulate.alias_size_in_bytes == bytes_of(carry)
    gradients = bytes_of(state.params)
    activations = 0.1 * gradients  # one image of 16×16 pixels
    assert finish.temp_size_in_bytes <= 2 * gradients + activations
    assert accumulate.temp_size_in_bytes <= 2 * gradients + activations
