"""What measuring the noise scale adds to a step on a CPU: `python step_cost.py [PAIRS]`.

Steps of imagenette_batch with LARS, 8 microbatches of 32 images, compiled with and without the
norms of the microbatches' gradients, alternate in one process on one thread.
"""

import os
import sys
import time
from collections.abc import Callable

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import jax
import numpy as np

from largebatch import parallel
from largebatch.config import Facts, load
from largebatch.config.resolution import resolve
from largebatch.parallel.transfer import OnDevices
from largebatch.training import dispatch
from largebatch.training.rules import optimizer_of
from largebatch.training.stage import Stage
from largebatch.training.steps import Steps, model_of

FACTS = Facts(9469, 3925, 10, (64, 64, 3), devices=1)


def step_of(measures_noise: bool) -> Callable[[], float]:
    """Return a function that runs a step and returns the mean square of the microbatches' norms."""

    class Chosen(Steps):
        measures_noise = property(lambda self: chosen)

    chosen = measures_noise
    config = load("imagenette_batch:lars")
    plan = resolve(config, FACTS)
    stage_plan = plan.first_stage
    mesh = parallel.make_mesh(jax.devices()[:1], stage_plan.members)
    model = model_of(plan)
    rule = optimizer_of(config, model.kinds())
    mean, std = np.full(3, 120.0, "float32"), np.full(3, 60.0, "float32")
    stage = Stage(Chosen(stage_plan, model, rule, mesh, mean, std, "float32"))
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (32, 64, 64, 3)).astype("uint8")
    labels = draw.integers(0, 10, 32).astype("int32")
    part = OnDevices(*(parallel.from_local(mesh, array) for array in (images, labels)))
    rates = plan.rates(400)
    state = stage.init(np.int32(0))

    def step() -> float:
        nonlocal state
        state, metrics = dispatch.run_step(stage, state, iter(8 * [part]), rates)
        return float(metrics.small_square)

    return step


def main(pairs: int) -> None:
    """Print the median of the pairs, their quartiles, and the ratio of the fastest steps."""
    steps = {measured: step_of(measured) for measured in (False, True)}
    for measured, step in steps.items():
        assert bool(step()) is measured  # compiles, and shows that it is or is not measured
        step()
    times = {False: [], True: []}
    for pair in range(pairs):
        for measured in (False, True) if pair % 2 else (True, False):
            begin = time.process_time()
            steps[measured]()
            times[measured].append(time.process_time() - begin)
    without, measuring = np.array(times[False]), np.array(times[True])
    low, median, high = 100 * np.percentile(measuring / without - 1, [25, 50, 75])
    fastest = 100 * (measuring.min() / without.min() - 1)
    print(f"a step without: {1000 * np.median(without):.1f} ms of CPU time; with, more:")
    print(f"median of {pairs} pairs {median:+.2f} % (quartiles {low:+.2f} to {high:+.2f} %),")
    print(f"fastest steps {fastest:+.2f} %")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
