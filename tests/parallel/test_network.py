"""The cost models against messages that are really passed, published figures, and their limits."""

import dataclasses
import math

import pytest

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import HARDWARE, Cluster, Link, cluster_in, machine
from largebatch.parallel.network import (
    ALGORITHMS,
    all_reduce_s,
    double_tree_s,
    halving_doubling_s,
    levels_s,
    ring_s,
    root_s,
    torus_s,
    tree_s,
)
from tests.planning import simulated
from tests.planning.trees import reduction_rounds

LINK = Link(bandwidth=3e9, latency=7e-6)
FAST = Link(bandwidth=50e9, latency=2e-6)
EXACT = 1e-12  # sums of some hundred floats
GRADIENTS = 51e6  # of ResNet-50 in fp16, as RECIPES takes it


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


@pytest.mark.parametrize(("nodes", "group"), [(3, 4), (4, 1), (1, 4)])
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


@pytest.mark.parametrize("algorithm", [*ALGORITHMS.keys() - {"torus"}])
def test_more_bytes_devices_or_latency_take_longer(algorithm):
    def seconds(nodes=8, nbytes=1e6, **links):
        return all_reduce_s(cluster(nodes, 4, **links), nbytes, algorithm)

    for found in (
        [all_reduce_s(cluster(1, 1), 1e9, algorithm), seconds(1)],
        [seconds(nbytes=n) for n in (1, 1e3, 1e6, 1e9)],
        [seconds(n) for n in (2, 4, 64, 512)],
        [seconds(), seconds(between=Link(LINK.bandwidth / 2, LINK.latency))],
        [seconds(), seconds(between=Link(LINK.bandwidth, 2 * LINK.latency))],
    ):
        assert found == sorted(set(found))
    assert seconds(launch_s=1e-3) == seconds() + 1e-3


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


def test_an_algorithm_must_exist_for_the_hardware():
    with pytest.raises(ConfigError, match=r"algorithm: .*'torus'"):
        all_reduce_s(Cluster(HARDWARE["v100"], 8), 1e6, "torus")


# ---- the other algorithms


@pytest.mark.parametrize(("ranks", "nbytes"), [(1, 1.0), (8, 1.0), (13, 1e6)])
def test_halving_and_doubling_folds_what_exceeds_a_power_of_two(ranks, nbytes):
    world = simulated.halving_doubling(ranks, nbytes, LINK)
    world.check()
    assert halving_doubling_s(ranks, nbytes, LINK) == pytest.approx(world.seconds, rel=EXACT)
    if ranks == 8:
        assert tree_s(ranks, nbytes, LINK) == pytest.approx(world.seconds, rel=EXACT)


@pytest.mark.parametrize(("nodes", "group"), [(4, 2), (2, 8), (8, 1)])
def test_flat_halving_and_doubling_sends_everything_over_the_network(nodes, group):
    world = simulated.halving_doubling(nodes * group, 1e6, LINK, inside=FAST, group=group)
    world.check()
    found = all_reduce_s(cluster(nodes, group), 1e6, "halving_doubling")
    assert found == pytest.approx(world.seconds, rel=EXACT)


@pytest.mark.parametrize("sizes", [[4, 2, 3], [5]])
def test_levels_take_as_long_as_their_messages(sizes):
    links = [Link(9e9 / (i + 1), 3e-6 * (i + 1)) for i in range(len(sizes))]
    world = simulated.levels(sizes, 1e6, links)
    world.check()
    found = levels_s(list(zip(sizes, links, strict=True)), 1e6)
    assert found == pytest.approx(world.seconds, rel=EXACT)


def test_racks_are_a_level_of_their_own():
    racked = dataclasses.replace(cluster(6, 2), rack_nodes=3, uplink_share=0.25)
    uplink = Link(LINK.bandwidth / 4, LINK.latency)
    world = simulated.levels([2, 3, 2], 1e6, [FAST, LINK, uplink])
    world.check()
    assert all_reduce_s(racked, 1e6, "multilevel") == pytest.approx(world.seconds, rel=EXACT)
    flat = all_reduce_s(cluster(6, 2), 1e6, "multilevel")
    assert flat == pytest.approx(all_reduce_s(cluster(6, 2), 1e6, "hierarchical_ring"), rel=EXACT)


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_a_root_takes_all_over_its_one_link(ranks):
    world = simulated.root(ranks, 1e6, LINK)
    world.check()
    assert root_s(ranks, 1e6, LINK) == pytest.approx(world.seconds, rel=EXACT)


def test_a_parameter_server_has_the_adapters_of_its_node():
    whole = Link(4 * LINK.bandwidth, LINK.latency)
    found = all_reduce_s(cluster(8, 4), 1e6, "parameter_server")
    assert found == root_s(28 + 1, 1e6, whole)  # the 28 devices of other nodes
    assert all_reduce_s(cluster(1, 4), 1e6, "parameter_server") == root_s(4, 1e6, FAST)


@pytest.mark.parametrize("ranks", [2, 5, 33])
@pytest.mark.parametrize("blocks", [1, 9])
def test_two_trees_take_at_most_the_rounds_of_the_formula(ranks, blocks):
    height = max(1, math.ceil(math.log2(ranks + 1)) - 1)
    rounds = reduction_rounds(ranks, blocks)
    assert 2 * (height + blocks) - 2 <= rounds <= 2 * (height + blocks)
    each = LINK.latency + 1e6 / (2 * blocks) / LINK.bandwidth
    formula = double_tree_s(ranks, 1e6, LINK, blocks=blocks)
    assert formula == pytest.approx(2 * 2 * (height + blocks) * each, rel=EXACT)


@pytest.mark.parametrize(("ranks", "nbytes"), [(2, 1e2), (512, 1e9)])
def test_the_best_number_of_blocks_is_found(ranks, nbytes):
    best = double_tree_s(ranks, nbytes, LINK)
    tried = [double_tree_s(ranks, nbytes, LINK, blocks=k) for k in range(1, 3000)]
    assert best <= min(tried) * (1 + EXACT)
    assert double_tree_s(1, nbytes, LINK) == 0


def test_a_pipelined_ring_pays_every_hop_once_and_the_narrowest_way():
    found = all_reduce_s(cluster(3, 4), 0.0, "pipelined_ring")
    assert found == pytest.approx(2 * (9 * FAST.latency + 2 * LINK.latency), rel=EXACT)
    more = all_reduce_s(cluster(3, 4), 1e9, "pipelined_ring") - found
    narrowest = min(FAST.bandwidth, 4 * LINK.bandwidth)
    assert more == pytest.approx(2 * 11 / 12 * 1e9 / narrowest, rel=1e-9)
    assert found < all_reduce_s(cluster(3, 4), 0.0, "ring")


# ---- racks and named clusters


def test_oversubscription_counts_where_nodes_lie_in_several_racks():
    abci = machine("abci")
    assert (cluster_in(abci, 34 * 4).racks, cluster_in(abci, 35 * 4).racks) == (1, 2)
    line = abci.hardware.between
    assert cluster_in(abci, 34 * 4).between == line
    record = cluster_in(abci, 2048)
    crossing = 1 - 33 / 511  # of a node's partners
    slower = crossing / (24 / 68)
    assert record.between.bandwidth == pytest.approx(line.bandwidth / slower, rel=1e-3)
    assert record.between.latency == line.latency
    # Rings that follow the racks hardly meet the uplinks.
    assert all_reduce_s(record, 1e9, "multilevel") < all_reduce_s(record, 1e9) / 2


def test_a_named_cluster_has_so_many_devices():
    with pytest.raises(ConfigError, match="'h200-node'"):
        cluster_in(machine("h200-node"), 16)
    pods = cluster_in(machine("tpu-v3"), 8192)
    assert (pods.nodes, pods.torus_shape) == (4, (32, 32))
