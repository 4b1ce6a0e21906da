"""The observed rows beside the model: ranges, the rows near an input, and whether it is outside of them."""

from __future__ import annotations

import math
import threading
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree

from localw2._validation import Array, as_array, as_rows
from localw2.balls.norms import Norm, candidate_norms

# Rows that are looked at for what a picture shows or a quantile needs: more would not change either.
SHOWN_ROWS, SWEPT_ROWS, LONELY_ROWS = 400, 20_000, 1000
LONELY = 0.99  # of the rows have their k nearest closer than an input that is called far from the data


@final
class Observed:
    """Observed rows X (N, p) and y (N, d), searchable in the norm that the model was fitted with.

    >>> rows = Observed(np.arange(10.0)[:, None], np.arange(10.0), n_features=1, n_outputs=1)
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
            raise ValueError(f"X has {len(self.X)} rows and y has shape {y.shape}; give a y for every row.")
        self.y = y.reshape(len(y), -1)
        for name, values, expected in (("X", self.X, n_features), ("y", self.y, n_outputs)):
            if values.shape[1] != expected:
                raise ValueError(
                    f"{name} has {values.shape[1]} column(s) and the model was fitted to {expected}; give "
                    "the columns of the fit, in their order."
                )
        self.norm = norm if norm is not None else candidate_norms(self.X, self.y)["standardised"]
        self._embedded = self.norm.embed(self.X)
        self._tree = cKDTree(self._embedded)
        order = np.random.default_rng(seed).permutation(len(self.X))
        self._swept, self._lonely = np.sort(order[:SWEPT_ROWS]), order[:LONELY_ROWS]
        self._limits: dict[int, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.X)

    @property
    def usual_k(self) -> int:
        """How many neighbours tell of a place: enough to show a spread, few enough to be near it."""
        return min(len(self), max(10, math.isqrt(len(self))))

    def nearest(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k rows nearest to the input x (p,), and their distances."""
        distances, rows = self._tree.query(self.norm.embed(x[None])[0], k=np.arange(1, min(k, len(self)) + 1))
        return rows, distances

    def limit(self, k: int) -> float:
        """The distance within which nearly every row has its own k nearest others."""
        k = min(k, len(self) - 1)
        with self._lock:
            if k not in self._limits:
                rows = self._embedded[self._lonely]
                # The nearest to a row is itself.
                found = self._tree.query(rows, k=[k + 1])[0][:, 0] if k > 0 else np.full(1, np.inf)
                self._limits[k] = float(np.quantile(found, LONELY))
            return self._limits[k]

    def beside(self, x: Array, column: int, count: int) -> Array:
        """The rows nearest to x (p,) when one column is left out: those a sweep along it passes by."""
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

    def outside(self, x: Array, names: tuple[str, ...], k: int) -> list[str]:
        """Why an answer at x (p,) is an extrapolation, in words; nothing where it is not."""
        words = []
        for value, name, low, high in zip(x, names, self.X.min(0), self.X.max(0), strict=True):
            if not low <= value <= high:
                side = "above" if value > high else "below"
                words.append(f"{name} = {value:.4g} is {side} the data ({low:.4g} to {high:.4g})")
        if not words and self.nearest(x, k)[1][-1] > self.limit(k):
            words.append(
                f"the {min(k, len(self))} nearest rows are farther away than around 99 % of the data"
            )
        return words
