"""Smooth mean and spread of several outputs: polynomials in x, of the degree that predicts best."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import comb
from typing import final

import numpy as np

from localw2._validation import Array

_HIGHEST = 6  # degree that is tried
_MOST_TERMS, _ROWS_PER_TERM = 250, 20
_FOLDS, _PURPOSE = 5, 31
_RIDGE = 1e-6  # of the mean: only against columns that depend on each other
_SPREAD_RIDGE = 1e-3  # of the logarithm of the spread, in units of a row
_STEPS, _SMALL = 50, 1e-9
_WIDEST = 30.0  # logarithm of a variance, in units of the mean one


@final
@dataclass(frozen=True, eq=False)
class Powers:
    """All products of at most ``degree`` columns of x, each column moved to [-1, 1] by the rows of the fit.

    Beyond these rows x counts as their nearest end: a polynomial would soon be anywhere.

    >>> Powers.of(np.array([[0.0], [4.0]]), 2).evaluate(np.array([[3.0], [9.0]]))
    array([[1. , 0.5 , 0.25],
           [1. , 1. , 1. ]])
    """

    lower: Array
    upper: Array
    degree: int

    @classmethod
    def of(cls, x: Array, degree: int) -> Powers:
        """Those of rows x (N, p)."""
        return cls(x.min(0), x.max(0), degree)

    @property
    def n_terms(self) -> int:
        """How many products there are."""
        return comb(len(self.lower) + self.degree, self.degree)

    def evaluate(self, x: Array) -> Array:
        """The products at rows x (N, p), (N, n_terms), the constant first."""
        width = np.where(self.upper > self.lower, self.upper - self.lower, 1.0)
        z = 2 * (np.clip(x, self.lower, self.upper) - self.lower) / width - 1
        found = [np.ones(len(z))]
        for degree in range(1, self.degree + 1):
            found += [z[:, list(j)].prod(1) for j in combinations_with_replacement(range(z.shape[1]), degree)]
        return np.stack(found, 1)


def list_degrees(n: int, p: int) -> list[int]:
    """The degrees that n rows of p columns can tell apart.

    >>> list_degrees(2000, 2), list_degrees(300, 10), list_degrees(30, 3)
    ([0, 1, 2, 3, 4, 5, 6], [0, 1], [0])
    """
    most = min(_MOST_TERMS, n // _ROWS_PER_TERM)
    return [0, *(d for d in range(1, _HIGHEST + 1) if comb(p + d, d) <= most)]


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
            degree = _choose_spread(x, squares, folds)
            powers = Powers.of(x, degree)
            spread = fit_spread(powers.evaluate(x), squares)
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


def _deviance(features: Array, squares: Array, weights: Array) -> Array:
    """Minus the log-likelihood of each output, a row, (d,), up to constants and a factor 2."""
    logarithms = np.clip(features @ weights, -_WIDEST, _WIDEST)
    found: Array = (squares * np.exp(-logarithms) + logarithms).mean(0)
    return found


def _choose_spread(x: Array, squares: Array, folds: Array) -> int:
    """The degree whose variances predict the squares of the rows in other folds best."""
    lost = {}
    for degree in list_degrees(*x.shape):
        features = Powers.of(x, degree).evaluate(x)
        lost[degree] = 0.0
        for fold in range(folds.max() + 1):
            inside = folds == fold
            weights = fit_spread(features[~inside], squares[~inside])
            lost[degree] += float(inside.sum() * _deviance(features[inside], squares[inside], weights).sum())
    return min(lost, key=lambda d: lost[d])
