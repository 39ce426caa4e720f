"""The models on which all methods are compared; nothing heavy is imported until one is built.

Most are those of the other files of models; `user_models` has the kinds that these lack.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model, and how it is sampled and judged.

    Attributes
    ----------
    title : str
        What the tables and the picture call it.
    build : callable
        Makes the model; one of posteriordb takes the folder of the database.
    posteriordb : bool
        Whether it does.
    unjudged : tuple of str
        Variables without finite moments on their own scale: errors of them would be noise.
    centring : mapping
        Degrees of centring with which NUTS samples the reference.
    sampling : mapping
        Further arguments of nutpie for the reference.
    start : callable or None
        Gives the values at which all chains of the reference start, by variable.
    """

    title: str
    build: Callable[..., Any]
    posteriordb: bool = False
    unjudged: tuple[str, ...] = ()
    centring: Mapping[str, float] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    start: Callable[[], Mapping[str, Any]] | None = None

    def model(self, database: str | None) -> Any:
        """Build the model."""
        return self.build(database) if self.posteriordb else self.build()


def _of(module: str, name: str, *size: int) -> Any:
    """Build a model of a module's MODELS."""
    found = importlib.import_module(module).MODELS[name]
    built = getattr(found, "build", found)(*size)
    return built[0] if isinstance(built, tuple) else built  # some come with what checks them


def _shared(name: str, database: str | None) -> Any:
    import posteriordb

    return posteriordb.POSTERIORS[name].model(posteriordb.find_database(database))


def _start_of_untuned(name: str) -> Mapping[str, Any]:
    return importlib.import_module("untuned").MODELS[name].sampling["initvals"]


def _case(title: str, module: str, name: str, *size: int, **others: Any) -> Case:
    return Case(title, partial(_of, module, name, *size), **others)


CASES: dict[str, Case] = {
    "logistic_1000": _case("logistic, 1,000 x 10", "regressions", "logistic", 1000, 10),
    "logistic_100000": _case("logistic, 100,000 x 10", "regressions", "logistic", 100_000, 10),
    "poisson_1000": _case("Poisson, 1,000 x 10", "regressions", "poisson", 1000, 10),
    "poisson_100000": _case("Poisson, 100,000 x 10", "regressions", "poisson", 100_000, 10),
    "negative_binomial": _case(
        "negative binomial, 1,000 x 10", "regressions", "negative_binomial", 1000, 10
    ),
    "zero_inflated": _case("zero-inflated counts", "user_models", "zero_inflated"),
    "varying_intercepts": _case(
        "varying intercepts, 100 groups", "large_models", "varying_intercepts", 100
    ),
    "varying_slopes": _case("varying slopes, 100 groups", "large_models", "varying_slopes", 100),
    "poisson_glmm": _case("Poisson, crossed effects", "untuned", "poisson_glmm"),
    "irt_2pl": _case("2PL item response", "untuned", "irt_2pl"),
    "ordinal": _case("ordered logistic", "untuned", "ordered_logit"),
    "softmax_10": _case("softmax, 10 classes", "user_models", "softmax_10"),
    "survival": _case("survival, censored", "user_models", "survival"),
    "gp_latent": _case("Gaussian process, latent", "user_models", "gp_latent"),
    "gp_marginal": _case("Gaussian process, marginal", "untuned", "gp_ard"),
    "hsgp": _case("Gaussian process by a basis", "shape_models", "hsgp_regression"),
    "random_walk": _case(
        "counts on a random walk", "large_models", "random_walk", 200, centring={"level": 0.0}
    ),
    "state_space": _case("local level", "user_models", "state_space"),
    "stochastic_volatility": _case(
        "stochastic volatility", "shape_models", "stochastic_volatility"
    ),
    "mixture": _case("mixture of three", "user_models", "mixture"),
    "horseshoe": _case(
        "horseshoe, 50 coefficients",
        "untuned",
        "horseshoe",
        unjudged=("local", "shared"),
        sampling={"target_accept": 0.99},
    ),
    "lasso": _case("lasso", "user_models", "lasso"),
    "lotka_volterra": _case(
        "predators and prey (ODE)",
        "untuned",
        "lotka_volterra",
        start=partial(_start_of_untuned, "lotka_volterra"),
    ),
    "eight_schools": _case(
        "eight schools, centred",
        "shape_models",
        "eight_schools",
        centring={"theta": 0.0},
        sampling={"target_accept": 0.95},
    ),
    "bambi_mixed": _case("bambi, varying slopes", "user_models", "bambi_mixed"),
    "hssm_ddm": _case("HSSM, drift diffusion", "user_models", "hssm_ddm"),
}
CASES |= {
    name: Case(f"posteriordb: {name}", partial(_shared, name), posteriordb=True)
    for name in (
        "kidscore_momiq",
        "kilpisjarvi",
        "mesquite",
        "nes1972",
        "sblrc",
        "diamonds",
        "arK",
        "gp_regr",
        "low_dim_gauss_mix",
        "garch11",
        "eight_schools_noncentered",
    )
}
#: Models that most users have: those of the README.
COMMON = ("logistic_1000", "poisson_1000", "negative_binomial", "zero_inflated", "ordinal")
COMMON += ("softmax_10", "survival", "varying_intercepts", "varying_slopes", "irt_2pl")
COMMON += ("random_walk", "eight_schools")
