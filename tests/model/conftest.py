"""What the tests of models share: compiled targets."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.hessian import HessianFallbackWarning
from pymc_ngvi.model.target import ModelTarget
from tests.models import MODELS


@pytest.fixture(scope="session")
def interpreted() -> Callable[[str], ModelTarget]:
    """Targets of the model collection, each compiled once for the session."""
    targets: dict[str, ModelTarget] = {}

    def get(name: str) -> ModelTarget:
        if name not in targets:
            targets[name] = compile_target(MODELS[name](), backend="interpreted")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HessianFallbackWarning)
                assert targets[name].hessian_route
        return targets[name]

    return get
