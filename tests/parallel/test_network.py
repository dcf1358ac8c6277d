"""The cost models against messages that are really passed, published figures, and their limits."""

import dataclasses
import math

import pytest

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import Cluster
from largebatch.parallel.collective_costs import fit_link, ring_s, torus_s, tree_s
from largebatch.parallel.hardware import HARDWARE, Link
from largebatch.parallel.network import all_reduce_s
from tests.planning import simulated

LINK = Link(bandwidth=3e9, latency=7e-6)
FAST = Link(bandwidth=50e9, latency=2e-6)
EXACT = 1e-12  # sums of some hundred floats
GRADIENTS = 51e6  # of ResNet-50 in fp16, as RECIPES takes it
ALGORITHMS = ("ring", "tree", "hierarchical", "hierarchical_ring", "multilevel")


def cluster(nodes, group, inside=FAST, between=LINK, launch_s=0.0):
    """V100s, with other links."""
    hardware = dataclasses.replace(
        HARDWARE["v100"], devices_per_node=group, inside=inside, between=between, launch_s=launch_s
    )
    return Cluster(hardware, nodes * group)


# ---- against messages


@pytest.mark.parametrize(("ranks", "nbytes"), [(2, 1.0), (8, 1e6), (13, 1e6)])
def test_ring_takes_as_long_as_its_messages(ranks, nbytes):
    world = simulated.ring(ranks, nbytes, [LINK] * ranks)
    world.check()
    assert ring_s(ranks, nbytes, LINK) == pytest.approx(world.seconds, rel=EXACT)


@pytest.mark.parametrize(("ranks", "nbytes"), [(2, 1.0), (8, 1e6), (32, 1e6)])
def test_tree_takes_as_long_as_halving_and_doubling(ranks, nbytes):
    world = simulated.halving_doubling(ranks, nbytes, LINK)
    world.check()
    assert tree_s(ranks, nbytes, LINK) == pytest.approx(world.seconds, rel=EXACT)


@pytest.mark.parametrize(("nodes", "group"), [(2, 2), (3, 4), (5, 3), (4, 1), (1, 4)])
def test_hierarchical_takes_as_long_as_its_messages(nodes, group):
    world = simulated.hierarchical(nodes, group, 1e6, FAST, LINK)
    world.check()
    found = all_reduce_s(cluster(nodes, group), 1e6, "hierarchical_ring")
    assert found == pytest.approx(world.seconds, rel=EXACT)


@pytest.mark.parametrize("nbytes", [100.0, 1e8])
def test_a_flat_ring_waits_for_its_slowest_hop(nbytes):
    nodes, group = 3, 4
    whole_node = Link(group * LINK.bandwidth, LINK.latency)
    hops = [whole_node if rank % group == group - 1 else FAST for rank in range(nodes * group)]
    world = simulated.ring(nodes * group, nbytes, hops)
    world.check()
    found = all_reduce_s(cluster(nodes, group), nbytes, "ring")
    assert found == pytest.approx(world.seconds, rel=EXACT)


@pytest.mark.parametrize(("width", "height"), [(2, 3), (4, 4), (3, 5)])
@pytest.mark.parametrize("both_ways", [False, True])
def test_torus_takes_as_long_as_its_messages(width, height, both_ways):
    world = simulated.torus(width, height, 1e6, LINK, both_ways=both_ways)
    world.check()
    found = torus_s((width, height), 1e6, LINK, wrap=1 if both_ways else 10**9)
    if both_ways and width == 2:  # two neighbours are one link: there is no other way round
        assert found > world.seconds
    else:
        assert found == pytest.approx(world.seconds, rel=EXACT)


# ---- published figures (RECIPES 6.3: one 51 MB all-reduce on 512 × 4 V100 with 2 × EDR a node)


def test_the_term_between_nodes_of_abci():
    line = Link(6.25e9, 0.0)
    assert tree_s(512, GRADIENTS / 4, line) == pytest.approx(4.1e-3, abs=0.05e-3)
    assert ring_s(512, GRADIENTS / 4, line) == tree_s(512, GRADIENTS / 4, line)
    hop = Link(math.inf, 5e-6)
    assert ring_s(512, GRADIENTS / 4, hop) == pytest.approx(2 * 511 * 5e-6, rel=EXACT)  # 5.1 ms
    assert tree_s(512, GRADIENTS / 4, hop) == pytest.approx(18 * 5e-6, rel=EXACT)
    assert ring_s(2048, GRADIENTS, hop) == pytest.approx(4094 * 5e-6, rel=EXACT)  # 20 ms


# ---- limits, monotonicity, symmetry


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto"])
def test_one_device_waits_for_nobody(algorithm):
    for hardware in HARDWARE.values():
        assert all_reduce_s(Cluster(hardware, 1), 1e9, algorithm) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_bytes_devices_or_latency_take_longer(algorithm):
    sizes = [all_reduce_s(cluster(8, 4), s, algorithm) for s in (0, 1, 1e3, 1e6, 1e9)]
    assert sizes == sorted(set(sizes))
    nodes = [all_reduce_s(cluster(n, 4), 1e6, algorithm) for n in (1, 2, 4, 64, 512)]
    assert nodes == sorted(set(nodes))
    slower = Link(LINK.bandwidth / 2, LINK.latency)
    later = Link(LINK.bandwidth, 2 * LINK.latency)
    base = all_reduce_s(cluster(8, 4), 1e6, algorithm)
    for link in (slower, later):
        assert all_reduce_s(cluster(8, 4, between=link), 1e6, algorithm) > base
    assert all_reduce_s(cluster(8, 4, launch_s=1e-3), 1e6, algorithm) == base + 1e-3


# ---- clusters


def test_shapes_of_slices_are_as_even_as_can_be():
    assert Cluster(HARDWARE["tpu:v5p"], 2048).torus_shape == (8, 16, 16)
    assert Cluster(HARDWARE["tpu:v5e"], 8).torus_shape == (2, 4)
    slices = Cluster(HARDWARE["tpu:v5e"], 2048)
    assert (slices.nodes, slices.torus_shape) == (8, (16, 16))
    given = Cluster(HARDWARE["tpu:v4"], 128, shape=(4, 4, 4))
    assert (given.nodes, given.torus_shape) == (2, (4, 4, 4))


def test_devices_must_fill_nodes():
    assert Cluster(HARDWARE["v100"], 3).nodes == 1
    assert Cluster(HARDWARE["v100"], 6, devices_per_node=3).nodes == 2
    with pytest.raises(ConfigError, match="v100"):
        Cluster(HARDWARE["v100"], 6)
    with pytest.raises(ConfigError, match="tpu:v6e"):
        Cluster(HARDWARE["tpu:v6e"], 8, devices_per_node=8, shape=(3, 3))


@pytest.mark.parametrize("algorithm", ["torus", "butterfly"])
def test_an_algorithm_must_exist_for_the_hardware(algorithm):
    with pytest.raises(ConfigError, match=f"algorithm: .*'{algorithm}'"):
        all_reduce_s(Cluster(HARDWARE["v100"], 8), 1e6, algorithm)


# ---- from measurements


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_link_is_found_again_from_its_own_times(ranks):
    points = [(4.0**k, ring_s(ranks, 4.0**k, LINK)) for k in range(5, 13)]
    found = fit_link(ranks, points)
    assert found.bandwidth == pytest.approx(LINK.bandwidth, rel=1e-9)
    assert found.latency == pytest.approx(LINK.latency, rel=1e-9)


def test_a_fit_stays_physical():
    # Superlinear times ask for a negative latency, falling ones for a negative rate.
    found = fit_link(2, [(1e3, 1e-6), (1e6, 2e-3)])
    assert found.latency == 0
    assert 1e3 / 1e-6 > found.bandwidth > 1e6 / 2e-3
    falling = fit_link(2, [(1e3, 3e-3), (1e6, 1e-3)])
    assert falling.bandwidth == math.inf
    # min over c of (c/3 − 1)² + (c − 1)²: c = 1.2 ms in two crossings.
    assert falling.latency == pytest.approx(0.6e-3, rel=1e-9)
