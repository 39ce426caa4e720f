"""Rows of measurements as tables in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

Row = dict[str, str]


def groups(rows: Iterable[Row], *keys: str) -> dict[tuple[str, ...], list[Row]]:
    """Return rows by their values in the columns `keys`."""
    grouped: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[tuple(row[key] for key in keys)].append(row)
    return grouped


def numbers(rows: Sequence[Row], column: str) -> list[float]:
    """Return a column as numbers, without those that are missing."""
    return [float(row[column]) for row in rows if row[column] not in ("", "nan")]


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def span(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Return the smallest and the largest value, as one if they look the same."""
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"


def small(value: float) -> str:
    """Return a number with two digits, or as an integer where it is large."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
