"""Garbage is looked for as before when a graph is built, whatever happened meanwhile."""

from __future__ import annotations

import gc

import pytest

from pymc_ngvi.model.garbage import collected_later


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_is_as_before(was_on):
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ZeroDivisionError), collected_later():
            1 / gc.isenabled()  # an error, as it is off
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
