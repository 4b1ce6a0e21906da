"""Gaussian laws of random coefficients: maximum likelihood, matching in balls, and identifiability."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy import optimize
from scipy.spatial import cKDTree
from torch import Tensor

from localw2._validation import Array, average
from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.discrepancies import SquaredW2
from localw2.losses.objective import Objective

# Each round takes its center, scale and balls from the one before; after three, further rounds moved the SDs
# of the linear example by 2 % of their standard errors.
ROUNDS = 3
# The smallest scale of a row, as a fraction of the residuals' SD: a row that a first fit takes to be (nearly)
# free of noise would otherwise outweigh all others.
SCALE_FLOOR = 0.05
# Bounds the likelihood, which is infinite where a row with no spread is fitted exactly.
VARIANCE_FLOOR = 1e-8
# Rows whose residuals may stand for each other's: with fewer, tails are cut (each row's are standardised);
# with all, coefficients of unlike laws lend each other their shapes.
ALIKE = 120
# Rows whose residuals are gathered at a time.
PART = 20_000

Slope = Callable[[Array], tuple[float, Array]]


@final
@dataclass(frozen=True)
class CoefficientLaw:
    """The Gaussian law of the coefficients, intercept first: mean (p + 1,), covariance (p + 1, p + 1)."""

    mean: Array
    covariance: Array

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of y at rows x (N, p), (N,) each."""
        design = with_ones(x)
        return design @ self.mean, np.sqrt(self.variance(design))

    @property
    def std(self) -> Array:
        """The SD of each coefficient, (p + 1,)."""
        std: Array = np.sqrt(np.diag(self.covariance))
        return std

    def variance(self, design: Array) -> Array:
        """The variance of y at each row of the design (1, x): (N,)."""
        variance: Array = np.clip(np.einsum("ij,jk,ik->i", design, self.covariance, design), 0, None)
        return variance


@final
@dataclass(frozen=True)
class Frame:
    """The rows in units where every fit is well conditioned, so that fits do not depend on the user's units.

    (1, x) times ``turn`` is ``design``; ``y`` is shifted and divided by the SD of its residuals. Independent
    coefficients only allow each column its own unit; a full covariance allows any basis, so an orthonormal
    one is used. A covariance is ``factor @ factor.T``, with entries of the factor ``free`` or zero. The sign
    of a factor does not matter, so s = 0 is not a boundary, and a minimiser there is found like any other.
    ``weights`` (N,) of the rows, if there are any, have mean 1.
    """

    design: Array
    y: Array
    turn: Array
    free: Array
    shift: float
    scale: float
    weights: Array | None = None

    @classmethod
    def of(cls, x: Array, y: Array, full: bool, weights: Array | None = None) -> Frame:
        """The frame of x (N, p) and y (N,); ``scale`` is 0 where a line fits y exactly."""
        rows = with_ones(x)
        units = np.sqrt(average(rows**2, weights))
        turn = np.diag(1 / np.where(units > 0, units, 1))
        if full:
            _, lengths, basis = np.linalg.svd(_weigh(rows @ turn, weights), full_matrices=False)
            kept = lengths > 1e-10 * lengths[0]
            turn = turn @ (basis[kept].T * (np.sqrt(len(rows)) / lengths[kept]))
        design = rows @ turn
        shift = average(y, weights)
        centred = y - shift
        equal = np.ones(len(y)) if weights is None else 1 / weights
        residual = centred - design @ _regress(design, centred, equal)
        scale = np.sqrt(average(residual**2, weights))
        # Rounding leaves residuals of about 1e-16 where the fit is exact.
        scale = scale if scale > 1e-12 * max(np.abs(y).max(), np.ptp(y)) else 0.0
        free = free_entries(turn.shape[1], full)
        return cls(design, centred / (scale or 1), turn, free, shift, scale, weights)

    def variance(self, factor: Array) -> Array:
        """The variance of y at each row, (N,), in the units of the frame; never quite zero."""
        variance: Array = ((self.design @ factor) ** 2).sum(1) + VARIANCE_FLOOR
        return variance

    def regress(self, variance: Array) -> Array:
        """The mean coefficients given the variance of each row: the debiased loss on singletons."""
        return _regress(self.design, self.y, variance if self.weights is None else variance / self.weights)

    def start(self) -> Array:
        """A first factor: squared residuals regressed on squares, weighted once; nowhere quite zero."""
        squares = self.design**2
        least = 0.02 / squares.shape[1] / np.maximum(average(squares, self.weights), VARIANCE_FLOOR)
        weights = np.ones(len(self.y))
        for _ in range(2):
            residual = self.y - self.design @ self.regress(weights)
            left, right = squares / weights[:, None], residual**2 / weights
            found = optimize.nnls(_weigh(left, self.weights), _weigh(right, self.weights))[0]
            variances = np.maximum(found, least)
            weights = squares @ variances
        return np.diag(np.sqrt(variances))

    def start_at(self, law: CoefficientLaw) -> Array:
        """The factor of a law that is known to be near."""
        if self.scale == 0:
            return np.zeros(self.free.shape)
        back = np.linalg.pinv(self.turn)
        inside = back @ law.covariance @ back.T / self.scale**2
        least = 1e-4 * max(float(np.diag(inside).max()), VARIANCE_FLOOR)
        if not self.free[1:, 0].any():  # independent coefficients
            return np.diag(np.sqrt(np.maximum(np.diag(inside), least)))
        return np.linalg.cholesky((inside + inside.T) / 2 + least * np.eye(len(inside)))

    def descend(self, loss: Slope, factor: Array) -> tuple[float, Array]:
        """Minimise a loss of the rows' variances, given with its slope in them, over the factor."""

        def objective(entries: Array) -> tuple[float, Array]:
            trial = np.zeros_like(factor)
            trial[self.free] = entries
            value, slope = loss(self.variance(trial))
            gradient = 2 * self.design.T @ (slope[:, None] * (self.design @ trial))
            return value, gradient[self.free]

        options = {"maxiter": 500, "ftol": 1e-11, "gtol": 1e-7}
        found = optimize.minimize(objective, factor[self.free], jac=True, method="L-BFGS-B", options=options)
        best = np.zeros_like(factor)
        best[self.free] = found.x
        return float(found.fun), best

    def law(self, factor: Array) -> CoefficientLaw:
        """Back to the user's units."""
        mean = self.turn @ self.regress(self.variance(factor)) * (self.scale or 1)
        mean[0] += self.shift
        spread = self.turn @ factor * self.scale
        return CoefficientLaw(mean, spread @ spread.T)


def most_likely(frame: Frame) -> Array:
    """The factor of largest Gaussian likelihood, from two starts: the moments, and equal shares."""
    loss = _likelihood_of_variance(frame)
    equal = np.eye(len(frame.free)) / np.sqrt(len(frame.free))
    found = [frame.descend(loss, start) for start in (frame.start(), equal)]
    return min(found, key=lambda value_and_factor: value_and_factor[0])[1]


def gather_residuals(design: Array, y: Array, law: CoefficientLaw, weights: Array | None = None) -> Array:
    """For every row the residuals of the ``ALIKE`` rows most like it, in units of their SD, (N, k).

    Rows are alike if each coefficient has a similar share in their noise, with the same sign: the noise of y
    then has a similar shape, whatever the laws of the coefficients are. Residuals are corrected for leverage;
    each row of the result has mean 0 and variance 1. Rows where the law has next to no spread lend none, and
    rows with weights are there as often as these say.
    """
    return np.concatenate(list(_gather_in_parts(design, y, law, weights)))


def draw_noise(
    design: Array, y: Array, law: CoefficientLaw, levels: Array, weights: Array | None = None
) -> Array:
    """Noise of variance 1 with the shape of the residuals of rows alike: their quantiles at levels (S, N)."""
    noise, first = np.empty_like(levels), 0
    for residuals in _gather_in_parts(design, y, law, weights):
        part = slice(first, first + len(residuals))
        places = (levels[:, part] * residuals.shape[1]).astype(int)
        noise[:, part] = np.take_along_axis(np.sort(residuals, axis=1), places.T, 1).T
        first = part.stop
    return noise


def _gather_in_parts(design: Array, y: Array, law: CoefficientLaw, weights: Array | None) -> Iterator[Array]:
    """What ``gather_residuals`` gives, ``PART`` rows at a time: all of a long table need much memory."""
    residual, variance = y - design @ law.mean, law.variance(design)
    lends = variance > SCALE_FLOOR**2 * variance.mean()
    if not lends.any():
        yield np.zeros((len(y), 1))
        return
    std = np.sqrt(np.where(variance > 0, variance, 1.0))
    of_lenders = None if weights is None else weights[lends]
    own = residual[lends] / std[lends] / np.sqrt(_kept_variance(design[lends] / std[lends, None], of_lenders))
    lengths, axes = np.linalg.eigh(law.covariance)
    shares = design @ (axes * np.sqrt(np.maximum(lengths, 0))) / std[:, None]
    tree, count = cKDTree(shares[lends]), min(ALIKE, int(lends.sum()))
    for first in range(0, len(y), PART):
        here = shares[first : first + PART]
        near = tree.query(here, count)[1].reshape(len(here), -1)
        if of_lenders is not None:
            near = np.take_along_axis(near, _spread_evenly(of_lenders[near]), 1)
        found = own[near]
        found -= found.mean(1, keepdims=True)
        size = found.std(1, keepdims=True)
        yield found / np.where(size > 0, size, 1.0)


def _spread_evenly(weights: Array) -> Array:
    """For each row of weights (N, k) k places, each as often as its weight says, up to rounding."""
    k = weights.shape[1]
    reach = np.cumsum(weights, axis=1)
    levels = (np.arange(k) + 0.5) / k * reach[:, -1:]
    found = [np.searchsorted(r, level) for r, level in zip(reach, levels, strict=True)]
    places: Array = np.minimum(np.stack(found), k - 1)
    return places


def robust_errors(
    design: Array, y: Array, law: CoefficientLaw, free: Array, weights: Array | None = None
) -> tuple[Array, Array]:
    r"""Standard errors of the means and of the variances of the coefficients, (p + 1,) each.

    Those of an M-estimator (a sandwich) with the Gaussian likelihood as its criterion, which hold whatever
    the law of the coefficients is: with z the products of (1, x) that multiply each entry of the covariance,
    :math:`w = 1/\sigma^4` and :math:`e = r^2 - \sigma^2`, the estimate moves by
    :math:`(\sum w z z^T)^{-1} \sum w z e`. Each row's term is divided by 1 minus its leverage (HC3 of
    MacKinnon and White, 1985), because a row draws the fit towards itself. ``weights`` (N,) of the rows
    multiply w.
    """
    residual = y - design @ law.mean
    variance = _floored(law.variance(design), residual, weights)
    products = _products(design, free)
    std = np.sqrt(variance)
    means = _sandwich(_weigh(design / std[:, None], weights), _weigh(residual / std, weights))
    variances = _sandwich(
        _weigh(products / variance[:, None], weights), _weigh(residual**2 / variance - 1, weights)
    )
    return means, variances[: design.shape[1]]


def regress_squares(
    design: Array, y: Array, law: CoefficientLaw, free: Array, weights: Array | None = None
) -> Array:
    r"""The variances of the coefficients by one regression of squared residuals, (p + 1,); may be negative.

    Weighted least squares with :math:`1/\sigma^4` of a law that is near. The fits themselves stop at 0, where
    many of them gather if a spread is small; this estimate has no such edge, so its errors are alike on both
    sides of the truth.
    """
    residual = y - design @ law.mean
    variance = _floored(law.variance(design), residual, weights)
    kept = _kept_variance(design / np.sqrt(variance)[:, None], weights)
    columns = _weigh(_products(design, free) / variance[:, None], weights)
    found: Array = _solver(columns) @ _weigh(residual**2 / (kept * variance), weights)
    return found[: design.shape[1]]


def _floored(variance: Array, residual: Array, weights: Array | None) -> Array:
    """Variances of rows, none so small that its row would outweigh all others."""
    floor = SCALE_FLOOR**2 * float(average(residual**2, weights))
    floored: Array = np.maximum(variance, floor if floor > 0 else 1.0)
    return floored


def _sandwich(columns: Array, errors: Array) -> Array:
    """Standard errors of least squares with these columns (N, q) and errors (N,), of any variance."""
    influence = _solver(columns) * (errors / (1 - _leverage(columns)))
    found: Array = np.sqrt((influence**2).sum(1))
    return found


def _solver(columns: Array) -> Array:
    """What least squares on these columns (N, q) multiplies outputs with: (q, N)."""
    units = np.sqrt((columns**2).sum(0))
    units = np.where(units > 0, units, 1.0)
    solver: Array = np.linalg.pinv(columns / units, rcond=1e-9) / units[:, None]
    return solver


def _leverage(columns: Array) -> Array:
    """The leverage of every row, at most .9."""
    units = np.sqrt((columns**2).sum(0))
    left, lengths, _ = np.linalg.svd(columns / np.where(units > 0, units, 1), full_matrices=False)
    found: Array = np.minimum((left[:, lengths > 1e-9 * lengths.max()] ** 2).sum(1), 0.9)
    return found


def _kept_variance(columns: Array, weights: Array | None) -> Array:
    r"""The variance that residuals of least squares on these columns (N, q) keep, of noise with variance 1.

    That is :math:`1 - h_i` with the leverage h. With weights of rows the hat matrix H is not symmetric, and
    it is :math:`1 - 2 H_{ii} + \sum_j H_{ij}^2`.
    """
    if weights is None:
        return 1 - _leverage(columns)
    root = np.sqrt(weights)
    solve = np.linalg.pinv(columns * root[:, None], rcond=1e-9) * root
    own = (columns * solve.T).sum(1)
    kept: Array = np.maximum(1 - 2 * own + ((columns @ (solve @ solve.T)) * columns).sum(1), 0.1)
    return kept


def _weigh(rows: Array, weights: Array | None) -> Array:
    """Rows (N,) or (N, q) times the roots of their weights, as least squares takes them."""
    return rows if weights is None else (rows.T * np.sqrt(weights)).T


def _likelihood_of_variance(frame: Frame) -> Slope:
    r"""Minus the mean log-likelihood as a function of the variances, and its slope in them.

    .. math:: \tfrac1{2N}\sum_i \log\sigma_i^2 + r_i^2/\sigma_i^2, \qquad
        \partial/\partial\sigma_i^2 = (1/\sigma_i^2 - r_i^2/\sigma_i^4) / 2N

    The mean is weighted least squares, its best given the variances: the slope through it vanishes.
    """

    def loss(variance: Array) -> tuple[float, Array]:
        square = (frame.y - frame.design @ frame.regress(variance)) ** 2 / variance
        value = float(average(np.log(variance) + square, frame.weights)) / 2
        slope = (1 - square) / variance / (2 * len(square))
        return value, slope if frame.weights is None else slope * frame.weights

    return loss


def match_balls(
    frame: Frame,
    levels: Array,
    given: Neighborhoods | None,
    n_neighbors: int,
    near: CoefficientLaw | None = None,
) -> Array:
    """The factor of smallest debiased local W2, with simulated noise of the shape that the residuals have.

    The noise of a row is a quantile of the standardised residuals of rows like it, at ``levels`` (S, N) from
    [0, 1), which are held fixed. Normal noise would give the SDs of the Gaussian law that is nearest in W2,
    which are too small if coefficients are not Gaussian (exponential ones: by 5 to 9 %, however many rows).
    The mean is the minimiser on singletons, where the debiased loss is weighted least squares; the spread is
    that on balls. Both compare y in units of the last round's fit (center and scale of ``Objective``). From a
    law that is ``near``, as in a bootstrap, one round is enough.
    """
    factor = frame.start() if near is None else frame.start_at(near)
    for _ in range(ROUNDS if near is None else 1):
        variance = np.maximum(frame.variance(factor), SCALE_FLOOR**2)
        scale = np.sqrt(variance)
        law = CoefficientLaw(frame.regress(variance), factor @ factor.T)
        noise = torch.from_numpy(draw_noise(frame.design, frame.y, law, levels, frame.weights))
        center = frame.design @ frame.regress(variance)
        # The mean has seen these rows: row i keeps only 1 - h_i of its variance, h the leverage.
        kept = _kept_variance(frame.design / scale[:, None], frame.weights)
        outputs = center + (frame.y - center) / np.sqrt(kept)
        hoods = given or _alike(frame, variance, n_neighbors)
        objective = Objective(
            outputs, hoods, SquaredW2(debiased=True), center, scale, sample_weight=frame.weights
        )
        factor = frame.descend(_w2_of_variance(objective, torch.from_numpy(center), noise), factor)[1]
    return factor


def _w2_of_variance(objective: Objective, center: Tensor, noise: Tensor) -> Slope:
    """The loss of yhat = center + SD * noise as a function of the variances, and its slope in them."""

    def loss(variance: Array) -> tuple[float, Array]:
        std = torch.from_numpy(variance).sqrt()
        values, gradients = objective.solve((center + std * noise)[None])
        return float(values), ((gradients[0] * noise).sum(0) / (2 * std)).numpy()

    return loss


def _alike(frame: Frame, variance: Array, n_neighbors: int) -> Neighborhoods:
    r"""Balls of rows whose variance responds similarly to every free entry of the covariance.

    The rows' features are :math:`x_j x_k/\sigma^2(x)`, whitened: the loss averages the score of a spread,
    which is linear in them, over a ball, so what varies inside it is lost.
    """
    features = _products(frame.design, frame.free) / variance[:, None]
    left, lengths, _ = np.linalg.svd(features - features.mean(0), full_matrices=False)
    # The features add up to 1 with the variances as weights: at least one direction is rounding only.
    kept = lengths > 1e-6 * max(lengths[0], np.abs(features).max())
    if not kept.any():
        return Neighborhoods.whole(len(features))
    return Neighborhoods.nearest(left[:, kept], min(n_neighbors, len(features)))


def free_entries(count: int, full: bool) -> Array:
    """Which entries of a factor (count, count) may differ from zero: its lower triangle or its diagonal."""
    return np.tril(np.ones((count, count), dtype=bool)) if full else np.eye(count, dtype=bool)


def _products(design: Array, free: Array) -> Array:
    """What multiplies each free entry of the covariance in a row's variance, squares first."""
    rows, columns = np.nonzero(free)
    order = np.argsort(rows != columns, kind="stable")
    products: Array = design[:, rows[order]] * design[:, columns[order]]
    return products


def _regress(design: Array, y: Array, variance: Array) -> Array:
    weights = 1 / np.sqrt(variance)
    found: Array = np.linalg.lstsq(design * weights[:, None], y * weights, rcond=None)[0]
    return found


def with_ones(x: Array) -> Array:
    """The design (1, x), (N, p + 1): the intercept is the coefficient of a column of ones."""
    return np.column_stack([np.ones(len(x)), x])


def warn_if_unidentified(x: Array, names: list[str], full: bool) -> None:
    """Warn of means and spreads that these x do not identify."""
    design = _in_units(with_ones(x))
    free = free_entries(design.shape[1], full)
    means = [name for name, lost in zip(names, _traded(design), strict=True) if lost]
    # A full covariance is the same about any origin of x; about the middle of x its terms stand on their own.
    middle = _in_units(np.column_stack([design[:, 0], x - x.mean(0)])) if full else design
    lost = _traded(_products(design, free)) | _drowned(_products(middle, free))
    spreads = [name for name, gone in zip(names, lost[: len(names)], strict=True) if gone]
    if means:
        warnings.warn(
            f"The mean of {', '.join(means)} is not identifiable from these x: these columns of (1, x) are "
            "linear combinations of one another. The fit takes the smallest such coefficients; predictions "
            "are not affected. Drop a column to interpret them.",
            stacklevel=3,
        )
    if spreads:
        terms = "products of (1, x)" if full else "squares of (1, x)"
        warnings.warn(
            f"The spread of {', '.join(spreads)} is not identifiable from these {len(x)} rows: the variance "
            f"of y is linear in the {terms}, and these can stand in for one another (a constant or +-1 "
            "column, a 0/1 column with covariance='full', too few rows). The SDs are one of many that fit "
            "equally well. Drop or merge such columns, or add rows.",
            stacklevel=3,
        )


def _traded(columns: Array) -> Array:
    """Which columns are combinations of others, so that their coefficients can be exchanged."""
    lengths, directions = _spectrum(columns)
    found: Array = (np.abs(directions[lengths == 0]) > 1e-3).any(0)
    return found


def _drowned(columns: Array) -> Array:
    """Which parts of a variance drown in the noise of squared residuals: standard errors above the whole."""
    lengths, directions = _spectrum(columns)
    seen = lengths > 0
    # A squared Gaussian residual has SD sqrt(2) times its mean.
    errors = np.sqrt(2 * ((directions[seen] / lengths[seen, None]) ** 2).sum(0))
    found: Array = errors * np.abs(_in_units(columns)).mean(0) > 1
    return found


def _spectrum(columns: Array) -> tuple[Array, Array]:
    """Singular values of the columns in units, those of rounding set to 0, and their right vectors."""
    # With fewer rows than columns, rows of zeros make the decomposition show the whole null space.
    short = max(0, columns.shape[1] - len(columns))
    _, lengths, directions = np.linalg.svd(
        np.pad(_in_units(columns), ((0, short), (0, 0))), full_matrices=False
    )
    return np.where(lengths > 1e-9 * lengths.max(), lengths, 0), directions


def _in_units(columns: Array) -> Array:
    """Columns divided by their root mean square; a column of zeros stays one."""
    units = np.sqrt((columns**2).mean(0))
    scaled: Array = columns / np.where(units > 0, units, 1)
    return scaled
