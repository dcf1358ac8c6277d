"""What tells one sweep from another, in words."""

import dataclasses

import pytest

from largebatch.errors import ConfigError
from largebatch.tools.sweep.description import Description, keep
from largebatch.tools.sweep.space import Axis, Range

PEAK = Axis(("schedule.peak",), (("0.5",), ("2",)))
FIRST = Description(
    recipe="configs/digits.py",
    overrides=(("schedule.length", "3 epochs"), ("run.seed", "1")),
    axes=(PEAK,),
    search="grid",
    objective="top1",
    seed=0,
    options={"schedule.length": "3 epochs"},
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overrides": ()}, r"--config\.schedule\.length was 3 epochs and is now not given;"),
        (
            {"overrides": (("schedule.length", "4 epochs"), ("run.seed", "1"))},
            r"--config\.schedule\.length was 3 epochs and is now 4 epochs;",
        ),
        (
            {"axes": (Axis(("schedule.peak",), (("0.5",), ("3",))),)},
            r"--sweep was schedule\.peak=0\.5,2 and is now schedule\.peak=0\.5,3;",
        ),
        (
            {"axes": (PEAK, Axis(("run.seed",), (("1",),)))},
            r"--sweep was not swept and is now run\.seed=1;",
        ),
        (
            {"axes": (Axis(("schedule.peak",), (), Range("log", 0.5, 8.0)),)},
            r"is now schedule\.peak=log:0\.5:8;",
        ),
        ({"seed": 3}, r"seed was 0 and is now 3;"),
    ],
)
def test_another_sweep_is_told_by_what_changed(tmp_path, changes, said):
    assert not keep(tmp_path, FIRST)
    assert keep(tmp_path, FIRST)
    with pytest.raises(ConfigError, match=said) as caught:
        keep(tmp_path, dataclasses.replace(FIRST, **changes))
    assert "[[" not in str(caught.value)


def test_the_order_of_options_does_not_matter(tmp_path):
    keep(tmp_path, FIRST)
    assert keep(tmp_path, dataclasses.replace(FIRST, overrides=FIRST.overrides[::-1]))
