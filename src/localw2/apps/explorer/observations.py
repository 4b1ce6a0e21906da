"""The observed rows: their ranges, those near an input, and whether an input is far from all of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.spatial import cKDTree

from localw2._validation import Array, as_array
from localw2.balls.norms import Weighted

if TYPE_CHECKING:
    from localw2.judging.inputs import Input

# Rows that are used for a picture or a quantile: more would change neither.
SHOWN_ROWS, SWEPT_ROWS, ISOLATION_ROWS = 400, 20_000, 1000
ISOLATED = 0.99  # an input is far from the data if this share of the rows have closer neighbours


@final
class Observations:
    """Observed rows x (N, p), in the numbers of ``Inputs``, and y (N, d), searchable by distance.

    ``embed`` maps rows to where distance is Euclidean, by default in standard deviations of each column.

    >>> rows = Observations(np.arange(10.0)[:, None], np.arange(10.0), n_outputs=1)
    >>> nearest, distances = rows.nearest(np.array([3.2]), 2)
    >>> rows.x[nearest, 0], (distances * rows.x.std()).round(3)
    (array([3., 4.]), array([0.2, 0.8]))
    """

    def __init__(
        self, x: Array, y: Any, n_outputs: int, embed: Callable[[Array], Array] | None = None, seed: int = 0
    ) -> None:
        y = as_array(y, "y").astype(np.float64)
        if y.ndim not in (1, 2) or len(y) != len(x):
            raise ValueError(f"X has {len(x)} rows and y has shape {y.shape}; every row of X needs a y.")
        self.x, self.y = x, y.reshape(len(y), -1)
        if self.y.shape[1] != n_outputs:
            raise ValueError(
                f"y has {self.y.shape[1]} column(s), but the model was fitted to {n_outputs}; pass the same "
                "outputs in the same order."
            )
        self.embed = Weighted.standardised(x).embed if embed is None else embed
        self._embedded = self.embed(x)
        self._tree = cKDTree(self._embedded)
        order = np.random.default_rng(seed).permutation(len(x))
        self._swept, self._sampled = np.sort(order[:SWEPT_ROWS]), order[:ISOLATION_ROWS]
        self._limits: dict[int, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def usual_k(self) -> int:
        """How many neighbours to show: enough to see a spread, few enough to be close."""
        return min(len(self), max(10, math.isqrt(len(self))))

    def nearest(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k rows nearest to the input x (p,), and their distances."""
        distances, rows = self._tree.query(self.embed(x[None])[0], k=np.arange(1, min(k, len(self)) + 1))
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
        seen = self._swept[np.isfinite(self.x[self._swept, column])]
        if self.x.shape[1] == 1 or len(seen) == 0:
            thinned: Array = seen[:: max(1, math.ceil(len(seen) / SHOWN_ROWS))]
            return thinned
        level = self.x[seen]
        level[:, column] = x[column]
        distances = ((self.embed(level) - self.embed(x[None])) ** 2).sum(1)
        count = min(count, SHOWN_ROWS, len(seen))
        nearest: Array = seen[np.argpartition(distances, count - 1)[:count]]
        return nearest

    def explain_extrapolation(self, x: Array, inputs: Sequence[Input], k: int) -> list[str]:
        """Why an answer at x (p,) is an extrapolation, in words; empty if it is not."""
        words = []
        for value, each, column in zip(x, inputs, self.x.T, strict=True):
            seen = column[np.isfinite(column)]
            if not np.isfinite(value) or not len(seen) or each.kind == "category":
                if not (column == value).any() and not (np.isnan(value) and len(seen) < len(column)):
                    words.append(f"no observed row has {each.name} = {each.show(value)}")
            elif not seen.min() <= value <= seen.max():
                side = "above" if value > seen.max() else "below"
                limits = f"{each.show(seen.min())} to {each.show(seen.max())}"
                words.append(f"{each.name} = {each.show(value)} is {side} the observed range ({limits})")
        if not words and self.nearest(x, k)[1][-1] > self.limit(k):
            words.append(
                f"the {min(k, len(self))} nearest rows are farther away than those of 99 % of the data"
            )
        return words
