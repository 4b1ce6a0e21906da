"""Smooth mean and covariance of several outputs, as smooth in x and the mean as held-out rows say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from localw2._validation import Array
from localw2.estimators.fields.levels import LevelBasis, LevelFunction
from localw2.estimators.fields.smoothing import (
    Basis,
    Candidate,
    SmoothFunction,
    average_fits,
    make_folds,
    solve_ridge,
)

_HELD_MEAN = (0.01, 0.1, 1.0)  # penalties of kernels in the mean, for outputs of variance 1
_HELD_SPREAD = (0.02, 0.1, 0.5, 2.5)  # in the logarithm of a variance
_SPREAD_DEGREE = 2  # of its polynomials: squares are noisy, and beyond it kernels need fewer rows
_LEVEL_TERMS, _LEVEL_DEGREE = 60, 3  # of its polynomials in the mean
_MIXED_DEGREE = 2  # of polynomials in the mean that mix outputs
_MOST_MIXED, _ROWS_PER_TERM = 300, 10  # coefficients of other outputs in the regression of one
_SPREAD_RIDGE = 1e-3  # of the logarithm of the spread, in units of a row
_STEPS, _ENOUGH = 50, 1e-8  # of Newton's method, and a gain per row that ends it
_SMALL, _TINY = 1e-9, 1e-9  # of squares in units of their mean; of a penalty a row
_WIDEST = 30.0  # logarithm of a variance, in units of the mean one

Fit = Callable[[Array, Array, list[Array]], list[Array]]
Deviances = Callable[[Array, Array], Array]


@final
@dataclass(frozen=True, eq=False)
class LocationScale:
    r"""Mean and covariance of d outputs as smooth functions of x.

    .. math:: z_j = m_j(x) + r_j, \qquad r_j = \sum_{l < j} c_{jl}(x, m)\, r_l + e^{v_j(x, m) / 2} w_j

    The covariance may follow x or the first means m(x). The w have mean 0 and variance 1 and are
    uncorrelated, whatever their law. ``mixing`` has the functions c, row by row of a lower triangle,
    d (d - 1) / 2 of them; None means that they are 0.
    """

    center: SmoothFunction
    log_variance: LevelFunction
    mixing: LevelFunction | None

    @classmethod
    def learn(
        cls, x: Array, z: Array, seed: int, weights: Array | None = None
    ) -> tuple[LocationScale, Array]:
        """From rows x (N, p), z (N, d), their weights (N,); and the standardised w (N, d), out of fold.

        The mean is found twice, the second time with rows weighted by the inverse of their variance.
        """
        n = len(x)
        folds, own = make_folds(n, seed), np.ones(n) if weights is None else weights
        basis = Basis.of(x, seed, weights)
        features = basis.evaluate(x)
        unit = _variances(z, own)
        known, root = unit > 0, np.sqrt(np.where(unit > 0, unit, 1.0))
        target, precision = z / root, np.ones(n)
        for _ in range(2):
            center, means = _fit_mean(basis, features, target, own * precision, folds)
            residuals = target - means
            levels = LevelBasis.of(basis, means, folds, seed, weights, _LEVEL_TERMS)
            blocks = features + levels.evaluate_means(means)
            squares = residuals**2 + _SMALL
            log_variance, logarithms = _fit_variances(levels, blocks, squares, own, folds)
            total = (to_variances(logarithms) * unit).sum(1)
            precision = 1 / np.where(total > 0, total, 1.0)
            precision /= precision.mean()
        mixing, rest = _fit_mixing(x, means, residuals, own, to_variances(-logarithms), folds, seed)
        if mixing is not None:
            squares = rest**2 + _SMALL
            log_variance, _ = _fit_variances(levels, blocks, squares, own, folds)
            mixing = mixing.hold(x[own > 0], means[own > 0])
            pairs = [(j, k) for j in range(z.shape[1]) for k in range(j)]
            ratios = np.array([root[j] / root[k] if known[k] else 0.0 for j, k in pairs])
            mixing = mixing.scale(ratios).measure_means(root)
        # A logarithm is linear in its features, so that where they end a variance can be one that no row has.
        log_variance = log_variance.hold(x[own > 0], means[own > 0]).cap(np.log(squares[own > 0].max(0)))
        log_variance = log_variance.shift(2 * np.log(root)).measure_means(root)
        found = cls(center.scale(root), log_variance, mixing)
        return found, rest * root / found._scale(x, means * root)

    def rescale(self, factors: Array) -> LocationScale:
        """The same with factors (d,) on the standard deviations of what other outputs do not tell."""
        return replace(self, log_variance=self.log_variance.shift(2 * np.log(factors)))

    def mean(self, x: Array) -> Array:
        """The mean at rows x (N, p), (N, d)."""
        return self.center.evaluate(x)

    def scale(self, x: Array) -> Array:
        """The standard deviations at rows x (N, p) of what other outputs do not tell, (N, d)."""
        return self._scale(x, self.mean(x))

    def _scale(self, x: Array, mean: Array) -> Array:
        """The same where the mean (N, d) is another one, such as one out of fold."""
        found: Array = np.exp(self.log_variance.evaluate(x, mean) / 2)
        return found

    def place(self, x: Array, draws: Array) -> Array:
        """Standardised draws (S, N, d) with the mean and the covariance of rows x (N, p)."""
        mean = self.mean(x)
        found: Array = self._scale(x, mean) * draws
        if self.mixing is not None:
            coefficients, start = self.mixing.evaluate(x, mean), 0
            for j in range(1, found.shape[-1]):
                found[..., j] += np.einsum("nk,snk->sn", coefficients[:, start : start + j], found[..., :j])
                start += j
        return found + mean


def _variances(z: Array, weights: Array) -> Array:
    mean = np.average(z, axis=0, weights=weights)
    found: Array = np.average((z - mean) ** 2, axis=0, weights=weights)
    return found


def _fit_mean(
    basis: Basis, features: list[Array], z: Array, weights: Array, folds: Array
) -> tuple[SmoothFunction, Array]:
    """The mean of z (N, d) by least squares with weights (N,), and its predictions (N, d) out of fold."""
    fit, deviances = _least_squares(z, weights)
    candidates = basis.candidates(len(z), _HELD_MEAN)
    parts, values = average_fits(features, candidates, folds, fit, deviances)
    return basis.assemble(parts, z.shape[1]), values


def _fit_variances(
    basis: LevelBasis, features: list[Array], squares: Array, weights: Array, folds: Array
) -> tuple[LevelFunction, Array]:
    """Logarithms of variances from squares (N, d), and their values (N, d) out of fold."""

    def fit(block: Array, rows: Array, penalties: list[Array]) -> list[Array]:
        return [fit_spread(block[rows], squares[rows], penalty, weights[rows]) for penalty in penalties]

    def deviances(values: Array, rows: Array) -> Array:
        logarithms = np.clip(values, -_WIDEST, _WIDEST)
        found: Array = weights[rows] @ (squares[rows] * np.exp(-logarithms) + logarithms)
        return found

    n, d = squares.shape
    of_x = basis.of_x.candidates(n, _HELD_SPREAD, highest=_SPREAD_DEGREE)
    candidates = basis.candidates(n, of_x, _LEVEL_DEGREE, hold_constant=False)
    parts, values = average_fits(features, candidates, folds, fit, deviances)
    return basis.assemble(parts, d), values


def _fit_mixing(
    x: Array, means: Array, residuals: Array, own: Array, precisions: Array, folds: Array, seed: int
) -> tuple[LevelFunction | None, Array]:
    """How residuals (N, d) follow from those before them, and what is left of them (N, d), out of fold."""
    n, d = residuals.shape
    rest = residuals.copy()
    if d == 1:
        return None, rest
    most_terms = min(_MOST_MIXED, n // _ROWS_PER_TERM) // (d - 1)
    basis = LevelBasis.of(Basis.of(x, seed, own, most_terms), means, folds, seed, own, most_terms)
    of_x = basis.of_x.candidates(n, lowest=-1, hold_constant=True)
    candidates = basis.candidates(n, of_x, _MIXED_DEGREE, hold_constant=True)
    blocks = basis.evaluate(x, means)
    usual = np.sqrt(np.average(residuals**2, axis=0, weights=own))
    usual = np.where(usual > 0, usual, 1.0)
    before = residuals / usual
    found: list[tuple[Candidate, Array]] = []
    n_pairs, start = d * (d - 1) // 2, 0
    for j in range(1, d):
        features = [(before[:, :j, None] * terms[:, None]).reshape(n, -1) for terms in blocks]
        fit, deviances = _least_squares(residuals[:, j : j + 1], own * precisions[:, j])
        repeated = [replace(one, penalty=np.tile(one.penalty, j)) for one in candidates]
        parts, values = average_fits(features, repeated, folds, fit, deviances)
        rest[:, j] -= values[:, 0]
        for candidate, coefficients in parts:
            of_pairs = np.zeros((len(coefficients) // j, n_pairs))
            of_pairs[:, start : start + j] = coefficients.reshape(j, -1).T / usual[:j]
            found.append((candidate, of_pairs))
        start += j
    return basis.assemble(found, n_pairs), rest


def _least_squares(z: Array, weights: Array) -> tuple[Fit, Deviances]:
    """Ridge regressions of z (N, d) with weights (N,), and minus twice their profile likelihood."""

    def fit(block: Array, rows: Array, penalties: list[Array]) -> list[Array]:
        return solve_ridge(block[rows], z[rows], weights[rows], penalties)

    def deviances(values: Array, rows: Array) -> Array:
        squares = np.average((z[rows] - values) ** 2, axis=0, weights=weights[rows])
        found: Array = len(values) * np.log(squares + _SMALL**2)
        return found

    return fit, deviances


def to_variances(logarithms: Array) -> Array:
    """The exponential, of arguments that are not beyond reason."""
    found: Array = np.exp(np.clip(logarithms, -_WIDEST, _WIDEST))
    return found


def fit_spread(
    features: Array, squares: Array, penalty: Array | None = None, weights: Array | None = None
) -> Array:
    r"""Coefficients b (F, d) with the least :math:`\sum_i w_i (q_i e^{-\eta_i} + \eta_i) + \sum_k h_k b_k^2`.

    That is the likelihood of Gaussian residuals with squares q and logarithms of variances
    :math:`\eta = F b`, by Newton's method with Fisher's information, which is the same for all outputs. The
    penalty h is small, and 0 for the constant, unless given.
    """
    n = len(features)
    own = np.ones((n, 1)) if weights is None else weights[:, None]
    if penalty is None:
        penalty = np.full(features.shape[1], _SPREAD_RIDGE * n)
        penalty[0] = 0.0
    held = penalty[:, None]
    step = np.linalg.inv((own * features).T @ features + np.diag(2 * penalty + _TINY * n))
    found = np.zeros((features.shape[1], squares.shape[1]))
    found[0] = np.log(np.average(squares, axis=0, weights=own[:, 0]))

    def evaluate(coefficients: Array) -> tuple[Array, Array]:
        logarithms = np.clip(features @ coefficients, -_WIDEST, _WIDEST)
        ratios = squares * np.exp(-logarithms)
        return (own * (ratios + logarithms)).sum(0) + (held * coefficients**2).sum(0), ratios

    value, ratios = evaluate(found)
    rate = np.ones(squares.shape[1])
    for _ in range(_STEPS):
        slope = features.T @ (own * (ratios - 1)) - 2 * held * found
        tried = found + rate * (step @ slope)
        after, new_ratios = evaluate(tried)
        better = after < value
        gain = np.where(better, value - after, 0.0)
        found, value = np.where(better, tried, found), np.where(better, after, value)
        ratios = np.where(better, new_ratios, ratios)
        rate = np.where(better, np.minimum(1.0, 2 * rate), rate / 4)
        if (gain < _ENOUGH * n).all() and better.any():
            break
    return found
