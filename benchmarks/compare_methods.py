"""The methods that are compared: each fits a PyMC model and gives draws of its free variables.

A method is a generator. It yields parts of a row as they are known, times of its parts among them,
and returns a :class:`Fitted`. Packages are imported where they are used, so that a method whose
package is not installed is skipped and the others run.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import process

DRAWS = 4000
#: Iterations of stochastic optimisers where a method leaves them to the user; SVI of NumPyro and
#: the VI of BlackJAX have no default, and get as many as PyMC's ADVI.
ITERATIONS = 10_000
PYMC_ITERATIONS = 30_000
LEARNING_RATE = 0.01
NUTS = {"draws": 1000, "tune": 400, "chains": 4, "cores": 2}


@dataclass(frozen=True)
class Fitted:
    """What a method found.

    Attributes
    ----------
    draws : mapping of str to array, (n, ...)
        Draws of the free variables, on their own scale.
    gaussian : callable or None
        Gives the Gaussian on the flat unconstrained vector of our target, where there is one whose
        ELBO and k-hat the method has not told itself.
    """

    draws: Mapping[str, Any]
    gaussian: Callable[[Any], Any] | None = None


Fit = Generator[process.Row, None, Fitted]


@dataclass(frozen=True)
class Method:
    """A way to fit.

    Attributes
    ----------
    fit : callable
        Takes a model and a seed.
    package : str
        What must be installed for it.
    """

    fit: Callable[[Any, int], Fit]
    package: str = "pymc"

    @property
    def installed(self) -> bool:
        """Whether it can run here."""
        return importlib.util.find_spec(self.package) is not None


class Clock:
    """Seconds and CPU seconds since it was last asked."""

    def __init__(self) -> None:
        self._last = (time.perf_counter(), process.used()["cpu_s"])

    def part(self, name: str) -> process.Row:
        """Return what has passed as the columns of one part of a fit."""
        now = (time.perf_counter(), process.used()["cpu_s"])
        wall, cpu = (b - a for a, b in zip(self._last, now, strict=True))
        self._last = now
        return {f"{name}_s": wall, f"{name}_cpu_s": cpu}


def _ngvi(model: Any, seed: int, **options: Any) -> Fit:
    from large import reported

    import pymc_ngvi as ngvi

    clock = Clock()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inference = ngvi.NGVI(model=model, **options)
        yield clock.part("build")
        approx = inference.fit(random_seed=seed, progressbar=False)
    told = reported(approx.report)
    yield clock.part("fit")
    yield {key: told[key] for key in ("verdict_s", "status", "evaluations", "gradients", "elbo")}
    yield {"khat": approx.report.khat, "notes": "; ".join(approx.report.notes)}
    yield {"warned": "+".join(sorted({w.category.__name__ for w in caught if "ngvi" in str(w)}))}
    posterior = approx.sample(DRAWS, random_seed=seed)["posterior"]
    yield clock.part("draws")
    return Fitted(of_free(model, posterior))


def _advi(model: Any, seed: int, method: str, *, adam: bool) -> Fit:
    import pymc as pm
    from judging import gaussian_of_peer

    clock = Clock()
    options = {"obj_optimizer": pm.adam(learning_rate=LEARNING_RATE)} if adam else {}
    with model:
        approx = pm.fit(
            PYMC_ITERATIONS, method=method, random_seed=seed, progressbar=False, **options
        )
    yield {**clock.part("fit"), "evaluations": PYMC_ITERATIONS}
    posterior = approx.sample(DRAWS, random_seed=seed)["posterior"]
    yield clock.part("draws")
    return Fitted(of_free(model, posterior), partial(gaussian_of_peer, approx))


def _extras(model: Any, seed: int, name: str, **options: Any) -> Fit:
    import importlib

    clock = Clock()
    place = {"advi": "advi.fit", "dadvi": "dadvi.dadvi", "laplace": "laplace_approx.laplace"}
    module = importlib.import_module(f"pymc_extras.inference.{place.get(name, f'{name}.{name}')}")
    found = getattr(module, f"fit_{name}")(model=model, random_seed=seed, **options)
    yield clock.part("fit")
    yield {"status": _flag(found)}
    return Fitted(of_free(model, found["posterior"]))


def _flag(found: Any) -> str:
    """Return what the optimiser says of its convergence, where a method of pymc-extras tells it."""
    for group in ("optimizer_result", "fit"):
        if group in found and "success" in found[group]:
            return "converged" if bool(found[group]["success"]) else "the optimiser failed"
    return ""


def _flat_density(model: Any) -> tuple[Callable[[Any], Any], Any, Any]:
    """Log density of the flat vector in JAX, where it starts, and its layout."""
    import jax.numpy as jnp
    import numpy as np
    from pymc.sampling.jax import get_jaxified_graph

    from pymc_ngvi._compat import initial_point
    from pymc_ngvi.model.layout import Layout

    layout = Layout(model, initial_point(model))
    # Not get_jaxified_logp, whose `negative_logp` means the opposite of its name.
    of_values = get_jaxified_graph(inputs=model.value_vars, outputs=[model.logp()])
    slots = {slot.name: slot for slot in layout}
    ordered = [slots[value.name] for value in model.value_vars]

    def density(x: Any) -> Any:
        return of_values(*(jnp.reshape(x[slot.where], slot.shape) for slot in ordered))[0]

    point = initial_point(model)
    return density, np.concatenate([np.ravel(point[slot.name]) for slot in layout]), layout


def _numpyro(model: Any, seed: int, guide: str) -> Fit:
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

    jax.config.update("jax_enable_x64", True)
    clock = Clock()
    density, start, layout = _flat_density(model)

    def as_numpyro() -> None:
        space = dist.constraints.real_vector
        x = numpyro.sample("x", dist.ImproperUniform(space, (), (len(start),)))
        numpyro.factor("density", density(x))

    family = getattr(autoguide, guide)(as_numpyro, init_loc_fn=init_to_value(values={"x": start}))
    svi = SVI(as_numpyro, family, numpyro.optim.Adam(LEARNING_RATE), Trace_ELBO())
    yield clock.part("build")
    result = svi.run(jax.random.PRNGKey(seed), ITERATIONS, progress_bar=False)
    posterior = family.get_posterior(result.params)
    mean, covariance = np.asarray(posterior.mean), np.asarray(posterior.covariance_matrix)
    yield {**clock.part("fit"), "evaluations": ITERATIONS}
    fitted = _from_gaussian(model, layout, mean, covariance, seed)
    yield clock.part("draws")
    return fitted


def _blackjax(model: Any, seed: int) -> Fit:
    import blackjax
    import jax
    import numpy as np
    import optax

    jax.config.update("jax_enable_x64", True)
    clock = Clock()
    density, start, layout = _flat_density(model)
    # It begins at zero whatever it is given: zero is made the model's initial point.
    algorithm = blackjax.fullrank_vi(lambda x: density(start + x), optax.adam(LEARNING_RATE), 10)
    state = algorithm.init(jax.numpy.zeros(len(start)))
    yield clock.part("build")
    keys = jax.random.split(jax.random.PRNGKey(seed), ITERATIONS)
    state, _ = jax.lax.scan(lambda s, key: algorithm.step(key, s), state, keys)
    factor = np.asarray(blackjax.vi.fullrank_vi._unflatten_cholesky(state.chol_params, len(start)))
    yield {**clock.part("fit"), "evaluations": 10 * ITERATIONS}
    mean = start + np.asarray(state.mu)
    fitted = _from_gaussian(model, layout, mean, factor @ factor.T, seed)
    yield clock.part("draws")
    return fitted


def _from_gaussian(model: Any, layout: Any, mean: Any, covariance: Any, seed: int) -> Fitted:
    """Draw from a Gaussian on the flat vector, and return the draws on the model's own scale."""
    import numpy as np

    from pymc_ngvi.core.families import FullGaussian
    from pymc_ngvi.results.draws import OwnScale

    q = FullGaussian.from_mean_covariance(mean, (covariance + covariance.T) / 2)
    flat = q.sample(DRAWS, np.random.default_rng(seed))
    # The values of a variable without a transform are the variable.
    draws = {slot.variable: flat[:, slot.where] for slot in layout}
    own = OwnScale(model, layout)
    values = own(flat)
    return Fitted(
        draws | {slot.variable: values[:, slot.where] for slot in own.slots()}, lambda _: q
    )


def _nutpie(model: Any, seed: int) -> Fit:
    import nutpie

    clock = Clock()
    compiled = nutpie.compile_pymc_model(model)
    yield clock.part("build")
    data = nutpie.sample(compiled, seed=seed, progress_bar=False, **NUTS)
    yield {**clock.part("fit"), "evaluations": int(data["sample_stats"]["n_steps"].sum())}
    yield {"status": f"{int(data['sample_stats']['diverging'].sum())} divergences"}
    return Fitted(of_free(model, data["posterior"]))


def of_free(model: Any, posterior: Any) -> dict[str, Any]:
    """Draws (n, size) of the free variables, all chains."""
    found = {}
    for variable in model.free_RVs:
        values = posterior[variable.name].transpose("chain", "draw", ...).values
        found[variable.name] = values.reshape(values.shape[0] * values.shape[1], -1)
    return found


METHODS: dict[str, Method] = {
    "ngvi": Method(_ngvi),
    "ngvi stein": Method(partial(_ngvi, estimator="stein")),
    "ngvi meanfield": Method(partial(_ngvi, family="meanfield")),
    "ngvi sparse": Method(partial(_ngvi, family="sparse")),
    "ngvi nested": Method(partial(_ngvi, nested="auto")),
    "advi": Method(partial(_advi, method="advi", adam=False)),
    "advi adam": Method(partial(_advi, method="advi", adam=True)),
    "fullrank_advi": Method(partial(_advi, method="fullrank_advi", adam=False)),
    "fullrank_advi adam": Method(partial(_advi, method="fullrank_advi", adam=True)),
    "laplace": Method(
        partial(_extras, name="laplace", draws=DRAWS, progressbar=False), "pymc_extras"
    ),
    "pathfinder": Method(
        partial(_extras, name="pathfinder", num_draws=DRAWS, parallel=False, progressbar=False),
        "pymc_extras",
    ),
    "dadvi": Method(
        partial(_extras, name="dadvi", n_draws=DRAWS, progressbar=False), "pymc_extras"
    ),
    "extras advi": Method(partial(_extras, name="advi", draws=DRAWS), "pymc_extras"),
    "numpyro svi": Method(partial(_numpyro, guide="AutoMultivariateNormal"), "numpyro"),
    "numpyro lowrank": Method(partial(_numpyro, guide="AutoLowRankMultivariateNormal"), "numpyro"),
    "blackjax": Method(_blackjax, "blackjax"),
    "nutpie": Method(_nutpie, "nutpie"),
}
