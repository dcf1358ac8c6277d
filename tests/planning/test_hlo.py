"""Reading the text of compiled modules."""

import pytest

from largebatch.planning import hlo
from tests.planning import programs


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("pred", 9), ("s4", 5), ("f8e4m3fn", 9), ("c64", 72), ("c128", 144)]
)
def test_bytes_of_an_array_follow_from_its_type(dtype, nbytes):
    assert hlo.Array(dtype, (3, 3)).nbytes == nbytes


def test_calls_loops_and_branches_are_walked_through_in_place_fusions_are_not():
    bodies = "".join(
        f"%{name} (p: f32[]) -> f32[] {{\n"
        f"  %{name}.p = f32[] parameter(0)\n"
        f"  ROOT %{name}.op = f32[] negate(%{name}.p)\n}}\n\n"
        for name in ("called", "body", "condition", "yes", "no", "fused")
    )
    text = programs.module(
        "  %one = f32[] call(%x), to_apply=%called",
        "  %two = f32[] while(%one), condition=%condition, body=%body",
        "  %three = f32[] conditional(%p, %two, %two), branch_computations={%yes, %no}",
        "  %four = f32[] fusion(%three), kind=kLoop, calls=%fused",
        arrays=[("x", "f32[]"), ("p", "s32[]")],
        before=bodies,
    )
    names = [i.name for i in hlo.parse(text).in_order() if i.opcode != "parameter"]
    assert names == ["called.op", "condition.op", "body.op", "yes.op", "no.op", "four", "end"]


def test_text_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("module @jit_f { func.func public @main() }")
