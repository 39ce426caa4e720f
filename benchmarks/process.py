"""Measurements in fresh processes with a limit of CPU time, and the CSV files that keep them.

A script gives the function that measures one case, a generator of parts of a row, and calls it by

    rows = process.measure(__file__, case, limit=600)       # in a fresh process
    process.answer(function) or main()                      # at its end: the process's own side

What was measured before a failure or the end of the time is kept, with the problem named. This
module imports neither PyMC nor NumPy: processes that only wait should cost little memory, since
Linux counts the peak of a process from that of the one that started it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
LINE = f"pymc{version('pymc').split('.')[0]}"

Row = dict[str, Any]

#: A process that waits for other work on the machine may take so many times its limit by the clock.
PATIENCE = 10

_CASE, _BEGIN = "NGVI_BENCHMARK_CASE", "NGVI_BENCHMARK_BEGIN"


class Table:
    """Rows of a CSV file, appended as they are measured, known by their first columns.

    Parameters
    ----------
    part : str
        Name of the file, before the line of PyMC.
    keys : sequence of str
        Columns that tell one case from another.
    columns : sequence of str, optional
        All columns, for rows of which some may be missing; by default those of the first row.
    """

    def __init__(
        self, part: str, keys: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        RESULTS.mkdir(exist_ok=True)
        self.path = RESULTS / f"{part}-{LINE}.csv"
        self.keys = keys
        self.columns = columns
        self.known = {tuple(row[key] for key in keys) for row in read(self.path)}

    def has(self, **key: Any) -> bool:
        """Whether a row was measured already."""
        return tuple(str(key[name]) for name in self.keys) in self.known

    def remove(self, **key: Any) -> None:
        """Forget a row, which is then measured again."""
        wanted = {name: str(value) for name, value in key.items()}
        rows = read(self.path)
        kept = [row for row in rows if any(row[name] != wanted[name] for name in self.keys)]
        if len(kept) < len(rows):
            with self.path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(kept)
        self.known.discard(tuple(wanted[name] for name in self.keys))

    def add(self, row: Row) -> None:
        """Write a row, and show it."""
        columns = self.columns or list(row)
        row = {name: _written(row.get(name, "")) for name in columns}
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, columns)
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(*(f"{k}={v}" for k, v in row.items() if v != ""), sep="  ", flush=True)


def _written(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def read(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add_posteriordb(parser: argparse.ArgumentParser) -> None:
    """Add the option `--posteriordb` to a command line."""
    parser.add_argument(
        "--posteriordb",
        metavar="PATH",
        default=os.environ.get("POSTERIORDB"),
        help="clone of github.com/stan-dev/posteriordb (default: the variable POSTERIORDB)",
    )


def measure(
    script: str,
    case: Mapping[str, Any],
    *,
    limit: float,
    environment: Mapping[str, str] | None = None,
) -> Row:
    """Measure one case in a fresh process.

    Parameters
    ----------
    script : str
        The file whose function is to measure, as it is given to :func:`answer`.
    case : mapping
        Keywords of that function, as JSON takes them.
    limit : float
        CPU seconds, of the process and of all that it started, after which it is ended. By the
        clock it is ended after `PATIENCE` times as many, and so where there is no /proc.
    environment : mapping, optional
        Variables added to the environment of the process.

    Returns
    -------
    dict
        What the function gave; `process_s`, `cpu_s` and `peak_mb` of the process, unless the
        function gave its own; `problem`, empty where there was none.
    """
    with tempfile.TemporaryDirectory() as folder:
        told, said = Path(folder, "row.jsonl"), Path(folder, "output.txt")
        begin = time.time()
        call = {"case": dict(case), "told": str(told), "begin": begin}
        with said.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, script],
                env={**os.environ, **(environment or {}), _CASE: json.dumps(call)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that compilers it started end with it
            )
            ended, usage = _wait(process.pid, limit)
        row: Row = {
            "process_s": time.time() - begin,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_mb": usage.ru_maxrss / 1024,
            "problem": "",
        }
        if told.exists():
            for line in told.read_text().splitlines():
                row |= json.loads(line)
        if not row.pop("done", False):
            row["problem"] = ended or _last_line(said.read_text())
            print(said.read_text()[-2000:], file=sys.stderr)
    return row


def _wait(pid: int, limit: float) -> tuple[str, resource.struct_rusage]:
    """Wait for a process, and end it after the limit; say why it ended, and what it used."""
    begin = looked = time.monotonic()
    why = ""
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return why or (f"ended by signal {-code}" if code < 0 else ""), usage
        now = time.monotonic()
        if not why and now - looked > 1:
            looked = now
            if _cpu_of_session(pid) > limit:
                why = f"not done after {limit:g} s of CPU"
            elif now - begin > PATIENCE * limit:
                why = f"not done after {PATIENCE * limit:g} s by the clock"
            if why:
                os.killpg(pid, signal.SIGKILL)
        time.sleep(0.02)


def _cpu_of_session(leader: int) -> float:
    """CPU seconds of the processes of a session, and of those that they have waited for."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may have spaces; after it: state, parent, group, session, ...
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == leader:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _last_line(text: str) -> str:
    """Return the last line that names an error, as a message may have several, or the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return [*(errors or lines or ["no output"])][-1][:200]


def answer(function: Callable[..., Iterable[Mapping[str, Any]]]) -> bool:
    """Measure, if this process was started by :func:`measure`, and say whether it was.

    Parameters
    ----------
    function : callable
        Takes the keywords of the case and yields parts of the row. What it yields is kept at once.
    """
    if _CASE not in os.environ:
        return False
    call = json.loads(os.environ.pop(_CASE))
    os.environ[_BEGIN] = str(call["begin"])
    with Path(call["told"]).open("a") as file:
        for part in itertools.chain(function(**call["case"]), [{"done": True}]):
            print(json.dumps(part, default=float), file=file, flush=True)
    return True


def since_start() -> float:
    """Seconds since this process was asked for, the interpreter's own start included."""
    return time.time() - float(os.environ[_BEGIN])


def empty_caches(folder: str) -> dict[str, str]:
    """Return the environment in which PyTensor and Numba keep what they compile in a folder."""
    flags = f"base_compiledir={folder}/pytensor"
    given = os.environ.get("PYTENSOR_FLAGS")
    return {
        "PYTENSOR_FLAGS": f"{given},{flags}" if given else flags,
        "NUMBA_CACHE_DIR": f"{folder}/numba",
    }


def used() -> Row:
    """CPU seconds and peak memory of this process so far, its compilers included."""
    mine, others = (resource.getrusage(k) for k in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "cpu_s": mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime,
        "peak_mb": max(mine.ru_maxrss, others.ru_maxrss) / 1024,
    }
