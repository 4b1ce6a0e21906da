"""A smooth mean: kernel ridge regression with one length scale per column, by marginal likelihood."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from localw2._validation import Array, check_count

TUNING_ROWS = 240  # enough for the length scales of a few columns; the cost is cubic in it
_ROWS_AT_A_TIME = 4096
_JITTER = 1e-10  # of the kernel at 0: what rounding leaves of a matrix that must stay positive
_ROUNDING = 1e-15  # of a sum of squares
_LITTLE_GAIN = 1e-5  # of the likelihood, relatively: more decimals of a length scale change no prediction
_MOST_STEPS = 50  # of the search: the last ones hardly move it
_FAR = 1e3  # length scales: the kernel is 0 from there on, and its square of the distance a number


@final
class KernelMean(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""The mean of a Gaussian process with a Matern 5/2 kernel and a length scale for every column.

    .. math:: \min_\beta \sum_i w_i\,\Bigl(y_i - \sum_j \beta_j k(x_i, c_j)\Bigr)^2
        + \text{noise} \sum_{jl} \beta_j \beta_l k(c_j, c_l)

    on columns and outputs of mean 0 and standard deviation 1, with
    :math:`k = (1 + r + r^2/3) e^{-r}`, :math:`r^2 = 5 \sum_p ((x_p - c_p) / \ell_p)^2`. The centres c are the
    rows themselves, or ``n_centers`` of them at random if there are more: cost and memory then grow with the
    rows, not with their square. ``length_scales`` is a number or one for each column; ``tune_kernel`` finds
    them. Where the mean is smooth this beats trees by far, and a fitted one is two small arrays.

    >>> x = np.linspace(0, 6, 40)[:, None]
    >>> model = KernelMean(0.5, noise=1e-4).fit(x, np.sin(x[:, 0]))
    >>> float(model.predict([[np.pi / 2]])[0].round(3))
    1.0
    """

    def __init__(
        self,
        length_scales: Any = 1.0,
        noise: float = 0.01,
        n_centers: int = 1500,
        random_state: int | None = None,
    ) -> None:
        self.length_scales = length_scales
        self.noise = noise
        self.n_centers = n_centers
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn should know: several outputs are supported."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit rows X (N, p) and y (N,) or (N, d); a row of weight 2 counts as two."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        check_count(self.n_centers, "n_centers", 1)
        self._check_scales(X.shape[1])
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if not (weights.min() >= 0 and weights.sum() > 0):
            raise ValueError("sample_weight has negative values, or only zeros.")
        X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        self.location_, self.scale_ = _moments(X, weights)
        self.y_location_, self.y_scale_ = _moments(y, weights)
        rows, target = self._in_units(X), (y - self.y_location_) / self.y_scale_
        if len(rows) <= self.n_centers:
            self.centers_ = rows
            gram = _kernel(rows, rows)
            gram[np.diag_indices_from(gram)] += self.noise / weights + _JITTER
            self.coefficients_ = cho_solve(cho_factor(gram, overwrite_a=True), target)
        else:
            chosen = np.random.default_rng(self.random_state).permutation(len(rows))[: self.n_centers]
            self.centers_ = rows[np.sort(chosen)]
            self.coefficients_ = self._by_centers(rows, target, weights)
        return self

    def predict(self, X: Any) -> Array:
        """The mean at rows X, (N,) or (N, d)."""
        check_is_fitted(self, "coefficients_")
        rows = self._in_units(validate_data(self, X, dtype=np.float64, reset=False))
        parts = [
            _kernel(part, self.centers_) @ self.coefficients_
            for part in np.array_split(rows, -(-len(rows) // _ROWS_AT_A_TIME))
        ]
        means: Array = self.y_location_ + self.y_scale_ * np.concatenate(parts)
        return means

    def _by_centers(self, rows: Array, target: Array, weights: Array) -> Array:
        r"""Coefficients of fewer centres than rows.

        With :math:`K_{cc} = L L^T` the unknowns are :math:`L^T \beta`, whose penalty is a plain sum of
        squares: products of rows are then as exact as they can be, however close the centres are.
        """
        gram = _kernel(self.centers_, self.centers_)
        gram[np.diag_indices_from(gram)] += _JITTER
        factor = np.linalg.cholesky(gram)
        products = self.noise * np.eye(len(gram))
        right = np.zeros((len(gram), *target.shape[1:]))
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = slice(start, start + _ROWS_AT_A_TIME)
            features = solve_triangular(factor, _kernel(self.centers_, rows[part]), lower=True)
            weighted = features * weights[part]
            products += weighted @ features.T
            right += weighted @ target[part]
        # Sums over all rows round away a penalty that is smaller still.
        products[np.diag_indices_from(products)] += _ROUNDING * np.trace(products)
        coefficients = cho_solve(cho_factor(products, overwrite_a=True), right)
        found: Array = solve_triangular(factor, coefficients, lower=True, trans="T")
        return found

    def _in_units(self, X: Array) -> Array:
        units: Array = (X - self.location_) / (self.scale_ * np.asarray(self.length_scales, dtype=np.float64))
        return units

    def _check_scales(self, p: int) -> None:
        scales = np.asarray(self.length_scales, dtype=np.float64)
        if scales.shape not in ((), (p,)) or not bool((np.isfinite(scales) & (scales > 0)).all()):
            raise ValueError(
                f"length_scales={self.length_scales!r} must be a positive number, or {p} of them, one per "
                "column."
            )
        if not (isinstance(self.noise, int | float | np.number) and 0 < self.noise < np.inf):
            raise ValueError(f"noise={self.noise!r} must be a positive number.")


def tune_kernel(X: Array, y: Array, seed: int) -> KernelMean:
    """A ``KernelMean`` with the length scales and noise of largest marginal likelihood on a few rows."""
    chosen = np.random.default_rng(seed).permutation(len(X))[:TUNING_ROWS]
    X, y = X[chosen], y[chosen].reshape(len(chosen), -1)
    (x_mean, x_spread), (y_mean, y_spread) = _moments(X), _moments(y)
    X, y = (X - x_mean) / x_spread, (y - y_mean) / y_spread
    p = X.shape[1]
    bounds = np.log([*[(0.1, 1e3)] * p, (1e-2, 1e3), (1e-6, 10.0)])
    start = np.append(np.zeros(p + 1), np.log(0.1))
    options = {"ftol": _LITTLE_GAIN, "maxfun": _MOST_STEPS}
    search = minimize(
        unlikelihood, start, (X, y), method="L-BFGS-B", jac=True, bounds=bounds, options=options
    )
    *scales, signal, noise = np.exp(search.x).tolist()
    return KernelMean(tuple(scales), noise / signal, random_state=seed)


def unlikelihood(log_settings: Array, X: Array, y: Array) -> tuple[float, Array]:
    r"""Minus the log marginal likelihood of y (n, d) at rows X (n, p), and its gradient.

    The settings are the logarithms of p length scales, the variance of the signal and that of the noise. With
    :math:`K` the covariance of y and :math:`W = K^{-1} y y^T K^{-1} - d\,K^{-1}` the gradient is
    :math:`-\tfrac12 \sum_{ab} W_{ab}\, \partial K_{ab}`. For a length scale
    :math:`\partial K_{ab} = g_{ab} (u_a - u_b)^2`, u the column in units of it, and the sum over pairs is two
    matrix products.
    """
    n, d = y.shape
    *_, signal, noise = np.exp(log_settings)
    units = X * np.exp(-log_settings[:-2])
    r = np.sqrt(5.0) * cdist(units, units)
    decay = signal * np.exp(-r)
    kernel = (1 + r + r * r / 3) * decay
    covariance = kernel + (noise + _JITTER) * np.eye(n)
    try:
        factor = cho_factor(covariance, lower=True)
    except np.linalg.LinAlgError:
        return np.inf, np.zeros_like(log_settings)
    inverse = cho_solve(factor, np.eye(n))
    solved = inverse @ y
    value = 0.5 * np.vdot(y, solved) + d * np.log(np.diag(factor[0])).sum() + 0.5 * d * n * np.log(2 * np.pi)
    pull = solved @ solved.T - d * inverse
    pairs = pull * ((5 / 3) * (1 + r) * decay)
    by_scale = pairs.sum(1) @ units**2 - (units * (pairs @ units)).sum(0)
    by_signal, by_noise = 0.5 * np.vdot(pull, kernel), 0.5 * noise * np.trace(pull)
    return float(value), -np.append(by_scale, [by_signal, by_noise])


def _kernel(a: Array, b: Array) -> Array:
    """Matern 5/2 between rows a (n, p) and b (m, p) in units of the length scales, (n, m)."""
    r = np.minimum(cdist(a, b), _FAR)
    r *= np.sqrt(5.0)
    values: Array = 1 + r + r * r / 3
    values *= np.exp(-r)
    return values


def _moments(values: Array, weights: Array | None = None) -> tuple[Any, Any]:
    """Weighted mean and standard deviation of each column, the latter 1 for a constant."""
    mean = np.average(values, axis=0, weights=weights)
    spread = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
    return mean, np.where(spread > 1e-12 * np.abs(mean), spread, 1.0)
