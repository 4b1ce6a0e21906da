"""Single outcomes that are so far from all others that they alone would determine every scale of a fit."""

from __future__ import annotations

import warnings

import numpy as np

from localw2._validation import Array

FEWEST_ROWS = 20
MOST_SHARE = 0.01  # of the rows, or one: more are no accident
FARTHER = 100.0  # times as far from the median as any other: no law that a fit can learn leaves such a gap


def find_strays(y: Array) -> Array:
    """The rows of outputs y (N, d) that lie more than ``FARTHER`` times as far out as all others, ascending.

    >>> y = np.random.default_rng(0).normal(size=(300, 1))
    >>> y[17] = 1e6
    >>> find_strays(y), find_strays(np.exp(3 * y[:17]))
    (array([17]), array([], dtype=int64))
    """
    n = len(y)
    found: list[Array] = [np.empty(0, np.int64)]
    if n < FEWEST_ROWS:
        return found[0]
    most = max(1, int(MOST_SHARE * n))
    distances = np.abs(y - np.median(y, axis=0))
    for column in distances.T:
        far = np.argsort(-column, kind="stable")[: most + 1]
        ordered = column[far]
        # Where nearly all are equal, as counts may be, any other value is infinitely far: no accident.
        gaps = (ordered[:-1] > FARTHER * ordered[1:]) & (ordered[1:] > 0)
        if gaps.any():
            found.append(far[: int(np.flatnonzero(gaps)[-1]) + 1])
    return np.unique(np.concatenate(found))


def warn_of_strays(rows: Array, y: Array, stacklevel: int, numbers: Array | None = None) -> None:
    """Say which rows are left out of a fit, and why; ``numbers`` are those of all rows in the table."""
    if len(rows) == 0:
        return
    first = y[rows[0]]
    number = rows[0] if numbers is None else numbers[rows[0]]
    value = f"{first[0]:g}" if len(first) == 1 else str(first.tolist())
    which = f"row {number} (counted from 0), with y = {value}, is"
    if len(rows) > 1:
        which = f"{len(rows)} rows, such as row {number} (counted from 0) with y = {value}, are"
    warnings.warn(
        f"{which} left out of the fit: more than {FARTHER:g} times as far from the median of y as all "
        "others, it would set every scale by itself. If it is an error, correct it; if it is real, fit a "
        "transformed y, such as its logarithm.",
        stacklevel=stacklevel + 1,
    )
