"""What a fit hands to ArviZ: groups, labels, attributes, and that nothing is lost in a file."""

import arviz as az
import matplotlib as mpl
import numpy as np
import pymc as pm
import pytest
import xarray

import pymc_ngvi as ngvi
from pymc_ngvi._compat import PYMC_6
from pymc_ngvi.core.families import DiagonalGaussian
from pymc_ngvi.results.approximation import create_approximation
from tests.models import MODELS

mpl.use("agg")

# How good the fits are is not the point here.
pytestmark = pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")


def groups(data) -> dict[str, xarray.Dataset]:
    if PYMC_6:
        return {name: node.to_dataset() for name, node in data.children.items()}
    return {name: data[name] for name in data.groups()}


def test_groups(idata):
    assert set(groups(idata)) == {
        "posterior",
        "unconstrained_posterior",
        "log_likelihood",
        "sample_stats",
        "fit",
        "fit_trace",
        "fit_check",
        "observed_data",
    }
    assert idata["sample_stats"]["lp"].dims == ("chain", "draw")
    for name in ("posterior", "unconstrained_posterior", "log_likelihood", "sample_stats"):
        assert dict(idata[name].sizes)["draw"] == 200, name
        assert idata[name].attrs["inference_library"] == "pymc_ngvi", name


def test_unconstrained_posterior_has_the_names_and_labels_of_the_fit(schools, idata):
    unconstrained = idata["unconstrained_posterior"]
    assert unconstrained["beta"].dims == ("chain", "draw", "school")
    assert unconstrained["scale_log__"].dims == ("chain", "draw", "school", "term")
    assert list(unconstrained["school"].values) == ["Eton", "Harrow", "Rugby"]
    np.testing.assert_allclose(np.exp(unconstrained["scale_log__"]), idata["posterior"]["scale"])
    assert "scale_log__" not in idata["posterior"]
    both = schools.sample(5, random_seed=1, include_transformed=True)
    assert "scale_log__" in both["posterior"]


def test_a_simplex_has_one_component_less_than_its_dimension():
    model = MODELS["dirichlet"]()
    gaussian = DiagonalGaussian.from_mean_covariance(np.zeros(2), np.ones(2))
    drawn = create_approximation(model, gaussian).sample(5, random_seed=1)
    assert drawn["posterior"]["share"].sizes["party"] == 3
    assert "party" not in drawn["unconstrained_posterior"].dims


def test_the_fit_is_there_by_parameter(schools, idata):
    fit = idata["fit"]
    assert list(fit["parameter"].values[:3]) == [
        f"beta[school={s}]" for s in ("Eton", "Harrow", "Rugby")
    ]
    np.testing.assert_array_equal(fit["mean"], schools.gaussian.mean)
    np.testing.assert_array_equal(fit["covariance"], schools.gaussian.covariance)
    draws = idata["unconstrained_posterior"]["beta"].values[0]
    error = np.sqrt(schools.gaussian.variance[:3] / 200)
    assert (abs(draws.mean(0) - fit["mean"].values[:3]) < 4 * error).all()


def test_the_trace_of_the_fit(schools, idata):
    trace = idata["fit_trace"]
    assert trace.sizes["iteration"] == schools.report.iterations
    assert {"elbo", "elbo_se", "step_size", "n_samples", "kl", "evaluations"} <= set(trace)
    np.testing.assert_array_equal(trace["elbo"], -schools.hist)
    assert (np.diff(trace["evaluations"]) > 0).all()


def test_attributes_tell_the_fit(schools, idata):
    attrs = idata["posterior"].attrs
    report = schools.report
    for name in ("status", "elbo", "elbo_se", "khat", "family", "fit_seconds", "compile_seconds"):
        assert attrs[name] == getattr(report, name), name
    assert attrs["inference_library_version"] == ngvi.__version__
    assert (attrs["seed"], attrs["draws_seed"]) == (3, 5)
    assert attrs["model_name"] == ""
    assert idata["sample_stats"].attrs["importance"] == "none"


def test_fit_and_draws_in_one_call():
    model = MODELS["conjugate_normal"]()
    quiet = {"backend": "interpreted", "progressbar": False}
    wishes = {"log_likelihood": True, "importance": "resample"}
    idata = ngvi.fit_ngvi(model=model, draws=30, random_seed=1, **wishes, **quiet)
    assert idata["log_likelihood"]["y"].shape == (1, 30, 3)
    assert idata["sample_stats"].attrs["importance"] == "resample"
    assert idata["posterior"].attrs["seed"] == 1
    with model:
        again = pm.fit(
            method="ngvi", return_inferencedata=True, draws=30, random_seed=1, **wishes, **quiet
        )
    np.testing.assert_array_equal(again["posterior"]["mu"], idata["posterior"]["mu"])
    with pytest.raises(ValueError, match="importance 'all' is none of"):
        ngvi.fit_ngvi(model=model, importance="all", **quiet)


# ArviZ reads it.


def test_arviz_summarises_extracts_and_draws_it(idata):
    summary = az.summary(idata, var_names=["beta"])
    assert list(summary.index) == ["beta[Eton]", "beta[Harrow]", "beta[Rugby]"]
    means = summary["mean"].astype(float)
    np.testing.assert_allclose(means, idata["posterior"]["beta"].mean(("chain", "draw")), atol=0.06)
    extracted = az.extract(idata, num_samples=50)
    assert extracted["beta"].sizes["sample"] == 50
    assert az.plot_forest(idata, var_names=["beta"]) is not None
    mpl.pyplot.close("all")


@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_files_lose_nothing(idata, kind, tmp_path):
    path = str(tmp_path / f"fit.{kind}")
    if kind == "netcdf":
        idata.to_netcdf(path)
        back = az.from_netcdf(path)
    else:
        # ArviZ 0 itself writes with zarr 2 only, which xarray no longer knows, and points here.
        tree = idata if PYMC_6 else idata.to_datatree()
        tree.to_zarr(path, consolidated=False)
        back = xarray.open_datatree(path, engine="zarr", consolidated=False)
        back = back if PYMC_6 else az.InferenceData.from_datatree(back)
    assert_same(back, idata)


def test_a_large_fit_survives_netcdf(tmp_path):
    with pm.Model() as model:
        pm.Normal("a", shape=100)
        pm.HalfNormal("b", shape=100)
    rng = np.random.default_rng(0)
    gaussian = DiagonalGaussian.from_mean_covariance(rng.normal(size=200), rng.uniform(0.1, 1, 200))
    written = create_approximation(model, gaussian).sample(10_000, random_seed=1)
    written.to_netcdf(str(tmp_path / "large.nc"))
    assert_same(az.from_netcdf(str(tmp_path / "large.nc")), written)


def assert_same(back, written):
    ours, theirs = groups(written), groups(back)
    assert set(ours) == set(theirs)
    for name, group in ours.items():
        theirs[name].load()
        xarray.testing.assert_equal(group, theirs[name])
        for key, value in group.attrs.items():
            np.testing.assert_equal(np.ravel(theirs[name].attrs[key]), np.ravel(value), err_msg=key)
        theirs[name].close()
