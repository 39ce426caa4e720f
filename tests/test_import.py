"""What importing the package costs: nothing beyond what PyMC imports."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pymc
before = set(sys.modules)
import pymc_ngvi
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""


def test_no_other_package_is_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pymc_ngvi"]
