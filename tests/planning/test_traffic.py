"""Bytes and kernels of a module written by hand."""

from largebatch.planning import hlo
from largebatch.planning.traffic import traffic
from tests.planning.programs import BACKWARD, FORWARD, conv, module

ACTIVATIONS = 4 * 2 * 8 * 8 * 4
KERNEL = 4 * 3 * 3 * 4 * 4


def add(name, op_name):
    shape = "f32[2,8,8,4]{3,2,1,0}"
    return f'  %{name} = {shape} add(%image, %image), metadata={{op_name="{op_name}"}}'


def test_each_kernel_counts_once_where_it_belongs():
    found = traffic(
        hlo.parse(
            module(
                conv("f", FORWARD),
                add("relu", "jit(step)/jvp()/max"),
                conv("b", BACKWARD),
                add("mask", "jit(step)/transpose(jvp())/select"),
                add("decay", "jit(step)/add"),
                "  %view = f32[512]{0} bitcast(%decay)",
            )
        )
    )
    assert found.kernels == 5
    assert found.products == 2 * (2 * ACTIVATIONS + KERNEL)
    assert found.forward == found.backward == found.rest == 3 * ACTIVATIONS
    assert found.nbytes == found.products + 9 * ACTIVATIONS
