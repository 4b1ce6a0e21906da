"""The observed rows: their ranges, those near an input, and whether an input is far from all of them."""

from __future__ import annotations

import math
import threading
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree

from localw2._validation import Array, as_array, as_rows
from localw2.balls.norms import Norm, Weighted

# Rows that are used for a picture or a quantile: more would change neither.
SHOWN_ROWS, SWEPT_ROWS, ISOLATION_ROWS = 400, 20_000, 1000
ISOLATED = 0.99  # an input is far from the data if this share of the rows have closer neighbours


@final
class Observations:
    """Observed rows X (N, p) and y (N, d), searchable in the norm that the model was fitted with.

    >>> rows = Observations(np.arange(10.0)[:, None], np.arange(10.0), n_features=1, n_outputs=1)
    >>> nearest, distances = rows.nearest(np.array([3.2]), 2)
    >>> rows.X[nearest, 0], (distances * rows.X.std()).round(3)
    (array([3., 4.]), array([0.2, 0.8]))
    """

    def __init__(
        self, X: Any, y: Any, n_features: int, n_outputs: int, norm: Norm | None = None, seed: int = 0
    ) -> None:
        self.X = as_rows(X, "X").astype(np.float64)
        y = as_array(y, "y").astype(np.float64)
        if y.ndim not in (1, 2) or len(y) != len(self.X):
            raise ValueError(f"X has {len(self.X)} rows and y has shape {y.shape}; every row of X needs a y.")
        self.y = y.reshape(len(y), -1)
        for name, values, expected in (("X", self.X, n_features), ("y", self.y, n_outputs)):
            if values.shape[1] != expected:
                raise ValueError(
                    f"{name} has {values.shape[1]} column(s), but the model was fitted to {expected}; pass "
                    "the same columns in the same order."
                )
        self.norm = norm if norm is not None else Weighted.standardised(self.X)
        self._embedded = self.norm.embed(self.X)
        self._tree = cKDTree(self._embedded)
        order = np.random.default_rng(seed).permutation(len(self.X))
        self._swept, self._sampled = np.sort(order[:SWEPT_ROWS]), order[:ISOLATION_ROWS]
        self._limits: dict[int, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.X)

    @property
    def usual_k(self) -> int:
        """How many neighbours to show: enough to see a spread, few enough to be close."""
        return min(len(self), max(10, math.isqrt(len(self))))

    def nearest(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k rows nearest to the input x (p,), and their distances."""
        distances, rows = self._tree.query(self.norm.embed(x[None])[0], k=np.arange(1, min(k, len(self)) + 1))
        return rows, distances

    def limit(self, k: int) -> float:
        """The distance within which 99 % of the rows have their own k nearest neighbours."""
        k = min(k, len(self) - 1)
        with self._lock:
            if k not in self._limits:
                rows = self._embedded[self._sampled]
                # The nearest row to a row is itself.
                found = self._tree.query(rows, k=[k + 1])[0][:, 0] if k > 0 else np.full(1, np.inf)
                self._limits[k] = float(np.quantile(found, ISOLATED))
            return self._limits[k]

    def along(self, x: Array, column: int, count: int) -> Array:
        """The rows nearest to x (p,) in all columns but one: those close to a sweep along that one."""
        rows = self.X[self._swept]
        if rows.shape[1] == 1:
            thinned: Array = self._swept[:: math.ceil(len(self._swept) / SHOWN_ROWS)]
            return thinned
        level = rows.copy()
        level[:, column] = x[column]
        distances = ((self.norm.embed(level) - self.norm.embed(x[None])) ** 2).sum(1)
        count = min(count, SHOWN_ROWS, len(rows))
        nearest: Array = self._swept[np.argpartition(distances, count - 1)[:count]]
        return nearest

    def explain_extrapolation(self, x: Array, names: tuple[str, ...], k: int) -> list[str]:
        """Why an answer at x (p,) is an extrapolation, in words; empty if it is not."""
        words = []
        for value, name, low, high in zip(x, names, self.X.min(0), self.X.max(0), strict=True):
            if not low <= value <= high:
                side = "above" if value > high else "below"
                words.append(f"{name} = {value:.4g} is {side} the observed range ({low:.4g} to {high:.4g})")
        if not words and self.nearest(x, k)[1][-1] > self.limit(k):
            words.append(
                f"the {min(k, len(self))} nearest rows are farther away than those of 99 % of the data"
            )
        return words
