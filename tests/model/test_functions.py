"""How draws are evaluated: together where that gains anything, else one after the other."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.scan.utils import until

from pymc_ngvi.interface.remedies import MOST_NUMBERS_NESTED
from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.evaluators import Looped


def until_it_is_small():
    """How often the loop runs depends on the draw."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        path = pytensor.scan(
            lambda state: (0.5 * state, until(state < 0.1)),
            outputs_info=[pt.exp(x)],
            n_steps=20,
            return_updates=False,
        )
        pm.Normal("y", path.sum(), 1.0, observed=1.5)
    return model


def test_a_loop_runs_for_no_more_draws_than_were_asked_for():
    """PyTensor runs it draw by draw in any case; sixteen were evaluated where one was wanted."""
    target = compile_target(until_it_is_small(), backend="interpreted")
    draws = np.array([[0.1], [-0.3]])
    together = target.log_density(draws)
    assert target._functions._first(()).name == Looped.name
    assert "a loop runs for one draw after the other" in target.backend
    alone = [target.log_density(draw[np.newaxis])[0] for draw in draws]
    np.testing.assert_array_equal(together, alone)


def test_a_loop_costs_its_steps():
    """What takes thousands of draws is not tried by itself where each goes through a long loop."""
    y = np.random.default_rng(0).normal(size=1500)
    with pm.Model() as model:
        omega, vol = pm.HalfNormal("omega"), pm.HalfNormal("vol")
        pm.GARCH11("y", omega=omega, alpha_1=0.3, beta_1=0.5, initial_vol=vol, observed=y)
    target = compile_target(model, backend="interpreted")
    assert target.numbers > MOST_NUMBERS_NESTED


def test_a_factorisation_costs_its_matrix():
    """However few parameters there are, each draw goes through all entries, again and again."""
    numbers = []
    for n in (20, 40):
        with pm.Model() as model:
            length = pm.HalfNormal("length")
            gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=length))
            gp.marginal_likelihood("y", X=np.arange(n)[:, np.newaxis], y=np.ones(n), sigma=1.0)
        numbers.append(compile_target(model, backend="interpreted", curvature="none").numbers)
    assert numbers[0] >= 20**2
    assert numbers[1] >= 4 * numbers[0]
