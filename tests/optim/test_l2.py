"""An L2 term of the loss: what the rule sees is the gradient that autodiff gives of such a loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch import optim
from tests.optim import plain

L2, GIVEN = 0.07, optim.Rates(0.5, 0.05, 0.9)
RULES = {
    "lars": optim.lars(flavour="mlperf", trust_coefficient=0.02),
    "sgd": optim.sgd(nesterov=True),
}


@pytest.mark.parametrize("rule", ["lars", "sgd"])
def test_equals_the_derivative_of_the_loss_with_the_term(rule):
    draw = np.random.default_rng(2)
    mask = plain.only("kernel", "bias")
    with jax.enable_x64(True):
        params = plain.device(plain.random_tree(draw))
        target = plain.device(plain.random_tree(draw))

        def loss(params, weight):
            fit = jax.tree.map(lambda w, t: jnp.sum(jnp.sin(w) * t), params, target)
            squares = jax.tree.map(lambda w, term: term * jnp.sum(w**2), params, mask)
            return sum(jax.tree.leaves(fit)) + weight / 2 * sum(jax.tree.leaves(squares))

        without, whole = (jax.grad(loss)(params, weight) for weight in (0.0, L2))
        inner = RULES[rule]
        wrapped = optim.with_l2(inner, L2, mask)
        found = wrapped.update(without, wrapped.init(params), params, rates=GIVEN)
        expected = inner.update(whole, inner.init(params), params, rates=GIVEN)
        # Two roundings more or less of gradients of about 1.
        plain.assert_close(found[0], expected[0], 1e-14)
        for one, other in zip(found[1].report, expected[1].report, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14)
        # The term is in the norms that the trust ratio is made of, unlike weight decay.
        plainly = inner.update(without, inner.init(params), params, rates=GIVEN)[1].report
        same = np.asarray(plainly.gradient_norm) == np.asarray(found[1].report.gradient_norm)
        assert same.tolist() == [False, True, False, False, False]  # bn/scale is left out
