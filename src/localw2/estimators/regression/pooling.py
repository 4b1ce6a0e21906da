r"""How members are weighted: by the CRPS of the pool on rows that none of them has seen.

The CRPS of a pool with weights w is :math:`w \cdot a - w^\top B w / 2` with :math:`a_k = E|S_k - y|` and
:math:`B_{kl} = E|S_k - S_l|`, for draws S of the members: a quadratic programme on the simplex. With norms in
place of absolute values it is the energy score of several outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from localw2._validation import Array, average, mean_of_all

NARROWINGS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # factors on the spread of a pool
_INSIDE = 0.9  # of the rows are to be inside of intervals
LEAST = 0.05  # the smallest weight that a member is kept for
_PAIRED = 32  # draws of each member that are compared pair by pair, where there are several outputs


def pool_weights(draws: list[Array], y: Array, of_rows: Array | None = None) -> Array:
    """Weights (K,) of members with draws (S, N, d) each at rows with outputs y (N, d); small ones are 0.

    ``of_rows`` (N,) are weights of the rows, by which scores are averaged.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=(500, 1))
    >>> right, wrong = rng.normal(size=(50, 500, 1)), rng.normal(3, 1, size=(50, 500, 1))
    >>> pool_weights([right, wrong], y)
    array([1., 0.])
    """
    scale = np.where(y.std(0) > 0, y.std(0), 1.0)
    parts, target = [part / scale for part in draws], y / scale
    to_y = np.array([distance_to(part, target, of_rows) for part in parts])
    between = np.array([[_distance_between(p, q, p is q, of_rows) for q in parts] for p in parts])
    weights = _solve(to_y, between)
    kept = np.flatnonzero(weights >= LEAST)
    found = np.zeros(len(draws))
    found[kept] = _solve(to_y[kept], between[np.ix_(kept, kept)])
    return found


def find_narrowing(draw: Callable[[float], Array], y: Array, of_rows: Array | None = None) -> float:
    """The factor on the spread of a pool with the best score, if its intervals are clearly too wide, else 1.

    ``draw(factor)`` gives the draws (S, N, d) of the pool for y (N, d). Calibrated laws are too wide
    together, but held-out rows tell a factor on the spread only roughly: at least one standard error more
    than 90 % of them stay inside of the narrowed 90 % intervals.

    >>> rng = np.random.default_rng(0)
    >>> y, wide = rng.normal(size=(900, 1)), rng.normal(0, 1.5, size=(100, 900, 1))
    >>> find_narrowing(lambda factor: factor * wide, y)
    0.7
    """
    ends = (1 - _INSIDE) / 2, (1 + _INSIDE) / 2
    n = len(y) if of_rows is None else of_rows.sum() ** 2 / (of_rows**2).sum()
    enough = _INSIDE + np.sqrt(_INSIDE * (1 - _INSIDE) / n)
    best = mean_score(draw(1.0), y, of_rows), 1.0
    for factor in NARROWINGS:
        draws = draw(factor)
        lower, upper = np.quantile(draws, ends, axis=0, method="weibull")
        if mean_of_all((lower <= y) & (y <= upper), of_rows) < enough:
            break
        best = min(best, (mean_score(draws, y, of_rows), factor))
    return best[1]


def distance_to(draws: Array, y: Array, of_rows: Array | None = None) -> float:
    """The mean distance of draws (S, N, d) from y (N, d)."""
    far = np.linalg.norm(draws - y, axis=2)
    return float(far.mean() if of_rows is None else average(far.mean(0), of_rows))


def mean_score(draws: Array, y: Array, of_rows: Array | None = None) -> float:
    """The CRPS, or the energy score, of draws (S, N, d) for y (N, d), without bias by the number of draws."""
    return distance_to(draws, y, of_rows) - _distance_between(draws, draws, True, of_rows) / 2


def _solve(to_y: Array, between: Array) -> Array:
    k = len(to_y)
    unit = to_y.min()  # the solver's tolerance is absolute
    if k == 1 or unit == 0:  # a member without error, if y is constant
        single: Array = np.eye(k)[to_y.argmin()]
        return single
    found = minimize(
        lambda w: (w @ to_y - w @ between @ w / 2) / unit,
        np.full(k, 1 / k),
        jac=lambda w: (to_y - between @ w) / unit,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * k,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(k)},
        options={"ftol": 1e-9, "maxiter": 200},
    )
    weights = np.clip(found.x, 0.0, 1.0)
    solved: Array = weights / weights.sum()
    return solved


def _distance_between(first: Array, second: Array, same: bool, of_rows: Array | None) -> float:
    """The mean distance between independent draws of two members, averaged over rows."""
    if first.shape[2] == 1:
        n, m = len(first), len(second)
        if same:
            return _sum_of_pairs(first, of_rows) / (n * (n - 1))
        both = _sum_of_pairs(np.concatenate([first, second]), of_rows)
        return (both - _sum_of_pairs(first, of_rows) - _sum_of_pairs(second, of_rows)) / (2 * n * m)
    first, second = first[:_PAIRED], second[:_PAIRED]
    total = sum(average(np.linalg.norm(second - one, axis=2).sum(0), of_rows) for one in first)
    pairs = len(first) * (len(second) - 1) if same else len(first) * len(second)  # none with itself
    return float(total / pairs)


def _sum_of_pairs(draws: Array, of_rows: Array | None) -> float:
    """The sum over ordered pairs of draws (S, N, 1) of their distance, averaged over rows."""
    ordered = np.sort(draws[..., 0], axis=0)
    ranks = 2 * np.arange(1, len(ordered) + 1) - len(ordered) - 1
    return float(2 * average(ranks @ ordered, of_rows))
