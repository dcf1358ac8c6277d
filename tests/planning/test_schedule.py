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
        start("b", "g2"),
        conv("b3"),
        conv("b4"),
        done("b"),
        conv("b5"),
    )
    assert (found.convolutions, found.backward_convolutions) == (6, 5)
    a, b = found.collectives
    assert (a.convolutions_before, a.backward_between, a.is_overlapped) == (1, 0, False)
    assert (b.convolutions_before, b.backward_between, b.is_overlapped) == (3, 2, True)
    assert (a.dtypes, b.dtypes) == (("f32",), ("bf16",))
    assert (a.gradient_bytes, b.gradient_bytes) == (400, 600)
    assert found.overlapped_share == pytest.approx(600 / 1000)


def test_a_synchronous_all_reduce_lies_under_nothing():
    found = read(conv("b1"), reduce_("a", "g1"), conv("b2"))
    assert not found.collectives[0].is_async
    assert found.collectives[0].backward_between == 0
    assert found.overlapped_share == 0
    assert found.gradient_bytes == 400


def test_merged_arrays_are_distinguished_by_operand():
    found = read(start("all", "g1", "statistics", "g2"), conv("b"), done("all"))
    (merged,) = found.collectives
    assert merged.nbytes == 400 + 28 + 600
    assert merged.gradient_bytes == 1000
    assert merged.gradient_elements == found.gradient_elements == 400
    assert merged.dtypes == ("f32", "bf16")
    assert found.overlapped_share == 1


@pytest.mark.parametrize(
    ("elements", "gradients"), [(400, 400), (407, 400), (307, 300), (7, 0), (8, 0), (401, 0)]
)
def test_joined_arrays_are_distinguished_by_their_sum(elements, gradients):
    text = module(reduce_("joined", "j"), arrays=[("j", f"f32[{elements}]{{0}}")])
    found = schedule.read(hlo.parse(text), SIZES, totals=7)
    assert found.gradient_elements == gradients
    assert found.gradient_bytes == 4 * gradients
    assert found.collectives[0].nbytes == 4 * elements


def test_an_array_of_the_size_of_the_statistics_is_theirs():
    text = module(reduce_("s", "j"), arrays=[("j", "f32[400]{0}")])
    assert schedule.read(hlo.parse(text), SIZES, totals=400).gradient_bytes == 0


def test_a_gradient_as_large_as_the_statistics_is_counted():
    text = module(
        reduce_("g", "j"), reduce_("s", "k"), arrays=[(n, "f32[300]{0}") for n in ("j", "k")]
    )
    assert schedule.read(hlo.parse(text), SIZES, totals=300).gradient_elements == 300


@pytest.mark.parametrize("opcode", [reduce_, start])
def test_arrays_of_plain_all_reduces_are_not_padded(opcode):
    text = module(opcode("a", "j"), arrays=[("j", "f32[1024]{0}")])
    assert schedule.read(hlo.parse(text), (600, 1000)).gradient_elements == 0


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


def test_a_sparsecores_collective_under_no_convolution_is_not_overlapped():
    found = read(
        f"  %c = ((), (), (s32[1]{{0}})) call-start(), {CALL}%offloaded",
        conv("waiting"),
        "  %u = ((f32[100]{0}), f32[100]{0}) call-update(%c, %g1)",
        "  %d = f32[100]{0} call-done(%u)",
        before=SPARSECORE,
    )
    assert found.collectives[0].is_async
    assert (found.gradient_bytes, found.overlapped_share) == (400, 0)


SCATTER = (
    "%all-reduce-scatter.1 (w: f32[1024]) -> f32[256] {\n"
    "  %w = f32[1024]{0} parameter(0)\n"
    f"  %w.all = f32[1024]{{0}} all-reduce(%w), {attributes(ALL)}\n"
    "  ROOT %w.part = f32[256]{0} slice(%w.all), slice={[0:256]}\n}\n\n"
    "%cut (v: f32[1024]) -> f32[256] {\n"
    "  %v = f32[1024]{0} parameter(0)\n"
    "  ROOT %v.part = f32[256]{0} slice(%v), slice={[0:256]}\n}\n\n"
)


def crossing(name, part):
    """The transfer between slices of an array's part, up to its beginning."""
    by = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="'
        f'{name}",_xla_megascale_transfer_type="ALL_REDUCE"}}'
    )
    return (
        f"  %{name}.s = (f32[256]{{0}}, u32[], token[]) send(%{part}, %token), {by}\n"
        f"  %{name}.r = (f32[256]{{0}}, u32[], token[]) recv(%token), {by}"
    )


def arriving(name):
    """Its end, and the gathering in the slice."""
    return (
        f"  %{name}.rd = (f32[256]{{0}}, token[]) recv-done(%{name}.r)\n"
        f"  %{name}.g = f32[256]{{0}} get-tuple-element(%{name}.rd), index=0\n"
        f"  %{name}.whole = f32[1024]{{0}} all-gather(%{name}.g), dimensions={{0}}"
    )


@pytest.mark.parametrize(
    "reduction",
    [
        ["  %p = f32[256]{0} fusion(%padded), kind=kCustom, calls=%all-reduce-scatter.1"],
        [reduce_("a", "padded"), "  %p = f32[256]{0} fusion(%a), kind=kLoop, calls=%cut"],
    ],
    ids=["fused", "apart"],
)
def test_reductions_between_slices_last_from_the_first_slice_to_the_gather(reduction):
    lines = (
        conv("before"),
        "  %token = token[] after-all()",
        *reduction,
        conv("inside"),
        crossing("x", "p"),
        conv("under"),
        arriving("x"),
        conv("later"),
        reduce_("alone", "g2"),
        "  %parameters = f32[400]{0} all-gather(%g1), dimensions={0}",
    )
    # Parts of whole tiles: 1,000 gradients are sent as 1,024.
    text = module(*lines, arrays=[*ARRAYS, ("padded", "f32[1024]{0}")], before=SCATTER)
    parsed = hlo.parse(text)
    found = schedule.read(parsed, (1000, 300))
    across, alone, parameters = found.collectives
    assert (across.opcode, across.nbytes, across.gradient_bytes) == ("all-reduce", 4096, 4000)
    assert (across.is_async, across.convolutions_before, across.backward_between) == (True, 1, 2)
    assert (alone.opcode, alone.gradient_elements, alone.is_async) == ("all-reduce", 300, False)
    assert (parameters.opcode, parameters.gradient_bytes) == ("all-gather", 0)
    assert found.gradient_elements == 1300
    two = Cluster(HARDWARE["tpu:v5e"], 8, shape=(2, 2))
    made = schedule.operations(parsed, found, two)
    assert [type(o) for o in made if o.name == across.name] == [Start, Done]
    start_, *_ = (o for o in made if isinstance(o, Start))
    assert start_.seconds == all_reduce_s(two, 4096)


CUT = "  %{} = f32[256]{{0}} fusion(%{}), kind=kLoop, calls=%cut"
CALLED = (
    f"  %c = ((), (), (s32[1]{{0}})) call-start(), {CALL}%offloaded\n"
    "  %a = ((f32[1024]{0}), f32[1024]{0}) call-update(%c, %padded)\n"
    "  %d = f32[1024]{0} call-done(%a)"
)
WRAPPED = (
    "  %a = ((f32[1024]{0}), f32[1024]{0}, u32[]) async-start(%padded), calls=%inner\n"
    "  %a.u = ((f32[1024]{0}), f32[1024]{0}, u32[]) async-update(%a)\n"
    "  %d = f32[1024]{0} async-done(%a.u)"
)
PAIRED = (
    f"  %a = f32[1024]{{0}} all-reduce-start(%padded), {attributes()}\n"
    "  %d = f32[1024]{0} all-reduce-done(%a)"
)


@pytest.mark.parametrize("reduction", [CALLED, WRAPPED, PAIRED], ids=["call", "async", "start"])
def test_a_reduction_that_is_asynchronous_in_its_slice_lasts_until_the_gather(reduction):
    lines = (
        "  %token = token[] after-all()",
        reduction,
        CUT.format("p", "d"),
        crossing("x", "p"),
        conv("under"),
        arriving("x"),
    )
    text = module(*lines, arrays=[("padded", "f32[1024]{0}")], before=SPARSECORE + SCATTER)
    (only,) = schedule.read(hlo.parse(text), (1000,)).collectives
    assert (only.name, only.opcode, only.nbytes) == ("a", "all-reduce", 4096)
    assert (only.gradient_elements, only.backward_between) == (1000, 1)


def test_a_reduction_of_two_arrays_lasts_until_the_last_gather():
    lines = (
        "  %token = token[] after-all()",
        f"  %a = (f32[1024]{{0}}, f32[1024]{{0}}) all-reduce(%first, %second), {attributes()}",
        "  %a.0 = f32[1024]{0} get-tuple-element(%a), index=0",
        "  %a.1 = f32[1024]{0} get-tuple-element(%a), index=1",
        CUT.format("p", "a.0"),
        CUT.format("q", "a.1"),
        crossing("x", "p"),
        crossing("y", "q"),
        arriving("x"),
        conv("under"),
        arriving("y"),
    )
    given = [("first", "f32[1024]{0}"), ("second", "f32[1024]{0}")]
    parsed = hlo.parse(module(*lines, arrays=given, before=SCATTER))
    found = schedule.read(parsed, (1000, 600))
    (only,) = found.collectives
    assert (only.name, only.nbytes, only.gradient_elements) == ("a", 8192, 1600)
    assert (only.opcode, only.is_async, only.backward_between) == ("all-reduce", True, 1)
    made = schedule.operations(parsed, found, Cluster(HARDWARE["tpu:v5e"], 8, shape=(2, 2)))
    assert [each.name for each in made if each.name not in ("p", "q")] == ["a", "under", "a"]


def test_a_reduction_that_is_sent_whole_lasts_until_it_is_received():
    lines = (
        "  %token = token[] after-all()",
        reduce_("a", "padded"),
        crossing("x", "a"),
        conv("under"),
        "  %x.rd = (f32[1024]{0}, token[]) recv-done(%x.r)",
        conv("later"),
    )
    text = module(*lines, arrays=[("padded", "f32[1024]{0}")])
    (only,) = schedule.read(hlo.parse(text), (1000,)).collectives
    assert (only.gradient_elements, only.is_async, only.backward_between) == (1000, True, 1)


def test_a_gather_of_two_arrays_ends_both_their_reductions():
    gathered = (
        "  %x.rd = (f32[256]{0}, token[]) recv-done(%x.r)\n"
        "  %y.rd = (f32[256]{0}, token[]) recv-done(%y.r)\n"
        "  %xg = f32[256]{0} get-tuple-element(%x.rd), index=0\n"
        "  %yg = f32[256]{0} get-tuple-element(%y.rd), index=0\n"
        "  %whole = (f32[1024]{0}, f32[1024]{0}) all-gather(%xg, %yg), dimensions={0}"
    )
    lines = (
        "  %token = token[] after-all()",
        reduce_("a", "padded"),
        CUT.format("p", "a"),
        crossing("x", "p"),
        conv("one"),
        reduce_("b", "padded"),
        CUT.format("q", "b"),
        crossing("y", "q"),
        conv("two"),
        gathered,
    )
    parsed = hlo.parse(module(*lines, arrays=[("padded", "f32[1024]{0}")], before=SCATTER))
    found = schedule.read(parsed, (1000, 600))
    assert [(each.name, each.backward_between) for each in found.collectives] == [
        ("a", 2),
        ("b", 1),
    ]
    made = schedule.operations(parsed, found, Cluster(HARDWARE["tpu:v5e"], 8, shape=(2, 2)))
    assert [each.name for each in made if each.name not in ("p", "q")] == [
        "a",
        "one",
        "b",
        "two",
        "a",
        "b",
    ]


def offloaded(name):
    """A padded array that the SparseCores reduce."""
    return (
        f"  %{name}.c = ((), (), (s32[1]{{0}})) call-start(), {CALL}%offloaded\n"
        f"  %{name} = ((f32[1024]{{0}}), f32[1024]{{0}}) call-update(%{name}.c, %padded)\n"
        f"  %{name}.d = f32[1024]{{0}} call-done(%{name})"
    )


@pytest.mark.parametrize(
    ("sizes", "totals", "expected"),
    [
        ((1000,), 900, [1000, 0]),
        ((600, 1000), 0, [600, 1000]),
        ((1000, 1024), 0, [1024, 1000]),
        ((1000,), 0, [1000, 0]),
        ((600, 424, 1000), 900, [600, 424]),
    ],
)
def test_each_size_is_padded_once(sizes, totals, expected):
    text = module(
        offloaded("x"), offloaded("y"), arrays=[("padded", "f32[1024]{0}")], before=SPARSECORE
    )
    found = schedule.read(hlo.parse(text), sizes, totals=totals)
    assert [each.gradient_elements for each in found.collectives] == expected


def test_a_small_array_is_padded_to_a_row():
    text = module(
        offloaded("x"), offloaded("y"), arrays=[("padded", "f32[128]{0}")], before=SPARSECORE
    )
    found = schedule.read(hlo.parse(text), (60, 64, 64), totals=1000)
    assert [each.gradient_elements for each in found.collectives] == [60, 64]


def test_an_all_reduce_fused_with_its_slice_is_a_reduce_scatter():
    line = "  %p = f32[256]{0} fusion(%padded), kind=kCustom, calls=%all-reduce-scatter.1"
    text = module(conv("b"), line, arrays=[("padded", "f32[1024]{0}")], before=SCATTER)
    found = schedule.read(hlo.parse(text), (1024,))
    (only,) = found.collectives
    assert (only.opcode, only.is_async, only.gradient_bytes) == ("reduce-scatter", False, 4096)


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


def test_the_share_by_time_is_that_of_gradient_bytes_in_flight_while_the_device_computes():
    lines = [start("a", "g1"), conv("c1"), done("a"), reduce_("b", "g2")]
    lines += [start("s", "statistics"), conv("c2"), done("s")]
    found = hlo.parse(module(*lines, arrays=ARRAYS))
    made = schedule.read(found, SIZES)
    estimate = schedule.estimate(found, made, CLUSTER)
    compute, _ = (
        o.seconds for o in schedule.operations(found, made, CLUSTER) if isinstance(o, Compute)
    )
    a, b, s = (all_reduce_s(CLUSTER, nbytes) for nbytes in (400, 600, 28))
    assert compute < a
    assert estimate.hidden_share == pytest.approx(400 / 1000 * compute / a)
    assert estimate.exposed_s == pytest.approx(a + b + s - 2 * compute)
    assert estimate.step_s == pytest.approx(a + b + s)
    assert (estimate.compute_s, estimate.network_s) == (
        pytest.approx(2 * compute),
        pytest.approx(a + b + s),
    )
