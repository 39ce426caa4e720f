#!/bin/sh
# Install a wheel or an sdist into an empty environment, and fit with it.
#
#   check_package.sh PYTHON FILE
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$1" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check "$2"

# From elsewhere, so that the package found is the one installed.
cd "$folder"
env/bin/python - <<'END'
from importlib.metadata import version
from importlib.resources import files

import pymc as pm
import pymc_ngvi

assert (files("pymc_ngvi") / "py.typed").is_file(), "py.typed is missing"
assert version("pymc-ngvi") == pymc_ngvi.__version__
with pm.Model():
    mean = pm.Normal("mean", 0, 10)
    pm.Normal("y", mean, 1, observed=[1.0, 2.0, 3.0])
    approx = pm.fit(method="ngvi", random_seed=1, backend="interpreted", progressbar=False)
assert approx.report.status == "converged"
assert abs(approx.gaussian.mean[0] - 6 / 3.01) < 1e-6
approx.sample(10, random_seed=1)
print("installed and fitted:", "pymc", pm.__version__, "pymc_ngvi", pymc_ngvi.__version__)
END
