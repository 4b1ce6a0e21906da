"""Polynomials in the columns of x, and the degrees that the rows can bear."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb
from typing import final

import numpy as np

from localw2._validation import Array

_HIGHEST = 6  # degree that is tried
_MOST_TERMS, _ROWS_PER_TERM = 250, 20


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
    def n_columns(self) -> int:
        """How many columns x has."""
        return len(self.lower)

    @property
    def n_terms(self) -> int:
        """How many products there are."""
        return comb(self.n_columns + self.degree, self.degree)

    def evaluate(self, x: Array) -> Array:
        """The products at rows x (N, p), (N, n_terms), the constant first."""
        z = self.to_units(x)
        return np.hstack([np.ones((len(z), 1)), multiply_columns(z, self.degree)])

    def to_units(self, x: Array) -> Array:
        """Rows x (N, p) with each column moved to [-1, 1]."""
        width = np.where(self.upper > self.lower, self.upper - self.lower, 1.0)
        moved: Array = 2 * (np.clip(x, self.lower, self.upper) - self.lower) / width - 1
        return moved


def multiply_columns(z: Array, degree: int) -> Array:
    """The products of 1 to ``degree`` columns of z (N, p), in the order of ``PolynomialFeatures``.

    >>> multiply_columns(np.array([[2.0, 3.0]]), 2)
    array([[2., 3., 4., 6., 9.]])
    """
    parts = [z[:, :0]]
    for count in range(1, degree + 1):
        factors = np.array(list(combinations_with_replacement(range(z.shape[1]), count))).T
        product = z[:, factors[0]]
        for one in factors[1:]:
            product *= z[:, one]
        parts.append(product)
    return np.hstack(parts)


def list_degrees(n: int, p: int) -> list[int]:
    """The degrees that n rows of p columns can tell apart.

    >>> list_degrees(2000, 2), list_degrees(300, 10), list_degrees(30, 3)
    ([0, 1, 2, 3, 4, 5, 6], [0, 1], [0])
    """
    most = min(_MOST_TERMS, n // _ROWS_PER_TERM)
    return [0, *(d for d in range(1, _HIGHEST + 1) if comb(p + d, d) <= most)]
