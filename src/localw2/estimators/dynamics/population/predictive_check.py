"""The visual predictive check: quantiles of observations over time, against those of simulated data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array, check_probability

# Bins of time, at most, where subjects share few times, and the observations that each should have.
MOST_BINS, FEWEST_ROWS = 12, 10
# A common time is a bin of its own if at least this part of the subjects was observed then.
SHARED = 0.25


@final
@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """Quantiles (q, B, p) of the observations in B bins of time, and intervals of those of simulated data.

    ``time`` (B,) is the median time of each bin, ``edges`` (B + 1,) are its ends. A model is right if the
    observed quantiles are inside ``lower`` to ``upper`` in about ``coverage`` of the bins.
    """

    levels: tuple[float, ...]
    coverage: float
    time: Array
    edges: Array
    observed: Array
    lower: Array
    middle: Array
    upper: Array
    points: tuple[Array, Array]  # times (R,) and values (R, p)
    quantities: list[str]
    limit: float | None

    @property
    def inside(self) -> Array:
        """The share (q, p) of bins whose observed quantile is inside the interval of the simulated ones."""
        known = np.isfinite(self.observed)
        within = known & (self.observed >= self.lower) & (self.observed <= self.upper)
        found: Array = within.sum(1) / np.maximum(known.sum(1), 1)
        return found

    @classmethod
    def of(
        cls,
        times: Array,
        values: Array,
        draws: Array,
        levels: Any,
        coverage: float,
        bins: Any,
        quantities: list[str],
        limit: float | None,
        corrected: bool = False,
    ) -> PredictiveCheck:
        """From times (n, T), values (n, T, p), NaN where there are none, and draws (S, n, T, p)."""
        levels = tuple(check_probability(level, "levels") for level in levels)
        coverage = check_probability(coverage, "coverage")
        seen: Array = np.asarray(np.isfinite(values).any(2))
        edges = make_bins(times, seen) if bins is None else _check_bins(bins, times[seen])
        own = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)
        if corrected:
            values, draws = _correct(values, draws, own, len(edges) - 1)
        shape = (len(levels), len(edges) - 1, values.shape[2])
        observed, simulated = np.full(shape, np.nan), np.full((len(draws), *shape), np.nan)
        for b in range(shape[1]):
            for c in range(shape[2]):
                rows = (own == b) & np.isfinite(values[..., c])
                if rows.any():
                    observed[:, b, c] = np.quantile(values[rows, c], levels)
                    simulated[:, :, b, c] = np.quantile(draws[:, rows, c], levels, axis=1).T
        tail = (1 - coverage) / 2
        filled = np.where(np.isfinite(observed), simulated, 0.0)
        lower, middle, upper = (
            np.where(np.isfinite(observed), part, np.nan)
            for part in np.quantile(filled, [tail, 0.5, 1 - tail], axis=0)
        )
        center = np.array([np.median(times[seen & (own == b)]) for b in range(shape[1])])
        points = times[seen], values[seen]
        return cls(levels, coverage, center, edges, observed, lower, middle, upper, points, quantities, limit)


def make_bins(times: Array, seen: Array) -> Array:
    """Edges (B + 1,) of bins of times (n, T): common times, visits, or equally many observations each.

    >>> make_bins(np.array([[0.0, 1.0, 4.1], [0.1, 1.2, 4.0]]), np.ones((2, 3), bool)).tolist()
    [0.0, 0.55, 2.6, 4.1]
    """
    n, every = len(times), np.sort(times[seen])
    distinct, counts = np.unique(every, return_counts=True)
    if len(distinct) == 1:
        return np.array([distinct[0], distinct[0]])
    lasts, firsts = distinct[:-1], distinct[1:]
    if counts.min() < max(2, SHARED * n):
        visits = _visits(times, seen)
        if visits is not None:
            lasts, firsts = visits
        else:
            count = int(np.clip(len(every) // max(FEWEST_ROWS, n // 2), 1, MOST_BINS))
            cuts = np.unique(np.searchsorted(distinct, np.quantile(every, np.arange(1, count) / count)))
            cuts = cuts[(cuts > 0) & (cuts < len(distinct))]
            lasts, firsts = distinct[cuts - 1], distinct[cuts]
    edges: Array = np.r_[every[0], (lasts + firsts) / 2, every[-1]]
    return edges


def _visits(times: Array, seen: Array) -> tuple[Array, Array] | None:
    """Last times of visits and first ones of the next, if all subjects were seen equally often, in turn."""
    counts = seen.sum(1)
    if counts.min() != counts.max() or counts[0] < 2:
        return None
    visits = np.sort(times[seen].reshape(len(times), -1), axis=1)
    lasts, firsts = visits.max(0)[:-1], visits.min(0)[1:]
    return (lasts, firsts) if (lasts < firsts).all() else None


def _check_bins(bins: Any, times: Array) -> Array:
    edges = as_array(bins, "bins").astype(float)
    if edges.ndim != 1 or len(edges) < 2 or (np.diff(edges) <= 0).any():
        raise ValueError(f"bins={bins!r}; expected rising ends of bins of time, (B + 1,).")
    if edges[0] > times.min() or edges[-1] < times.max():
        raise ValueError(
            f"bins end at {edges[0]:g} and {edges[-1]:g}, but observations are at {times.min():g} to "
            f"{times.max():g}; widen them."
        )
    empty = np.histogram(times, edges)[0] == 0
    if empty.any():
        where = int(np.argmax(empty))
        raise ValueError(f"the bin from {edges[where]:g} to {edges[where + 1]:g} has no observation.")
    return edges


def _correct(values: Array, draws: Array, own: Array, n_bins: int) -> tuple[Array, Array]:
    """Values and draws as if all subjects of a bin had its median prediction: doses no longer matter."""
    typical = np.median(draws, axis=0)
    factor = np.ones_like(typical)
    for b in range(n_bins):
        for c in range(values.shape[2]):
            rows = (own == b) & np.isfinite(values[..., c])
            usual = np.median(typical[rows, c]) if rows.any() else 1.0
            safe = np.where(typical[..., c] > 0, typical[..., c], usual if usual > 0 else 1.0)
            factor[..., c] = np.where(rows, usual / safe, factor[..., c])
    return values * factor, draws * factor
