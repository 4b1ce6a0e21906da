"""Columns that a data person would look at twice: those that say nothing, and those that say too much.

A constant column, row numbers and identifiers carry nothing to new rows; a column that nearly determines the
target by itself is often made from it, and is not known when predictions are made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from localw2.estimators.cells import CATEGORY, EMPTY, NUMBER

if TYPE_CHECKING:
    from localw2._validation import Array

NO_VALUES = "it has no values"
CONSTANT = "it has the same value in every row"
ROW_NUMBER = "it numbers the rows"
IDENTIFIER = "it is a different text in nearly every row"
UNREAD_DATES = "its dates are not written like 2020-01-31"

ROUNDING = 2.0**-46  # times its size: sums and products that should be equal differ by that
FEWEST_ROWS = 20  # with fewer rows, distinct values are no sign of an identifier
_DISTINCT = 0.9  # share of distinct texts from which on a column is an identifier
_FILLED = 0.5  # share of a range of whole numbers that row numbers fill, also after a random split
_YEARS = (1500, 2200)
_TIME = re.compile(r"(.*(time|year|hour|month|week|day)|date|time.*|date.*time|week.*|age)s?")

_LEAK_ROWS = 5000  # rows that are looked at for a leak
_FEWEST_LEAK_ROWS = 30
_FEWEST_VALUES = 20  # of a numeric column, for a monotone relation to mean something
_NEARLY_ALL = 0.999  # of the ranks, or of the variance
_ROWS_PER_GROUP = 5


def settle(values: Array) -> Array:
    """Numbers (N,), made equal if they differ by rounding only.

    >>> settle(np.array([0.3, np.nan, 0.1 + 0.2])).tolist(), settle(np.array([1e15, 1e15 + 100])).tolist()
    ([0.3, nan, 0.3], [1000000000000000.0, 1000000000000100.0])
    """
    known = values[~np.isnan(values)]
    if not len(known) or np.ptp(known) > ROUNDING * np.abs(known).max():
        return values
    return np.where(np.isnan(values), np.nan, known[0])


def explain_idle(values: Array, kind: str, name: str, whole: bool) -> str | None:
    """Why a column of a frame is left out, or None.

    ``values`` (N,) are numbers, days or codes of categories, NaN where missing; ``whole`` says that the
    column is of an integer type.

    >>> explain_idle(np.arange(50.0), "number", "row", whole=True)
    'it numbers the rows'
    >>> explain_idle(np.arange(1950.0, 2000), "number", "vintage", whole=True)
    """
    if kind == EMPTY:
        return NO_VALUES
    known = values[~np.isnan(values)]
    if len(known) == len(values) and (known == known[0]).all():
        return CONSTANT
    if len(known) < FEWEST_ROWS:
        return None
    if kind == CATEGORY and len(np.unique(known)) > _DISTINCT * len(known):
        return IDENTIFIER
    if kind == NUMBER and whole and len(known) == len(values) and _numbers_rows(values, name):
        return ROW_NUMBER
    return None


def _numbers_rows(values: Array, name: str) -> bool:
    """Whether whole numbers increase from row to row, or are distinct and nearly fill their range."""
    low, high = values.min(), values.max()
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    if (low >= _YEARS[0] and high <= _YEARS[1]) or any(_TIME.fullmatch(word.lower()) for word in words):
        return False
    if (np.diff(values) > 0).all():
        return True
    return bool(len(np.unique(values)) == len(values) >= _FILLED * (high - low + 1))


def find_leaks(x: Array, y: Array, categorical: list[int]) -> list[int]:
    """The columns of x (N, p) that nearly determine a column of y (N, d) by themselves."""
    rows = np.linspace(0, len(x) - 1, min(len(x), _LEAK_ROWS)).astype(int)
    x, outputs = x[rows], y[rows].T
    return [j for j in range(x.shape[1]) if any(_leaks(x[:, j], y, j in categorical) for y in outputs)]


def _leaks(column: Array, y: Array, categorical: bool) -> bool:
    known = ~np.isnan(column)
    column, y = column[known], y[known]
    total = float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0
    if len(y) < _FEWEST_LEAK_ROWS or not total > 0:
        return False
    _, group = np.unique(column, return_inverse=True)
    n_groups = int(group.max()) + 1
    if n_groups * _ROWS_PER_GROUP <= len(y):
        means = np.bincount(group, y) / np.bincount(group)
        if ((y - means[group]) ** 2).sum() <= (1 - _NEARLY_ALL) * total:
            return True
    if categorical or n_groups < _FEWEST_VALUES:
        return False
    ranks: Any = np.corrcoef(rankdata(column), rankdata(y))
    if abs(ranks[0, 1]) >= _NEARLY_ALL:
        return True
    # Each row between its two neighbours in this column, along a line: what it says of rows not seen.
    order = np.argsort(column, kind="stable")
    at, values = column[order], y[order]
    gap = at[2:] - at[:-2]
    share = np.divide(at[1:-1] - at[:-2], gap, out=np.full(len(gap), 0.5), where=gap > 0)
    error = values[1:-1] - (1 - share) * values[:-2] - share * values[2:]
    return bool((error**2).sum() <= (1 - _NEARLY_ALL) * total)
