"""What the codes of categorical columns become for a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from localw2._validation import Array, average

_PRIOR_ROWS = 10.0  # by which the mean of a category is pulled to that of all rows


@final
@dataclass(frozen=True, eq=False)
class CategoryCodes:
    """What the codes 0, 1, ... of categorical columns become for a learner.

    ``maps`` has for each such column the number of every code, and last that of a missing or unknown one.
    """

    maps: Mapping[int, Array]

    @classmethod
    def by_mean(
        cls, x: Array, y: Array, categorical: list[int], weights: Array | None = None
    ) -> CategoryCodes:
        """Categories ordered by their mean y (N,): a split between them is then a split of numbers.

        For the squared error no other split is better than one in this order (Fisher, 1958).
        """
        return cls(_category_means(x, y, categorical, np.arange(len(x)), weights))

    @classmethod
    def by_rank(
        cls, x: Array, y: Array, categorical: list[int], rows: Array, weights: Array | None = None
    ) -> CategoryCodes:
        """Categories of x numbered 0, 1, ... in the order of the mean y (N,) that some of the rows have."""
        means = _category_means(x, y, categorical, rows, weights)
        return cls({j: np.argsort(np.argsort(m, kind="stable")).astype(np.float64) for j, m in means.items()})

    @classmethod
    def contiguous(cls, x: Array, categorical: list[int]) -> CategoryCodes:
        """Categories that occur in x numbered 0, 1, ... without holes, as boosting wants them.

        Missing ones have a number of their own: scikit-learn (1.9) goes wrong where a column has one category
        and missing values only.
        """
        maps = {}
        for j in categorical:
            codes, missing = _whole_codes(x[:, j])
            present = np.unique(codes)
            maps[j] = np.full(missing + 1, np.nan)
            maps[j][present] = np.arange(len(present))
        return cls(maps)

    def apply(self, x: Array) -> Array:
        """Rows x (N, p) with these columns recoded."""
        if not self.maps:
            return x
        x = x.copy()
        for j, values in self.maps.items():
            known = x[:, j] < len(values) - 1  # False for NaN
            codes = np.where(known, x[:, j], len(values) - 1).astype(np.int64)
            found = values[codes]
            x[:, j] = np.where(np.isnan(found), values[-1], found)
        return x


def _category_means(
    x: Array, y: Array, categorical: list[int], rows: Array, weights: Array | None
) -> dict[int, Array]:
    """The mean y (N,) of each category among some of the rows, pulled to the mean of all of them."""
    means = {}
    each = None if weights is None else weights[rows]
    middle, weighted = average(y[rows], each), y[rows] if each is None else each * y[rows]
    for j in categorical:
        codes, missing = _whole_codes(x[:, j])
        counts, sums = (np.bincount(codes[rows], of, missing + 1) for of in (each, weighted))
        means[j] = (sums + _PRIOR_ROWS * middle) / (counts + _PRIOR_ROWS)
    return means


def _whole_codes(column: Array) -> tuple[Array, int]:
    """Codes as whole numbers, and the one after the largest, which stands for a missing one."""
    known = column[~np.isnan(column)]
    missing = int(known.max(initial=-1.0)) + 1
    return np.where(np.isnan(column), missing, column).astype(np.int64), missing
