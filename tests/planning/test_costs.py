"""FLOPs and bytes of instructions and modules: equal to XLA's own account, and by hand."""

import jax
import jax.numpy as jnp
import pytest

from largebatch.parallel.clusters import HARDWARE
from largebatch.planning import costs, hlo
from tests.planning.programs import BACKWARD, FORWARD, conv, module


@pytest.mark.parametrize(("side", "kernel", "stride", "padding"), [(9, 3, 2, 1), (8, 1, 2, 0)])
def test_convolutions_and_their_gradients_have_the_flops_that_xla_counts(
    side, kernel, stride, padding
):
    def convolve(image, weights):
        return jax.lax.conv_general_dilated(
            image,
            weights,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def gradients(image, weights, cotangent):
        return jax.vjp(convolve, image, weights)[1](cotangent)

    image, weights = jnp.ones((3, side, side, 5)), jnp.ones((kernel, kernel, 5, 6))
    result = jax.eval_shape(convolve, image, weights)
    lowered = jax.jit(gradients).lower(image, weights, jnp.ones(result.shape))
    compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})
    found = hlo.parse(compiled.as_text())
    products = [p for i in found.in_order() for p in costs.products(found, i)]
    assert len(products) == 2
    # Exact: the gradients are nothing but two convolutions.
    assert sum(p.flops for p in products) == compiled.cost_analysis()["flops"]


def cudnn(kind, left, right, out, window="size=3x3 stride=2x2 pad=1_1x1_1"):
    """A call of cuDNN, with forward's labels and window."""
    text = module(
        f"  %c = ({out}, u8[0]{{0}}) custom-call(%l, %r), window={{{window}}}, "
        f'dim_labels=bf01_oi01->bf01, custom_call_target="__cudnn${kind}", '
        'metadata={op_name="jit(s)/transpose(jvp())/conv"}',
        arrays=[("l", left), ("r", right)],
    )
    found = hlo.parse(text)
    (product,) = costs.products(found, found.instructions["c"])
    return product


def test_cudnns_backward_calls_have_the_flops_of_their_forward_convolution():
    image, kernel, out = "f16[2,3,8,8]", "f16[5,3,3,3]", "f16[2,5,4,4]"
    forward = cudnn("convForward", image, kernel, out)
    # A side of 4 outputs × 3 positions, of which one reads the padding.
    assert forward.flops == 2 * 2 * 5 * 3 * 11 * 11
    assert cudnn("convBackwardInput", out, kernel, image).flops == forward.flops
    assert cudnn("convBackwardFilter", image, out, kernel).flops == forward.flops
    assert forward.dtype == "float16"
    assert forward.is_convolution
    assert forward.is_backward


def test_matrix_products_have_two_flops_a_multiply_add():
    """Of a library, with batches, and as TPUs write them: a convolution without axes."""
    call = '%c = (f32[6,7]{1,0}, s8[99]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm"'
    text = module(
        f"  {call}",
        "  %d = f32[5,6,7]{2,1,0} dot(%e, %f), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_batch_dims={0}, rhs_contracting_dims={1}",
        "  %t = f32[6,7]{1,0} convolution(%a, %b), dim_labels=bf_io->bf",
        arrays=[
            ("a", "bf16[6,8]"),
            ("b", "bf16[8,7]"),
            ("e", "f32[5,6,8]"),
            ("f", "f32[5,8,7]"),
        ],
    )
    found = hlo.parse(text)
    (library,) = costs.products(found, found.instructions["c"])
    (batched,) = costs.products(found, found.instructions["d"])
    (tpus,) = costs.products(found, found.instructions["t"])
    assert library.flops == pytest.approx(2 * 6 * 7 * 8, rel=1e-12)  # a square root of exact sizes
    assert batched.flops == pytest.approx(2 * 5 * 6 * 7 * 8, rel=1e-12)
    assert (library.dtype, batched.dtype) == ("bfloat16", "float32")
    assert tpus.flops == 2 * 6 * 7 * 8
    assert not library.is_convolution
    assert not tpus.is_convolution
    assert library.is_backward is None


def fusion(*body):
    """Bytes of a fusion of f32[1000] and f32[10] to f32[10]."""
    text = module(
        "  %c = f32[10]{0} fusion(%a, %b), kind=kLoop, calls=%fused",
        arrays=[("a", "f32[1000]{0}"), ("b", "f32[10]{0}")],
        before="%fused (p: f32[1000], q: f32[10]) -> f32[10] {\n"
        "  %p = f32[1000]{0} parameter(0)\n  %q = f32[10]{0} parameter(1)\n"
        + "\n".join(body)
        + "\n}\n\n",
    )
    found = hlo.parse(text)
    return costs.moved_bytes(found, found.instructions["c"])


def test_of_an_operand_that_is_only_sliced_the_slices_are_read():
    view = "  %v = f32[10,100]{1,0} bitcast(%p)"
    sliced = "  %s = f32[1,10]{1,0} slice(%v), slice={[0:1], [0:10]}"
    assert fusion(view, sliced, "  ROOT %r = f32[10]{0} add(%s, %q)") == 40 + 40 + 40
    whole = "  %t = f32[10]{0} reduce(%v), dimensions={1}"
    assert fusion(view, sliced, whole, "  ROOT %r = f32[10]{0} add(%s, %t)") == 4000 + 40 + 40


def test_what_names_views_or_awaits_moves_nothing():
    text = module(
        "  %v = f32[10,100]{1,0} bitcast(%a)",
        "  %t = (f32[1000]{0}) tuple(%a)",
        "  %g = f32[1000]{0} get-tuple-element(%t), index=0",
        "  %s = (f32[1000]{0}, f32[1000]{0}, u32[]) copy-start(%a)",
        "  %d = f32[1000]{0} copy-done(%s)",
        "  %c = f32[1000]{0} copy(%a)",
        arrays=[("a", "f32[1000]{0}")],
    )
    found = hlo.parse(text)
    moved = {name: costs.moved_bytes(found, i) for name, i in found.instructions.items()}
    assert {name for name, nbytes in moved.items() if nbytes} == {"c", "both"}
    assert moved["c"] == 8000
    # Nothing is computed, so the memory decides.
    hardware = HARDWARE["h100"]
    seconds = costs.seconds(found, found.instructions["c"], hardware)
    assert seconds == pytest.approx(8000 / hardware.bandwidth / hardware.sustained)


# ---- traffic

ACTIVATIONS = 4 * 2 * 8 * 8 * 4
KERNEL = 4 * 3 * 3 * 4 * 4


def add(name, op_name):
    shape = "f32[2,8,8,4]{3,2,1,0}"
    return f'  %{name} = {shape} add(%image, %image), metadata={{op_name="{op_name}"}}'


def test_each_kernel_counts_once_where_it_belongs():
    found = costs.traffic(
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
    # All are far below a microsecond of traffic.
    apart = {name: (each.kernels, each.nbytes) for name, each in found.classes.items()}
    assert apart == {
        "products": (2, found.products),
        "forward small": (1, found.forward),
        "backward small": (1, found.backward),
        "rest small": (1, found.rest),
    }


def test_large_kernels_that_reduce_are_apart_from_those_that_do_not(monkeypatch):
    monkeypatch.setattr(costs, "SMALL", 2 * ACTIVATIONS)
    total = (
        "  %total = f32[4]{0} reduce(%image, %zero), dimensions={0,1,2}, to_apply=%sum, "
        'metadata={op_name="jit(step)/transpose(jvp())/reduce_sum"}'
    )
    large = add("mask", "jit(step)/transpose(jvp())/select")
    classes = costs.traffic(hlo.parse(module(large))).classes
    assert set(classes) == {"backward passes"}
    monkeypatch.setattr(costs, "SMALL", ACTIVATIONS)
    zero = "  %zero = f32[] constant(0)"
    assert set(costs.traffic(hlo.parse(module(zero, total))).classes) == {"backward sums"}
