r"""Locations and scales of distributions, by which variables are centred.

Each form knows, from the inputs of a variable's node, the location m and how the distance from it
is scaled: by a linear map :math:`A_k` that is the identity for k = 0 and gives standard normal
distances the distribution of the variable for k = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import HalfCauchyRV, HalfStudentTRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import (
    CauchyRV,
    ExponentialRV,
    GumbelRV,
    HalfNormalRV,
    LaplaceRV,
    LogisticRV,
    LogNormalRV,
    MvNormalRV,
    NormalRV,
    StudentTRV,
)

from pymc_ngvi.core.linalg import Array

Inputs = Sequence[Any]

#: What inverts a matrix, in all versions of PyTensor.
_INVERSE = pt.linalg.inv(pt.matrix()).owner.op


class Form(ABC):
    """How variables of a kind of distribution depend on location and scale."""

    #: Whether it is the logarithm of the variable that has them.
    log: ClassVar[bool] = False

    def applies(self, variable: Variable) -> bool:
        """Whether a variable of this kind can be centred."""
        return True

    def takes(self, degree: Array) -> bool:
        """Whether variables can have this degree of centring, or these of their components."""
        return True

    def agreed(self, proposed: Array) -> Array:
        """Return degrees that variables can have, from those proposed for their components."""
        return proposed

    @abstractmethod
    def location(self, inputs: Inputs, value: Any) -> Any:
        """Return the location m of a variable with the shape of this value."""

    @abstractmethod
    def scale(self, inputs: Inputs) -> Any:
        """Return what the distances from the location depend on."""

    @abstractmethod
    def precision(self, inputs: Inputs) -> Any:
        """Prior precision of each component given all others, up to a factor near 1."""

    @abstractmethod
    def scaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        """Multiply by the map."""

    @abstractmethod
    def unscaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        """Solve by the map."""

    @abstractmethod
    def log_determinant(self, value: Any, inputs: Inputs, k: Array) -> Any:
        """Logarithm of the determinant of the map: for each of the variables that are drawn."""


@dataclass(frozen=True)
class LocationScale(Form):
    """Independent components; which parameters are location and scale, None stands for none."""

    place: int | None
    spread: int

    def location(self, inputs: Inputs, value: Any) -> Any:
        return pt.zeros(()) if self.place is None else inputs[2 + self.place]

    def scale(self, inputs: Inputs) -> Any:
        return inputs[2 + self.spread]

    def precision(self, inputs: Inputs) -> Any:
        return self.scale(inputs) ** -2.0

    def scaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return value * pt.exp(k * pt.log(self.scale(inputs)))

    def unscaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return value * pt.exp(-k * pt.log(self.scale(inputs)))

    def log_determinant(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return pt.zeros_like(value) + k * pt.log(self.scale(inputs))


class LogLocationScale(LocationScale):
    """Location and scale are those of the logarithm."""

    log: ClassVar[bool] = True


class Scales(LogLocationScale):
    """Scales: the location of their logarithm is that of their scale, and its own scale is 1."""

    def location(self, inputs: Inputs, value: Any) -> Any:
        return pt.log(inputs[2 + self.spread])

    def scale(self, inputs: Inputs) -> Any:
        return pt.ones(())


class Multivariate(Form):
    r"""Normal vectors of covariance :math:`S R R' S`, with S diagonal and R triangular.

    The map is :math:`S^k\,((1 - k) I + k R)`, where k may differ between rows.
    """

    def applies(self, variable: Variable) -> bool:
        covariance = variable.owner.inputs[3]
        while covariance.owner and isinstance(covariance.owner.op, DimShuffle):
            (covariance,) = covariance.owner.inputs
        # PyMC writes the density of such a one by the precision, which then is the input.
        return not (covariance.owner and covariance.owner.op == _INVERSE)

    def location(self, inputs: Inputs, value: Any) -> Any:
        return inputs[2]

    def scale(self, inputs: Inputs) -> Any:
        return inputs[3]

    def precision(self, inputs: Inputs) -> Any:
        return _diagonal(pt.linalg.inv(inputs[3]))

    def scaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return (self._map(inputs, k) * value[..., np.newaxis, :]).sum(axis=-1)

    def unscaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return pt.linalg.solve_triangular(self._map(inputs, k), value, lower=True, b_ndim=1)

    def log_determinant(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return (pt.zeros_like(value) + pt.log(_diagonal(self._map(inputs, k)))).sum(axis=-1)

    @staticmethod
    def _map(inputs: Inputs, k: Array) -> Any:
        root = pt.linalg.cholesky(inputs[3])
        deviations = pt.sqrt(pt.square(root).sum(axis=-1, keepdims=True))
        power = k[..., np.newaxis]
        unit = (1 - power) * pt.eye(root.shape[-1]) + power * root / deviations
        return pt.exp(power * pt.log(deviations)) * unit


class Walk(Form):
    r"""Random walks, whose steps all have the same location and scale.

    The map scales distances from the start, which is left as it is. So the steps are scaled, and
    values stay a path: each one depends on its neighbours only.
    """

    def applies(self, variable: Variable) -> bool:
        steps = variable.owner.inputs[1]
        form = FORMS.get(type(steps.owner.op)) if steps.owner else None
        if not isinstance(form, LocationScale) or form.log:
            return False
        inputs = steps.owner.inputs
        parameters = (form.location(inputs, variable), form.scale(inputs))
        return all(p.type.ndim == 0 or p.type.broadcastable[-1] for p in parameters)

    def takes(self, degree: Array) -> bool:
        return degree.ndim == 0 or bool(np.all(degree == degree[..., :1]))

    def agreed(self, proposed: Array) -> Array:
        mean = proposed[..., 1:].mean(axis=-1, keepdims=True)
        return np.broadcast_to(mean, proposed.shape).copy()

    def location(self, inputs: Inputs, value: Any) -> Any:
        form, of_steps = self._steps(inputs)
        # From the start on: 0, m, 2 m, ...
        return form.location(of_steps, value) * pt.arange(value.shape[-1]).astype(value.dtype)

    def scale(self, inputs: Inputs) -> Any:
        form, of_steps = self._steps(inputs)
        return form.scale(of_steps)

    def precision(self, inputs: Inputs) -> Any:
        return 2.0 * self.scale(inputs) ** -2.0  # of a value between two others

    def scaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        start = value[..., 0, np.newaxis]
        return start + (value - start) * pt.exp(self._log_factor(inputs, k))

    def unscaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        start = value[..., 0, np.newaxis]
        return start + (value - start) * pt.exp(-self._log_factor(inputs, k))

    def log_determinant(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return (pt.zeros_like(value[..., 1:]) + self._log_factor(inputs, k)).sum(axis=-1)

    def _log_factor(self, inputs: Inputs, k: Array) -> Any:
        return (k[..., :1] if k.ndim else k) * pt.log(self.scale(inputs))

    @staticmethod
    def _steps(inputs: Inputs) -> tuple[LocationScale, Inputs]:
        form = FORMS[type(inputs[1].owner.op)]
        assert isinstance(form, LocationScale)
        return form, inputs[1].owner.inputs


class Autoregression(Form):
    """Autoregressions without a constant, around 0: all values are scaled by that of the noise."""

    def applies(self, variable: Variable) -> bool:
        return not variable.owner.op.constant_term

    def location(self, inputs: Inputs, value: Any) -> Any:
        return pt.zeros(())

    def scale(self, inputs: Inputs) -> Any:
        return inputs[1]

    def precision(self, inputs: Inputs) -> Any:
        return (1 + pt.square(inputs[0]).sum(axis=-1, keepdims=True)) * self._along(inputs) ** -2.0

    def scaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return value * pt.exp(k * pt.log(self._along(inputs)))

    def unscaled(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return value * pt.exp(-k * pt.log(self._along(inputs)))

    def log_determinant(self, value: Any, inputs: Inputs, k: Array) -> Any:
        return (pt.zeros_like(value) + k * pt.log(self._along(inputs))).sum(axis=-1)

    @staticmethod
    def _along(inputs: Inputs) -> Any:
        return inputs[1][..., np.newaxis]


def _diagonal(matrix: Any) -> Any:
    return pt.diagonal(matrix, axis1=-2, axis2=-1)


#: Forms by the operation that draws a variable.
FORMS: dict[type, Form] = {
    CauchyRV: LocationScale(0, 1),
    GumbelRV: LocationScale(0, 1),
    LaplaceRV: LocationScale(0, 1),
    LogisticRV: LocationScale(0, 1),
    NormalRV: LocationScale(0, 1),
    StudentTRV: LocationScale(1, 2),
    LogNormalRV: LogLocationScale(0, 1),
    ExponentialRV: Scales(None, 0),
    HalfCauchyRV: Scales(None, 0),
    HalfNormalRV: Scales(None, 1),
    HalfStudentTRV: Scales(None, 1),
    MvNormalRV: Multivariate(),
    RandomWalkRV: Walk(),
    AutoRegressiveRV: Autoregression(),
}
