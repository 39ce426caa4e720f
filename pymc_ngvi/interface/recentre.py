"""Choose how hierarchies are centred: try what a warm-up proposes, keep what raises the ELBO."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc
from pymc.exceptions import SamplingError

from pymc_ngvi.core.algorithm import Returning, State
from pymc_ngvi.core.estimators import mean_and_error
from pymc_ngvi.core.families import FullGaussian, Gaussian
from pymc_ngvi.engine.settings import DEFAULTS, Settings
from pymc_ngvi.errors import DomainError, NonFiniteError
from pymc_ngvi.interface.fit import make_search
from pymc_ngvi.interface.prepare import Prepared, prepare
from pymc_ngvi.interface.start import Start, in_family
from pymc_ngvi.model.centring import (
    Degrees,
    candidates,
    describe_degrees,
    propose_degrees,
    recentred,
    recentred_draws,
)
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results.checks import fresh_log_ratios

#: Draws on which two parametrisations are compared, by their log densities alone.
COMPARED_DRAWS = 1000
#: A change has to raise the ELBO by so many nats, and by so many of its standard errors.
LEAST_GAIN, ERRORS = 0.1, 3.0
#: Share of the budget that a warm-up may take.
_SHARE = 4
#: Draws that carry a Gaussian from one parametrisation to another: for each dimension, at least.
_CARRIED, _LEAST_CARRIED = 20, 1000

#: Where few draws leave the gain unclear, more are taken: on few, a skewed scale may come out too
#: wide.
_JUDGED = Settings(few_draws=64, few_draws_in_few_dimensions=64)


class Recentred(NamedTuple):
    """The fit to run, and the degrees of centring that its target has."""

    prepared: Prepared
    degrees: Degrees


def choose_centring(
    prepared: Prepared, build_target: Callable[[pymc.Model], ModelTarget]
) -> Recentred:
    """Warm up as the model is written; where this proposes to recentre it, warm up that as well.

    Without candidates nothing is done. Otherwise the fit goes on from where the better warm-up
    ended, so that a model that needs no change pays next to nothing.

    Parameters
    ----------
    prepared : Prepared
        The fit of the model as it is written.
    build_target : callable
        Makes the target of a model.
    """
    target, options = prepared.target, prepared.options
    model = target.model
    names = candidates(model, factorised=options.parts.family.factorised)
    if not names or target.reads_batches:
        return Recentred(prepared, {})
    try:
        first = _warm_up(prepared)
    except (NonFiniteError, DomainError):
        return Recentred(prepared, {})  # which fails in the same way, or finds another start
    degrees = propose_degrees(model, target.layout, names, first.q)
    if not degrees:
        return Recentred(_from_state(prepared, first), {})
    try:
        start = Start(in_family(_carried(first.q, target, degrees), options.parts.family))
        plain = dataclasses.replace(options, start=None)
        with prepared.stopwatch.timed("build"):
            other = build_target(recentred(model, degrees))
            changed = prepare(other, plain, [start], prepared.rng, prepared.stopwatch)
        changed = _from_state(changed, changed.states[0], first.evaluations)
        for settings in (DEFAULTS, _JUDGED):
            second = _warm_up(changed, settings)
            gain, error = _gain(changed, second.q, prepared, first.q)
            if error < LEAST_GAIN or gain > max(LEAST_GAIN, ERRORS * error):
                break
            changed = _from_state(changed, second)
    except (NonFiniteError, DomainError, SamplingError, np.linalg.LinAlgError):
        return Recentred(_from_state(prepared, first), {})
    if not gain > max(LEAST_GAIN, ERRORS * error):
        spent = dataclasses.replace(first, evaluations=second.evaluations)
        return Recentred(_from_state(prepared, spent), {})
    note = f"{describe_degrees(degrees)} (ELBO {gain:+.2f} after the warm-up)"
    changed = dataclasses.replace(changed, recentred=note)
    return Recentred(_from_state(changed, second), degrees)


def _warm_up(prepared: Prepared, settings: Settings = DEFAULTS) -> State:
    engine = make_search(prepared, settings).engine
    state, last = (
        prepared.states[0],
        prepared.states[0].iteration + prepared.options.max_evaluations,
    )
    warming = Returning(engine.warm_up(state, last, engine.remaining // _SHARE))
    for _ in warming:
        pass
    return dataclasses.replace(warming.value, iteration=0, previous=None)


def _from_state(prepared: Prepared, state: State, spent: int | None = None) -> Prepared:
    if spent is not None:
        state = dataclasses.replace(state, evaluations=spent)
    return dataclasses.replace(prepared, states=[state])


def _carried(q: Gaussian, target: ModelTarget, degrees: Degrees) -> Gaussian:
    """Return the Gaussian with the moments that draws of q have on recentred values."""
    rng = np.random.default_rng(0)
    # Variances alone take no more draws in more dimensions, nor a matrix of d times d.
    size = _LEAST_CARRIED if q.factorised else max(_LEAST_CARRIED, _CARRIED * q.dim)
    draws = q.unwhiten(rng.standard_normal((size, q.dim)))
    moved = recentred_draws(target.model, target.layout, degrees, draws)
    if q.factorised:
        return type(q).from_mean_variance(moved.mean(axis=0), moved.var(axis=0))
    return FullGaussian.from_mean_covariance(moved.mean(axis=0), np.cov(moved.T))


def _gain(changed: Prepared, q: Gaussian, before: Prepared, p: Gaussian) -> tuple[float, float]:
    """Return by how much the ELBO is higher after the change, and the standard error of that."""
    results = []
    for prepared, member in ((changed, q), (before, p)):
        log_density = prepared.target.of_all_data(member, prepared.rng).log_density
        ratios = fresh_log_ratios(log_density, member, prepared.rng, COMPARED_DRAWS)
        results.append(mean_and_error(ratios, antithetic=True))
    (after, after_error), (elbo, elbo_error) = results
    return after - elbo, math.hypot(after_error, elbo_error)
