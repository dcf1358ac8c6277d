"""Reading the text of compiled modules."""

import jax
import jax.numpy as jnp
import pytest

from largebatch.planning import hlo
from tests.planning import programs


def test_instructions_have_name_opcode_arrays_operands_and_attributes():
    text = programs.module(
        programs.conv("c"),
        programs.start("s", "g", "h"),
        arrays=[("g", "bf16[5]{0}"), ("h", "s8[2,3]{1,0}")],
    )
    module = hlo.parse(text)
    found = module.instructions
    assert module.entry == "main"
    assert found["c"].opcode == "convolution"
    assert found["c"].arrays == (hlo.Array("f32", (2, 8, 8, 4)),)  # tilings are no dimensions
    assert found["c"].operands == ("image", "kernel")
    assert found["c"].op_name == programs.BACKWARD
    assert found["c"].attribute("window") == "size=3x3 pad=1_1x1_1"
    assert found["c"].attribute("dim_labels") == "b01f_01io->b01f"
    assert len(found["s"].arrays) == 2  # a tuple's
    assert [a.nbytes for a in module.operand_arrays(found["s"])] == [10, 6]
    assert found["s"].called == ("sum",)


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("pred", 9), ("s4", 5), ("f8e4m3fn", 9), ("bf16", 18), ("c64", 72)]
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


def test_what_a_fusion_holds_is_found_to_any_depth():
    text = programs.module(
        "  %outer = f32[] fusion(%x), kind=kLoop, calls=%fused",
        arrays=[("x", "f32[]")],
        before="%deep (q: f32[]) -> f32[] {\n  ROOT %deep.op = f32[] negate(%q)\n}\n\n"
        "%fused (p: f32[]) -> f32[] {\n  ROOT %inner = f32[] call(%p), to_apply=%deep\n}\n\n",
    )
    module = hlo.parse(text)
    assert [i.name for i in module.within(module.instructions["outer"])] == ["inner", "deep.op"]


def test_a_compiled_program_of_this_jax_is_read():
    lowered = jax.jit(lambda x: jnp.tanh(x @ x).sum()).lower(jnp.ones((8, 8)))
    module = hlo.parse(lowered.compile().as_text())
    opcodes = {i.opcode for i in module.instructions.values()}
    assert {"parameter", "dot", "tanh"} <= opcodes
    (argument,) = (i for i in module.in_order() if i.opcode == "parameter")
    assert argument.arrays == (hlo.Array("f32", (8, 8)),)


def test_text_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("module @jit_f { func.func public @main() }")
