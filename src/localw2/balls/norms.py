"""Norms on the inputs x: each embeds x, after which distance is plain Euclidean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, as_array, as_rows, brief


class Norm(ABC):
    r"""A norm on x given by a linear embedding: :math:`|x|_x = \|E x\|_2`.

    Every norm passes the contract in ``tests/test_contracts.py``: symmetric, shift-invariant,
    homogeneous.
    """

    def embed(self, x: Any) -> Any:
        """Map x (N, p) to (N, q) float64, where the norm is Euclidean. A tensor gives a tensor."""
        rows = as_rows(x).astype(np.float64)
        embedded = self._embed(rows)
        return torch.from_numpy(embedded) if isinstance(x, Tensor) else embedded

    @abstractmethod
    def _embed(self, rows: Array) -> Array: ...


def check_norm(norm: Any) -> Norm:
    """Return the norm, or the Euclidean one for None."""
    if norm is None:
        return Euclidean()
    if not isinstance(norm, Norm):
        raise ValueError(
            f"norm={brief(norm)} is not a norm; pass Euclidean(), Weighted(...) or Mahalanobis(...)."
        )
    return norm


@final
@dataclass(frozen=True)
class Euclidean(Norm):
    r"""The plain norm :math:`|x|^2 = \sum_i x_i^2` (paper: "homo").

    >>> Euclidean().embed([[3.0, 4.0]])
    array([[3., 4.]])
    """

    def _embed(self, rows: Array) -> Array:
        return rows


@final
@dataclass(frozen=True)
class Weighted(Norm):
    r"""One weight per column: :math:`|x|^2 = \sum_i c_i^2 x_i^2` (paper, Eq. norm_def: "hete").

    >>> float(np.linalg.norm(Weighted([1.0, 0.5]).embed([[3.0, 8.0]])))
    5.0
    """

    weights: tuple[float, ...]

    def __init__(self, weights: Any) -> None:
        values = as_array(weights, "weights")
        if values.ndim != 1:
            raise ValueError(f"weights has shape {values.shape}; expected one number per column of x.")
        if not values.any():
            raise ValueError("weights are all zero, so all rows would be at distance 0 from each other.")
        object.__setattr__(self, "weights", tuple(float(c) for c in values))

    @classmethod
    def standardised(cls, x: Any) -> Weighted:
        """Distance in standard deviations of each column; constant columns keep weight 1.

        >>> Weighted.standardised([[0.0, 7.0], [4.0, 7.0]]).weights
        (0.5, 1.0)
        """
        rows = as_rows(x).astype(np.float64)
        scale = rows.std(0)
        # Rounding gives a constant column a tiny spread, by which nothing must be divided.
        return cls(1 / np.where(scale > 1e-12 * np.abs(rows.mean(0)), scale, 1.0))

    @classmethod
    def from_regression(cls, x: Any, y: Any) -> Weighted:
        r"""Weights from the least-squares regression of y on x with an intercept.

        The slope of column i is its weight; with several outputs :math:`c_i^2 = \sum_k c_{ik}^2`.

        >>> x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> [round(c, 9) for c in Weighted.from_regression(x, 5 + x @ [2.0, -3.0]).weights]
        [2.0, 3.0]
        """
        rows = as_rows(x).astype(np.float64)
        outputs = as_array(y, "y").astype(np.float64)
        if len(outputs) != len(rows):
            raise ValueError(f"x has {len(rows)} rows and y has {len(outputs)}; they must match row by row.")
        outputs = outputs.reshape(len(rows), -1)
        slopes = np.linalg.lstsq(rows - rows.mean(0), outputs - outputs.mean(0), rcond=None)[0]
        weights = np.sqrt((slopes**2).sum(1))
        if not np.any(weights * np.ptp(rows, axis=0) > 1e-12 * np.abs(outputs).max()):
            raise ValueError(
                "The regression of y on x has no slope, so this norm would put every row in one ball. "
                "Use Euclidean() or Mahalanobis.from_data(x)."
            )
        return cls(weights)

    def _embed(self, rows: Array) -> Array:
        _check_columns(rows, len(self.weights))
        embedded: Array = rows * np.asarray(self.weights)
        return embedded


@final
@dataclass(frozen=True)
class Mahalanobis(Norm):
    r"""A symmetric positive semi-definite metric: :math:`|x|^2 = x^\top M x`.

    >>> float(np.linalg.norm(Mahalanobis([[4.0, 0.0], [0.0, 1.0]]).embed([[2.0, 3.0]])))
    5.0
    """

    matrix: tuple[tuple[float, ...], ...]

    def __init__(self, matrix: Any) -> None:
        values = as_array(matrix, "matrix").astype(np.float64)
        if values.ndim != 2 or values.shape[0] != values.shape[1]:
            raise ValueError(
                f"matrix has shape {values.shape}; a metric must be square, with one row per column of x."
            )
        scale = np.abs(values).max()
        if scale == 0 or np.abs(values - values.T).max() > 1e-8 * scale:
            raise ValueError("matrix is zero or not symmetric; a metric must equal its transpose.")
        lowest = float(np.linalg.eigvalsh(values).min())
        if lowest < -1e-10 * scale:
            raise ValueError(
                f"matrix has the eigenvalue {lowest:.3g} < 0; a metric must be positive semi-definite."
            )
        object.__setattr__(self, "matrix", tuple(tuple(float(v) for v in row) for row in values))

    @classmethod
    def from_data(cls, x: Any) -> Mahalanobis:
        """The inverse covariance of x, so that distances count standard deviations in every direction.

        >>> x = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 20.0], [2.0, 20.0]])
        >>> Mahalanobis.from_data(x).embed([[2.0, 0.0]]).round(3)
        array([[1.732, 0.   ]])
        """
        rows = as_rows(x).astype(np.float64)
        if len(rows) < 2:
            raise ValueError("x has one row, which has no covariance; give at least two.")
        if not np.ptp(rows, axis=0).any():
            raise ValueError("x is constant, so it has no covariance from which to measure distance.")
        # Standardise first: a column in small units must not look like one without spread.
        scale = rows.std(0)
        scale = np.where(scale > 0, scale, 1.0)
        covariance = np.atleast_2d(np.cov((rows - rows.mean(0)) / scale, rowvar=False))
        # Columns that add up to a constant (one-hot encodings) have no spread in one direction.
        metric = np.linalg.pinv(covariance, rcond=1e-12, hermitian=True)
        return cls(metric / np.outer(scale, scale))

    def _embed(self, rows: Array) -> Array:
        metric = np.asarray(self.matrix)
        _check_columns(rows, len(metric))
        # Put columns on one scale first: eigenvalues lose the digits of a column in small units.
        unit = np.sqrt(np.clip(np.diag(metric), 0, None))
        unit = np.where(unit > 0, unit, 1.0)
        eigenvalues, directions = np.linalg.eigh(metric / np.outer(unit, unit))
        root: Array = directions * np.sqrt(np.clip(eigenvalues, 0, None)) @ directions.T
        embedded: Array = (rows * unit) @ root
        return embedded


def _check_columns(rows: Array, expected: int) -> None:
    if rows.shape[1] != expected:
        raise ValueError(f"x has {rows.shape[1]} column(s) and the norm is for {expected}; they must agree.")


def candidate_norms(x: Any, y: Any, relevance: Any = None) -> dict[str, Norm]:
    """Candidate norms for x (N, p) and y (N,) or (N, d), by name, the simplest first.

    ``relevance`` (p,) says how strongly each standardised column affects y.

    >>> x, y = np.random.default_rng(0).normal(size=(50, 2)), np.arange(50.0)
    >>> list(candidate_norms(x, y)), list(candidate_norms(x[:, :1], y))
    (['standardised', 'slopes', 'mahalanobis'], ['standardised'])
    """
    rows = as_rows(x).astype(np.float64)
    scale = rows.std(0)
    # Rounding gives a constant column a tiny spread, which must not decide what is near.
    faint = 1e-12 * np.abs(rows).max(0)
    unit = np.where(scale > faint, 1 / np.where(scale > 0, scale, 1.0), 0.0)
    if not unit.any():
        return {"plain": Euclidean()}
    found: dict[str, Norm] = {"standardised": Weighted(unit)}
    if rows.shape[1] == 1:
        return found
    if relevance is not None:
        weights = as_array(relevance, "relevance").astype(np.float64)
        if weights.shape != unit.shape or (weights < 0).any():
            raise ValueError(
                f"relevance has shape {weights.shape} and minimum {weights.min():g}; "
                f"give one number >= 0 for each of the {len(unit)} columns."
            )
        if (weights * unit).any():
            found["relevance"] = Weighted(weights / weights.max() * unit)
    try:
        outputs = as_array(y, "y").astype(np.float64).reshape(len(rows), -1)
        spread = outputs.std(0)  # otherwise the units of the outputs would decide
        slopes = Weighted.from_regression(
            rows - rows.mean(0), outputs / np.where(spread > 0, spread, 1.0)
        ).weights
        found["slopes"] = Weighted(np.where(unit > 0, np.asarray(slopes), 0.0))
    except ValueError:  # y has no slope in x, so there are no weights
        pass
    found["mahalanobis"] = Mahalanobis.from_data(rows)
    return found
