"""The result of a fit, as PyMC's own `FullRank` and `MeanField` approximations.

An approximation holds a distribution in double precision, from which
:meth:`NGVIApproximation.sample` draws: a Gaussian of :mod:`pymc_ngvi.core.families`, or a nested
one of :mod:`pymc_ngvi.core.nested`. :mod:`pymc_ngvi.results.groups` writes it to the shared
variables of PyMC, and reads it from there when others have changed them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pymc
from pymc.variational.approximations import FullRank, MeanField
from pymc.variational.opvi import node_property

from pymc_ngvi._compat import initial_point
from pymc_ngvi.arguments import as_generator, check_count, told
from pymc_ngvi.core.algorithm import Info
from pymc_ngvi.core.distribution import Distribution
from pymc_ngvi.core.families import Gaussian
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.centring import recentred
from pymc_ngvi.model.densities import LeftOut
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.loader import Loader
from pymc_ngvi.model.target import ModelTarget
from pymc_ngvi.results import storage
from pymc_ngvi.results.draws import DrawTransform
from pymc_ngvi.results.groups import (
    NGVIFullRankGroup,
    NGVIMeanFieldGroup,
    NGVINestedGroup,
    NGVISparseGroup,
)
from pymc_ngvi.results.inferencedata import to_inference_data, to_multitrace
from pymc_ngvi.results.matching import PILOT_DRAWS
from pymc_ngvi.results.nuts import nuts_keywords
from pymc_ngvi.results.records import (
    SavedFit,
    history_to_dataset,
    moments_to_dataset,
    parameters_to_dataset,
    report_to_attributes,
)
from pymc_ngvi.results.report import Report
from pymc_ngvi.results.weighing import (
    POOL,
    RESAMPLED,
    WeighedDraws,
    check_importance,
    match,
    resample,
    weigh,
)

# Numbers in a block of draws: 16 MB.
_NUMBERS = 2**21


class NGVIApproximation:
    """What all approximations add to PyMC's: a distribution in double precision, and fast draws.

    Use :func:`create_approximation`, which chooses the class for the distribution.

    Parameters
    ----------
    model : pymc.Model
        The fitted model.
    distribution : Gaussian or Nested
        The approximation on the model's flat unconstrained vector, in the order of
        ``model.free_RVs``.
    layout : Layout, optional
        The flat vector of the model, if it is known already. Otherwise PyTensor compiles the
        initial point of the model for its shapes, which takes a second for some hundred variables.
    centring : mapping of str to array, optional
        Degrees of centring of variables that were recentred; see :mod:`pymc_ngvi.model.centring`.
        The flat vector is then that of the recentred model.

    Attributes
    ----------
    hist : array
        Negative ELBO of each iteration.
    history : list of Info
        What happened in each iteration.
    seed : int or other
        The `random_seed` of the fit.
    loader : Loader or None
        What filled data containers of the model with batches.
    loaded : tuple of str
        Names of these containers.
    target : ModelTarget or None
        The compiled model that the approximation was fitted to.
    importance : str or None
        What `sample` does with importance weights unless told otherwise.

    Notes
    -----
    The shared variables in `params` are a copy of `distribution` in the precision of
    ``pytensor.config.floatX``. When their values are changed, by ``set_value`` or by another
    inference of PyMC's, it becomes what they say, and with it all that is computed from it.
    """

    #: The kind of distribution that the class holds.
    kind: ClassVar[str]

    groups: list[Any]

    def __init__(
        self,
        model: pymc.Model,
        distribution: Distribution,
        *,
        layout: Layout | None = None,
        centring: Mapping[str, Array] | None = None,
    ) -> None:
        if distribution.kind != self.kind:
            raise TypeError(
                f"{type(self).__name__} cannot hold a {type(distribution).__name__}; "
                "use create_approximation, which chooses the class"
            )
        self.centring = dict(centring or {})
        self._fitted = self._shown = recentred(model, self.centring)
        super().__init__(model=self._fitted, layout=layout)  # type: ignore[call-arg]
        self._shown = model
        self.hist: Array = np.empty(0)
        self.history: list[Info] = []
        self.seed: Any = None
        self.loader: Loader | None = None
        self.loaded: tuple[str, ...] = ()
        self.target: ModelTarget | None = None
        self.importance: str | None = None
        self._transform: DrawTransform | None = None
        self.set_distribution(distribution)
        self.report = None

    def __getstate__(self) -> dict[str, Any]:
        # A compiled model is no part of a result: whoever reads it builds what is needed.
        return self.__dict__ | {"target": None, "_transform": None}

    def set_distribution(self, distribution: Distribution) -> None:
        """Replace the approximation by another distribution of the same kind.

        Nothing is compiled. The cost is that of one triangular factor, or of one square root a
        component where components are independent.
        """
        group = self.groups[0]
        if distribution.dim != group.ddim:
            raise ValueError(
                f"the Gaussian has {distribution.dim} dimensions, "
                f"the model has {group.ddim} unconstrained parameters"
            )
        group.write(distribution)

    def set_gaussian(self, gaussian: Gaussian) -> None:
        """Replace the approximation by another Gaussian of the same kind."""
        self.set_distribution(gaussian)

    @property
    def distribution(self) -> Distribution:
        """The approximation itself. Use `set_distribution` to change it."""
        return self.groups[0].held.distribution  # type: ignore[no-any-return]

    @property
    def gaussian(self) -> Gaussian:
        """The approximation where it is a Gaussian; else the Gaussian that has its moments."""
        return self.distribution.gaussian

    @property
    def model(self) -> pymc.Model:
        """The fitted model, as the user gave it."""
        return self._shown

    @model.setter
    def model(self, model: pymc.Model) -> None:  # PyMC 5 sets it
        self._shown = model

    @contextmanager
    def _on_fitted_values(self) -> Iterator[None]:
        """Show PyMC's methods the model whose unconstrained values were fitted."""
        model, self._shown = self._shown, self._fitted
        try:
            yield
        finally:
            self._shown = model

    def sample_node(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the variables of the model in a graph by draws; see PyMC's documentation."""
        with self._on_fitted_values():
            return super().sample_node(*args, **kwargs)  # type: ignore[misc]

    @node_property  # type: ignore[untyped-decorator]
    def _sized_symbolic_varlogp_and_datalogp(self) -> Any:
        with self._on_fitted_values():
            return super()._sized_symbolic_varlogp_and_datalogp  # type: ignore[misc]

    @node_property  # type: ignore[untyped-decorator]
    def _single_symbolic_varlogp_and_datalogp(self) -> Any:
        with self._on_fitted_values():
            return super()._single_symbolic_varlogp_and_datalogp  # type: ignore[misc]

    @property
    def report(self) -> Report | None:
        """How the fit went; None where `distribution` is not what the fit came to."""
        report, judged = self._report
        return report if self.distribution is judged else None

    @report.setter
    def report(self, report: Report | None) -> None:
        self._report = report, self.distribution

    def sample(
        self,
        draws: int = 1000,
        *,
        model: pymc.Model | None = None,
        random_seed: Any = None,
        return_inferencedata: bool = True,
        log_likelihood: bool = False,
        importance: str | None = "auto",
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
            Compute variables by this model instead of the fitted one. It must have the same free
            variables.
        random_seed : int, sequence of int, numpy.random.Generator or None
            The same seed gives the same draws. A larger number of draws begins with the same ones,
            except where draws are chosen among more.
        return_inferencedata : bool
            False returns PyMC's ``MultiTrace``, which includes all unconstrained variables.
        log_likelihood : bool
            Add the log-likelihood of each observation, for :func:`pymc_ngvi.loo` and
            :func:`pymc_ngvi.compare`.
        importance : {"auto", None, "psis", "resample", "match"}
            "auto" is what the fit says in the attribute `importance`: None, except where
            ``remedy="auto"`` has found that matched draws are needed.
            None returns the draws as they are. "psis" requires their importance weights,
            `log_weight` in the group `sample_stats`, and warns where k-hat says that they cannot be
            used. "resample" makes ten times as many draws and chooses among them by these weights;
            the result then needs no weights. "match" does the same after moving the draws by affine
            maps to where the weights say that the posterior is, if that lowers k-hat; see
            :mod:`pymc_ngvi.results.matching`.
        replace : bool
            Resample with replacement.
        include_transformed : bool
            Include the unconstrained variables in the posterior, under PyMC's names for them.
        coords, dims : mapping, optional
            Additions to the coordinates and dimensions of the model.

        Returns
        -------
        arviz.InferenceData, xarray.DataTree or pymc.backends.base.MultiTrace
            With PyMC 5, with PyMC 6, and with ``return_inferencedata=False``; one chain.

        Notes
        -----
        The method works inside and outside the context of the model. Deterministics and densities
        are computed from the data that the model holds now, so they follow ``pm.set_data``.

        The group `sample_stats` holds for each draw the log density `lp` of the model, `log_q` of
        the approximation, both on the unconstrained scale, and `log_weight`, the logarithm of their
        ratio, smoothed and normalised. After resampling the weights are equal; after matching
        `log_q` is that of the moved Gaussian, and the attributes have `khat_unmatched` as well.
        """
        n = check_count("draws", draws)
        chosen = importance != "auto"  # by the user, and not by the fit
        importance = importance if chosen else self.importance
        check_importance(importance, replace=replace)
        if not return_inferencedata and (log_likelihood or importance == "psis"):
            raise ValueError(
                "a MultiTrace has no place for weights and log-likelihoods: return InferenceData, "
                'or use importance="resample" in place of weights'
            )
        rng = as_generator(random_seed)
        transform = self._transform_for(self.model if model is None else model)
        if importance is None and not return_inferencedata:
            return to_multitrace(transform(self._draw_flat(n, rng)[0], rng), transform)
        if importance == "match":
            weighed = self._matched(n, rng, transform, replace=replace)
        elif importance in RESAMPLED:
            pool = weigh(*self._draw_flat(n * POOL, rng), transform, required=True)
            weighed = resample(pool, n, rng, replace=replace)
        else:
            required = log_likelihood or importance is not None
            weighed = weigh(*self._draw_flat(n, rng), transform, required=required)
        if importance is not None:
            weighed.warn_if_unreliable(chosen=chosen)
        values = transform(weighed.draws, rng)
        if not return_inferencedata:
            return to_multitrace(values, transform)
        return to_inference_data(
            values,
            transform,
            sample_stats=weighed.statistics,
            log_likelihood=transform.log_likelihood(weighed.draws) if log_likelihood else None,
            others={
                "fit": moments_to_dataset(self.distribution, self.layout, self.centring),
                "fit_trace": history_to_dataset(self.history),
            }
            | (
                {}
                if self.report is None or self.report.parameters.empty
                else {"fit_check": parameters_to_dataset(self.report.parameters)}
            ),
            attrs={
                "posterior": self._attributes(random_seed),
                "sample_stats": weighed.attributes | {"importance": importance or "none"},
            },
            include_transformed=include_transformed,
            coords=coords,
            dims=dims,
        )

    @property
    def reads_batches(self) -> bool:
        """Whether the fitted model holds a batch of its data at a time."""
        return self._transform_for(self.model).reads_batches

    def leave_one_out(self, n: int, variable: str, random_seed: Any) -> LeftOut:
        """Predict each observation from all the others, by n weighed draws.

        The log-likelihoods stay where the rows are: of each observation a few numbers are kept.
        """
        rng, transform = as_generator(random_seed), self._transform_for(self.model)
        weighed = weigh(*self._draw_flat(n, rng), transform, required=True)
        assert weighed.log_p is not None
        return transform.without_each(weighed.draws, weighed.log_p - weighed.log_q, variable)

    def try_matching(self, n: int, rng: np.random.Generator) -> WeighedDraws:
        """Match draws, and choose n of them."""
        return self._matched(n, rng, self._transform_for(self.model))

    def _matched(
        self,
        n: int,
        rng: np.random.Generator,
        transform: DrawTransform,
        *,
        replace: bool = False,
    ) -> WeighedDraws:
        pool = weigh(*self._draw_flat(n * POOL, rng), transform, required=True)
        pool = match(pool, *self._draw_flat(PILOT_DRAWS, rng), transform)
        return resample(pool, n, rng, replace=replace)

    def take_records(self, other: NGVIApproximation) -> None:
        """Take over what another approximation knows of the fit, but for its report."""
        for name in ("hist", "history", "seed", "loader", "loaded", "target"):
            setattr(self, name, getattr(other, name))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to a netCDF file: the Gaussian, the history and the report.

        :func:`pymc_ngvi.load` reads the file, given the model. An existing file is replaced only
        when the new one is complete.

        Parameters
        ----------
        path : str or path
        """
        # A generator has moved on since the fit, and would not give the same fit again.
        numbers = isinstance(self.seed, int | np.integer | list | tuple | np.ndarray)
        fit = SavedFit(
            distribution=self.distribution,
            outline=self.layout.outline,
            losses=np.asarray(self.hist, dtype=np.float64),
            history=self.history,
            report=self.report,
            seed=np.asarray(self.seed).tolist() if numbers else None,
            loaded=self.loaded,
            centring=self.centring,
            importance=self.importance,
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
        """Return keywords for ``pm.sample`` that let NUTS start from this fit.

        Chains start at draws of the approximation and use its covariance as their metric, or only
        its variances where the fit is sparse, so that little tuning is left.

        Parameters
        ----------
        chains : int
            Number of chains, each with a start of its own.
        tune : int
            Number of tuning steps, which tune only the step size; PyMC's default is 1000.
        random_seed : int, sequence of int, numpy.random.Generator or None
            Seed of the starts.
        sampler : {"pymc", "nutpie"}
            nutpie needs PyMC 6. It takes a start for all chains but no metric: it adapts its own,
            and needs more tuning.
        **options
            Options of ``pm.NUTS``, such as `target_accept`, which is 0.95 by default where one
            Gaussian does not describe the posterior: the fit is nested, or was found unreliable.

        Returns
        -------
        dict
            To be used as ``pm.sample(**approx.nuts_kwargs())``, in the context of the model.

        Notes
        -----
        Where the fit has recentred variables, the keywords hold `model`, by which NUTS samples on
        the unconstrained values of the fit. Draws of the variables are the same either way.

        The metric is not adapted. Where the fit is unreliable the metric may be poor, and NUTS
        without it faster. The draws are those of the posterior in both cases.
        """
        n = check_count("chains", chains)
        rng = as_generator(random_seed)
        values = self._transform_for(self.model)(self._draw_flat(n, rng)[0], rng)
        names = [variable.name for variable in self.model.free_RVs]
        starts = [{name: values[name][chain] for name in names} for chain in range(n)]
        tune = check_count("tune", tune)
        keywords = nuts_keywords(
            self._fitted,
            self.gaussian,
            starts,
            sampler=sampler,
            tune=tune,
            bent=self._bent,
            **options,
        )
        return keywords | ({"model": self._fitted} if self.centring else {})

    @property
    def _bent(self) -> bool:
        """Whether one Gaussian is known not to describe the posterior."""
        distribution, report = self.distribution, self.report
        if distribution.gaussian is not distribution:
            return True
        return report is not None and report.verdict.draws > 0 and report.verdict.unreliable

    @property
    def layout(self) -> Layout:
        """Order, shapes and names of the flat unconstrained vector."""
        return self.groups[0].layout

    def _attributes(self, draws_seed: Any) -> dict[str, Any]:
        """Return the attributes of the posterior group: the report, and seeds that are numbers."""
        seeds = {"seed": self.seed, "draws_seed": draws_seed}
        return (
            {"family": self.distribution.name, "model_name": self.model.name}
            | ({} if self.report is None else report_to_attributes(self.report))
            | {name: seed for name, seed in seeds.items() if isinstance(seed, int | np.integer)}
        )

    def _draw_flat(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw flat unconstrained vectors (n, d), with their log densities (n,)."""
        draws, log_q = np.empty((n, self.distribution.dim)), np.empty(n)
        # In blocks, so that the standard normal rows take no memory beside the draws.
        step = max(1, _NUMBERS // self.distribution.dim)
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            z = rng.standard_normal(draws[part].shape)
            draws[part] = self.groups[0].draw(z)
            log_q[part] = self.distribution.log_density_whitened(z)
        return draws, log_q

    def _transform_for(self, model: pymc.Model) -> DrawTransform:
        """Return the transform of `model`; the last one is kept and used again."""
        own = model is self.model
        model = self._fitted if own else recentred(model, self.centring)
        loader = self.loader if own else None
        if self._transform is None or not self._transform.matches(model, loader):
            loaded = self.loaded if own else ()
            target = self.target if own else None
            known = None if target is None or target.reads_batches else target.log_density
            self._transform = DrawTransform(
                model,
                self.layout,
                loader,
                loaded=loaded,
                log_density=known,
                numbers=None if known is None or target is None else lambda: target.numbers,
            )
        return self._transform


class NGVIMeanField(NGVIApproximation, MeanField):
    """Gaussian approximation with independent components, fitted by natural gradients."""

    _group_class = NGVIMeanFieldGroup
    kind = "diagonal"


class NGVIFullRank(NGVIApproximation, FullRank):
    """Gaussian approximation with full covariance, fitted by natural gradients."""

    _group_class = NGVIFullRankGroup
    kind = "full"


class NGVISparse(NGVIApproximation, FullRank):
    """Gaussian approximation with a sparse precision, fitted by natural gradients.

    It has full covariance as :class:`NGVIFullRank`, but no d x d array anywhere.
    """

    _group_class = NGVISparseGroup
    kind = "sparse"


class NGVINested(NGVIApproximation, FullRank):
    """Nested approximation: Gaussians of the rest on a grid of one or two variables.

    It has a full covariance, as PyMC's `FullRank` and wherever one is asked for. `distribution` is
    a :class:`~pymc_ngvi.core.nested.Nested`, and `gaussian` the Gaussian with its moments.
    """

    _group_class = NGVINestedGroup
    kind = "nested"


def create_approximation(
    model: pymc.Model,
    distribution: Distribution,
    *,
    layout: Layout | None = None,
    centring: Mapping[str, Array] | None = None,
) -> NGVIApproximation:
    """Make PyMC's `MeanField` of a Gaussian with independent components, else a `FullRank`.

    A nested distribution becomes an approximation of its own. The parameters are those of
    :class:`NGVIApproximation`.
    """
    classes = (NGVIMeanField, NGVIFullRank, NGVISparse, NGVINested)
    (suitable,) = (one for one in classes if one.kind == distribution.kind)
    return suitable(model, distribution, layout=layout, centring=centring)


def load(
    path: str | os.PathLike[str],
    model: pymc.Model | None = None,
    *,
    loader: Loader | None = None,
) -> NGVIApproximation:
    """Read an approximation that `save` wrote.

    Nothing is executed from the file. The same seed gives the same draws as before.

    Parameters
    ----------
    path : str or path
    model : pymc.Model, optional
        The model that was fitted, which the file does not hold. The default is the model of the
        context.
    loader : Loader, optional
        The loader that the fit read its data from, which the file does not hold either. Without it
        draws are available, but densities are not.

    Returns
    -------
    NGVIFullRank, NGVIMeanField, NGVISparse or NGVINested

    Raises
    ------
    FileFormatError
        The file is something else, is damaged, or holds a family whose class is not defined.
    ValueError
        The free variables of the model are not those of the fit; the message lists how they differ.
    """
    if not isinstance(model, pymc.Model | None):
        raise TypeError(f"model must be a pymc.Model, got {told(model)}")
    model = pymc.modelcontext(model)
    saved = storage.read(path)
    fitted = recentred(model, saved.centring)
    layout = Layout(fitted, initial_point(fitted))
    differences = layout.outline.differences(saved.outline)
    if differences:
        raise ValueError(f"the fit in the file is of another model than this one: {differences}")
    approx = create_approximation(model, saved.distribution, layout=layout, centring=saved.centring)
    approx.hist = saved.losses
    approx.history = saved.history
    approx.report = saved.report
    approx.seed = saved.seed
    approx.loader = loader
    approx.loaded = saved.loaded
    approx.importance = saved.importance
    return approx
