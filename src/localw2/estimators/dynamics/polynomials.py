"""Polynomials of states whose degree is chosen by cross-validation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array
from localw2.estimators.dynamics.transitions import FOLDS

# Degrees from which a regression chooses, for one state and for several, and rows that each term needs.
DEGREES = {1: (0, 1, 2, 3, 4, 5, 6, 7), 2: (0, 1, 2, 3, 4)}
MOST_DEGREE, ROWS_PER_TERM = 7, 10
# Standard errors by which a higher degree must predict better.
SURE = 2.0


@final
@dataclass(frozen=True)
class PolynomialFit:
    """A polynomial of standardised states, whose degree was chosen by cross-validation."""

    location: Array
    spread: Array
    degree: int
    coefficients: Array

    @classmethod
    def fit(
        cls,
        state: Array,
        y: Array,
        weight: Array,
        folds: Array,
        degrees: Any = None,
        units: tuple[Array, Array] | None = None,
    ) -> PolynomialFit:
        """Weighted least squares of y (R, m) on states (R, d), minimising the error on left-out folds.

        ``units`` are location and spread of the states, their mean and SD by default.
        """
        location, spread = (state.mean(0), state.std(0)) if units is None else units
        spread = np.maximum(spread, 1e-300)
        x = standardise(state, location, spread)
        degrees = choices_of_degree(state.shape[1]) if degrees is None else degrees
        w = np.sqrt(weight)[:, None]
        scale = np.maximum(((w * y) ** 2).mean(0), 1e-300)
        best: tuple[Array, int, Array] | None = None
        for degree in degrees:
            if count_terms(x.shape[1], degree) * ROWS_PER_TERM > len(x):
                break
            design = design_of(x, degree) * w
            # Normal equations fold by fold: leaving one out is a subtraction.
            parts = [(design[folds == f], (w * y)[folds == f]) for f in range(FOLDS)]
            gram, right = sum(a.T @ a for a, _ in parts), sum(a.T @ b for a, b in parts)
            errors = np.array(
                [((b - a @ solve(gram - a.T @ a, right - a.T @ b)) ** 2).sum(0) / scale for a, b in parts]
            ).sum(1)
            if best is None or is_gain(best[0] - errors):
                best = errors, degree, solve(gram, right)
        if best is None:
            mean = (w * w * y).sum(0) / (w * w).sum()
            return cls(location, spread, 0, mean[None])
        return cls(location, spread, best[1], best[2])

    def __call__(self, state: Array) -> Array:
        """Values (n, m) at states (n, d)."""
        x = standardise(state, self.location, self.spread)
        values: Array = design_of(x, self.degree) @ self.coefficients
        return values

    def trim(self) -> PolynomialFit:
        """The same without the highest degrees if these have no terms."""
        order = np.array([sum(p) for p in powers_of(len(self.location), self.degree)])
        degree = int(order[(self.coefficients != 0).any(1)].max(initial=0))
        return PolynomialFit(self.location, self.spread, degree, self.coefficients[order <= degree])

    def slopes(self, state: Array) -> Array:
        """Derivatives (n, d) of the j-th of d values in the j-th of d states."""
        x = standardise(state, self.location, self.spread)
        each = [slope_of(x, self.degree, j) @ self.coefficients[:, j] for j in range(x.shape[1])]
        return np.column_stack(each) / self.spread


def is_gain(gains: Array) -> bool:
    """Whether the errors of folds fell by more than chance, or noise would bend the curve."""
    return bool(gains.sum() > SURE * gains.std(ddof=1) * np.sqrt(FOLDS))


def choices_of_degree(d: int, lowest: int = 0) -> tuple[int, ...]:
    """The degrees from which polynomials of d states are chosen."""
    return DEGREES[min(d, 2)][lowest:]


def rich_degree(n: int, d: int) -> int:
    """The highest degree of a polynomial of d states that n rows allow."""
    fits = [k for k in choices_of_degree(d) if count_terms(d, k) * ROWS_PER_TERM <= n]
    return max(fits, default=0)


def standardise(state: Array, location: Array, spread: Array) -> Array:
    """Standardised states (n, d), of which outliers must not bend a polynomial."""
    clipped: Array = np.clip((state - location) / np.maximum(spread, 1e-300), -4, 4)
    return clipped


def count_terms(d: int, degree: int) -> int:
    """The number of terms of a polynomial of d states up to a total degree.

    >>> count_terms(2, 3), len(powers_of(2, 3))
    (10, 10)
    """
    return math.comb(d + degree, degree)


def powers_of(d: int, degree: int) -> list[tuple[int, ...]]:
    """The powers of d states in every term of a polynomial of a total degree."""
    found: list[tuple[int, ...]] = [()]
    for _ in range(d):
        found = [(*p, k) for p in found for k in range(degree + 1) if sum(p) + k <= degree]
    return found


def design_of(x: Array, degree: int) -> Array:
    """Products of Legendre polynomials of x / 2 up to a total degree."""
    return _terms([np.polynomial.legendre.legvander(column / 2, degree) for column in x.T], degree)


def slope_of(x: Array, degree: int, j: int) -> Array:
    """The derivatives of all columns of the design in the j-th state."""
    single = [np.polynomial.legendre.legvander(column / 2, degree) for column in x.T]
    unit = np.eye(degree + 1)
    slopes = [np.polynomial.legendre.legval(x[:, j] / 2, np.polynomial.legendre.legder(row)) for row in unit]
    single[j] = np.column_stack(slopes) / 2
    return _terms(single, degree)


def _terms(single: list[Array], degree: int) -> Array:
    """Products of functions of single states, up to a total degree."""
    columns = []
    for powers in powers_of(len(single), degree):
        column = np.ones(len(single[0]))
        for own, k in zip(single, powers, strict=True):
            column = column * own[:, k]
        columns.append(column)
    return np.column_stack(columns)


def solve(gram: Array, right: Array) -> Array:
    """Least squares with a trace of ridge, against columns that do not vary."""
    ridge = 1e-8 * np.trace(gram) / len(gram)
    solution: Array = np.linalg.solve(gram + ridge * np.eye(len(gram)), right)
    return solution
