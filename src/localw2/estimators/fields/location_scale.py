"""Smooth mean and spread of several outputs: polynomials in x, of the degree that predicts best."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from localw2._validation import Array
from localw2.estimators.powers import Powers, list_degrees

_FOLDS, _PURPOSE = 5, 31
_RIDGE = 1e-6  # of the mean: only against columns that depend on each other
_SPREAD_RIDGE = 1e-3  # of the logarithm of the spread, in units of a row
_STEPS, _SMALL = 50, 1e-9
_WIDEST = 30.0  # logarithm of a variance, in units of the mean one


@final
@dataclass(frozen=True, eq=False)
class LocationScale:
    r"""Mean :math:`P_m(x) A` and variances :math:`\exp(P_v(x) B)` of d outputs, A (F, d) and B (G, d)."""

    mean_powers: Powers
    mean_weights: Array
    spread_powers: Powers
    spread_weights: Array

    @classmethod
    def learn(cls, x: Array, z: Array, seed: int) -> tuple[LocationScale, Array]:
        """From rows x (N, p), z (N, d); and the standardised residuals (N, d), which are out of fold.

        The mean is found twice, the second time with rows weighted by the inverse of their variance.
        """
        folds = np.random.default_rng([seed, _PURPOSE]).permutation(len(x)) % min(_FOLDS, len(x))
        unit, weights = z.var(0), np.ones(len(x))
        for _ in range(2):
            means = {d: _cross_fit_mean(x, z, d, folds, weights) for d in list_degrees(*x.shape)}
            errors = {d: float(weights @ ((z - m) ** 2).sum(1)) for d, m in means.items()}
            best = min(errors, key=lambda d: errors[d])
            residuals = z - means[best]
            squares = residuals**2 / np.where(unit > 0, unit, 1.0) + _SMALL
            degrees = _choose_spread(x, squares, folds)
            powers = Powers.of(x, max(degrees))
            spread = _average_fits(powers.evaluate(x), squares, [Powers.of(x, d).n_terms for d in degrees])
            total = (to_variances(powers.evaluate(x) @ spread) * unit).sum(1)
            weights = 1 / np.where(total > 0, total, 1.0)
            weights /= weights.mean()
        spread[0] += np.log(np.where(unit > 0, unit, 1.0))  # the first term is the constant
        mean_powers = Powers.of(x, best)
        found = cls(mean_powers, _fit_mean(mean_powers.evaluate(x), z, weights), powers, spread)
        return found, residuals / found.scale(x)

    def rescale(self, factors: Array) -> LocationScale:
        """The same with factors (d,) on the standard deviations."""
        weights = self.spread_weights.copy()
        weights[0] += 2 * np.log(factors)
        return replace(self, spread_weights=weights)

    def mean(self, x: Array) -> Array:
        """The mean at rows x (N, p), (N, d)."""
        found: Array = self.mean_powers.evaluate(x) @ self.mean_weights
        return found

    def scale(self, x: Array) -> Array:
        """The standard deviations at rows x (N, p), (N, d)."""
        found: Array = np.exp(self.spread_powers.evaluate(x) @ self.spread_weights / 2)
        return found


def _fit_mean(features: Array, z: Array, weights: Array) -> Array:
    left = features * weights[:, None]
    gram = left.T @ features
    gram[np.diag_indices_from(gram)] *= 1 + _RIDGE
    found: Array = np.linalg.solve(gram, left.T @ z)
    return found


def _cross_fit_mean(x: Array, z: Array, degree: int, folds: Array, weights: Array) -> Array:
    """Predictions (N, d) at every row by the fit to the other folds."""
    features, found = Powers.of(x, degree).evaluate(x), np.empty_like(z)
    for fold in range(folds.max() + 1):
        inside = folds == fold
        found[inside] = features[inside] @ _fit_mean(features[~inside], z[~inside], weights[~inside])
    return found


def to_variances(logarithms: Array) -> Array:
    """The exponential, of arguments that are not beyond reason."""
    found: Array = np.exp(np.clip(logarithms, -_WIDEST, _WIDEST))
    return found


def fit_spread(features: Array, squares: Array) -> Array:
    r"""Coefficients (F, d) with the least :math:`\sum_i q_i e^{-\eta_i} + \eta_i`, by Newton's method.

    That is the likelihood of Gaussian residuals with squares q; the coefficients but the constant are held
    near 0 by a small penalty. Steps are by Fisher's information, which is the same for all outputs.
    """
    n = len(features)
    held = np.full(features.shape[1], _SPREAD_RIDGE * n)
    held[0] = 0.0
    step = np.linalg.inv(features.T @ features + np.diag(held + 1e-9 * n))
    found = np.zeros((features.shape[1], squares.shape[1]))
    found[0] = np.log(squares.mean(0))
    value = _deviance(features, squares, found) + (held[:, None] * found**2).sum(0) / n
    rate = np.ones(squares.shape[1])
    for _ in range(_STEPS):
        slope = features.T @ (squares / to_variances(features @ found) - 1) - 2 * held[:, None] * found
        tried = found + rate * (step @ slope)
        after = _deviance(features, squares, tried) + (held[:, None] * tried**2).sum(0) / n
        better = after < value
        found = np.where(better, tried, found)
        gain, value = np.where(better, value - after, 0.0), np.where(better, after, value)
        rate = np.where(better, np.minimum(1.0, 2 * rate), rate / 4)
        if (gain < 1e-8).all() and better.any():
            break
    return found


def _average_fits(features: Array, squares: Array, n_terms: list[int]) -> Array:
    """The mean of the fits to the first so many features: lower degrees come first in them."""
    found = np.zeros((features.shape[1], squares.shape[1]))
    for count in n_terms:
        found[:count] += fit_spread(features[:, :count], squares) / len(n_terms)
    return found


def _deviance(features: Array, squares: Array, weights: Array) -> Array:
    """Minus the log-likelihood of each output, a row, (d,), up to constants and a factor 2."""
    found: Array = _row_deviances(features, squares, weights).mean(0)
    return found


def _row_deviances(features: Array, squares: Array, weights: Array) -> Array:
    """The same of every row, (N, d)."""
    logarithms = np.clip(features @ weights, -_WIDEST, _WIDEST)
    found: Array = squares * np.exp(-logarithms) + logarithms
    return found


def _choose_spread(x: Array, squares: Array, folds: Array) -> list[int]:
    """The degrees whose variances predict the squares of rows in other folds as well as the best.

    That is within a standard error: rows can hardly tell them apart, and their mean is surer than any.
    """
    lost = {}
    for degree in list_degrees(*x.shape):
        features = Powers.of(x, degree).evaluate(x)
        lost[degree] = np.empty(len(x))
        for fold in range(folds.max() + 1):
            inside = folds == fold
            weights = fit_spread(features[~inside], squares[~inside])
            lost[degree][inside] = _row_deviances(features[inside], squares[inside], weights).sum(1)
    best = min(lost, key=lambda d: float(lost[d].mean()))
    gaps = {d: one - lost[best] for d, one in lost.items()}
    return [d for d, gap in gaps.items() if gap.mean() <= gap.std() / np.sqrt(len(x))]
