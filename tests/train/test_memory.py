import dataclasses

import jax
import pytest

from largebatch.config import Facts, microbatch_candidates
from largebatch.errors import ConfigError
from largebatch.tracking import Console
from largebatch.train.build import build
from largebatch.train.memory import GIB, device_bytes, largest_that_fits
from largebatch.train.programs import Programs
from tests.train import worlds


@pytest.mark.parametrize("fixed", [0, 500, 5000])
@pytest.mark.parametrize("each", [1, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_the_largest_that_fits_is_found_with_few_compilations(fixed, each, count):
    candidates = tuple(2**i for i in range(count))
    for available in range(fixed + each, fixed + each * 5000, 97 * each):
        asked = []

        def needed(m, asked=asked):
            asked.append(m)
            return fixed + each * m

        got = largest_that_fits(candidates, needed, available)
        assert got == max(m for m in candidates if fixed + each * m <= available)
        assert len(asked) == len(set(asked)) <= 5


def test_a_program_that_grows_unevenly_is_measured_not_guessed():
    sizes = {1: 100, 2: 110, 4: 400, 8: 420, 16: 2000}
    for available in (100, 109, 110, 399, 400, 419, 420, 1999, 2000):
        got = largest_that_fits(tuple(sizes), sizes.__getitem__, available)
        assert sizes[got] <= available


def test_what_is_surely_small_is_measured_once_and_corrected():
    asked = []

    def needed(m):
        asked.append(m)
        return 100 * m

    assert largest_that_fits((1, 2, 4, 8), needed, 800, surely_small=True) == 8
    assert asked == [8]
    assert largest_that_fits((1, 2, 4, 8), needed, 799, surely_small=True) == 4
    with pytest.raises(ConfigError):
        largest_that_fits((1, 2), needed, 99, surely_small=True)


def test_nothing_fits():
    with pytest.raises(ConfigError, match=r"even 2 worker\(s\).*3\.00 GiB of the 1\.00 GiB"):
        largest_that_fits((2, 4), lambda _: 3 * GIB, GIB)


def test_memory_of_a_device():
    device = jax.devices()[0]
    assert device_bytes(device, 2.5, 1) == int(2.5 * GIB)
    assert device_bytes(device, 0.0, 4) * 2 == pytest.approx(device_bytes(device, 0.0, 2), abs=8)


def test_auto_stays_below_the_limit_and_the_next_would_not():
    made = worlds.config(
        batch={"workers": 8, "images_per_worker": 16},
        data={"source": "synthetic", "image_size": 16, "examples": 1000},
    )
    devices = jax.devices()[:2]
    facts = Facts(1000, 200, 10, (16, 16, 3), devices=2)
    sizes = {}
    for m in microbatch_candidates(made, facts):
        programs = Programs(worlds.steps(made, 2, m, "float32"))
        _ = programs.finish
        sizes[m] = programs.bytes["train step"]
    assert list(sizes) == [1, 2, 4]
    assert list(sizes.values()) == sorted(sizes.values())
    limit = (sizes[2] + sizes[4]) / 2 / 0.9
    batch = dataclasses.replace(made.batch, memory_gib=limit / GIB)
    run = build(dataclasses.replace(made, batch=batch), Console(quiet=True), devices)
    assert run.plan.microbatch == 2
