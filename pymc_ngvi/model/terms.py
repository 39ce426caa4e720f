r"""The log density of a model as a sum of terms, and how each is scaled to all the data.

Every variable and every potential of a model adds one term. A term that reads a feed sees n of the
N rows of the data, in a batch or in a chunk, and is always taken at a scale at which these n rows
stand for all of them. Batches then give unbiased estimates with a weight of 1, and chunks add up to
the log density of all the data with weights n / N, their shares of the rows.

What PyMC gives is at that scale where the variable has a ``total_size``, by which PyMC has
multiplied it and divided by n, and where a potential is a mean over the rows of its batch. A term
that is a plain sum over its rows is multiplied by ``batch_size / n``: as the model is written, all
the data count as much as the rows of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.simulator import SimulatorRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import variadic_add

from pymc_ngvi._compat import initial_point, interpreted_mode, lower_named_dims
from pymc_ngvi.errors import warn
from pymc_ngvi.model.data import Feed, ModelData
from pymc_ngvi.model.precision import in_double_precision
from pymc_ngvi.model.variables import as_tensor

# Number of points at which a potential is tried, to tell a sum over rows from a mean.
_PROBES = 5
#: Rows of data at which a term is tried, at most.
MOST_TRIED = 10_000


@dataclass(frozen=True)
class Term:
    """One term of a log density.

    Attributes
    ----------
    variable : Variable
        The random variable or potential that it belongs to.
    logp : Variable
        Elementwise, as PyMC gives it.
    observed : bool
        Whether it is the likelihood of an observed variable.
    feed : int or None
        Number of the feed it reads data from, None for a term that reads none.
    total : Variable or None
        The ``total_size`` of the variable.
    averages : bool or None
        Whether it is a potential that is a mean over the rows of its batch; None for one that is
        zero wherever it was tried, and is taken for a sum.
    """

    variable: Variable
    logp: Variable
    observed: bool
    feed: int | None = None
    total: Variable | None = None
    averages: bool | None = False


class Terms:
    """The terms of a model's log density.

    Those that read feeds come first. Otherwise the order is PyMC's, and so is the rounding of the
    sum of a model that holds all its data.

    Parameters
    ----------
    data : ModelData
    """

    def __init__(self, data: ModelData) -> None:
        self.data = data
        model = data.model
        # PyMC 5.28 lists an observed variable twice once its predictions were sampled.
        variables = [*dict.fromkeys(model.basic_RVs), *model.potentials]
        # PyTensor would keep with each node the stack traces of all the nodes that it replaced.
        with pytensor.config.change_flags(traceback__limit=0):
            logps = lower_named_dims(model.logp(vars=variables, sum=False))
            # A model whose parameters are in single precision is computed in it.
            if all(value.dtype == "float64" for value in model.continuous_value_vars):
                logps = in_double_precision(logps)
        terms = map(self._term, variables, logps)
        self._terms = sorted(terms, key=lambda term: term.feed is None)

    def __iter__(self) -> Iterator[Term]:
        return iter(self._terms)

    def _term(self, variable: Variable, logp: Variable) -> Term:
        observed = variable in self.data.model.observed_RVs
        feed, total = self._feed_of(variable, logp), _total_size(variable)
        averages: bool | None = False
        if feed is not None and total is None and not observed:
            averages = self._averages(variable, logp, feed)
        return Term(variable, logp, observed, feed, total, averages)

    def _check_density(self, term: Term) -> None:
        """Raise where a term is not the log density of its variable."""
        name, node = term.variable.name, term.variable.owner
        if node is None or term.variable not in self.data.model.basic_RVs:
            return
        if isinstance(node.op, SimulatorRV):
            raise NotImplementedError(
                f"{name} is a pm.Simulator: its log density is a distance to data simulated at "
                "random, which has no gradient. Sample the model with pm.sample_smc(), or give "
                f"{name} a distribution with a log density"
            )
        value = self.data.model.rvs_to_values[term.variable]
        # What pymc-bart gives for a sum of trees is zero, whatever the trees: its sampler knows the
        # prior. A flat prior is zero for each value; a pm.CustomDist is what its author says.
        if not (
            term.observed
            or isinstance(node.op, CustomDistRV | CustomSymbolicDistRV)
            or value in set(ancestors([term.logp]))
        ):
            raise NotImplementedError(
                f"the log density of {name} ({node.op}) does not depend on {name}, so it is not "
                "its prior, and a fit would ignore that prior. A variable of pymc_bart needs its "
                "own step method: sample the model with pm.sample(), which takes PGBART for it"
            )

    def _feed_of(self, variable: Variable, logp: Variable) -> int | None:
        above = set(ancestors([logp]))
        found = [i for i, feed in enumerate(self.data.feeds) if above.intersection(feed.containers)]
        if len(found) > 1:
            raise NotImplementedError(
                f"{variable.name} reads batches of different data, drawn independently of each "
                "other: take all its arrays from one pm.Minibatch or one Loader"
            )
        return found[0] if found else None

    def _averages(self, variable: Variable, logp: Variable, number: int) -> bool | None:
        """Whether a potential is a mean over the rows of its batch; None if it is zero everywhere.

        A mean stays the same when each row is there twice, and a sum doubles.
        """
        once, twice = np.transpose([*self._probe(logp, self.data.feeds[number])])
        finite = np.isfinite(once) & np.isfinite(twice)
        once, twice = once[finite], twice[finite]
        if not once.any() and not twice.any():
            return None
        tolerance = 1e-5 * abs(once).max()
        if np.allclose(twice, once, rtol=0, atol=tolerance):
            return True
        if np.allclose(twice, 2 * once, rtol=0, atol=2 * tolerance):
            return False
        i = np.argmax(abs(once))
        raise NotImplementedError(
            f"{variable.name} is neither a sum over the rows of its batch nor a mean: of each row "
            f"twice it is {twice[i]:.6g}, of each once {once[i]:.6g}. Write it as a sum"
        )

    def _probe(self, logp: Variable, feed: Feed) -> Iterator[tuple[float, float]]:
        """Evaluate a term at a few points, each on a batch of rows and on these rows twice."""
        model, loader = self.data.model, feed.loader
        point, inputs = initial_point(model), model.value_vars
        function = pytensor.function(
            inputs, as_tensor(logp).sum(), mode=interpreted_mode(), on_unused_input="ignore"
        )
        rng = np.random.default_rng(0)
        with self.data.restoring():
            for i in range(_PROBES):
                shifts = (rng.standard_normal(np.shape(point[v.name])) for v in inputs)
                values = [
                    np.asarray(point[v.name] + 0.1 + 0.1 * shift, dtype=v.dtype)
                    for v, shift in zip(inputs, shifts, strict=True)
                ]
                size = min(loader.batch_size, MOST_TRIED)
                start = i * (loader.n_rows - size) // (_PROBES - 1)
                rows = loader.read(start, start + size)
                feed.fill(rows)
                once = function(*values)
                feed.fill([np.concatenate([array, array]) for array in rows])
                yield float(once), float(function(*values))

    def scaled(self, term: Term, logp: Variable) -> Variable:
        """Scale `logp`, a term or the sum of it, so that the rows it sees stand for all rows."""
        if term.feed is None or term.total is not None or term.averages:
            return logp
        feed = self.data.feeds[term.feed]
        return logp * feed.loader.batch_size / feed.containers[0].shape[0]

    def worth(self, term: Term) -> float:
        """Return the number of rows that a term stands for, at its scale."""
        assert term.feed is not None
        if term.total is None:
            return float(self.data.feeds[term.feed].loader.batch_size)
        return float(term.total.eval(mode=interpreted_mode()))

    def as_inputs(self) -> tuple[list[list[Variable]], dict[Variable, Variable]]:
        """Return inputs for the arrays of each feed, and the containers that they replace."""
        arrays = [
            [container.type(container.name) for container in feed.containers]
            for feed in self.data.feeds
        ]
        replaced: dict[Variable, Variable] = {}
        for feed, each in zip(self.data.feeds, arrays, strict=True):
            replaced.update(zip(feed.containers, each, strict=True))
        return arrays, replaced

    def add_up(self) -> tuple[Variable, tuple[Variable, ...]]:
        """Return the log density as a function of the value variables and of rows.

        Returns
        -------
        log_density : Variable
        inputs : tuple of Variable
            What stands for the rows, as in :attr:`.Rows.arguments`; empty without feeds.
        """
        sums = [self.scaled(term, as_tensor(term.logp).sum()) for term in self]
        feeds = self.data.feeds
        if not feeds:
            return variadic_add(*sums), ()
        outside = pt.scalar("outside", dtype="float64")
        weights = [pt.scalar(dtype="float64") for _ in feeds]
        inputs: list[Variable] = [outside]
        arrays, containers = self.as_inputs()
        for weight, each in zip(weights, arrays, strict=True):
            inputs += [weight, *each]
        weighted = [
            (outside if term.feed is None else weights[term.feed]) * logp
            for term, logp in zip(self, sums, strict=True)
        ]
        (log_density,) = graph_replace([variadic_add(*weighted)], containers, strict=False)
        return log_density, tuple(inputs)

    def check(self) -> None:
        """Raise where terms or data cannot be used, and warn of terms not scaled to their data.

        Terms cannot be used that are not the log density of their variable; data in memory cannot
        if they are not finite, and data on disk are checked when they are read. PyMC does not warn
        of scaling.
        """
        for term in self:
            self._check_density(term)
        for feed in self.data.feeds:
            feed.loader.check()
        for term in self:
            if term.feed is None or term.averages:
                continue
            loader = self.data.feeds[term.feed].loader
            if not loader.in_batches and term.total is None:
                continue  # a sum over all rows
            name, rows, size = term.variable.name, loader.n_rows, loader.batch_size
            if term.total is None and term.observed:
                warn(
                    f"{name} sees batches of {size} of {rows} rows but has no total_size, so that "
                    f"the posterior is one of {size} rows only: add total_size={rows} to it"
                )
            elif term.total is None and term.averages is None:
                warn(
                    f"{name} is zero or not finite at all points and batches where it was tried, "
                    "which does not tell whether it is a sum or a mean over the rows of its batch: "
                    "it is taken for a sum"
                )
            elif term.total is None:
                warn(
                    f"{name} adds up batches of {size} of {rows} rows and has no total_size: "
                    f"unless that is done, multiply it by {rows / size:g}"
                )
            elif isinstance(term.total, Constant) and int(term.total.data) != rows:
                warn(
                    f"{name} has total_size={int(term.total.data)}, but its data have {rows} rows: "
                    "the likelihood is scaled to the former"
                )


def _total_size(variable: Variable) -> Variable | None:
    node = variable.owner
    if node is None or not isinstance(node.op, MinibatchRandomVariable) or len(node.inputs) < 2:
        return None
    total = node.inputs[1]
    return total if isinstance(total.type, pt.TensorType) else None
