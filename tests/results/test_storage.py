"""Fits in files: nothing is lost, nothing is executed, nothing is half written."""

import dataclasses
import os
import pickle
import stat
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas
import pymc as pm
import pytest
import scipy.sparse
import xarray

import pymc_ngvi as ngvi
from pymc_ngvi.core.families import CentredDiagonalGaussian, DiagonalGaussian, FullGaussian
from pymc_ngvi.results import storage
from pymc_ngvi.results.approximation import create_approximation
from pymc_ngvi.results.parameters import empty_table
from tests.conftest import fit
from tests.models import MODELS

pytestmark = pytest.mark.filterwarnings("ignore::pymc_ngvi.UnreliableFit")


@pytest.fixture(scope="module", params=["fullrank", "meanfield"])
def fitted(request):
    model = MODELS["linear_regression"]()
    return fit(model, n=8, family=request.param, n_samples=10, random_seed=4)


@pytest.fixture
def saved(fitted, tmp_path):
    path = tmp_path / "fit.nc"
    fitted.save(path)
    return path


def test_draws_are_the_same_bits(fitted, saved):
    loaded = ngvi.load(saved, model=fitted.model)
    before, after = (approx.sample(100, random_seed=9) for approx in (fitted, loaded))
    for name in ("posterior", "unconstrained_posterior", "fit_trace"):
        for variable in before[name].data_vars:
            np.testing.assert_array_equal(before[name][variable], after[name][variable], variable)
    # The fit has functions that sum over the data in another order than those of the loaded one.
    for variable in before["sample_stats"].data_vars:
        np.testing.assert_allclose(
            before["sample_stats"][variable], after["sample_stats"][variable], rtol=1e-12
        )
    assert dict(before["posterior"].attrs) | {"created_at": ""} == (
        dict(after["posterior"].attrs) | {"created_at": ""}
    )


def test_everything_else_is_the_same(fitted, saved):
    with MODELS["linear_regression"]():  # the model of the context, built anew
        loaded = ngvi.load(str(saved))
    assert type(loaded) is type(fitted)
    assert str(loaded.report) == str(fitted.report)
    assert loaded.report == fitted.report
    assert loaded.history == fitted.history
    assert loaded.seed == 4
    np.testing.assert_array_equal(loaded.hist, fitted.hist)
    np.testing.assert_array_equal(loaded.mean.eval(), fitted.mean.eval())
    np.testing.assert_allclose(loaded.gaussian.precision, fitted.gaussian.precision, rtol=1e-12)


def test_the_table_of_parameters_is_kept(fitted, saved):
    loaded = ngvi.load(saved, model=fitted.model)
    assert len(loaded.report.parameters) == 6  # sigma is there on two scales
    pandas.testing.assert_frame_equal(loaded.report.parameters, fitted.report.parameters)


def test_a_file_without_a_table_is_read(fitted, saved):
    """As they were written before reports had one."""
    saved_fit = storage.read(saved)
    report = dataclasses.replace(fitted.report, parameters=empty_table())
    storage.write(saved, dataclasses.replace(saved_fit, report=report))
    loaded = ngvi.load(saved, model=fitted.model)
    assert loaded.report.parameters.empty
    assert loaded.report.khat == fitted.report.khat


def test_a_loaded_fit_can_be_saved_and_can_start_another(fitted, saved, tmp_path):
    loaded = ngvi.load(saved, model=fitted.model)
    loaded.save(tmp_path / "again.nc")
    assert (tmp_path / "again.nc").read_bytes() == saved.read_bytes()
    family = fitted.gaussian.name
    again = fit(fitted.model, n=1, family=family, step_size=0.1, n_samples=4, start=loaded)
    assert loaded.gaussian.kl(again.gaussian) < 1


@pytest.mark.parametrize("family", [FullGaussian, DiagonalGaussian, CentredDiagonalGaussian])
def test_approximations_that_were_never_fitted(family, tmp_path):
    model = MODELS["coords_and_dims"]()
    covariance = 0.3 * np.eye(9) if family is FullGaussian else np.full(9, 0.3)
    approx = create_approximation(model, family.from_mean_covariance(np.zeros(9), covariance))
    approx.seed = np.array([3, 4])
    approx.save(tmp_path / "q.nc")
    loaded = ngvi.load(tmp_path / "q.nc", model=model)
    assert loaded.report is None
    assert loaded.history == []
    assert loaded.seed == [3, 4]
    assert type(loaded.gaussian) is family
    np.testing.assert_array_equal(loaded.gaussian.variance, approx.gaussian.variance)


def test_files_are_plain_netcdf(saved):
    with xarray.open_dataset(saved) as dataset:
        assert dataset.attrs["format"] == "pymc_ngvi approximation"
        assert list(dataset["name"].values[:2]) == ["intercept", "slopes[0]"]


# A family of the user's own.


class Plain(DiagonalGaussian):
    """Saved by mean and precision, as the base class has it."""

    name = "plain"


class OneVariance(DiagonalGaussian):
    """Saved by arrays of its own, one of them a number and one of another shape than the mean."""

    name = "OneVariance"

    def arrays(self):
        return {"middle": self.mean, "p": self.precision[0], "checks": np.arange(6).reshape(2, 3)}

    @classmethod
    def from_arrays(cls, arrays):
        assert arrays["checks"].shape == (2, 3)
        middle = arrays["middle"]
        return cls.from_mean_precision(middle, np.full(middle.size, arrays["p"]))


def own_approximation(family):
    mean = np.random.default_rng(0).normal(size=5)
    gaussian = family.from_mean_covariance(mean, np.full(5, 0.3))
    return create_approximation(MODELS["linear_regression"](), gaussian)


@pytest.mark.parametrize("family", [Plain, OneVariance])
def test_a_family_of_ones_own_is_saved_and_loaded(family, tmp_path):
    approx = own_approximation(family)
    approx.save(tmp_path / "own.nc")
    loaded = ngvi.load(tmp_path / "own.nc", model=approx.model)
    assert type(loaded.gaussian) is family
    np.testing.assert_array_equal(loaded.gaussian.mean, approx.gaussian.mean)
    np.testing.assert_array_equal(loaded.gaussian.precision, approx.gaussian.precision)


def test_a_family_that_is_not_defined_is_named(tmp_path, monkeypatch):
    approx = own_approximation(Plain)
    approx.save(tmp_path / "own.nc")
    monkeypatch.setattr(Plain, "name", "renamed")
    with pytest.raises(ngvi.FileFormatError, match="family 'plain', which is not defined: define"):
        ngvi.load(tmp_path / "own.nc", model=approx.model)


@pytest.mark.parametrize(
    "arrays",
    [{"precision": scipy.sparse.eye_array(5)}, {"losses": np.ones(5)}],
    ids=["not an array", "a name that is taken"],
)
def test_what_cannot_be_saved_is_refused_by_the_name_of_its_family(arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(Plain, "arrays", lambda self: {"mean": self.mean, **arrays})
    message = f"family 'plain' cannot be saved by its array {next(iter(arrays))!r}"
    with pytest.raises(TypeError, match=message):
        own_approximation(Plain).save(tmp_path / "own.nc")
    assert not any(tmp_path.iterdir())


# Another model.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lacking": True}, "the model lacks sigma_log__"),
        ({"extra": True}, "the model adds extra"),
        ({"shape": 4}, r"slopes has shape \(4,\) in the model and \(3,\) in the fit"),
        ({"order": True}, "order of the variables is sigma_log__, slopes, intercept in the model"),
        ({"labels": True}, r"the model has slopes\[x=a\] where the fit has slopes\[0\]"),
    ],
)
def test_a_model_that_does_not_match_is_told_how(saved, change, message):
    def build(lacking=False, extra=False, shape=3, order=False, labels=False):
        coords = {"x": list("abc")} if labels else {}
        variables = [
            lambda: pm.Normal("intercept"),
            lambda: pm.Normal("slopes", dims="x") if labels else pm.Normal("slopes", shape=shape),
            lambda: None if lacking else pm.HalfNormal("sigma"),
        ]
        with pm.Model(coords=coords) as model:
            for make in reversed(variables) if order else variables:
                make()
            if extra:
                pm.Normal("extra")
        return model

    with pytest.raises(ValueError, match=f"another model than this one: .*{message}"):
        ngvi.load(saved, model=build(**change))


# Files that are none.


def test_truncated_files_are_refused(fitted, saved):
    content = saved.read_bytes()
    for length in (0, 3, 100, len(content) // 2, len(content) - 8):
        saved.write_bytes(content[:length])
        with pytest.raises(ngvi.FileFormatError, match=r"cut short|damaged"):
            ngvi.load(saved, model=fitted.model)


def test_every_kind_of_damage_is_noticed(fitted, saved):
    content = bytearray(saved.read_bytes())
    rng = np.random.default_rng(0)
    noticed = 0
    for position in rng.integers(len(content), size=60):
        damaged = content.copy()
        damaged[position] ^= 0x41
        saved.write_bytes(damaged)
        try:
            loaded = ngvi.load(saved, model=fitted.model)
        except ngvi.FileFormatError:
            noticed += 1
        else:  # a byte of padding, between the values
            np.testing.assert_array_equal(loaded.gaussian.mean, fitted.gaussian.mean)
    assert noticed > 40


def test_foreign_files_are_refused(fitted, tmp_path):
    path = tmp_path / "other.nc"
    xarray.Dataset({"x": ("i", [1.0, 2.0])}).to_netcdf(path, engine="scipy")
    with pytest.raises(ngvi.FileFormatError, match=r"not an approximation.*az\.from_netcdf"):
        ngvi.load(path, model=fitted.model)
    fitted.sample(5).to_netcdf(str(tmp_path / "draws.nc"))
    with pytest.raises(ngvi.FileFormatError, match=r"HDF5.*az\.from_netcdf"):
        ngvi.load(tmp_path / "draws.nc", model=fitted.model)
    (tmp_path / "text.nc").write_text("no arrays")
    with pytest.raises(ngvi.FileFormatError, match="cannot be read"):
        ngvi.load(tmp_path / "text.nc", model=fitted.model)
    with pytest.raises(FileNotFoundError):
        ngvi.load(tmp_path / "nowhere.nc", model=fitted.model)


def test_a_pickle_is_not_executed(fitted, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "trap.nc").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ngvi.FileFormatError):
        ngvi.load(tmp_path / "trap.nc", model=fitted.model)
    assert not (tmp_path / "sprung").exists()


def test_files_of_a_later_version_are_refused(fitted, saved, monkeypatch):
    monkeypatch.setattr(storage, "_FORMAT_VERSION", 2)
    with pytest.raises(ngvi.FileFormatError, match="written by pymc_ngvi"):
        ngvi.load(saved, model=fitted.model)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_an_interrupted_save_leaves_the_old_file(fitted, saved, monkeypatch, failing):
    before = saved.read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, failing, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fitted.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


# Where a fit is saved to.


def test_threads_may_save_to_one_path(fitted, tmp_path):
    path = tmp_path / "fit.nc"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: fitted.save(path), range(80)))
    assert list(tmp_path.iterdir()) == [path]
    ngvi.load(path, model=fitted.model)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_stays_a_link(fitted, tmp_path, dangling):
    (tmp_path / "store").mkdir()
    real, link = tmp_path / "store" / "real.nc", tmp_path / "fit.nc"
    if not dangling:
        real.write_bytes(b"old")
    link.symlink_to(real)
    fitted.save(link)
    assert link.is_symlink()
    assert real.read_bytes()[:3] == b"CDF"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_an_existing_file_keeps_its_mode(fitted, saved, mode):
    saved.chmod(mode)
    fitted.save(saved)
    assert stat.S_IMODE(saved.stat().st_mode) == mode


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_a_new_file_has_the_usual_mode(fitted, saved, tmp_path):
    (tmp_path / "usual").touch()
    assert saved.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_what_a_killed_save_leaves_is_removed_by_the_next(fitted, tmp_path):
    """A writer that was killed leaves a file without a lock; that of one at work stays."""
    path = tmp_path / "fit.nc"
    (tmp_path / ".fit.nc.123.partial").touch()
    with storage._partial_file(path, 0o666) as partial:
        fitted.save(path)
        assert set(tmp_path.iterdir()) == {path, partial}
    fitted.save(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: path.mkdir(), "a fit is saved to a file"),
        (lambda path: path.symlink_to(path), "leads to itself"),
    ],
    ids=["folder", "loop"],
)
def test_what_is_no_file_is_not_replaced(fitted, tmp_path, prepare, message):
    path = tmp_path / "fit.nc"
    prepare(path)
    with pytest.raises(OSError, match=message):
        fitted.save(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_named(fitted, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder to save to: '.*nowhere'"):
        fitted.save(tmp_path / "nowhere" / "fit.nc")


# Huge files, which are sparse here: they take no room on the disk.


@pytest.mark.parametrize("begins", ["empty", "saved", "foreign", "count"])
def test_a_huge_file_is_refused_by_its_header(fitted, saved, begins):
    if begins == "empty":
        saved.write_bytes(b"")
    elif begins == "foreign":  # as large as it says it is, and something else
        header = b"CDF\x02" + struct.pack(">3I", 0, 10, 1) + struct.pack(">I4sI", 1, b"x", 2**30)
        header += struct.pack(">2I", 0, 0) + struct.pack(">2I", 11, 1)
        header += struct.pack(">I4s2I2I2IQ", 1, b"x", 1, 0, 0, 0, 6, 0, 100)
        saved.write_bytes(header)
    elif begins == "count":  # a damaged number of attributes
        saved.write_bytes(b"CDF\x02" + struct.pack(">5I", 0, 0, 0, 12, 2**31))
    size = 100 + 8 * 2**30 if begins == "foreign" else 20 * 10**9
    os.truncate(saved, size)
    with pytest.raises(ngvi.FileFormatError, match=r"fit.nc is"):
        ngvi.load(saved, model=fitted.model)


def test_the_starts_of_a_fit_are_kept(tmp_path):
    model = MODELS["conjugate_normal"]()
    approx = fit(model, start=[{"mu": 0.0}, {"mu": 3.0}])
    approx.save(tmp_path / "fit.nc")
    loaded = ngvi.load(tmp_path / "fit.nc", model=model)
    assert len(loaded.report.starts) == 2
    assert str(loaded.report.starts) == str(approx.report.starts)  # NaN is not equal to NaN


@pytest.mark.parametrize("path", [None, 3, "a\0b", ""])
def test_what_is_no_path_is_refused(fitted, path):
    """Python takes a number for a file that is open, and would close it."""
    with pytest.raises((TypeError, ValueError), match="path must"):
        fitted.save(path)
    with pytest.raises((TypeError, ValueError), match="path must"):
        ngvi.load(path, model=fitted.model)


def test_what_is_no_model_is_refused(saved):
    with pytest.raises(TypeError, match=r"model must be a pymc\.Model, got 'm'"):
        ngvi.load(saved, model="m")
