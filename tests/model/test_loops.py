"""Loops take all draws along, and give what they give for one draw after the other."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from pytensor.scan.utils import until

from pymc_ngvi._compat import interpreted_mode
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.graph import with_known_shapes
from pymc_ngvi.model.hessian import HessianFallbackWarning
from pymc_ngvi.model.loops import loops_over_draws, with_draws_in_loops

DATA = pt.as_tensor(np.random.default_rng(0).normal(size=7))


def scan(step, **arguments):
    return pytensor.scan(step, return_updates=False, **arguments)


def recurrent(x):
    """The step takes a parameter, and the first state is another."""
    return scan(
        lambda data, state, share: share * state + data * pt.exp(0.1 * x[1]),
        sequences=[DATA],
        outputs_info=[x[2]],
        non_sequences=[x[0]],
    )


def two_steps_back(x):
    """The first states are the same for all draws."""
    return scan(
        lambda last, before, share: share * last - 0.3 * before + pt.sin(last),
        outputs_info=[{"initial": pt.as_tensor([0.1, 0.2]), "taps": [-1, -2]}],
        non_sequences=[x[0]],
        n_steps=6,
    )


def over_parameters(x):
    """Steps over components of the parameters, one by one and without a state."""
    return scan(lambda a, data: pt.exp(a) * data, sequences=[x, DATA[:3]])


def several_states(x):
    """A matrix, of which one draw's must not mix with another's, a counter and an output."""
    turn = pt.stack([pt.stack([pt.cos(x[0]), pt.sin(x[1])]), pt.stack([-pt.sin(x[0]), x[2]])])
    states, counts, norms = scan(
        lambda state, count, turn: (turn @ state, count + 1.0, pt.sum(state**2)),
        outputs_info=[pt.eye(2), pt.constant(0.0), None],
        non_sequences=[turn],
        n_steps=4,
    )
    return [states, counts, norms]


def loop_in_loop(x):
    def outer(data, state):
        inner = scan(
            lambda now, share: share * now + data,
            outputs_info=[state],
            non_sequences=[x[1]],
            n_steps=3,
        )
        return inner[-1] + x[0]

    return scan(outer, sequences=[DATA], outputs_info=[x[2]])


LOOPS = [recurrent, two_steps_back, over_parameters, several_states, loop_in_loop]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_all_draws_at_once_are_one_after_the_other(loop):
    x, many = pt.vector("x", shape=(3,)), pt.matrix("many", shape=(None, 3))
    found = loop(x)
    outputs = found if isinstance(found, list) else [found]
    total = sum((output**2).sum() for output in outputs)
    (together,) = with_draws_in_loops(vectorize_graph(with_known_shapes([total]), {x: many}))
    assert not loops_over_draws([together])
    values = [total, pytensor.grad(total, x)]
    batch = [together, pytensor.grad(together.sum(), many)]
    with pytensor.config.change_flags(cxx=""):
        single = pytensor.function([x], values, mode=interpreted_mode())
        batched = pytensor.function([many], batch, mode=interpreted_mode())
    draws = np.random.default_rng(1).normal(size=(5, 3))
    for at_once, alone in zip(batched(draws), zip(*map(single, draws), strict=True), strict=True):
        np.testing.assert_allclose(at_once, np.stack(alone), rtol=1e-10)


def test_loops_of_different_lengths_stay_as_they_are():
    x, many = pt.vector("x", shape=(3,)), pt.matrix("many", shape=(None, 3))
    found = scan(
        lambda state: (state * 0.5, until(state < 0.1)),
        outputs_info=[pt.exp(x[0])],
        n_steps=20,
    )
    together = vectorize_graph(found.sum(), {x: many})
    assert len(loops_over_draws([together])) == 1
    assert len(loops_over_draws(with_draws_in_loops([together]))) == 1


def garch(n=15):
    y = np.random.default_rng(1).normal(size=n)
    with pm.Model() as model:
        omega = pm.HalfNormal("omega", 1.0)
        alpha, beta = pm.Beta("alpha", 2, 2), pm.Beta("beta", 2, 2)
        first = pm.HalfNormal("first", 1.0)
        pm.GARCH11("y", omega=omega, alpha_1=alpha, beta_1=beta, initial_vol=first, observed=y)
    return model


def test_hessians_of_loops_are_right_or_not_used():
    """PyTensor 2 differentiates a recurrent loop twice wrongly, here by a little at one point."""
    target = compile_target(garch(), backend="interpreted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HessianFallbackWarning)
        route = target.hessian_route
    assert "one draw at a time" not in target.backend
    point, step = target.initial_point + 0.1, 1e-4 * np.eye(target.dim)
    ends = np.concatenate([point + step, point - step])
    above, below = np.split(target.evaluate(ends, "none").gradient, 2)
    if route == "none":
        assert pytensor.__version__.startswith("2.")
    else:
        hessian = target.evaluate(point[np.newaxis], "full").hessian[0]
        np.testing.assert_allclose(hessian, (above - below) / 2e-4, rtol=1e-5, atol=1e-6)
