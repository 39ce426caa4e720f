"""Six models the engine was not tuned on, with simulated data and NUTS as the reference.

    python benchmarks/untuned.py [--models NAME ...] [--cache FOLDER] [--sampler nutpie]

samples the references that the cache lacks, one after the other on one core (minutes for each
model with PyMC's own sampler, less with nutpie), and prints their diagnostics.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import arviz
import large_models
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray
from pymc.distributions.transforms import ordered
from references import unconstrain

DEFAULT_CACHE = Path(__file__).parent / ".cache"


@dataclass(frozen=True)
class Untuned:
    """A model and how NUTS samples it.

    Attributes
    ----------
    name : str
    build : callable
        Makes the model, the same on every call.
    sampling : mapping
        Arguments of ``pymc.sample``.
    """

    name: str
    build: Callable[[], pm.Model]
    sampling: Mapping[str, Any]


MODELS: dict[str, Untuned] = {}


def untuned(**sampling: Any) -> Callable:
    """Register the function that builds a model, under the function's name."""

    def register(build: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
        MODELS[build.__name__] = Untuned(build.__name__, build, sampling)
        return build

    return register


@untuned()
def irt_2pl() -> pm.Model:
    """Two-parameter logistic item response: 100 persons answer 20 items."""
    return large_models.item_response(100, 20, seed=1)


@untuned(draws=4000)  # the intercept mixes slowly with the two sums of effects
def poisson_glmm() -> pm.Model:
    """Poisson counts with crossed effects of 30 subjects and 20 items, in the centred form."""
    rng = np.random.default_rng(2)
    subjects, items = 30, 20
    subject, item = (index.ravel() for index in np.indices((subjects, items)))
    x = rng.normal(size=subject.size)
    effects = rng.normal(0.0, 0.6, subjects)[subject] + rng.normal(0.0, 0.4, items)[item]
    counts = rng.poisson(np.exp(0.5 + 0.3 * x + effects))
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 2.0)
        slope = pm.Normal("slope", 0.0, 1.0)
        subject_sd = pm.HalfNormal("subject_sd", 1.0)
        item_sd = pm.HalfNormal("item_sd", 1.0)
        of_subject = pm.Normal("of_subject", 0.0, subject_sd, shape=subjects)
        of_item = pm.Normal("of_item", 0.0, item_sd, shape=items)
        log_rate = intercept + slope * x + of_subject[subject] + of_item[item]
        pm.Poisson("count", pt.exp(log_rate), observed=counts)
    return model


@untuned(target_accept=0.99)
def horseshoe() -> pm.Model:
    """Regularised horseshoe, not centred: 5 of 50 coefficients matter, 100 observations."""
    rng = np.random.default_rng(3)
    rows, predictors = 100, 50
    X = rng.normal(size=(rows, predictors))
    y = X[:, :5] @ [2.0, -1.5, 1.0, 0.7, -0.5] + rng.normal(size=rows)
    slab = 2.0
    with pm.Model() as model:
        direction = pm.Normal("direction", 0.0, 1.0, shape=predictors)
        local = pm.HalfCauchy("local", 1.0, shape=predictors)
        shared = pm.HalfCauchy("shared", 0.1)
        noise = pm.HalfNormal("noise", 2.0)
        scale = shared * local / pt.sqrt(1 + (shared * local / slab) ** 2)
        beta = pm.Deterministic("beta", direction * scale)
        pm.Normal("y", X @ beta, noise, observed=y)
    return model


@untuned()
def ordered_logit() -> pm.Model:
    """Ordered logistic regression: 300 answers in 5 categories."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 3))
    latent = X @ [1.0, -0.5, 0.25] + rng.logistic(size=300)
    answers = np.digitize(latent, [-2.0, -0.5, 0.8, 2.2])
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, 2.0, shape=3)
        start = np.linspace(-1.0, 1.0, 4)
        cutpoints = pm.Normal("cutpoints", 0.0, 3.0, shape=4, transform=ordered, initval=start)
        pm.OrderedLogistic("answer", X @ slopes, cutpoints, compute_p=False, observed=answers)
    return model


@untuned()
def gp_ard() -> pm.Model:
    """Gaussian-process regression of 60 observations on 3 inputs, a length-scale for each."""
    rng = np.random.default_rng(5)
    rows = 60
    X = rng.uniform(-2.0, 2.0, size=(rows, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + rng.normal(0.0, 0.2, rows)
    squared_distances = (X[:, np.newaxis] - X) ** 2
    with pm.Model() as model:
        amplitude = pm.HalfNormal("amplitude", 2.0)
        length_scales = pm.LogNormal("length_scales", 0.5, 1.0, shape=3)
        noise = pm.HalfNormal("noise", 0.5)
        exponent = pt.sum(squared_distances / length_scales**2, axis=-1)
        covariance = amplitude**2 * pt.exp(-exponent / 2) + noise**2 * np.eye(rows)
        pm.MvNormal("y", np.zeros(rows), cov=covariance, observed=y)
    return model


# Rates of growth, predation, death and conversion, then prey and predators at the beginning.
_TRUE_RATES, _TRUE_BEGINNING = np.array([0.55, 0.028, 0.80, 0.024]), np.array([30.0, 5.0])
_STEPS_PER_OBSERVATION = 5


def _change(state: Sequence[Any], rates: Sequence[Any]) -> tuple[Any, Any]:
    (prey, predators), (growth, predation, death, conversion) = state, rates
    return (growth - predation * predators) * prey, (conversion * prey - death) * predators


def _runge_kutta(prey: Any, predators: Any, *rates: Any) -> list[Any]:
    """Advance both species by one step of the classical method, in NumPy or in PyTensor."""
    state, size = (prey, predators), 1.0 / _STEPS_PER_OBSERVATION

    def ahead(change: tuple[Any, Any], share: float) -> list[Any]:
        return [value + share * size * slope for value, slope in zip(state, change, strict=True)]

    first = _change(state, rates)
    second = _change(ahead(first, 0.5), rates)
    third = _change(ahead(second, 0.5), rates)
    fourth = _change(ahead(third, 1.0), rates)
    slopes = zip(first, second, third, fourth, strict=True)
    mean = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes)
    return ahead(mean, 1.0)


@untuned(
    init="adapt_diag",
    initvals={"rates": _TRUE_RATES, "beginning": _TRUE_BEGINNING, "noise": np.array([0.2, 0.2])},
)
def lotka_volterra() -> pm.Model:
    """Predators and prey: the model's initial point is so far off that the solution overflows.

    NUTS starts at the values the data were simulated from.
    """
    rng = np.random.default_rng(6)
    observations = 20
    n_steps = _STEPS_PER_OBSERVATION * (observations - 1)
    path = [_TRUE_BEGINNING]
    for _ in range(n_steps):
        path.append(np.array(_runge_kutta(*path[-1], *_TRUE_RATES)))
    observed = np.array(path)[::_STEPS_PER_OBSERVATION] * rng.lognormal(0.0, 0.2, (observations, 2))
    far_rates, far_beginning = [3.0, 0.5, 3.0, 0.5], [100.0, 100.0]
    with pm.Model() as model:
        centre = np.log([1.0, 0.05, 1.0, 0.05])
        rates = pm.LogNormal("rates", centre, 1.0, shape=4, initval=far_rates)
        beginning = pm.LogNormal("beginning", np.log(10.0), 1.0, shape=2, initval=far_beginning)
        noise = pm.LogNormal("noise", -1.0, 1.0, shape=2)
        species = pytensor.scan(
            _runge_kutta,
            outputs_info=[beginning[0], beginning[1]],
            non_sequences=[rates[i] for i in range(4)],
            n_steps=n_steps,
            return_updates=False,
        )
        steps = np.arange(1, observations) * _STEPS_PER_OBSERVATION - 1
        later = pt.stack([values[steps] for values in species], axis=1)
        mean = pt.concatenate([beginning[np.newaxis], later])
        pm.LogNormal("y", pt.log(mean), noise, observed=observed)
    return model


@dataclass(frozen=True)
class Reference:
    """What NUTS found.

    Attributes
    ----------
    draws : array, (n, d)
        Draws on the flat unconstrained space.
    names : array of str, (m,)
        Name of every scalar parameter on its own scale, deterministics included.
    means, sds : array, (m,)
        Posterior mean and standard deviation of each.
    largest_rhat, smallest_ess : float
        The worst over all parameters.
    divergences : int
    """

    draws: np.ndarray
    names: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    largest_rhat: float
    smallest_ess: float
    divergences: int


def scalars(idata: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the names (m,) and the draws (chains, n, m) of all scalar parameters of a posterior.

    Taken from `idata` of NUTS and of a fit alike, and in the same order for the same model.
    """
    names, columns = [], []
    for name, values in sorted(idata.posterior.data_vars.items()):
        draws = _as_array(values)
        names += [f"{name}{list(i) if i else ''}" for i in np.ndindex(draws.shape[2:])]
        columns.append(draws.reshape(*draws.shape[:2], -1))
    return np.array(names), np.concatenate(columns, axis=-1)


def _as_array(values: xarray.DataArray) -> np.ndarray:
    return values.transpose("chain", "draw", ...).to_numpy()


def sample_reference(entry: Untuned, sampler: str = "pymc") -> Reference:
    """Sample a model with NUTS: 4 chains of 1,000 draws unless it asks for more, on one core."""
    settings = {"draws": 1000, "target_accept": 0.9, "nuts_sampler": sampler, **entry.sampling}
    model = entry.build()
    with model:
        idata = pm.sample(tune=1000, chains=4, cores=1, random_seed=1, **settings)
    names, draws = scalars(idata)
    each = np.moveaxis(draws, -1, 0)
    free = {v.name: _as_array(idata.posterior[v.name]) for v in model.free_RVs}
    return Reference(
        draws=unconstrain(model, {name: np.concatenate(chains) for name, chains in free.items()}),
        names=names,
        means=draws.mean(axis=(0, 1)),
        sds=draws.std(axis=(0, 1)),
        largest_rhat=max(float(arviz.rhat(values)) for values in each),
        smallest_ess=min(float(arviz.ess(values)) for values in each),
        divergences=int(idata.sample_stats["diverging"].sum()),
    )


def load_reference(entry: Untuned, cache: Path = DEFAULT_CACHE, sampler: str = "pymc") -> Reference:
    """Return the reference of a model from the cache, sampled first if it is not there."""
    path = cache / f"{entry.name}.npz"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **asdict(sample_reference(entry, sampler)))
    with np.load(path) as stored:
        return Reference(
            **{key: array if array.ndim else array[()] for key, array in stored.items()}
        )


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--cache` to a command line."""
    parser.add_argument(
        "--cache",
        type=Path,
        default=DEFAULT_CACHE,
        metavar="FOLDER",
        help="where the draws of NUTS are kept (default: %(default)s)",
    )


def main() -> None:
    """Sample what the cache lacks, and print the diagnostics of every reference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--sampler", choices=["pymc", "nutpie"], default="pymc")
    add_option(parser)
    arguments = parser.parse_args()
    print(f"{'model':<16} {'dim':>4} {'R-hat':>7} {'ESS':>6} {'divergences':>12}")
    for name in arguments.models:
        found = load_reference(MODELS[name], arguments.cache, arguments.sampler)
        print(
            f"{name:<16} {found.draws.shape[1]:>4} {found.largest_rhat:>7.4f} "
            f"{found.smallest_ess:>6.0f} {found.divergences:>12}",
            flush=True,
        )


if __name__ == "__main__":
    main()
