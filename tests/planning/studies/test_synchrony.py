"""The emulated server equals the trainer, and each policy the one that it becomes at its limit.

float64, where rounding leaves about 1e-13 of the largest value of an array; a gradient counted too
many, or read at other parameters, moves it by more than 1e-3.
"""

import jax
import numpy as np
import pytest

from largebatch import parallel
from largebatch.config import Facts
from largebatch.config.resolution import resolve
from largebatch.models import Model
from largebatch.optim import Rates
from largebatch.planning.stragglers import Policy, asynchronous, draws
from largebatch.planning.studies import synchrony
from largebatch.planning.studies.synchrony import Asynchronous, Setup, open_study
from largebatch.training.rules import optimizer_of
from largebatch.training.stage import Stage
from largebatch.training.steps import Steps, model_of
from largebatch.trees import flatten_paths
from tests.training import worlds

EQUAL = 1e-10
SETUP = Setup(workers=4, microbatches=2, images=3, steps=5, evaluations=2, warmup=0.2)
MODEL = worlds.SMALL | {"name": "tests.training.own_models:resnet_grey"}


@pytest.fixture(autouse=True, scope="module")
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def study():
    """Of a network that compiles sooner than the study's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synchrony, "Model", lambda _, *shape, **__: Model(MODEL["name"], *shape))
        return open_study(SETUP, dtype="float64")


@pytest.fixture(scope="module")
def batches(study):
    """Three batches of a full step."""
    count = SETUP.microbatches * SETUP.workers
    found = []
    for step in range(3):
        ids = np.random.default_rng(step).integers(0, 1437, count * SETUP.images)
        images, labels = study.train.source.read(ids)
        found.append((images, labels.astype(np.int32)))
    return found


def error(a, b):
    """Largest difference of two trees, as a share of the largest value of each array."""
    a, b = flatten_paths(jax.device_get(a)), flatten_paths(jax.device_get(b))
    assert a.keys() == b.keys()
    return max(np.abs(a[p] - b[p]).max() / max(np.abs(b[p]).max(), 1e-300) for p in a)


def parts_of(state):
    return {"params": state.params, "stats": state.stats, "momentum": state.optimizer.momentum}


def identical(a, b):
    """Whether two states are bitwise identical."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def rates(*values):
    return Rates(*(np.asarray(value, "float64") for value in values))


def update(study, state, batch, counted, rates):
    """A step of a batch, of whose microbatches some are counted."""
    images, labels = batch
    shape = len(counted), SETUP.images
    return study.server.update(
        state,
        state.params,
        images.reshape(*shape, *images.shape[-3:]),
        labels.reshape(shape),
        np.asarray(counted, float),
        rates,
        np.asarray(0.9),
    )


def test_all_workers_counted_is_the_trainers_own_step(study, batches):
    """The trainer has as many workers as there are microbatches, each with its own statistics."""
    workers = SETUP.microbatches * SETUP.workers
    made = worlds.config(
        model=MODEL,
        batch={"workers": workers, "images_per_worker": SETUP.images},
        optimizer={"name": "sgd", "momentum": 0.9, "weight_decay": 1e-3},
    )
    plan = resolve(made, Facts(1437, 360, 10, (8, 8, 1), devices=1), microbatch=workers)
    mesh = parallel.make_mesh(jax.devices()[:1], 1)
    means = study.train.mean, study.train.std
    model = model_of(plan)
    rule = optimizer_of(made, model.kinds())
    run = Stage(Steps(plan.first_stage, model, rule, mesh, *means, "float64"))
    ours = study.server.init(0)
    state = worlds.place(run, jax.device_get(ours))
    for batch, rate in zip(batches, (0.5, 0.3, 0.4), strict=True):
        given = plan.rates(1)._replace(learning_rate=rate)
        ours = update(study, ours, batch, [1] * workers, rates(*given))
        state, _ = worlds.run_step(run, state, *batch, rate)
    assert error(parts_of(ours), parts_of(state)) < EQUAL
    assert error(ours.params, study.server.init(0).params) > 0.1


def test_workers_that_are_not_counted_leave_the_mean_of_the_others(study, batches):
    """Against the workers one by one: plain steps of rate 1, whose mean is that of gradients."""
    state, plain = study.server.init(1), rates(1.0, 0.0, 0.0, 1.0, 1.0, 0.0)
    chosen, every = (0, 2, 3, 6), np.arange(8)
    alone = [parts_of(update(study, state, batches[0], every == w, plain)) for w in chosen]
    mean = jax.tree.map(lambda *x: sum(x) / len(x), *alone)
    counted = np.isin(every, chosen)
    together = parts_of(update(study, state, batches[0], counted, plain))
    assert error(together, mean) < EQUAL
    assert error(parts_of(update(study, state, batches[0], every >= 0, plain)), mean) > 1e-3
    # Nothing of the others' enters.
    images, labels = batches[0]
    other = np.where(np.repeat(counted, SETUP.images)[:, None, None, None], images, 255 - images)
    again = update(study, state, (other, labels), counted, plain)
    assert error(parts_of(again), together) < EQUAL


def test_rates_follow_the_images(study):
    """Of 120: a warm-up over 24, then linearly to 0; a gradient's total weight stays the same."""
    found = [float(study.rates(seen, 1, 1.0, 0.9).learning_rate) for seen in (0, 12, 24, 72, 120)]
    assert found == pytest.approx([0, 0.2, 0.4, 0.2, 0], abs=1e-12)
    assert float(study.rates(24, 1, 1 / 4, 0.5).learning_rate) == pytest.approx(0.4 / 4 * 5)


def test_backup_workers_give_the_first_gradients(study):
    """Against a loop that sorts the arrivals of each step."""
    times = draws(SETUP.times, 6, SETUP.steps, 0)
    state = study.server.init(0)
    for step in range(SETUP.steps):
        first = sorted(range(6), key=lambda w, at=times[step]: at[w])[:4]
        batch = study._parts(step * 6 + np.sort(first), 0)
        state = update(
            study, state, batch, [1] * 8, study.rates(step * SETUP.batch, step + 1, 1.0, 0.9)
        )
    found, curve = study.trained(Policy(ignored=2, backup=True), 0)
    assert identical(found, state)
    np.testing.assert_allclose(curve.seconds[-1], np.sort(times)[:, 3].sum(), rtol=1e-12)
    assert (curve.computed == 6 / 4 * curve.images).all()


def test_stale_gradients_are_those_of_as_many_updates_ago(study):
    """Against a loop that keeps every version of the parameters and counts back by τ."""
    machines, momentum = 3, 0.5
    updates = SETUP.steps * SETUP.workers
    found = asynchronous(SETUP.times, machines, updates, 4)
    assert found.staleness.max() >= 2
    share = 1 / SETUP.workers
    state = study.server.init(4)
    versions = [state.params]
    for number in range(updates):
        images, labels = study._parts(found.part[number : number + 1], 4)
        given = study.rates(number * SETUP.worker_images, number + 1, share, momentum)
        state = study.server.update(
            state,
            versions[number - found.staleness[number]],
            images,
            labels,
            np.ones(SETUP.microbatches),
            given,
            np.asarray(SETUP.norm_momentum**share),
        )
        versions.append(state.params)
    assert identical(study.trained(Asynchronous(machines, momentum), 4)[0], state)
