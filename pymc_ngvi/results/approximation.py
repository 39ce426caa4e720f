"""The result of a fit, as PyMC's own `FullRank` and `MeanField` approximations.

PyMC keeps an approximation in shared variables: a mean, and a scale whose diagonal passes through a
softplus. Here these shared variables mirror a Gaussian of :mod:`pymc_ngvi.core.families`,
which is kept in double precision and is what :meth:`GaussianApproximation.sample` draws from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pymc
from pymc.variational.approximations import FullRank, MeanField

from pymc_ngvi.arguments import as_generator, check_count
from pymc_ngvi.core.algorithm import Info
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array, lower_factor_of_gram
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.results import storage
from pymc_ngvi.results.draws import DrawTransform
from pymc_ngvi.results.groups import NGVIFullRankGroup, NGVIMeanFieldGroup
from pymc_ngvi.results.inferencedata import to_inference_data, to_multitrace
from pymc_ngvi.results.nuts import nuts_keywords
from pymc_ngvi.results.records import (
    SavedFit,
    history_to_dataset,
    moments_to_dataset,
    report_to_attributes,
)
from pymc_ngvi.results.report import Report
from pymc_ngvi.results.weighing import POOL, check_importance, resample, weigh


class GaussianApproximation:
    """What the two approximations add to PyMC's: a Gaussian in double precision, and fast draws.

    Use :func:`create_approximation`, which chooses the class that fits the Gaussian.

    Parameters
    ----------
    model : pymc.Model
        The fitted model.
    gaussian : Gaussian
        The approximation on the model's flat unconstrained vector, in the order of
        ``model.free_RVs``.
    layout : Layout, optional
        The flat vector of the model, if it is known already. Otherwise PyTensor compiles the
        initial point of the model for its shapes, which takes a second for some hundred variables.

    Attributes
    ----------
    gaussian : Gaussian
        The approximation itself; change it with `set_gaussian`.
    hist : array
        Negative ELBO of each iteration.
    report : Report or None
        How the fit went.
    history : list of Info
        What happened in each iteration.
    seed : int or other
        The `random_seed` of the fit.
    loader : Loader or None
        What containers of the model were fed from.
    loaded : tuple of str
        Names of these.

    Notes
    -----
    `gaussian` is the truth and the shared variables in `params` its mirror, in the precision of
    ``pytensor.config.floatX``. Setting the value of a shared variable changes what PyMC's graphs
    (`mean`, `cov`, `sample_node`) give, but neither `gaussian` nor `sample`.
    """

    #: Whether the class takes Gaussians with independent components.
    factorised: ClassVar[bool]

    groups: list[Any]
    model: pymc.Model

    def __init__(
        self,
        model: pymc.Model,
        gaussian: Gaussian,
        *,
        layout: Layout | None = None,
    ) -> None:
        if gaussian.factorised != self.factorised:
            raise TypeError(
                f"{type(self).__name__} cannot hold a {type(gaussian).__name__}; "
                "use create_approximation, which chooses the class"
            )
        super().__init__(model=model, layout=layout)  # type: ignore[call-arg]
        self.hist: Array = np.empty(0)
        self.report: Report | None = None
        self.history: list[Info] = []
        self.seed: Any = None
        self.loader: Loader | None = None
        self.loaded: tuple[str, ...] = ()
        self._transform: DrawTransform | None = None
        self.set_gaussian(gaussian)

    def set_gaussian(self, gaussian: Gaussian) -> None:
        """Replace the approximation by another Gaussian of the same kind.

        Nothing is compiled: the cost is that of a triangular factor, or of a square root for
        independent components.
        """
        group = self.groups[0]
        if gaussian.dim != group.ddim:
            raise ValueError(
                f"the Gaussian has {gaussian.dim} dimensions, "
                f"the model {group.ddim} unconstrained parameters"
            )
        self.gaussian = gaussian
        self._factor = covariance_factor(gaussian)
        group.write(gaussian.mean, self._factor)

    def sample(
        self,
        draws: int = 1000,
        *,
        model: pymc.Model | None = None,
        random_seed: Any = None,
        return_inferencedata: bool = True,
        log_likelihood: bool = False,
        importance: str | None = None,
        replace: bool = False,
        include_transformed: bool = False,
        coords: Mapping[str, Any] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        """Draw from the approximate posterior.

        Parameters
        ----------
        draws : int
            Number of independent draws.
        model : pymc.Model, optional
            Compute variables by another model than the fitted one, with the same free variables.
        random_seed : int, sequence of int, numpy.random.Generator or None
            The same seed gives the same draws; with more of them, the first ones stay unless they
            are resampled.
        return_inferencedata : bool
            False returns PyMC's ``MultiTrace``, with all unconstrained variables.
        log_likelihood : bool
            Add the log-likelihood of each observation, for :func:`pymc_ngvi.loo` and
            :func:`pymc_ngvi.compare`.
        importance : {None, "psis", "resample"}
            None takes the draws as they come. "psis" asks for importance weights that can be used:
            `log_weight` in the group `sample_stats`, with a warning where k-hat says that they
            cannot. "resample" makes ten times as many draws and chooses among them by these
            weights, so that the result needs none.
        replace : bool
            Resample with replacement.
        include_transformed : bool
            Include the unconstrained variables in the posterior, under PyMC's names for them.
        coords, dims : mapping, optional
            Additions to the coordinates and dimensions of the model.

        Returns
        -------
        arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
            With PyMC 5, with PyMC 6, and with ``return_inferencedata=False``. One chain.

        Notes
        -----
        Works inside and outside the context of the model. Deterministics and densities are
        computed from the data the model holds now, so they follow ``pm.set_data``.

        The group `sample_stats` tells of each draw the log density `lp` of the model and `log_q` of
        the approximation, both on the unconstrained scale, and the smoothed and normalised
        `log_weight`, the logarithm of their ratio. After resampling the weights are equal.
        """
        n = check_count("draws", draws)
        check_importance(importance, replace=replace)
        if not return_inferencedata and (log_likelihood or importance == "psis"):
            raise ValueError(
                "a MultiTrace has no place for weights and log-likelihoods: return InferenceData "
                '(weights can do without, by importance="resample")'
            )
        rng = as_generator(random_seed)
        transform = self._transform_for(self.model if model is None else model)
        if importance is None and not return_inferencedata:
            return to_multitrace(transform(self._draw_flat(n, rng), rng), transform)
        if importance == "resample":
            pool = weigh(self.gaussian, self._draw_flat(n * POOL, rng), transform, required=True)
            weighed = resample(pool, n, rng, replace=replace)
        else:
            required = log_likelihood or importance is not None
            weighed = weigh(self.gaussian, self._draw_flat(n, rng), transform, required=required)
        if importance is not None:
            weighed.warn_if_unreliable()
        values = transform(weighed.draws, rng)
        if not return_inferencedata:
            return to_multitrace(values, transform)
        return to_inference_data(
            values,
            model=transform.model,
            layout=self.layout,
            include_transformed=include_transformed,
            coords=coords,
            dims=dims,
            sample_stats=weighed.statistics,
            log_likelihood=transform.log_likelihood(weighed.draws) if log_likelihood else None,
            loaded=transform.loaded,
            attrs={
                "posterior": self._attributes(random_seed),
                "sample_stats": weighed.attributes | {"importance": importance or "none"},
            },
            others={
                "fit": moments_to_dataset(self.gaussian, self.layout),
                "fit_trace": history_to_dataset(self.history),
            },
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to a netCDF file: the Gaussian, the history and the report.

        :func:`pymc_ngvi.load` reads it, given the model. An existing file is replaced only when
        the new one is complete.

        Parameters
        ----------
        path : str or path
        """
        # A generator has gone on since, and is no seed any more.
        numbers = isinstance(self.seed, int | np.integer | list | tuple | np.ndarray)
        fit = SavedFit(
            gaussian=self.gaussian,
            outline=self.layout.outline,
            losses=np.asarray(self.hist, dtype=np.float64),
            history=self.history,
            report=self.report,
            seed=np.asarray(self.seed).tolist() if numbers else None,
            loaded=self.loaded,
        )
        storage.write(path, fit)

    def nuts_kwargs(
        self,
        *,
        chains: int = 4,
        tune: int = 200,
        random_seed: Any = None,
        sampler: str = "pymc",
        **options: Any,
    ) -> dict[str, Any]:
        """Keywords for ``pm.sample`` that let NUTS start from this fit.

        Chains start at draws of the approximation and move in the metric of its covariance, so
        that little tuning is left.

        Parameters
        ----------
        chains : int
            Number of chains, each with a start of its own.
        tune : int
            Tuning steps: the step size only is tuned, in place of PyMC's 1000 steps.
        random_seed : int, sequence of int, numpy.random.Generator or None
            Of the starts.
        sampler : {"pymc", "nutpie"}
            For nutpie, with PyMC 6 only, there is a start but no metric: it adapts its own, and
            wants more tuning.
        **options
            Of ``pm.NUTS``, such as `target_accept`.

        Returns
        -------
        dict
            For ``pm.sample(**approx.nuts_kwargs())``, in the context of the model.

        Notes
        -----
        The metric is not adapted. Where the fit is unreliable it may be a poor one, and NUTS
        from scratch the better choice; the draws are right with either.
        """
        n = check_count("chains", chains)
        rng = as_generator(random_seed)
        values = self._transform_for(self.model)(self._draw_flat(n, rng), rng)
        names = [variable.name for variable in self.model.free_RVs]
        starts = [{name: values[name][chain] for name in names} for chain in range(n)]
        tune = check_count("tune", tune)
        return nuts_keywords(
            self.model, self.gaussian, starts, sampler=sampler, tune=tune, **options
        )

    @property
    def layout(self) -> Layout:
        """Order, shapes and names of the flat unconstrained vector."""
        return self.groups[0].layout

    def _attributes(self, draws_seed: Any) -> dict[str, Any]:
        """Describe the fit, and the seeds where they are numbers, for the posterior group."""
        seeds = {"seed": self.seed, "draws_seed": draws_seed}
        return (
            {"family": self.gaussian.name, "model_name": self.model.name}
            | ({} if self.report is None else report_to_attributes(self.report))
            | {name: seed for name, seed in seeds.items() if isinstance(seed, int | np.integer)}
        )

    def _draw_flat(self, n: int, rng: np.random.Generator) -> Array:
        """Draw flat unconstrained vectors, (n, d), in place: three times faster than by a solve."""
        draws = rng.standard_normal((n, self.gaussian.dim))
        if self.factorised:
            draws *= self._factor
        else:
            draws = draws @ self._factor.T
        draws += self.gaussian.mean
        return draws

    def _transform_for(self, model: pymc.Model) -> DrawTransform:
        """Return the transform of `model`, built only when the model is not that of last time."""
        own = model is self.model
        loader = self.loader if own else None
        if self._transform is None or not self._transform.matches(model, loader):
            loaded = self.loaded if own else ()
            self._transform = DrawTransform(model, self.layout, loader, loaded=loaded)
        return self._transform


class NGVIMeanField(GaussianApproximation, MeanField):
    """Gaussian approximation with independent components, fitted by natural gradients."""

    _group_class = NGVIMeanFieldGroup
    factorised = True


class NGVIFullRank(GaussianApproximation, FullRank):
    """Gaussian approximation with full covariance, fitted by natural gradients."""

    _group_class = NGVIFullRankGroup
    factorised = False


def create_approximation(
    model: pymc.Model,
    gaussian: Gaussian,
    *,
    layout: Layout | None = None,
) -> NGVIMeanField | NGVIFullRank:
    """Wrap a fitted Gaussian as PyMC's `MeanField` or `FullRank`, whichever it is.

    Parameters are those of :class:`GaussianApproximation`.
    """
    kind = NGVIMeanField if gaussian.factorised else NGVIFullRank
    return kind(model, gaussian, layout=layout)


def load(
    path: str | os.PathLike[str],
    model: pymc.Model | None = None,
    *,
    loader: Loader | None = None,
) -> NGVIMeanField | NGVIFullRank:
    """Read an approximation that `save` wrote.

    Nothing is executed from the file. The same seed gives the same draws as before.

    Parameters
    ----------
    path : str or path
    model : pymc.Model, optional
        The model that was fitted, which the file does not hold; that of the context by default.
    loader : Loader, optional
        What the fit's data were loaded by, which the file does not hold either. Without it there
        are draws, but no densities.

    Returns
    -------
    NGVIFullRank or NGVIMeanField

    Raises
    ------
    FileFormatError
        The file is something else, or damaged.
    ValueError
        The model's free variables are not those of the fit, and how they differ.
    """
    model = pymc.modelcontext(model)
    saved = storage.read(path)
    layout = Layout(model, model.initial_point(0))
    differences = layout.outline.differences(saved.outline)
    if differences:
        raise ValueError(f"the fit in the file is of another model than this one: {differences}")
    approx = create_approximation(model, saved.gaussian, layout=layout)
    approx.hist = saved.losses
    approx.history = saved.history
    approx.report = saved.report
    approx.seed = saved.seed
    approx.loader = loader
    approx.loaded = saved.loaded
    return approx


def covariance_factor(gaussian: Gaussian) -> Array:
    r"""Lower triangular factor S of the covariance, :math:`S S' = \Sigma`, diagonal positive.

    For independent components S is diagonal, and given as the vector of standard deviations. The
    rows of `unwhiten(I)` otherwise form a root R with R'R the covariance; its QR decomposition
    gives the factor without ever forming the covariance, whose condition number is that of R
    squared.
    """
    if gaussian.factorised:
        return np.sqrt(gaussian.variance)
    centred = gaussian.with_mean(np.zeros(gaussian.dim))
    return lower_factor_of_gram(centred.unwhiten(np.eye(gaussian.dim)))
