"""The microbatches of a step on their way to the device: their number, and their bits."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from largebatch.optim import Rates
from largebatch.parallel.transfer import AHEAD, IN_FLIGHT, WAITING
from largebatch.training import dispatch
from largebatch.training.dispatch import run_step
from largebatch.training.stage import Stage
from largebatch.training.state import TrainState
from tests.training import worlds


class Device:
    """Ends a program only when the host waits for one of its results."""

    def __init__(self):
        self.queue, self.most, self.left_at_waits = [], 0, []
        self.taken = self.dispatched = self.most_held = 0

    def feed(self):
        while True:
            self.taken += 1
            computed = self.dispatched - len(self.queue)
            self.most_held = max(self.most_held, self.taken - computed)
            yield None, None

    def dispatch(self, *_):
        self.dispatched += 1
        self.queue.append(self.dispatched)
        self.most = max(self.most, len(self.queue))
        return self.queue[-1]

    def wait(self, tree):
        for number in jax.tree.leaves(tree):
            if number in self.queue:
                del self.queue[: self.queue.index(number) + 1]
                self.left_at_waits.append(len(self.queue))


def simulated(device, microbatches, deadline_s=0.0):
    """What `run_step` uses of a stage, on a device that computes numbers."""
    batch = SimpleNamespace(deadline_s=deadline_s)
    plan = SimpleNamespace(microbatches=microbatches, config=SimpleNamespace(batch=batch))
    steps = SimpleNamespace(has_control_flags=False, computes_alone=True, dtype="float32")

    def finish(*_):
        return TrainState({"w": device.dispatch()}, {}, ()), None

    def accumulate(*_):
        return None, device.dispatch()

    return SimpleNamespace(
        steps=steps, plan=plan, finish=finish, accumulate=accumulate, empty_carry=lambda: None
    )


def take_steps(monkeypatch, microbatches, note=None, **options):
    device = Device()
    monkeypatch.setattr(jax, "block_until_ready", device.wait)
    stage = simulated(device, microbatches, **options)
    state, feed = TrainState({"w": 0}, {}, ()), device.feed()
    for _ in range(5):
        state, _ = run_step(stage, state, feed, Rates(0.1), note=note)
    return device


@pytest.mark.parametrize("microbatches", [2, 3, 4, 9])
def test_the_device_has_work_and_no_more_than_memory_for_it(monkeypatch, microbatches):
    device = take_steps(monkeypatch, microbatches)
    assert device.most == IN_FLIGHT
    assert min(device.left_at_waits) > 0  # what is waited for is not all that there is
    # The feed has sent the next ones already; one of all is computed.
    assert device.most_held + AHEAD == WAITING + 1


@pytest.mark.parametrize("how", [{"deadline_s": 9.0}, {"note": print}])
def test_one_at_a_time_where_times_are_measured(monkeypatch, how):
    assert take_steps(monkeypatch, 4, **how).most == 1


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_bits_do_not_depend_on_the_number_in_flight(monkeypatch, devices):
    config = worlds.config(
        model=worlds.RESNET, batch={"workers": 32, "images_per_worker": 1}, norm={"span": 1}
    )
    stage = Stage(worlds.steps(config, devices, 2, "float32"))
    assert stage.steps.plan.microbatches >= 4

    def trained(limit):
        monkeypatch.setattr(dispatch, "IN_FLIGHT", limit)
        state = stage.init(np.int32(0))
        for step in range(3):
            images, labels = worlds.batch(step, stage.steps.plan.samples_per_step)
            state, metrics = worlds.run_step(stage, state, images, labels, 0.5)
        return [np.asarray(x).tobytes() for x in jax.tree.leaves((state, metrics))]

    assert trained(1) == trained(IN_FLIGHT)
