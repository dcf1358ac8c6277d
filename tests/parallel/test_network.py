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


WHOLE_NODE = Link(4 * LINK.bandwidth, LINK.latency)
HOPS = [WHOLE_NODE if rank % 4 == 3 else FAST for rank in range(12)]
LEVELS = [Link(9e9 / (i + 1), 3e-6 * (i + 1)) for i in range(3)]
RACKED = dataclasses.replace(cluster(6, 2), rack_nodes=3, uplink_share=0.25)
UPLINK = Link(LINK.bandwidth / 4, LINK.latency)
LINE = 10**9  # no axis of so many chips closes to a ring
HALVING = simulated.halving_doubling


@pytest.mark.parametrize(
    ("world", "seconds"),
    [
        *((simulated.ring(n, 1e6, [LINK] * n), ring_s(n, 1e6, LINK)) for n in (2, 8, 13)),
        # A flat ring waits for its slowest hop.
        *(
            (simulated.ring(12, s, HOPS), all_reduce_s(cluster(3, 4), s, "ring"))
            for s in (1e2, 1e8)
        ),
        *(
            (
                simulated.hierarchical(nodes, group, 1e6, FAST, LINK),
                all_reduce_s(cluster(nodes, group), 1e6, "hierarchical_ring"),
            )
            for nodes, group in ((3, 4), (4, 1), (1, 4))
        ),
        *(
            (
                simulated.torus(*shape, 1e6, LINK, both_ways=both_ways),
                torus_s(shape, 1e6, LINK, wrap=1 if both_ways else LINE),
            )
            for shape, both_ways in (((4, 4), True), ((3, 5), True), ((2, 3), False))
        ),
        *((HALVING(n, 1e6, LINK), halving_doubling_s(n, 1e6, LINK)) for n in (1, 8, 13)),
        (HALVING(8, 1e6, LINK), tree_s(8, 1e6, LINK)),
        # Flat halving and doubling sends everything over the network.
        *(
            (
                HALVING(nodes * group, 1e6, LINK, inside=FAST, group=group),
                all_reduce_s(cluster(nodes, group), 1e6, "halving_doubling"),
            )
            for nodes, group in ((4, 2), (2, 8), (8, 1))
        ),
        (
            simulated.levels([4, 2, 3], 1e6, LEVELS),
            levels_s(list(zip([4, 2, 3], LEVELS, strict=True)), 1e6),
        ),
        # Racks are a level of their own.
        (
            simulated.levels([2, 3, 2], 1e6, [FAST, LINK, UPLINK]),
            all_reduce_s(RACKED, 1e6, "multilevel"),
        ),
        (
            simulated.levels([2, 6], 1e6, [FAST, LINK]),
            all_reduce_s(cluster(6, 2), 1e6, "multilevel"),
        ),
        *((simulated.root(n, 1e6, LINK), root_s(n, 1e6, LINK)) for n in (1, 2, 7)),
    ],
)
def test_an_all_reduce_takes_as_long_as_its_messages(world, seconds):
    world.check()
    assert seconds == pytest.approx(world.seconds, rel=EXACT)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"torus"}))
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


def test_trees_between_nodes_follow_a_chain_inside_them():
    chain, narrowest = 2 * 3 * FAST.latency, min(FAST.bandwidth, 4 * LINK.bandwidth)
    streamed = 2 * 2 * LINK.latency + 2 * 15 / 16 * 1e9 / narrowest
    assert all_reduce_s(cluster(4, 4), 1e9, "tree") == pytest.approx(chain + streamed, rel=EXACT)
    blocks = double_tree_s(4, 1e9, Link(narrowest, LINK.latency))
    found = all_reduce_s(cluster(4, 4), 1e9, "double_tree")
    assert found == pytest.approx(chain + blocks, rel=EXACT)


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
