"""Draw the architecture: the layers of pyproject.toml, which import-linter holds the code to.

The modules of a layer are those found in its folder, and what the layer is for is the first
sentence of its docstring, up to the colon.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path

_WIDTH, _LEFT, _BOX, _GAP, _LINE, _COLUMNS = 984, 280, 132, 8, 30, 5
_BLUE, _GREEN = ("#e8f0fa", "#3b6ea5"), ("#eef6ea", "#4c8b3f")


def read_contracts(pyproject: Path) -> tuple[list[list[str]], set[str]]:
    """Return the layers, highest first, and the packages that know nothing of PyMC."""
    linter = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]
    contracts = {contract["type"]: contract for contract in linter["contracts"]}
    layers = [
        [name.strip() for name in layer.split("|")] for layer in contracts["layers"]["layers"]
    ]
    return layers, {name.split(".")[1] for name in contracts["forbidden"]["source_modules"]}


def read_package(folder: Path) -> tuple[str, list[str]]:
    """Return what a package is for, and the names of its modules and packages."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    return docstring.splitlines()[0].split(":")[0].rstrip("."), sorted(names)


def draw(pyproject: Path, path: Path) -> None:
    """Write the picture as SVG."""
    layers, numerical = read_contracts(pyproject)
    parts, top = [], 40
    for layer in layers:
        title, purpose, names = "", "What every package may use", layer
        if len(layer) == 1:
            title = layer[0]
            purpose, names = read_package(pyproject.parent / "pymc_ngvi" / title)
        fill, stroke = _GREEN if title in numerical else _BLUE
        height = max(-(-len(names) // _COLUMNS) * _LINE + 14, 54 if title else 0)
        middle = top + height / 2
        parts.append(
            f'<rect x="0" y="{top}" width="{_WIDTH}" height="{height}" rx="6" fill="{fill}"/>'
            f'<text x="14" y="{middle - 5}" class="title">{escape(title)}</text>'
            f'<text x="14" y="{middle + (14 if title else 5)}">{escape(purpose)}</text>'
        )
        for place, name in enumerate(names):
            x = _LEFT + place % _COLUMNS * (_BOX + _GAP)
            y = top + 10 + place // _COLUMNS * _LINE
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_BOX}" height="24" rx="4" fill="white" '
                f'stroke="{stroke}"/><text x="{x + _BOX / 2}" y="{y + 17}" text-anchor="middle" '
                f'class="module">{escape(name)}</text>'
            )
        top += height + 6
    legend = (
        f'<text x="14" y="22" style="fill: {_BLUE[1]}">blue: may import PyMC and ArviZ</text>'
        f'<text x="280" y="22" style="fill: {_GREEN[1]}">green: NumPy, SciPy and Numba only</text>'
        '<text x="540" y="22">a package imports from the rows below its own</text>'
    )
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" '
        f'width="{_WIDTH}" height="{top}"><style>text {{ font: 13px sans-serif; fill: #333 }} '
        ".title { font: bold 15px monospace; fill: #111 } "
        ".module { font: 13px monospace; fill: #111 }</style>"
        f'<rect width="{_WIDTH}" height="{top}" fill="white"/>{legend}{"".join(parts)}</svg>\n'
    )
