"""All-reduces among convolutions, and the shares of them that are overlapped."""

import pytest

from largebatch.parallel.clusters import HARDWARE, Cluster
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import Compute, Done, Start
from largebatch.planning import hlo, schedule
from tests.planning.programs import ALL, FORWARD, attributes, conv, done, module, reduce_, start

ARRAYS = [
    ("g1", "f32[100]{0}"),
    ("g2", "bf16[300]{0}"),
    ("statistics", "f32[7]{0}"),
    ("span", "f32[100]{0}"),
]
SIZES = (100, 300)
CLUSTER = Cluster(HARDWARE["v100"], 8)


def read(*lines, before="", **options):
    text = module(*lines, arrays=ARRAYS, before=before)
    return schedule.read(hlo.parse(text), SIZES, **options)


def test_only_backward_convolutions_between_start_and_done_count():
    found = read(
        conv("b1"),
        start("a", "g1"),
        conv("f", FORWARD),
        done("a"),
        conv("b2"),
        start("b", "statistics", "g2"),
        conv("b3"),
        conv("b4"),
        done("b"),
        conv("b5"),
    )
    assert (found.convolutions, found.backward_convolutions) == (6, 5)
    a, b = found.collectives
    assert (a.convolutions_before, a.backward_between, a.is_overlapped) == (1, 0, False)
    assert (b.convolutions_before, b.backward_between, b.is_overlapped) == (3, 2, True)
    assert (a.dtypes, b.dtypes) == (("f32",), ("f32", "bf16"))  # merged, told by their operands
    assert (a.nbytes, b.nbytes) == (400, 28 + 600)
    assert (a.gradient_bytes, b.gradient_bytes) == (400, 600)
    assert found.overlapped_share == pytest.approx(600 / 1000)


@pytest.mark.parametrize(
    ("sent", "sizes", "totals", "expected"),
    [
        # Several gradients joined in one array, with the statistics or without them.
        ([400], (100, 300), 7, [400]),
        ([407], (100, 300), 7, [400]),
        ([307], (100, 300), 7, [300]),
        ([8], (100, 300), 7, [0]),
        ([400], (100, 300), 400, [0]),
        ([300, 300], (100, 300), 300, [300, 0]),
        # Plain all-reduces are not padded.
        ([1024], (600, 1000), 0, [0]),
    ],
)
def test_gradients_are_found_in_reduced_arrays(sent, sizes, totals, expected):
    arrays = [(f"j{i}", f"f32[{count}]{{0}}") for i, count in enumerate(sent)]
    text = module(*(reduce_(f"a{i}", f"j{i}") for i in range(len(sent))), arrays=arrays)
    found = schedule.read(hlo.parse(text), sizes, totals=totals).collectives
    assert [each.gradient_elements for each in found] == expected
    assert [each.gradient_bytes for each in found] == [4 * count for count in expected]
    assert [each.nbytes for each in found] == [4 * count for count in sent]


def offloaded(name, count):
    """A padded array that the SparseCores reduce."""
    return (
        f"  %{name}.c = ((), (), (s32[1]{{0}})) call-start(), {CALL}%offloaded\n"
        f"  %{name}.p = f32[{count}]{{0}} constant(0)\n"
        f"  %{name} = ((f32[{count}]{{0}}), f32[{count}]{{0}}) call-update(%{name}.c, %{name}.p)\n"
        f"  %{name}.d = f32[{count}]{{0}} call-done(%{name})"
    )


@pytest.mark.parametrize(
    ("count", "sizes", "totals", "expected"),
    [
        (1024, (1000,), 900, [1000, 0]),
        (1024, (1000, 1024), 0, [1024, 1000]),
        (1024, (1000,), 0, [1000, 0]),
        (1024, (600, 424, 1000), 900, [600, 424]),
        (128, (60, 64, 64), 1000, [60, 64]),
    ],
)
def test_each_size_is_padded_once_to_a_row_or_a_tile(count, sizes, totals, expected):
    text = module(offloaded("x", count), offloaded("y", count), before=SPARSECORE)
    found = schedule.read(hlo.parse(text), sizes, totals=totals)
    assert [each.gradient_elements for each in found.collectives] == expected


def test_batch_norm_sums_of_a_span_are_not_gradients():
    found = read(start("s", "span", groups="{'member'}"), conv("b"), done("s"), reduce_("a", "g2"))
    assert [each.nbytes for each in found.collectives] == [400, 600]
    assert [each.name for each in found.gradients] == ["a"]
    assert found.overlapped_share == 0


def test_wrapped_asynchronous_operations_are_followed_to_their_end():
    wrapped = (
        "%wrapped (p: f32[100]) -> f32[100] {\n"
        "  %p = f32[100]{0} parameter(0)\n"
        f"  ROOT %inner = f32[100]{{0}} all-reduce(%p), {attributes(ALL)}\n}}\n\n"
        "%copied (q: f32[100]) -> f32[100] {\n"
        "  %q = f32[100]{0} parameter(0)\n"
        "  ROOT %other = f32[100]{0} copy(%q)\n}\n\n"
    )
    found = read(
        "  %w = ((f32[100]{0}), f32[100]{0}, u32[]) async-start(%g1), calls=%wrapped",
        "  %c = ((f32[100]{0}), f32[100]{0}, u32[]) async-start(%g1), calls=%copied",
        conv("b1"),
        "  %w.u = ((f32[100]{0}), f32[100]{0}, u32[]) async-update(%w)",
        "  %c.d = f32[100]{0} async-done(%c)",
        conv("b2"),
        "  %w.d = f32[100]{0} async-done(%w.u)",
        before=wrapped,
    )
    (only,) = found.collectives
    assert (only.name, only.is_async, only.backward_between) == ("w", True, 2)
    assert found.overlapped_share == 1


def test_where_the_update_is_sharded_gradients_are_scattered_and_parameters_gathered():
    text = module(
        "  %r = ((f32[100]{0}), f32[25]{0}) reduce-scatter-start(%g1), " + attributes(),
        conv("b"),
        "  %r.done = f32[25]{0} reduce-scatter-done(%r)",
        "  %n = f32[100]{0} all-gather(%part), dimensions={0}",
        "  %o = (f32[25]{0}, f32[100]{0}) all-gather-start(%part), dimensions={0}",
        "  %o.done = f32[100]{0} all-gather-done(%o)",
        arrays=[*ARRAYS, ("part", "f32[25]{0}")],
    )
    parsed = hlo.parse(text)
    found = schedule.read(parsed, SIZES)
    opcodes = [each.opcode for each in found.collectives]
    assert opcodes == ["reduce-scatter", "all-gather", "all-gather"]
    assert [each.nbytes for each in found.collectives] == [400, 400, 400]
    assert [each.gradient_bytes for each in found.collectives] == [400, 0, 0]
    assert [each.is_async for each in found.collectives] == [True, False, True]
    assert found.overlapped_share == 1
    starts = [o for o in schedule.operations(parsed, found, CLUSTER) if isinstance(o, Start)]
    assert [o.seconds for o in starts] == [all_reduce_s(CLUSTER, 400) / 2] * 3


def test_a_tpus_fused_collective_lasts_from_its_start_over_its_steps_to_its_end():
    def fused(name, *lines):
        body = ["  %" + name + ".p = f32[100]{0} parameter(0)", *lines]
        inner = f"  %{name}.all = f32[100]{{0}} all-reduce(%{name}.p), {attributes(ALL)}"
        return f"%{name} (p: f32[100]) -> f32[100] {{\n" + "\n".join([*body, inner]) + "\n}\n\n"

    def call(name, target):
        return f'  %{name}.c = f32[] custom-call(), custom_call_target="{target}"'

    before = (
        fused("begin", call("begin", "AsyncCollectiveStart"))
        + fused("step", conv("step.conv"))
        + fused("finish", call("finish", "AsyncCollectiveDone"))
    )
    found = read(
        "  %s = (f32[100]{0}, u32[]) fusion(%g1), kind=kCustom, calls=%begin",
        "  %s.0 = f32[100]{0} get-tuple-element(%s), index=0",
        "  %t = (f32[9]{0}, f32[100]{0}) fusion(%image, %s.0), kind=kOutput, calls=%step",
        "  %t.1 = f32[100]{0} get-tuple-element(%t), index=1",
        "  %d = f32[100]{0} fusion(%t.1), kind=kCustom, calls=%finish",
        conv("later"),
        before=before,
    )
    (only,) = found.collectives  # those inside the steps and the end are the same one
    assert (only.name, only.nbytes, only.backward_between) == ("s", 400, 1)
    assert found.overlapped_share == 1


SPARSECORE = (
    "%inner (i: f32[100]) -> f32[100] {\n"
    "  %i = f32[100]{0} parameter(0)\n"
    f"  ROOT %all = f32[100]{{0}} all-reduce(%i), {attributes(ALL)}\n}}\n\n"
    '%offloaded (o: f32[100]) -> f32[100], execution_thread="sparsecore" {\n'
    "  %o = f32[100]{0} parameter(0)\n"
    "  ROOT %run = f32[100]{0} fusion(%o), kind=kCustom, calls=%inner\n}\n\n"
    '%sorted (k: s32[9]) -> s32[9], execution_thread="sparsecore" {\n'
    "  %k = s32[9]{0} parameter(0)\n"
    "  ROOT %sort = s32[9]{0} sort(%k), dimensions={0}\n}\n\n"
)
CALL = 'async_execution_thread="sparsecore", to_apply='


def test_a_sparsecores_collective_begins_when_its_operand_arrives():
    lines = (
        f"  %c = ((), (), (s32[1]{{0:T(128)S(2)}})) call-start(), {CALL}%offloaded",
        conv("waiting"),
        "  %u = ((f32[100]{0}), f32[100]{0}) call-update(%c, %g1)",
        conv("under"),
        f"  %k = ((), (), (s32[1]{{0}})) call-start(), {CALL}%sorted",
        "  %d = f32[100]{0} call-done(%u)",
        conv("later"),
    )
    found = read(*lines, before=SPARSECORE)
    (only,) = found.collectives
    assert (only.name, only.opcode, only.nbytes) == ("u", "all-reduce", 400)
    assert (only.is_async, only.convolutions_before, only.backward_between) == (True, 1, 1)
    assert (found.gradient_bytes, found.overlapped_share) == (400, 1)
    # Only the convolutions take time of the device.
    parsed = hlo.parse(module(*lines, arrays=ARRAYS, before=SPARSECORE))
    made = schedule.operations(parsed, schedule.read(parsed, SIZES), CLUSTER)
    names = [each.name for each in made]
    assert names == ["waiting", "u", "under", "u", "later"]


def test_a_sparsecores_collective_with_its_operand_in_the_call_begins_there():
    found = read(
        f"  %c = ((f32[100]{{0}}), f32[100]{{0}}) call-start(%g1), {CALL}%offloaded",
        conv("under"),
        "  %u = ((f32[100]{0}), f32[100]{0}) call-update(%c)",
        conv("also"),
        "  %d = f32[100]{0} call-done(%u)",
        before=SPARSECORE,
    )
    (only,) = found.collectives
    assert (only.name, only.nbytes, only.backward_between) == ("c", 400, 2)


SCATTER = (
    "%all-reduce-scatter.1 (w: f32[1024]) -> f32[256] {\n"
    "  %w = f32[1024]{0} parameter(0)\n"
    f"  %w.all = f32[1024]{{0}} all-reduce(%w), {attributes(ALL)}\n"
    "  ROOT %w.part = f32[256]{0} slice(%w.all), slice={[0:256]}\n}\n\n"
)


def test_an_all_reduce_fused_with_its_slice_is_a_reduce_scatter():
    line = "  %p = f32[256]{0} fusion(%padded), kind=kCustom, calls=%all-reduce-scatter.1"
    text = module(conv("b"), line, arrays=[("padded", "f32[1024]{0}")], before=SCATTER)
    # Parts of whole tiles: 1,000 gradients are sent as 1,024.
    (only,) = schedule.read(hlo.parse(text), (1000,)).collectives
    assert (only.opcode, only.is_async, only.gradient_bytes) == ("reduce-scatter", False, 4000)


def test_a_convolution_in_a_fusion_counts_by_its_own_origin():
    fused = (
        "%fused (i: f32[2,8,8,4], k: f32[3,3,4,4]) -> f32[2,8,8,4] {\n"
        "  %i = f32[2,8,8,4]{3,2,1,0} parameter(0)\n  %k = f32[3,3,4,4]{3,2,1,0} parameter(1)\n"
        + conv("inside").replace("%image, %kernel", "%i, %k")
        + "\n}\n\n"
    )
    line = (
        "  %fusion = f32[2,8,8,4]{3,2,1,0} fusion(%image, %kernel), kind=kOutput, calls=%fused, "
        f'metadata={{op_name="{FORWARD}"}}'
    )
    found = read(start("a", "g1"), line, done("a"), before=fused)
    assert found.overlapped_share == 1


def dot(name, op_name, rows="20,30", columns="30,40"):
    """A matrix product as cuBLAS does it: rows × columns, with a workspace."""
    m, n = rows.split(",")[0], columns.split(",")[1]
    call = 'custom_call_target="__cublas$lt$matmul"'
    return (
        f"  %{name}.l = f32[{rows}]{{1,0}} constant(0)\n"
        f"  %{name}.r = f32[{columns}]{{1,0}} constant(0)\n"
        f"  %{name} = (f32[{m},{n}]{{1,0}}, s8[9]{{0}}) custom-call(%{name}.l, %{name}.r), {call}, "
        f'metadata={{op_name="{op_name}"}}'
    )


@pytest.mark.parametrize(
    ("head", "share"), [(0.0, 1), (2 * 20 * 30 * 40, 0), (2 * 20 * 30 * 41, 0)]
)
def test_a_matrix_product_is_a_convolution_unless_it_is_the_heads(head, share):
    # The last: as large as the head's but for padding.
    found = read(
        start("a", "g1"), dot("d", "jit(s)/transpose(jvp())/dot"), done("a"), head_flops=head
    )
    assert found.convolutions == share
    assert found.overlapped_share == share


def test_a_product_of_unknown_origin_is_backward_once_that_has_begun():
    found = read(
        conv("x", ""), conv("f", FORWARD), conv("b"), start("a", "g1"), conv("y", ""), done("a")
    )
    assert (found.convolutions, found.backward_convolutions) == (4, 2)
    assert found.overlapped_share == 1
    assert read(start("a", "g1"), conv("y", ""), done("a")).overlapped_share == 0


FLOPS = 2 * 2 * 4 * 4 * 22 * 22  # of conv(): of 8 × 3 positions a side, 2 see no pixel


def test_the_program_of_two_streams_has_the_models_times():
    text = module(
        conv("b1"),
        start("a", "g1"),
        conv("b2"),
        done("a"),
        reduce_("s", "statistics"),
        arrays=ARRAYS,
    )
    found = hlo.parse(text)
    made = schedule.operations(found, schedule.read(found, SIZES), CLUSTER)
    of = HARDWARE["v100"]
    nbytes = 2 * (2 * 8 * 8 * 4 * 4) + 3 * 3 * 4 * 4 * 4
    seconds = max(FLOPS / of.flops["float32"], nbytes / of.bandwidth) / of.sustained
    assert made == [
        Compute("b1", pytest.approx(seconds)),
        Start("a", 400, all_reduce_s(CLUSTER, 400)),
        Compute("b2", pytest.approx(seconds)),
        Done("a"),
        Start("s", 28, all_reduce_s(CLUSTER, 28)),
        Done("s"),
    ]
    a, s = (all_reduce_s(CLUSTER, nbytes) for nbytes in (400, 28))
    estimate = schedule.estimate(found, schedule.read(found, SIZES), CLUSTER)
    assert seconds < a
    assert estimate.hidden_share == pytest.approx(seconds / a)
    assert estimate.exposed_s == pytest.approx(a + s - seconds)
    assert estimate.step_s == pytest.approx(a + s + seconds)
    assert estimate.compute_s == pytest.approx(2 * seconds)
    assert estimate.network_s == pytest.approx(a + s)
