#!/bin/sh
# Print the path of a Python that can run this project.
#
#   find_python.sh                  the newest supported Python of this machine
#   find_python.sh 3.11             the newest of the versions named, here 3.11
#   find_python.sh "3.12 3.13"
#   find_python.sh python3.12       the same as 3.12
#   find_python.sh /path/to/python  this command or path, if it serves
#
# A name on PATH proves nothing: version managers put shims there that refuse to start, and some
# systems ship Python without venv. So each candidate is run and asked.
set -eu

# The newest version is the newest that PyTensor supports.
supported="3.14 3.13 3.12 3.11"

# Print "3.12 /path/to/python" if candidate $1 starts and serves, nothing otherwise.
probe() {
    "$1" -c '
import ensurepip, sys, sysconfig, venv
version = "%d.%d" % sys.version_info[:2]
usable = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
if usable and version in sys.argv[1].split():
    print(version, sys.executable)
' "$supported" 2>/dev/null </dev/null || true
}

# Print the first candidate of version $1.
find_version() {
    for candidate in "python$1" \
        "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/"$1"*/bin/python python3 python; do
        found=$(probe "$candidate")
        if [ "${found%% *}" = "$1" ]; then
            echo "${found#* }"
            return 0
        fi
    done
    return 1
}

wanted=${1:-$supported}
case $wanted in
[0-9]* | python3.[0-9]*)
    for version in $wanted; do
        version=${version#python}
        if find_version "$version"; then exit 0; fi
    done
    echo "No Python of version ${wanted#python} was found that starts and has venv and ensurepip." >&2
    ;;
*)
    found=$(probe "$wanted")
    if [ -n "$found" ]; then
        echo "${found#* }"
        exit 0
    fi
    echo "$wanted does not serve: it must start, be CPython of version $supported," \
        "and have venv and ensurepip." >&2
    ;;
esac
echo "Install a supported Python ($supported), or name one: make PYTHON=/path/to/python ..." >&2
exit 1
