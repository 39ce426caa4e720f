"""What importing the package costs: nothing beyond what PyMC imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pymc_ngvi

PROGRAM = """
import sys
# f2py of NumPy, which SciPy imports late, takes it where it happens to be installed.
sys.modules["charset_normalizer"] = None
import pymc
def packages():
    # SciPy has extension modules that put a private name beside the package.
    names = {name.partition(".")[0] for name in sys.modules}
    return {name for name in names - sys.stdlib_module_names if not name.startswith("_")}
before = packages()
import pymc_ngvi
print(*sorted(packages() - before))
print(sum(name.startswith("pymc_ngvi") for name in sys.modules))
for name in pymc_ngvi.__all__:
    getattr(pymc_ngvi, name)
print(*sorted(packages() - before))
"""


def test_little_is_imported_before_it_is_used():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    at_import, modules, later = done.stdout.splitlines()
    assert at_import == later == "pymc_ngvi"
    assert int(modules) < 10  # of more than a hundred


def test_every_public_name_is_found_and_no_other():
    assert {*pymc_ngvi.__all__} <= {*dir(pymc_ngvi)}
    with pytest.raises(AttributeError, match="no_such_name"):
        pymc_ngvi.no_such_name  # noqa: B018
