"""The local spread of residuals, and balls for it that depend on x alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2._validation import Array, as_rows, average
from localw2.balls.lazy import MANY_ROWS
from localw2.balls.neighborhoods import Nearest, Neighborhoods
from localw2.balls.norms import Weighted

SPREAD_FLOOR = 0.1  # of the overall spread: rows without noise must not outweigh all others
_CELL = 200  # most rows of a cell; the fewest are half as many
# Rows of a ball whose spread may divide its own residuals. That makes balls that look narrow by chance count
# more, so a fit comes out too narrow: to .91 of the spread with 12 rows, .96 with 24, .98 with 48.
SCALE_ROWS = 150


def rough_balls(x: Any, min_size: int = 2) -> Neighborhoods:
    """Balls that define "local" before anything is known about y: a fifth of the rows each, at most 150.

    ``min_size`` asks for larger balls, of all rows if there are fewer. With more than ``MANY_ROWS`` rows they
    are disjoint cells of at most 200 rows (or twice ``min_size``), because a nearest-neighbour search over
    all rows would take longer than a fit.

    >>> rough_balls(np.arange(100.0)).sizes.unique()
    tensor([20])
    >>> rough_balls(np.arange(100.0), min_size=60).sizes.unique()
    tensor([60])
    """
    rows = as_rows(x).astype(np.float64)
    # Distances far from the origin lose digits.
    centred, norm = rows - rows.mean(0), Weighted.standardised(rows)
    if len(rows) > MANY_ROWS:
        return Neighborhoods.cells(centred, max(_CELL, 2 * min_size), norm)
    return Neighborhoods.of(centred, Nearest(max(min_size, min(150, len(rows) // 5))), norm)


def local_spread(hoods: Neighborhoods, residuals: Array, rows: Array | None = None) -> Array:
    """The size of the residuals (N, d) around every row, (N,): their mean absolute value in its ball.

    Outputs are put on one scale first, and where a row has several balls (leaves) their mean is taken. A mask
    ``rows`` (N,) restricts the mean to those rows, and rows of weighted balls have their weights. Values are
    relative to the overall spread and at least ``SPREAD_FLOOR``; without any spread they are all 1.

    >>> hoods = Neighborhoods.cells([0.0, 0.0, 9.0, 9.0], size=2)
    >>> local_spread(hoods, np.array([[1.0], [-1.0], [7.0], [-7.0]])).round(3)
    array([0.2, 0.2, 1.4, 1.4])
    """
    seen = np.ones(len(residuals), bool) if rows is None else rows
    weights = None if hoods.sample_weight is None else hoods.sample_weight.numpy()
    overall = np.sqrt(average(residuals[seen] ** 2, None if weights is None else weights[seen]))
    if not overall.any():
        return np.ones(len(residuals))
    size = np.sqrt(((residuals / np.where(overall > 0, overall, 1.0)) ** 2).mean(1))
    indices, starts = hoods.rows.numpy(), hoods.indptr.numpy()[:-1]
    counted = seen if weights is None else seen * weights
    total = np.add.reduceat((size * counted)[indices], starts)
    count = np.add.reduceat(counted[indices].astype(float), starts)
    usual = float(average(size[seen], None if weights is None else weights[seen]))
    means = np.where(count > 0, total / np.where(count > 0, count, 1.0), usual)
    spread: Array = np.maximum(hoods.average(means, otherwise=usual), SPREAD_FLOOR)
    return spread
