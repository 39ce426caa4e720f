"""Copy what the experiments wrote into the documentation.

``python -m examples.paper.page FOLDER`` copies the summaries to ``examples/paper/results`` and the
pictures to ``docs/pictures``, and writes the tables of ``docs/paper.md`` from the summaries.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURES = DOCS / "paper.md", DOCS / "pictures"

# A comment that names a summary, and the table below it.
_TABLE = re.compile(r"(?P<mark><!-- table: (?P<name>\w+) -->\n)(?:\|.*\n)*")


def with_tables(page: str, results: Path) -> str:
    """Return the page with each table replaced by the summary that the comment above it names."""
    return _TABLE.sub(
        lambda match: match["mark"] + markdown_table(results / f"{match['name']}.csv"), page
    )


def markdown_table(path: Path) -> str:
    """Write a CSV file as a Markdown table, with unchanged cells."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    titles = [title.replace("_", " ") for title in header]
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def update(folder: Path) -> None:
    """Copy the summaries and pictures from `folder`, and write the tables again."""
    RESULTS.mkdir(exist_ok=True)
    for path in folder.glob("*.csv"):
        if not path.stem.endswith("_curves"):
            shutil.copyfile(path, RESULTS / path.name)
    for path in folder.glob("*.png"):
        shutil.copyfile(path, PICTURES / f"paper_{path.name}")
    PAGE.write_text(with_tables(PAGE.read_text(), RESULTS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.paper.page", description=__doc__)
    parser.add_argument("folder", type=Path, help="what the experiments were given as --output")
    update(parser.parse_args().folder)
