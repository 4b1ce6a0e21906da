"""A polynomial mean: ridge regression whose penalty is chosen by leave-one-out errors."""

from __future__ import annotations

from math import comb
from typing import Any, Self, final

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from localw2._validation import Array, check_count
from localw2.estimators.column_screening import ROUNDING
from localw2.estimators.powers import multiply_columns

PENALTIES = np.logspace(-6, 3, 19)
MOST_DEGREE = 5
_AT_A_TIME = 1 << 22  # products of columns times rows


@final
class PolynomialRidge(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Least squares on all products of up to ``degree`` columns, with a penalty on the squared coefficients.

    .. math:: \min_{a,\beta} \sum_i w_i (y_i - a - z_i \cdot \beta)^2 + \alpha |\beta|^2

    Columns are standardised before they are multiplied, and the products z once more. Of 19 penalties
    :math:`\alpha` the one with the smallest leave-one-out errors is used. The model is that of scikit-learn's
    ``StandardScaler``, ``PolynomialFeatures``, ``StandardScaler`` and ``RidgeCV`` in a pipeline; one
    eigendecomposition for all penalties takes a quarter of the time.

    >>> x = np.linspace(-1, 1, 50)[:, None]
    >>> PolynomialRidge(2).fit(x, 1 + 2 * x[:, 0] ** 2).predict([[3.0]]).round(2)
    array([19.])
    """

    def __init__(self, degree: int = 1) -> None:
        self.degree = degree

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn should know: several outputs are supported."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit rows X (N, p) and y (N,) or (N, d), with weights w of the rows."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        check_count(self.degree, "degree", 1, MOST_DEGREE)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if not (weights.min() >= 0 and weights.sum() > 0):
            raise ValueError("sample_weight has negative values, or only zeros.")
        self.location_, self.scale_ = _moments(X)
        # Its products with what rounding leaves of a constant would be standardised.
        constant = np.ptp(X, axis=0) <= ROUNDING * np.abs(X).max(0)
        products = self._multiply(np.where(constant, self.location_, X))
        location, scale = _moments(products)
        target = y.reshape(len(y), -1)
        middle = np.average(target, axis=0, weights=weights)
        z = (products - location) / scale
        z_middle = np.average(z, axis=0, weights=weights)
        coefficients, self.penalty_ = _solve(z - z_middle, target - middle, weights)
        coefficients /= scale[:, None]
        intercept = middle - (location + scale * z_middle) @ coefficients
        self.coefficients_ = coefficients.reshape(-1, *y.shape[1:])
        self.intercept_ = intercept.reshape(y.shape[1:])
        return self

    def predict(self, X: Any) -> Array:
        """The mean at rows X, (N,) or (N, d)."""
        check_is_fitted(self, "coefficients_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        n_products = comb(X.shape[1] + self.degree, self.degree) - 1
        if n_products != len(self.coefficients_):  # before they are made: a file may ask for any degree
            raise ValueError(
                f"degree={self.degree} makes {n_products} products of {X.shape[1]} columns, but there are "
                f"{len(self.coefficients_)} coefficients. Fit the model again."
            )
        step = max(1, _AT_A_TIME // n_products)
        parts = [
            self._multiply(X[start : start + step]) @ self.coefficients_ for start in range(0, len(X), step)
        ]
        means: Array = self.intercept_ + np.concatenate(parts)
        return means

    def _multiply(self, X: Array) -> Array:
        """The products of standardised columns, in the order of scikit-learn's ``PolynomialFeatures``."""
        return multiply_columns((X - self.location_) / self.scale_, self.degree)


def _moments(values: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, the latter 1 for a constant."""
    mean = values.mean(0)
    spread = np.sqrt(((values - mean) ** 2).mean(0))
    return mean, np.where(spread > 1e-12 * np.abs(mean), spread, 1.0)


def _solve(z: Array, y: Array, weights: Array) -> tuple[Array, float]:
    r"""Coefficients (q, d) of centred z (N, q) and y (N, d), and the penalty with the smallest errors.

    With :math:`\sqrt{w} z = U S V^T` the fitted values of penalty :math:`\alpha` are
    :math:`U D U^T \sqrt{w} y`, :math:`D = S^2 / (S^2 + \alpha)`, and the error of a row that is left out is
    its residual divided by :math:`1 - h_i`, with the leverage
    :math:`h_i = \sum_k U_{ik}^2 D_k + w_i / \sum w`.
    """
    root = np.sqrt(weights)[:, None]
    rows, target = root * z, root * y
    wide = z.shape[1] > z.shape[0]
    squares, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = squares > 1e-14 * max(squares[-1], 1e-300)
    squares, vectors = squares[kept], vectors[:, kept]
    u = vectors if wide else rows @ vectors / np.sqrt(squares)
    onto = u.T @ target
    shares = squares[:, None] / (squares[:, None] + PENALTIES)
    leverage = u**2 @ shares + (weights / weights.sum())[:, None]
    unseen = np.zeros_like(leverage)
    for k in range(y.shape[1]):
        unseen += (target[:, k, None] - u @ (shares * onto[:, k, None])) ** 2
    errors = (unseen / np.maximum(1 - leverage, 1e-10) ** 2).mean(0)
    best = int(np.argmin(errors))
    shrunk = onto * (np.sqrt(squares) / (squares + PENALTIES[best]))[:, None]
    found: Array = rows.T @ (u @ (shrunk / np.sqrt(squares)[:, None])) if wide else vectors @ shrunk
    return found, float(PENALTIES[best])
