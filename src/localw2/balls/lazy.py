"""Neighbourhoods of millions of rows, whose balls are found only when a block of them is requested."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, check_sample_weight
from localw2.balls.neighborhoods import BallGraph, Neighborhoods, check_balls, check_weights
from localw2.balls.ragged import compact, merge
from localw2.balls.search import BallSearch, NearestSearch

# Rows whose balls a lazy graph inspects, to see whether nearly all are singletons.
PROBED_ROWS = 1000
# Above this many rows estimators use lazy balls; below, a step on all balls takes at most a second.
MANY_ROWS = 50_000
SLACK = 1.0  # of a search among that many rows: 8 times faster, with a 3 % larger radius


@final
class LazyNeighborhoods(BallGraph):
    """The balls of ``Neighborhoods``, found block by block, so that memory grows with rows and not edges.

    Ball i belongs to the i-th kept row; ``block`` merges identical balls inside the block. Stored are the
    embedded x (8 bytes per value), its KD-tree and, with ``min_size`` > 1, one number per row.

    >>> lazy = LazyNeighborhoods.nearest(np.arange(1000.0), k=51)
    >>> rows, hoods = lazy.block(range(100, 110))
    >>> len(rows), hoods
    (60, Neighborhoods(60 rows, 10 balls of 51 rows, 510 edges))
    """

    def __init__(self, search: BallSearch, min_size: int = 1, sample_weight: Array | None = None) -> None:
        self._search = search
        self.sample_weight = None if sample_weight is None else torch.from_numpy(sample_weight)
        self.n_rows = search.n_rows
        self._centres = np.arange(self.n_rows)
        if min_size > 1:
            self._centres = np.flatnonzero(search.sizes(self._centres) >= min_size)
            if len(self._centres) == 0:
                raise ValueError(f"no ball has {min_size} rows. Use a larger delta, or nearest(x, k).")
        self.ball_of_row = torch.full((self.n_rows,), -1)
        self.ball_of_row[torch.from_numpy(self._centres)] = torch.arange(len(self._centres))
        self.weights = torch.ones(len(self._centres), dtype=torch.float64)
        if self.sample_weight is not None:
            self.weights = self.sample_weight[torch.from_numpy(self._centres)]

    @classmethod
    def _find(cls, search: BallSearch, min_size: int) -> LazyNeighborhoods:
        return cls(search, min_size)

    def _some_sizes(self) -> Array:
        probe = np.unique(np.linspace(0, self.n_rows - 1, PROBED_ROWS).astype(np.int64))
        return self._search.sizes(probe)

    @property
    def probed_size(self) -> float:
        """The mean ball size, estimated from some rows."""
        return float(self._some_sizes().mean())

    @property
    def slack(self) -> float:
        """By what fraction the k-th row of a ball may be farther away than the k-th nearest row."""
        return self._search.slack if isinstance(self._search, NearestSearch) else 0.0

    def weigh(self, sample_weight: Any) -> LazyNeighborhoods:
        """The same balls with weights of their rows, (N,) and > 0, as ``Neighborhoods.weigh``."""
        weights = check_sample_weight(sample_weight, self.n_rows)
        if self.sample_weight is not None or self.n_balls < self.n_rows:
            raise ValueError("weigh lazy balls once, and before small ones are dropped (min_size=1).")
        if weights.min() == 0:
            raise ValueError("sample_weight has zeros; drop such rows before lazy balls are made.")
        return LazyNeighborhoods(self._search, sample_weight=weights)

    def at_least(self, min_size: int) -> LazyNeighborhoods:
        """The same graph with only the balls of at least ``min_size`` rows, counted in one pass."""
        of_rows = None if self.sample_weight is None else self.sample_weight.numpy()
        kept = LazyNeighborhoods(self._search, min_size, of_rows)
        return self if kept.n_balls == self.n_balls else kept

    @property
    def n_balls(self) -> int:
        """Number of balls, one per kept row."""
        return len(self._centres)

    @property
    def n_unmerged(self) -> int:
        """The same number: identical balls are merged in blocks only."""
        return self.n_balls

    @property
    def sizes(self) -> Tensor:
        """The size of every ball, counted in one pass over the data that stores no edges."""
        return torch.from_numpy(self._search.sizes(self._centres).astype(np.int64))

    def block(self, balls: Any, weights: Any = None) -> tuple[Tensor, Neighborhoods]:
        """The rows that these balls need, and the balls re-indexed to them, as ``Neighborhoods.block``."""
        chosen = check_balls(balls, self.n_balls)
        centres = self._centres[chosen]
        counts = self.weights.numpy()[chosen] if weights is None else check_weights(weights, len(centres))
        rows, local = compact(self._search.balls(centres))
        merged, ball_of_centre, weight = merge(local, counts)
        own = np.full(len(rows), -1)
        own[np.searchsorted(rows, centres)] = ball_of_centre
        of_rows = None if self.sample_weight is None else self.sample_weight.numpy()[rows]
        return torch.from_numpy(rows), Neighborhoods(merged, len(rows), weight, own, of_rows)

    def order(self) -> Array:
        """All balls, in an order where consecutive ones are near each other."""
        balls: Array = self.ball_of_row.numpy()[self._search.order()]
        return balls[balls >= 0]

    def __repr__(self) -> str:
        return f"LazyNeighborhoods({self.n_rows} rows, {self.n_balls} balls, found block by block)"
