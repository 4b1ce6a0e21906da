r"""Curves measured at points of their own, each with an error, as curves on one grid.

A curve is :math:`u_i(t) = \phi(t) c_i` with cubic splines :math:`\phi`, measured as :math:`y_{ik} =
u_i(t_{ik}) + s\,e_{ik}`, and :math:`c_i \sim N(A^\top P(x_i), e^{b \cdot P(x_i)} S)` with polynomials P of
degree 2 in x. A, b, S and s are found by the EM algorithm. A curve that is measured at few points is
uncertain between them: its mean given the measurements varies less than curves do. So a curve is *drawn*
given its own measurements, and the drawn curves vary as much as curves do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.interpolate import BSpline

from localw2._validation import Array, as_array
from localw2.estimators.fields.location_scale import fit_spread, to_variances
from localw2.estimators.powers import Powers, list_degrees

_MOST_SPLINES, _FEWEST_SPLINES, _DEGREE = 14, 4, 3
_STEPS, _ENOUGH = 200, 1e-4
_RENEWED = 10  # steps after which the factors on the spread are
_HELD, _PURPOSE = 0.2, 33  # share of the measurements that the stated error is found on


@final
@dataclass(frozen=True, eq=False)
class SmoothedCurves:
    """Curves (N, G) on a ``grid`` (G,), drawn given their measurements.

    ``noise`` is the SD of a measurement, and ``error`` the share of the variance of held-out measurements
    that the curves through the others leave unexplained (measurement errors included).
    """

    grid: Array
    fields: Array
    noise: float
    error: float


def read_curves(Y: Any, points: Any) -> tuple[list[Array], list[Array]]:
    """Checked measurements and their points, curve by curve."""
    if len(Y) != len(points):
        raise ValueError(f"Y has {len(Y)} curves and points {len(points)}; give the points of every curve.")
    for i, (y, t) in enumerate(zip(Y, points, strict=True)):
        if np.size(y) != np.size(t) or not np.size(y):
            raise ValueError(
                f"curve {i} has {np.size(y)} values at {np.size(t)} points; give one value for each, and "
                "leave out curves without any."
            )
    values = [_read_numbers(one, f"curve {i} of Y") for i, one in enumerate(Y)]
    places = [_read_numbers(one, f"curve {i} of points") for i, one in enumerate(points)]
    if np.ptp(np.concatenate(places)) == 0:
        raise ValueError("all measurements are at one point; then y is a number, for LocalW2Regressor.")
    return values, places


def _read_numbers(values: Any, name: str) -> Array:
    """Checked numbers (n,) in double precision, which splines and files ask for."""
    return as_array(values, name).ravel().astype(np.float64, copy=False)


def smooth_curves(
    values: list[Array], points: list[Array], x: Array, grid: Array, seed: int, weights: Array | None = None
) -> SmoothedCurves:
    """Curves on a grid from measurements at points of their own, x (N, p) being the inputs.

    A curve counts by its weight (N,).
    """
    own = np.ones(len(values)) if weights is None else weights
    values, center, unit = _standardise(values, own)
    everywhere = np.concatenate(points)
    low, high = min(everywhere.min(), grid.min()), max(everywhere.max(), grid.max())
    typical = int(np.median([len(t) for t in points]))
    n_splines = int(np.clip(typical, _FEWEST_SPLINES, _MOST_SPLINES))
    inner = np.linspace(low, high, n_splines - _DEGREE + 1)
    knots = np.concatenate([np.full(_DEGREE, low), inner, np.full(_DEGREE, high)])
    degree = max(d for d in list_degrees(*x.shape) if d <= 2)
    terms = Powers.of(x, degree).evaluate(x)
    rng = np.random.default_rng([seed, _PURPOSE])

    hidden = [rng.random(len(t)) < _HELD for t in points]
    hidden = [h if not h.all() else np.zeros(len(h), bool) for h in hidden]
    shown = [y[~h] for y, h in zip(values, hidden, strict=True)]
    seen = _fit(shown, [_splines(t[~h], knots) for t, h in zip(points, hidden, strict=True)], terms, own)
    left, total, shares = [], [], []
    for y, t, h, c, weight in zip(values, points, hidden, seen.means, own, strict=True):
        left.append(y[h] - _splines(t[h], knots) @ c)
        total.append(y[h])
        shares.append(np.full(int(h.sum()), weight))
    error = 0.0
    if sum(map(len, total)) > 1:
        held, missed, share = np.concatenate(total), np.concatenate(left), np.concatenate(shares)
        variance = np.average((held - np.average(held, weights=share)) ** 2, weights=share)
        error = float(np.average(missed**2, weights=share) / variance) if variance > 0 else 0.0

    whole = _fit(values, [_splines(t, knots) for t in points], terms, own)
    roots = np.linalg.cholesky(whole.covariances)
    drawn = whole.means + np.einsum("nij,nj->ni", roots, rng.normal(size=whole.means.shape))
    fields = center + unit * (drawn @ _splines(grid, knots).T)
    return SmoothedCurves(grid, fields, unit * float(np.sqrt(whole.noise)), error)


def _standardise(values: list[Array], own: Array) -> tuple[list[Array], float, float]:
    """Measurements of mean 0 and SD 1, and the mean and SD they had: squares lose the digits of an offset.

    Equal ones become 0, with the SD 0.
    """
    every, shares = np.concatenate(values), np.repeat(own, [len(y) for y in values])
    first = every[0]  # a mean of equal numbers is off by the rounding of their sum
    center = float(first + np.average(every - first, weights=shares))
    size = float(np.abs(every - center).max()) or 1.0  # so that squares are numbers in any unit
    unit = size * float(np.sqrt(np.average(((every - center) / size) ** 2, weights=shares)))
    return [(y - center) / (unit or 1.0) for y in values], center, unit


def _splines(t: Array, knots: Array) -> Array:
    """The splines at points t (n,), (n, K)."""
    found: Array = BSpline.design_matrix(t, knots, _DEGREE).toarray() if len(t) else np.empty((0, 0))
    return found if len(t) else np.empty((0, len(knots) - _DEGREE - 1))


@final
@dataclass(frozen=True, eq=False)
class _Posterior:
    """Means (N, K), covariances (N, K, K) of coefficients given the measurements, whose variance is noise."""

    means: Array
    covariances: Array
    noise: float


def _fit(values: list[Array], designs: list[Array], terms: Array, own: Array) -> _Posterior:
    """The EM algorithm, with the factors on the spread renewed now and then; curves count by ``own`` (N,)."""
    n, k = len(values), designs[0].shape[1]
    grams = np.stack([b.T @ b for b in designs])
    products = np.stack([b.T @ y for b, y in zip(designs, values, strict=True)])
    level, design = np.concatenate(values), np.concatenate(designs)
    curve = np.repeat(np.arange(n), [len(y) for y in values])
    shares = own[curve]
    weights = np.zeros((terms.shape[1], k))
    weights[0] = np.average(level, weights=shares)
    variance = float(np.average((level - weights[0, 0]) ** 2, weights=shares)) or 1.0
    spread, noise = variance * np.eye(k), variance / 4
    root = np.sqrt(own)[:, None]
    pseudo = np.linalg.pinv(root * terms) * root.T
    tiny = 1e-8 * variance
    factors = np.ones(n)
    for step in range(_STEPS):
        inverse = np.linalg.inv(spread)
        covariances = np.linalg.inv(inverse / factors[:, None, None] + grams / noise)
        prior = terms @ weights @ inverse / factors[:, None]
        means = np.einsum("nij,nj->ni", covariances, prior + products / noise)
        weights = pseudo @ means
        off = means - terms @ weights
        second = covariances + off[:, :, None] * off[:, None]
        if step % _RENEWED == _RENEWED - 1 and terms.shape[1] > 1:
            squares_of = np.einsum("ij,nij->n", inverse, second) / k
            squares_of /= np.average(squares_of, weights=own)
            factors = to_variances(terms @ fit_spread(terms, squares_of[:, None], weights=own))[:, 0]
        spread = np.average(second / factors[:, None, None], axis=0, weights=own) + tiny * np.eye(k)
        missed = float(shares @ (level - (design * means[curve]).sum(1)) ** 2)
        missed += float(np.einsum("n,nij,nji->", own, grams, covariances, optimize=True))
        after = max(missed / float(shares.sum()), tiny)
        done = abs(after - noise) <= _ENOUGH * noise and step > 3 * _RENEWED
        noise = after
        if done:
            break
    return _Posterior(means, (covariances + covariances.transpose(0, 2, 1)) / 2, noise)
