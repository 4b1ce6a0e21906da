"""Tables as peers get them: a number for every cell, and what each of them makes of categories and gaps.

It needs numpy only, because it runs in the environment of every peer. Nothing is learned from test rows: a
category that training rows do not have is coded as missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_CATEGORIES = 30  # that get a column each: a code with a hundred values would add a hundred columns


@final
@dataclass(frozen=True)
class Table:
    """Inputs (n, p): numbers, and codes 0, 1, ... in the columns ``categorical``; NaN where missing."""

    values: Array
    categorical: tuple[int, ...] = ()

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.values)


def read(folder: Path) -> tuple[Table, Array, Table]:
    """Read training inputs and targets, and test inputs, from ``split.npz`` in a folder."""
    with np.load(folder / "split.npz") as split:
        categorical = tuple(int(column) for column in split["categorical"])
        return Table(split["x"], categorical), split["y"], Table(split["x_test"], categorical)


def one_hot(train: Table) -> Callable[[Table], Array]:
    """The function that gives tables finite numbers, learned from training rows.

    A column of numbers with gaps is filled with its median and followed by an indicator of the gaps. A
    categorical column becomes an indicator of each of its 30 most frequent categories, and one of its gaps;
    with two categories and no gap, one indicator is enough.

    >>> expand = one_hot(Table(np.array([[1.0, 0], [np.nan, 1], [3, 2]]), (1,)))
    >>> expand(Table(np.array([[np.nan, 2.0], [5, np.nan]]), (1,)))
    array([[2., 1., 0., 0., 1.],
           [5., 0., 0., 0., 0.]])
    """
    gaps = np.isnan(train.values)
    kept: dict[int, Array] = {}
    for column in train.categorical:
        found, counts = np.unique(train.values[~gaps[:, column], column], return_counts=True)
        frequent = np.sort(found[np.argsort(-counts, kind="stable")][:MOST_CATEGORIES])
        kept[column] = frequent[1:] if len(found) == 2 and not gaps[:, column].any() else frequent
    # A column without gaps here may have some later; one that is all gaps says nothing.
    medians = np.array(
        [np.median(v[~g]) if not g.all() else 0.0 for v, g in zip(train.values.T, gaps.T, strict=True)]
    )

    def expand(table: Table) -> Array:
        parts: list[Array] = []
        for column, values in enumerate(table.values.T):
            missing = np.isnan(values)
            if column in kept:
                parts += [(values == code).astype(np.float64) for code in kept[column]]
            else:
                parts.append(np.where(missing, medians[column], values))
            if gaps[:, column].any():
                parts.append(missing.astype(np.float64))
        return np.column_stack(parts)

    return expand
