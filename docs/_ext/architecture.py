"""Draw the architecture: the layers of pyproject.toml, which import-linter holds the code to."""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

#: What a layer is for, told under the name of one of its modules.
PURPOSES = {
    "inference": "what the user calls",
    "target": "model in, draws out",
    "options": "keywords and their checks",
    "diagnostics": "report and verdict",
    "search": "several starts",
    "auto": "the automatic engine",
    "levels": "one set of common draws",
    "samples": "a member on common draws",
    "algorithm": "Algorithm 1, and its theory",
    "guards": "parts of a step",
    "estimators": "parts of a step",
    "families": "Gaussians, step sizes, draws",
    "errors": "what everything uses",
}
_WIDTH, _LEFT, _BOX, _GAP, _LINE, _COLUMNS = 900, 250, 118, 8, 30, 5
_COLOURS = {"PyMC": ("#e8f0fa", "#3b6ea5"), "core": ("#eef6ea", "#4c8b3f")}


def read_layers(pyproject: Path) -> tuple[list[list[str]], set[str]]:
    """Return the layers, highest first, and the modules that may import more than SciPy."""
    linter = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]
    contracts = {contract["type"]: contract for contract in linter["contracts"]}
    layers = [
        [name.strip(" ()") for name in layer.replace("|", ":").split(":")]
        for layer in contracts["layers"]["layers"]
    ]
    free = {
        rule.split(" -> ")[0].split(".")[1] for rule in contracts["forbidden"]["ignore_imports"]
    }
    return layers, free


def draw(pyproject: Path, path: Path) -> None:
    """Write the picture as SVG."""
    layers, free = read_layers(pyproject)
    parts, top = [], 40
    for layer in layers:
        kind = "PyMC" if free & set(layer) else "core"
        fill, stroke = _COLOURS[kind]
        lines = -(-len(layer) // _COLUMNS)
        height = lines * _LINE + 14
        parts.append(
            f'<rect x="0" y="{top}" width="{_WIDTH}" height="{height}" rx="6" fill="{fill}"/>'
        )
        purpose = next((PURPOSES[name] for name in layer if name in PURPOSES), "")
        parts.append(
            f'<text x="14" y="{top + height / 2 + 5}" fill="#333333">{escape(purpose)}</text>'
        )
        for place, name in enumerate(layer):
            x = _LEFT + place % _COLUMNS * (_BOX + _GAP)
            y = top + 10 + place // _COLUMNS * _LINE
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_BOX}" height="24" rx="4" fill="white" '
                f'stroke="{stroke}"/><text x="{x + _BOX / 2}" y="{y + 17}" text-anchor="middle" '
                f'class="module">{escape(name)}</text>'
            )
        top += height + 6
    legend = (
        f'<text x="14" y="22" fill="{_COLOURS["PyMC"][1]}">blue: knows PyMC and ArviZ</text>'
        f'<text x="250" y="22" fill="{_COLOURS["core"][1]}">green: NumPy and SciPy only</text>'
        '<text x="490" y="22" fill="#333333">a module imports from the rows below its own</text>'
    )
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" '
        f'width="{_WIDTH}" height="{top}">'
        "<style>text { font: 14px sans-serif } .module { font: 13px monospace; fill: #111 }</style>"
        f'<rect width="{_WIDTH}" height="{top}" fill="white"/>{legend}{"".join(parts)}</svg>\n'
    )
