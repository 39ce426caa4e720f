"""The comparison of all methods: its models, its errors, and what it gives to the peers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from pymc_ngvi.model.compilation import compile_target

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_errors_are_those_that_were_put_in():
    from compare import compared

    rng = np.random.default_rng(1)
    draws = {"a": rng.normal(size=(500, 2)), "b": rng.normal(size=(500, 1)), "c": np.ones((500, 1))}
    moments = {
        f"{name}[{i}]": (column.mean(), column.std())
        for name in ("a", "b")
        for i, column in enumerate(draws[name].T)
    }
    exact = compared(draws, moments, unjudged=("c",))
    assert exact["mean_worst"] == pytest.approx(0, abs=1e-12)
    assert exact["sd_worst"] == pytest.approx(0, abs=1e-12)
    mean, sd = moments["a[1]"]
    off = compared(draws, {**moments, "a[1]": (mean + 3 * sd, 2 * sd)}, unjudged=("c",))
    assert off["mean_worst"] == pytest.approx(1.5)
    assert off["sd_worst"] == pytest.approx(np.log(2))
    assert off["worst"] == "a[1]"
    assert off["mean_median"] == pytest.approx(0, abs=1e-12)


def test_moments_are_read_as_they_are_written(tmp_path, monkeypatch):
    import compare

    monkeypatch.setattr(compare, "REFERENCES", tmp_path)
    draws = np.random.default_rng(1).normal(size=(50, 2, 2))
    compare.write_moments("model", {"x": draws})
    found = compare.read_moments("model")
    assert list(found) == ["x[0]", "x[1]", "x[2]", "x[3]"]
    expected = (draws[:, 1, 0].mean(), draws[:, 1, 0].std())
    assert found["x[2]"] == pytest.approx(expected, rel=1e-7)


def test_the_density_for_jax_is_ours():
    pytest.importorskip("jax").config.update("jax_enable_x64", True)
    from compare_methods import _flat_density

    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        x = pm.Normal("x", 0.0, scale, shape=(2, 2))
        pm.Normal("y", x.sum(), 1.0, observed=3.0)
    density, start, _ = _flat_density(model)
    target = compile_target(model, curvature="none", backend="interpreted")
    draws = start + np.random.default_rng(1).normal(size=(4, len(start)))
    expected = target.log_density(draws)
    np.testing.assert_allclose([float(density(x)) for x in draws], expected, rtol=1e-6)


def test_a_gaussian_on_the_flat_vector_gives_draws_on_the_own_scale():
    from compare_methods import DRAWS, _from_gaussian

    from pymc_ngvi._compat import initial_point
    from pymc_ngvi.model.layout import Layout

    with pm.Model() as model:
        pm.Normal("x", 0.0, 1.0, shape=2)
        pm.LogNormal("scale", 0.0, 1.0)
    layout = Layout(model, initial_point(model))
    fitted = _from_gaussian(model, layout, np.array([1.0, 2.0, 0.5]), 1e-8 * np.eye(3), seed=1)
    assert {name: values.shape for name, values in fitted.draws.items()} == {
        "x": (DRAWS, 2),
        "scale": (DRAWS, 1),
    }
    np.testing.assert_allclose(fitted.draws["x"].mean(axis=0), [1.0, 2.0], atol=1e-4)
    np.testing.assert_allclose(fitted.draws["scale"].mean(axis=0), np.exp(0.5), atol=1e-3)


def test_every_committed_reference_belongs_to_a_model_and_met_its_standard():
    from compare import LEAST_ESS, MOST_RHAT, REFERENCES
    from compare_models import CASES
    from process import read

    rows = {row["model"]: row for row in read(REFERENCES.parent / "references-pymc6.csv")}
    for path in REFERENCES.glob("*.csv"):
        row = rows[path.stem]
        assert path.stem in CASES
        met = row["rhat"] == "" or (
            float(row["rhat"]) < MOST_RHAT and float(row["ess"]) > LEAST_ESS
        )
        assert (row["good"] == "yes") == met
        assert all(float(moment["sd"]) > 0 for moment in read(path))


def test_user_models_have_a_finite_density_where_they_start():
    import user_models

    for name, build in user_models.MODELS.items():
        if name in ("bambi_mixed", "hssm_ddm"):  # packages of their own
            continue
        values = build().point_logps()
        assert all(np.isfinite(value) for value in values.values()), name


def test_the_pictures_have_every_method_and_stay_within_their_frame(tmp_path, monkeypatch):
    picture = pytest.importorskip("compare_picture", exc_type=ImportError)
    from compare_methods import METHODS
    from compare_models import CASES, COMMON
    from process import RESULTS, read

    assert {*picture.STYLES, "nutpie"} == {*METHODS}
    assert {*COMMON} <= {*CASES}
    assert {*picture.CHOSEN} <= {*picture.STYLES}
    monkeypatch.setattr(picture, "FOLDER", tmp_path)
    # A few panels in two rows, with the models that most methods were tried on and those that one
    # failed on: the others are drawn alike.
    few = ("eight_schools", "logistic_1000", "poisson_1000", "ordinal", "survival", "gp_marginal")
    monkeypatch.setattr(picture, "CASES", {model: CASES[model] for model in few})
    monkeypatch.setattr(picture, "COMMON", few)
    picture.draw(RESULTS)
    assert {path.name for path in tmp_path.iterdir()} == {"all_methods.png", "overview.png"}
    for row in read(RESULTS / "compare-pymc6.csv"):
        if row["method"] in picture.STYLES and not row["problem"]:
            style = picture.STYLES[row["method"]]
            point = style.point(1.0, float(row["mean_worst"]), failed=False)
            assert picture.LOWEST <= point.get_ydata()[0] <= picture.HIGHEST
