"""Are draws independent between rows? What is tested row by row needs that."""

from __future__ import annotations

import numpy as np
from scipy import stats

from localw2._validation import Array

# Rows and columns of the draws that are kept to see whether rows share their noise.
PROBED_ROWS, PROBED_COLUMNS = 1000, 8
# Noise that more rows than this share makes draws useless as independent ones.
SHARED_NOISE = 5.0
# With fewer draws or rows than these, shared noise cannot be told from chance.
LEAST_DRAWS, LEAST_ROWS = 10, 20
_MIRRORED = -0.99  # correlation of two draws that are z and -z


class DependentDrawsWarning(UserWarning):
    """A sampler's draws are not independent, either between rows or between calls."""


def choose_probe(n_rows: int, n_columns: int) -> tuple[Array, Array]:
    """Some rows and columns of draws (S, N, C), enough to see whether rows share their noise."""
    return space_evenly(n_rows, PROBED_ROWS), space_evenly(n_columns, PROBED_COLUMNS)


def describe_shared_noise(shared_noise: float, whose: str, consequence: str) -> str:
    """What to say of draws that share noise between rows."""
    return (
        f"{whose} draws are not independent between rows: about {shared_noise:.0f} rows share their noise, "
        "as when a call uses one omega or one set of weights for all rows (draws that depend on the draws "
        f"before them look alike). {consequence} Draw independently for every row, as the estimators' sample "
        "does."
    )


def measure_shared_noise(probe: Array) -> float:
    r"""How many rows share the noise of a draw (S, R, C): about 1 if rows are independent, g if g rows do.

    With e the draws standardised in each of the R rows, :math:`\langle e_s, e_t\rangle / R` of two draws
    has variance 1/R around 0; noise common to g rows makes that g/R, whatever its sign in each row. The
    result is the largest such factor over the columns, and 1.0 where there are too few draws or rows. Draws
    that mirror each other (z and -z) do not count, and neither do draws in ascending order in every row, such
    as quantiles: in ranks the order of draws does not matter.
    """
    probe = np.asarray(probe, np.float64)  # in single precision squares overflow or vanish from 1e20 on
    if bool((np.diff(probe, axis=0) >= 0).all()):
        return 1.0
    distinct = np.unique(probe.reshape(len(probe), -1), axis=0)
    if min(LEAST_DRAWS, len(probe) / 2) <= len(distinct) < len(probe):  # repeats are not shared noise
        probe = distinct.reshape(-1, *probe.shape[1:])
    n, factors = len(probe), [1.0]
    if n < LEAST_DRAWS:
        return 1.0
    centred = probe - probe.mean(0)
    spread = np.sqrt((centred**2).sum(0) / (n - 1))
    for column, std in zip(np.moveaxis(centred, 2, 0), spread.T, strict=True):
        moving = std > 1e-9 * std.max(initial=0.0)
        if moving.sum() < LEAST_ROWS:
            continue
        e = column[:, moving] / std[moving]
        products = e @ e.T / e.shape[1]
        size = np.sqrt(np.diag(products))
        mirrored = products < _MIRRORED * size * size[:, None]
        counted = np.triu(np.ones((n, n), bool), 1)
        if mirrored.sum(1).max() <= 1:  # noise that is shared has many draws opposite to each
            counted &= ~mirrored
        products = products[counted] + 1 / n  # after centring their mean is -1/n
        factor = e.shape[1] * float(np.mean(products**2))
        if stats.chi2.sf(factor * len(products), len(products)) <= 1e-6:  # not by chance
            factors.append(factor)
    return max(factors)


def space_evenly(n: int, most: int) -> Array:
    """At most ``most`` of 0 .. n - 1, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))
