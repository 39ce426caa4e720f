"""How draws are evaluated: together where that gains anything, else one after the other."""

import numpy as np

from pymc_ngvi.model.compilation import compile_target
from pymc_ngvi.model.evaluators import Looped
from tests.models import MODELS


def test_a_loop_runs_for_no_more_draws_than_were_asked_for():
    """PyTensor runs it draw by draw in any case; sixteen were evaluated where one was wanted."""
    target = compile_target(MODELS["scan_time_series"](), backend="interpreted")
    draws = np.array([[0.1, 0.2], [-0.3, 0.4]])
    together = target.log_density(draws)
    assert target._functions._first(()).name == Looped.name
    assert "a loop runs for one draw after the other" in target.backend
    alone = [target.log_density(draw[np.newaxis])[0] for draw in draws]
    np.testing.assert_array_equal(together, alone)
