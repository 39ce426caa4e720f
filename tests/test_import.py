"""What importing the package costs: nothing beyond what PyMC imports."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pymc
def packages():
    # SciPy has extension modules that put a private name beside the package.
    names = {name.partition(".")[0] for name in sys.modules}
    return {name for name in names - sys.stdlib_module_names if not name.startswith("_")}
before = packages()
import pymc_ngvi
print(*sorted(packages() - before))
"""


def test_no_other_package_is_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pymc_ngvi"]
