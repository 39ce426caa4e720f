r"""Partial centring: other unconstrained values, on which a posterior is more Gaussian.

A variable :math:`\theta` with location m and scale s that depend on other variables of the model
can be replaced, component by component, by

.. math:: y = (\theta - m) / s^{1 - \lambda} + \lambda\,m, \qquad
          \theta = m + s^{1 - \lambda}\,(y - \lambda\,m).

With :math:`\lambda = 1` this is the variable itself, which is called centred, and with
:math:`\lambda = 0` the non-centred form, whose prior does not depend on other variables. Components
that the data say much about are best centred, those that they say little about non-centred. For a
variable on the log scale, such as a log-normal, :math:`\log\theta` takes the place of
:math:`\theta`. The form is that of Gorinova, Moore and Hoffman (2020): it is the distance from the
location that is scaled, so that nothing depends on where the origin is.

In PyMC this is a transform of the variable's value. :func:`recentred` returns a model of the same
variables with other transforms: what a user computes of the variables is not affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc
import pytensor.tensor as pt
from pymc.distributions.transforms import LogTransform
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_ngvi.arguments import did_you_mean, told
from pymc_ngvi.core.families import Gaussian, standard_normal
from pymc_ngvi.core.linalg import Array
from pymc_ngvi.model.layout import Layout
from pymc_ngvi.model.location_scale import FORMS, Form
from pymc_ngvi.model.vectorised import DrawFunction

Degrees = dict[str, Array]

#: Draws on which scales are averaged.
_DRAWS = 200
#: A share of the prior below the first is taken for 0, and above the second for 1.
_SMALL, _LARGE = 0.2, 0.7


class Centring(Transform):
    r"""The transform to :math:`y = A_k^{-1}\,(\theta - m) + \lambda\,m`, with k = 1 - lambda.

    Parameters
    ----------
    form : Form
        Has the location m, and the map :math:`A_k` that scales the distance from it.
    degree : array
        The degree :math:`\lambda` of centring, of the shape of the variable, or a number.
    """

    name = "centring"

    def __init__(self, form: Form, degree: Array) -> None:
        self.form, self.degree = form, degree
        self._k = np.asarray(1 - degree, degree.dtype)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return y for a value of the variable."""
        location = self.form.location(inputs, value)
        value = pt.log(value) if self.form.log else value
        return self.form.unscaled(value - location, inputs, self._k) + self.degree * location

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the variable for a value y."""
        own = self._own(value, inputs)
        return pt.exp(own) if self.form.log else own

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Logarithm of the determinant of the derivative of the variable by y."""
        found = self.form.log_determinant(value, inputs, self._k)
        return found + self._own(value, inputs) if self.form.log else found

    def _own(self, value: Any, inputs: Any) -> Any:
        """Return the variable, or its logarithm."""
        location = self.form.location(inputs, value)
        return location + self.form.scaled(value - self.degree * location, inputs, self._k)


def candidates(model: pymc.Model, *, factorised: bool) -> list[str]:
    """Names of the free variables whose centring a fit may choose.

    These have a scale that depends on other variables. A location that does is a shift, which makes
    no difference to a Gaussian of full covariance, and much to one of independent components.

    Parameters
    ----------
    model : pymc.Model
    factorised : bool
        Whether the Gaussian to fit has independent components.
    """
    free = set(model.free_RVs)
    found = []
    for variable in model.free_RVs:
        form = _form_of(model, variable)
        if form is None:
            continue
        inputs = variable.owner.inputs
        scale, location = [form.scale(inputs)], [form.location(inputs, variable.type())]
        if free.intersection(ancestors(scale + location if factorised else scale)):
            found.append(variable.name)
    return found


def check_degrees(model: pymc.Model, degrees: Mapping[str, Any]) -> Degrees:
    """Return degrees of centring as arrays, or raise an error that names the variable.

    Raises
    ------
    ValueError
        A variable cannot be recentred, or a degree is not a number from 0 to 1.
    """
    return {name: _checked(name, degree, *_find(model, name)) for name, degree in degrees.items()}


def recentred(model: pymc.Model, degrees: Mapping[str, Any]) -> pymc.Model:
    """Return a model of the same variables, some of them with another degree of centring.

    The given model is not changed. Both hold the same random variables, deterministics and data,
    also those that are added later; only the values on the unconstrained scale differ.

    Parameters
    ----------
    model : pymc.Model
    degrees : mapping of str to number or array
        For each variable its degree of centring, from 0 (non-centred) to 1 (centred); see
        :func:`check_degrees` for what is refused.
    """
    if not degrees:
        return model
    # PyMC's own copy of a model has other variables, and none of models with initial values.
    copy = object.__new__(type(model))
    copy.__dict__.update(model.__dict__)
    values, transforms = dict(model.rvs_to_values), dict(model.rvs_to_transforms)
    for name, degree in degrees.items():
        variable, form = _find(model, name)
        transform = Centring(form, _checked(name, degree, variable, form))
        value = transform.forward(variable, *variable.owner.inputs).type()
        value.name = f"{name}_{transform.name}__"
        values[variable], transforms[variable] = value, transform
    copy.rvs_to_values, copy.rvs_to_transforms = values, transforms
    copy.values_to_rvs = {value: variable for variable, value in values.items()}
    return copy


def recentred_draws(model: pymc.Model, layout: Layout, degrees: Degrees, draws: Array) -> Array:
    """Return draws (n, d) of the values of a model as values of its recentred model."""
    changed = [(name, *_find(model, name)) for name in degrees]
    outputs = [
        Centring(form, _checked(name, degrees[name], v, form)).forward(v, *v.owner.inputs)
        for name, v, form in changed
    ]
    computed = _at_draws(model, layout, outputs, draws)
    slots = {slot.variable: slot for slot in layout}
    moved = draws.copy()
    for name, values in zip(degrees, computed, strict=True):
        moved[:, slots[name].where] = values.reshape(len(draws), -1)
    return moved


def propose_degrees(
    model: pymc.Model, layout: Layout, names: Sequence[str], q: Gaussian
) -> Degrees:
    r"""Propose degrees of centring from a Gaussian that was fitted to the centred values.

    The best k of a component is close to the share of the prior in its precision given all others,
    :math:`\mathrm{E}[s^{-2}] / P_{jj}`: with little data the share is 1, with many 0. Where it is
    near these two, they are proposed.

    Returns
    -------
    dict of str to array
        For each variable that is to be changed the degrees of its components.
    """
    draws = q.unwhiten(standard_normal(_DRAWS, q.dim, np.random.default_rng(0), antithetic=True))
    variables = [_find(model, name) for name in names]
    precisions = [form.precision(variable.owner.inputs) for variable, form in variables]
    computed = _at_draws(model, layout, precisions, draws)
    precision = q.precision.diagonal() if q.precision.ndim == 2 else q.precision
    slots = {slot.variable: slot for slot in layout}
    degrees = {}
    for name, (_, form), prior in zip(names, variables, computed, strict=True):
        own = precision[slots[name].where].reshape(slots[name].shape)
        share = form.agreed(np.mean(np.asarray(prior, float), axis=0) / own)
        share = np.where(share < _SMALL, 0.0, np.where(share > _LARGE, 1.0, share))
        if share.any():
            degrees[name] = 1 - share
    return degrees


def describe_degrees(degrees: Degrees) -> str:
    """Say how variables were recentred."""
    parts = []
    for name, degree in degrees.items():
        low, high = np.min(degree), np.max(degree)
        if high == 0:
            parts.append(f"{name}: non-centred")
        elif low == high:
            parts.append(f"{name}: centred to {low:.2f}")
        else:
            parts.append(f"{name}: centred to {low:.2f} to {high:.2f}")
    return ", ".join(parts)


def _at_draws(
    model: pymc.Model, layout: Layout, outputs: Sequence[Variable], draws: Array
) -> list[Array]:
    """Evaluate functions of the variables at draws (n, d) of the model's values."""
    inputs = [model.rvs_to_values[model[slot.variable]] for slot in layout]
    function = DrawFunction("centring", inputs, model.replace_rvs_by_values(outputs))
    return function(list(layout.unflatten(draws).values()))


def _form_of(model: pymc.Model, variable: Variable) -> Form | None:
    """Return the form of a variable, None where it has none or another transform."""
    form = FORMS.get(type(variable.owner.op)) if variable.owner else None
    transform = model.rvs_to_transforms[variable]
    if form is None or not form.applies(variable):
        return None
    usual = isinstance(transform, LogTransform) if form.log else transform is None
    return form if usual else None


def _find(model: pymc.Model, name: str) -> tuple[Variable, Form]:
    free = {variable.name: variable for variable in model.free_RVs}
    if name not in free:
        hint = did_you_mean(name, free, f"; it has {sorted(free)}")
        raise ValueError(f"reparametrize: the model has no free variable {name!r}{hint}")
    form = _form_of(model, free[name])
    if form is None:
        raise ValueError(
            f"reparametrize: {name} has no location and scale to be centred by, or a transform of "
            "its own"
        )
    return free[name], form


def _checked(name: str, degree: Any, variable: Variable, form: Form) -> Array:
    try:
        array = np.asarray(degree, dtype=variable.dtype)
        valid = bool(np.all((array >= 0) & (array <= 1))) and array.ndim <= variable.ndim
        valid = valid and form.takes(array)
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise ValueError(
            f"reparametrize: the degree of centring of {name} must be a number from 0 "
            f"(non-centred) to 1 (centred), or an array of them (one for each random walk), got "
            f"{told(degree)}"
        )
    return array
