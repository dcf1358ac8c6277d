"""Shapes of warm-up and decay: published values, and what every shape must keep."""

import dataclasses
import itertools
import math

import pytest

from largebatch.errors import ConfigError
from largebatch.optim import Schedule

ROUNDING = 1e-15
BASE = {"peak": 8.0, "warmup": 100, "decay_end": 500}
SHAPES = {
    "polynomial": Schedule(**BASE, decay="polynomial", end=1.0),
    "linear": Schedule(**BASE, decay="linear", start=2.0),
    "cosine": Schedule(**BASE, decay="cosine", warmup_shape="cosine", start=0.8),
    "power": Schedule(**BASE, decay="polynomial", warmup_shape="power", warmup_power=3.0),
    "lines": Schedule(**BASE, decay="lines", points=((200, 0.5), (400, 0.4), (500, 0.0))),
    "arctangent": Schedule(**BASE, decay="arctangent", turn=300, width=20, cubic=100, end=0.01),
    "rescaled": Schedule(
        **BASE, decay="arctangent", turn=300, width=20, cubic=100, end=0.5, rescaled=True
    ),
    "constant": Schedule(**BASE, decay="constant"),
}
JUMPS = {
    "step": Schedule(**BASE, decay="step", steps=(200, 300), factor=0.5),
    "pieces": Schedule(**BASE, decay="pieces", points=((200, 0.5), (300, 0.25))),
}


@pytest.mark.parametrize("name", SHAPES)
def test_continuous_rising_then_falling(name):
    schedule = SHAPES[name]
    rates = [schedule(p) for p in range(700)]
    # The steepest is the arctangent at its turn: 8 · 2 / (20·π) a sample.
    assert max(abs(b - a) for a, b in itertools.pairwise(rates)) < 0.26
    assert rates[:100] == sorted(rates[:100])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert len(set(rates[500:])) == 1
    assert rates[0] == schedule.start
    top = pytest.approx(8.0, rel=0.03) if schedule.decay == "arctangent" else 8.0
    assert max(rates) == rates[100] == top


@pytest.mark.parametrize("name", [*SHAPES, *JUMPS])
def test_shares_go_from_0_to_1_at_the_peak(name):
    schedule = (SHAPES | JUMPS)[name]
    shares = [schedule.share(p) for p in range(700)]
    assert all(0 <= share <= 1 for share in shares)
    assert shares[0] == 0
    assert shares[100] == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("name", [*SHAPES, *JUMPS])
def test_milestones_ascend_and_have_the_rates_of_their_places(name):
    schedule = (SHAPES | JUMPS)[name]
    points = schedule.milestones()
    places = [place for _, place, _ in points]
    assert places == sorted(set(places))
    assert (points[0][0], points[-1][0]) == ("start", "end")
    assert [rate for *_, rate in points] == [schedule(place) for place in places]


def test_names_of_milestones():
    names = {name: [n for n, *_ in schedule.milestones()] for name, schedule in SHAPES.items()}
    assert names["lines"] == ["start", "end of warm-up", "point 1", "point 2", "end"]
    assert names["arctangent"] == ["start", "end of warm-up", "turn", "end"]
    assert [n for n, *_ in JUMPS["pieces"].milestones()][2:] == ["point 1", "point 2", "end"]


def test_power_warm_up_by_hand():
    # 8 · (¼)³ and 8 · (½)³
    assert [SHAPES["power"](p) for p in (0, 25, 50, 100)] == [0.0, 0.125, 1.0, 8.0]
    # A power of 1 is linear.
    linear = dataclasses.replace(SHAPES["linear"], warmup_shape="power", warmup_power=1.0)
    assert [linear(p) for p in range(100)] == [SHAPES["linear"](p) for p in range(100)]


def test_siat_cosine_warm_up():
    """SIAT's submission to MLPerf v0.7: from 0.8 to 25, 7.6 of 24 epochs, then a cosine to 0."""
    schedule = Schedule(25.0, 760, 2400, "cosine", start=0.8, warmup_shape="cosine")
    for i in (0, 1, 100, 380, 759):
        angle = math.pi + math.pi * i / 760
        assert schedule(i) == pytest.approx(0.8 + 24.2 * 0.5 * (1 + math.cos(angle)), rel=1e-13)
    for i in (760, 1000, 1580, 2399):
        angle = math.pi * (i - 760) / 1640
        assert schedule(i) == pytest.approx(25 * 0.5 * (1 + math.cos(angle)), rel=1e-12)
    assert schedule(2400) == 0


def test_slow_start_in_pieces():
    """Akiba et al. 2017: ½ for 40 epochs, 0.075 for 30, 0.01 for 15, 0.001 for 5, of 12.8."""
    points = ((0, 0.5), (40, 0.075), (70, 0.01), (85, 0.001))
    schedule = Schedule(12.8, 0, 90, "pieces", points=points)
    expected = {0: 6.4, 39: 6.4, 40: 0.96, 69: 0.96, 70: 0.128, 84: 0.128, 85: 0.0128, 99: 0.0128}
    assert {p: schedule(p) for p in expected} == pytest.approx(expected, rel=ROUNDING)


def test_pieces_after_a_warm_up():
    """fast.ai 2018 (16 machines): 1.88 to 3.76 in 6 epochs, then at 16 half of it, and so on."""
    points = ((16, 0.5), (19, 0.15), (31, 0.015), (37, 0.01), (38, 0.001))
    schedule = Schedule(3.76, 6, 39, "pieces", start=1.88, points=points)
    expected = {0: 1.88, 3: 2.82, 6: 3.76, 15: 3.76, 16: 1.88, 19: 0.564, 31: 0.0564}
    expected |= {37: 0.0376, 38: 0.00376, 50: 0.00376}
    assert {p: schedule(p) for p in expected} == pytest.approx(expected, rel=ROUNDING)


def test_a_triangle_in_lines():
    """FFCV: up to 1.7 in 2 epochs, straight down to 0 at 16."""
    schedule = Schedule(1.7, 200, 1600, "lines", start=1.7e-4, points=((1600, 0.0),))
    expected = {0: 1.7e-4, 200: 1.7, 900: 0.85, 1250: 0.425, 1600: 0.0, 1700: 0.0}
    assert {p: schedule(p) for p in expected} == pytest.approx(expected, rel=ROUNDING)
    alone = Schedule(2.0, 0, 10, "lines", points=((0, 0.25), (4, 1.0), (10, 0.5)))
    assert [alone(p) for p in (0, 2, 4, 7, 10, 11)] == [0.5, 1.25, 2.0, 1.5, 1.0, 1.0]


def natan(current, total, turn, width, final=-1.0):
    """Fujitsu's ratio in epochs, written down again."""

    def base(x):
        x = 2 * x if x > 0 else x
        return 0.5 - math.atan(x / width + x * x * x / 1000.0) / math.pi

    ratio = base(current - turn)
    if final >= 0 and current >= turn:
        ratio = 0.5 - (0.5 - ratio) * (0.5 - final) / (0.5 - base(total - turn))
    return ratio


@pytest.mark.parametrize("final", [-1.0, 0.01])
def test_arctangent_as_published(final):
    """A decay over 90 epochs that turns at 50, of width 5; 64 samples an epoch, 1/64 is exact."""
    schedule = Schedule(
        13.0,
        0,
        90 * 64,
        "arctangent",
        turn=50 * 64,
        width=5 * 64,
        cubic=10 * 64,
        end=max(0.0, 13.0 * final),
        rescaled=final >= 0,
    )
    for position in range(0, 90 * 64 + 1, 96):
        expected = 13.0 * natan(position / 64, 90, 50, 5, final)
        assert schedule(position) == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert schedule(50 * 64) == 6.5
    if final >= 0:
        assert schedule(90 * 64) == pytest.approx(0.13, rel=1e-13)


def test_an_arctangent_has_a_floor_and_a_warm_up_to_where_it_begins():
    schedule = SHAPES["arctangent"]
    assert schedule(50) == schedule(100) / 2
    floor = dataclasses.replace(schedule, end=1.0)
    assert floor(499) == floor(900) == 1.0
    assert schedule(499) < 1.0 < floor(300)


# MLPerf's rule (training_policies; identical in the references): base 31.2 at batch 32,768, warm-up
# of 25 epochs, a square to 1e-4.
MLPERF = {"base": 31.2, "warmup": 978, "total": 2815}


@pytest.mark.parametrize("step", [0, 1, 489, 977, 978, 979, 1500, 2000, 2814, 2815])
def test_mlperf_rates(step):
    batch, base, warmup, total = 32_768, *MLPERF.values()
    schedule = Schedule(base, warmup * batch, total * batch, "polynomial", end=1e-4)
    expected = base * step / warmup
    if step > warmup:
        expected = 1e-4 + (base - 1e-4) * (1 - (step - warmup) / (total - warmup)) ** 2
    assert schedule(step * batch) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("linear", {"warmup_shape": "cubic"}, r"schedule\.warmup_shape='cubic'"),
        ("power", {"warmup_power": 0.0}, r"schedule\.warmup_power=0 .* warm-up"),
        ("linear", {"points": ((200, 0.5),)}, r"points=.* schedule\.decay=linear"),
        ("lines", {"points": ()}, r"schedule\.points=\(\) .* schedule\.decay=lines"),
        ("lines", {"points": ((300, 0.5), (200, 0.1))}, r"schedule\.points=\(300, 200\) .* sort"),
        ("lines", {"points": ((100, 0.5),)}, r"schedule\.points: .* 100 .* before 101"),
        ("pieces", {"points": ((99, 0.5),)}, r"99 samples .* before 100,"),
        ("pieces", {"points": ((200, 1.5),)}, r"schedule\.points: 1\.5 at 200 .* from 0 to 1"),
        ("pieces", {"end": 0.1}, r"schedule\.end=0\.1 .*decay=pieces"),
        ("arctangent", {"turn": 0}, r"schedule\.turn=0 .*decay=arctangent"),
        ("arctangent", {"width": 0}, r"schedule\.width=0"),
        ("arctangent", {"turn": 100}, r"schedule\.turn: .* 100"),
        ("arctangent", {"cubic": 0}, r"cubic"),
        ("linear", {"turn": 300}, r"schedule\.turn=300 .* schedule\.decay=linear"),
    ],
)
def test_impossible_schedules(name, change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace((SHAPES | JUMPS)[name], **change)
