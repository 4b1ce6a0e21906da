"""Neighbourhoods: sparse balls of rows, the one graph that every local loss is computed on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, as_rows, check_count, check_radius, seed_of
from localw2.balls import Balls, Nearest, compact, merge
from localw2.norms import Norm, check_norm
from localw2.search import BallSearch, RadiusSearch, nearest_search, radius_search

T = TypeVar("T")

# Rows that a lazy graph looks at to see whether its balls are all singletons.
PROBED_ROWS = 1000


@dataclass(frozen=True)
class Bucket:
    """Balls of like size as a rectangle: ``rows`` (balls, width), where the number of rows means padding."""

    balls: Tensor
    rows: Tensor


@final
class Neighborhoods:
    r"""Balls of rows in compressed (CSR) form: ball b holds ``rows[indptr[b]:indptr[b + 1]]``, ascending.

    Rows whose balls hold the same rows share one stored ball, whose ``weights`` entry counts them, and
    ``ball_of_row`` tells which ball is a row's own (-1 where ``min_size`` dropped it). A local loss is
    the weighted mean over the kept balls, :math:`\sum_b w_b v_b / \sum_b w_b`: with nothing dropped this
    is the paper's :math:`\frac1N\sum_i`.

    Memory: 4 bytes an edge (8 beyond 2^31 rows); up to four times that, plus about 300 MB for a chunk of
    the search, while building (``make bench-neighbors``). ``LazyNeighborhoods`` never holds all edges.

    >>> hoods = Neighborhoods.within([0.0, 0.1, 0.2, 0.9], delta=0.1)
    >>> hoods
    Neighborhoods(4 rows, 4 balls of 1 to 3 rows, median 2, 8 edges)
    >>> hoods.sizes
    tensor([2, 3, 2, 1])
    >>> hoods.ball(1)
    tensor([0, 1, 2])
    """

    def __init__(self, balls: Balls, n_rows: int, weights: Array, ball_of_row: Array) -> None:
        self.balls = balls
        self.n_rows = n_rows
        self.indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(balls.sizes)]).astype(np.int64))
        self.rows = torch.from_numpy(balls.rows)
        self.sizes = torch.from_numpy(balls.sizes.astype(np.int64))
        self.weights = torch.from_numpy(weights.astype(np.float64))
        self.ball_of_row = torch.from_numpy(ball_of_row.astype(np.int64))
        self._cache: dict[Any, Any] = {}

    @classmethod
    def within(
        cls,
        x: Any,
        delta: float,
        norm: Norm | None = None,
        min_size: int = 1,
        max_size: int | None = None,
        random_state: Any = None,
    ) -> Neighborhoods:
        r"""Closed balls: ball i holds every j with :math:`|x_j - x_i|_x \le\delta`, i included.

        The comparison allows for the rounding of x (1e-9 to 1e-3 of delta), so that a grid of step
        delta gives every inner row its two neighbours. ``min_size`` drops smaller balls; ``max_size``
        thins larger ones at random, always keeping the centre (full balls are still gone through, once for
        each distinct x).

        >>> Neighborhoods.within(np.arange(10) / 10, delta=0.1).sizes
        tensor([2, 3, 3, 3, 3, 3, 3, 3, 3, 2])
        """
        radius = check_radius(delta)
        search = radius_search(x, radius, check_norm(norm), *_limits(min_size, max_size, random_state))
        hoods = _assemble(search, min_size)
        if min_size == 1:
            _warn_of_singletons(hoods.n_singletons, hoods.n_rows, f"delta={radius:.6g}", stacklevel=3)
        return hoods

    @classmethod
    def nearest(
        cls,
        x: Any,
        k: int,
        norm: Norm | None = None,
        min_size: int = 1,
        max_size: int | None = None,
        random_state: Any = 0,
    ) -> Neighborhoods:
        """Adaptive balls: ball i holds the k rows nearest to row i, i included.

        Where more rows than are wanted share an x, ``random_state`` chooses which, so that all of them serve.

        >>> Neighborhoods.nearest([0.0, 1.0, 3.0, 7.0], k=2).rows.reshape(-1, 2)
        tensor([[0, 1],
                [1, 2],
                [2, 3]], dtype=torch.int32)
        """
        rows = as_rows(x)
        k = _check_k(k, len(rows))
        search = nearest_search(rows, k, check_norm(norm), *_limits(min_size, max_size, random_state))
        hoods = _assemble(search, min_size)
        if min_size == 1:
            _warn_of_singletons(hoods.n_singletons, hoods.n_rows, f"k={k}", stacklevel=3)
        return hoods

    @classmethod
    def of(cls, x: Any, balls: Nearest | float, norm: Norm | None = None) -> Neighborhoods:
        """Balls as they were chosen: a radius, or ``Nearest(k)``, of which no more than there are rows."""
        if isinstance(balls, Nearest):
            return cls.nearest(x, min(balls.k, len(as_rows(x))), norm)
        return cls.within(x, balls, norm)

    @classmethod
    def whole(cls, n: int) -> Neighborhoods:
        """One ball with all n rows: a local loss on it is the global loss.

        >>> Neighborhoods.whole(1000)
        Neighborhoods(1000 rows, 1 ball of 1000 rows, 1000 edges)
        """
        n = check_count(n, "n", 1)
        balls = Balls(np.array([n]), np.arange(n, dtype=np.int32 if n < 2**31 else np.int64))
        return cls(balls, n, np.array([n]), np.zeros(n, np.int64))

    @classmethod
    def singletons(cls, n: int) -> Neighborhoods:
        """Every row a ball of its own: squared W2 is then the mean squared error, the energy score row-wise.

        >>> Neighborhoods.singletons(3)
        Neighborhoods(3 rows, 3 balls of 1 row, 3 edges)
        """
        n = check_count(n, "n", 1)
        balls = Balls(np.ones(n, np.int64), np.arange(n, dtype=np.int32 if n < 2**31 else np.int64))
        return cls(balls, n, np.ones(n), np.arange(n))

    @property
    def n_balls(self) -> int:
        """Number of stored (distinct) balls."""
        return len(self.sizes)

    @property
    def n_singletons(self) -> int:
        """Number of rows that are alone in their ball."""
        return int(self.weights[self.sizes == 1].sum())

    @property
    def n_edges(self) -> int:
        """Number of (ball, row) pairs stored."""
        return len(self.rows)

    def ball(self, index: int) -> Tensor:
        """The rows of one stored ball, ascending."""
        index = check_count(index, "index", 0, self.n_balls - 1, "stored balls are numbered from 0")
        return self.rows[self.indptr[index] : self.indptr[index + 1]].long()

    def block(self, balls: Any) -> tuple[Tensor, Neighborhoods]:
        """The rows that these balls need, and the balls re-indexed to those rows.

        A mini-batch on one machine, or a shard of many: simulate ``x[rows]`` only, then take the loss on
        the returned graph. Each ball keeps its weight; a row's own ball is -1 if it is not in the block.

        >>> rows, part = Neighborhoods.within([0.0, 0.1, 0.2, 0.9], 0.1).block([0, 3])
        >>> rows, part.sizes
        (tensor([0, 1, 3]), tensor([2, 1]))
        """
        chosen = _check_balls(balls, self.n_balls)
        rows, local = compact(self.balls.take(chosen))
        place = np.full(self.n_balls + 1, -1)
        place[chosen] = np.arange(len(chosen))
        own = place[self.ball_of_row.numpy()[rows]]
        return torch.from_numpy(rows), Neighborhoods(local, len(rows), self.weights.numpy()[chosen], own)

    def at_least(self, min_size: int) -> Neighborhoods:
        """The same rows with only the balls of at least ``min_size`` rows."""
        if bool((self.sizes >= min_size).all()):
            return self
        kept = self.sizes.numpy() >= min_size
        if not kept.any():
            raise ValueError(
                f"no ball has {min_size} rows (the largest has {int(self.sizes.max())}). "
                "Take a larger delta, or Neighborhoods.nearest(x, k)."
            )
        place = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
        own = place[self.ball_of_row.numpy()]
        return Neighborhoods(self.balls.take(kept), self.n_rows, self.weights.numpy()[kept], own)

    def buckets(self, growth: float, max_elements: int | None = None) -> list[Bucket]:
        """The balls in rectangular groups of like size, padded: at most ``growth`` times wider than a ball.

        ``max_elements`` bounds rows x width of a group (one ball may exceed it alone).
        """
        order = np.argsort(self.balls.sizes, kind="stable")[::-1]
        sizes, starts = self.balls.sizes[order], self.balls.starts[order]
        found, low = [], 0
        while low < len(order):
            width = int(sizes[low])
            high = int(np.searchsorted(-sizes, -width / growth, side="right"))
            if max_elements is not None:
                high = min(high, low + max(1, max_elements // width))
            place = np.arange(width)
            inside = place < sizes[low:high, None]
            at = np.where(inside, starts[low:high, None] + place, 0)
            rows = np.where(inside, self.balls.rows[at], self.n_rows)
            found.append(Bucket(torch.from_numpy(order[low:high].copy()), torch.from_numpy(rows)))
            low = high
        return found

    def row_sizes(self) -> Tensor:
        """The size of each row's own ball, 0 where it was dropped."""
        return torch.cat([self.sizes, torch.zeros(1, dtype=torch.int64)])[self.ball_of_row]

    def cached(self, key: Any, build: Callable[[], T]) -> T:
        """Compute something once per graph (an engine's layout, say) and keep it."""
        if key not in self._cache:
            self._cache[key] = build()
        found: T = self._cache[key]
        return found

    def __repr__(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        median = int(self.sizes.median())
        spread = f"{high} row{'s' * (high > 1)}" if low == high else f"{low} to {high} rows, median {median}"
        merged = int(self.weights.sum()) - self.n_balls
        note = f" ({merged} identical ones merged)" if merged and self.n_balls > 1 else ""
        balls = f"{self.n_balls} ball{'s' * (self.n_balls > 1)} of {spread}{note}"
        return f"Neighborhoods({self.n_rows} rows, {balls}, {self.n_edges} edges)"


@final
class LazyNeighborhoods:
    """The same balls, found only when a block of them is asked for: memory grows with rows, not edges.

    Ball i is the i-th kept row's own; ``block`` merges identical balls inside the block. Holds x
    embedded (8 bytes a value), its KD-tree and, with ``min_size`` > 1, one number a row.

    >>> lazy = LazyNeighborhoods.nearest(np.arange(1000.0), k=51)
    >>> rows, hoods = lazy.block(range(100, 110))
    >>> len(rows), hoods
    (60, Neighborhoods(60 rows, 10 balls of 51 rows, 510 edges))
    """

    def __init__(self, search: BallSearch, min_size: int = 1) -> None:
        self._search = search
        self.n_rows = search.n_rows
        self._centres = np.arange(self.n_rows)
        if min_size > 1:
            self._centres = np.flatnonzero(search.sizes(self._centres) >= min_size)
            if len(self._centres) == 0:
                raise ValueError(f"no ball has {min_size} rows. Take a larger delta, or nearest(x, k).")
        self.ball_of_row = torch.full((self.n_rows,), -1)
        self.ball_of_row[torch.from_numpy(self._centres)] = torch.arange(len(self._centres))
        self.weights = torch.ones(len(self._centres), dtype=torch.float64)

    def _warned(self, min_size: int, setting: str) -> LazyNeighborhoods:
        """Tell of singletons from a look at some rows: counting all would cost a pass over the data."""
        probe = np.unique(np.linspace(0, self.n_rows - 1, PROBED_ROWS).astype(np.int64))
        alone = int((self._search.sizes(probe) == 1).sum())
        if min_size == 1:
            _warn_of_singletons(alone, len(probe), setting, stacklevel=4)
        return self

    def at_least(self, min_size: int) -> LazyNeighborhoods:
        """Only the balls of at least ``min_size`` rows, from a counting pass that keeps no edges."""
        kept = LazyNeighborhoods(self._search, min_size)
        return self if kept.n_balls == self.n_balls else kept

    @classmethod
    def within(
        cls,
        x: Any,
        delta: float,
        norm: Norm | None = None,
        min_size: int = 1,
        max_size: int | None = None,
        random_state: Any = None,
    ) -> LazyNeighborhoods:
        """Closed balls of radius delta, as ``Neighborhoods.within``."""
        radius, limits = check_radius(delta), _limits(min_size, max_size, random_state)
        lazy = cls(radius_search(x, radius, check_norm(norm), *limits), min_size)
        return lazy._warned(min_size, f"delta={radius:.6g}")

    @classmethod
    def nearest(
        cls,
        x: Any,
        k: int,
        norm: Norm | None = None,
        min_size: int = 1,
        max_size: int | None = None,
        random_state: Any = 0,
    ) -> LazyNeighborhoods:
        """The k nearest rows of each row, as ``Neighborhoods.nearest``."""
        rows = as_rows(x)
        k, limits = _check_k(k, len(rows)), _limits(min_size, max_size, random_state)
        lazy = cls(nearest_search(rows, k, check_norm(norm), *limits), min_size)
        return lazy._warned(min_size, f"k={k}")

    @property
    def n_balls(self) -> int:
        """Number of balls, one a kept row."""
        return len(self._centres)

    @property
    def sizes(self) -> Tensor:
        """The size of every ball: a counting pass over the data that keeps no edges."""
        return torch.from_numpy(self._search.sizes(self._centres).astype(np.int64))

    def block(self, balls: Any) -> tuple[Tensor, Neighborhoods]:
        """The rows that these balls need, and the balls re-indexed to them, as ``Neighborhoods.block``."""
        centres = self._centres[_check_balls(balls, self.n_balls)]
        rows, local = compact(self._search.balls(centres))
        merged, ball_of_centre, weights = merge(local, np.ones(len(centres)))
        own = np.full(len(rows), -1)
        own[np.searchsorted(rows, centres)] = ball_of_centre
        return torch.from_numpy(rows), Neighborhoods(merged, len(rows), weights, own)

    def __repr__(self) -> str:
        return f"LazyNeighborhoods({self.n_rows} rows, {self.n_balls} balls, found block by block)"


def _limits(min_size: int, max_size: int | None, random_state: Any) -> tuple[int | None, int]:
    check_count(min_size, "min_size", 1)
    if max_size is not None:
        check_count(max_size, "max_size", min_size, why="it must not be below min_size")
    return max_size, seed_of(random_state)


def _check_k(k: Any, n_rows: int) -> int:
    return check_count(k, "k", 1, n_rows, f"x has {n_rows} rows, so no row has more neighbours than that")


def _check_balls(balls: Any, n_balls: int) -> Array:
    chosen = np.atleast_1d(np.asarray(balls))
    if chosen.ndim != 1 or len(chosen) == 0 or chosen.dtype.kind not in "iu":
        raise ValueError(f"balls={balls!r} must be a non-empty list of whole numbers.")
    if chosen.min() < 0 or chosen.max() >= n_balls:
        raise ValueError(f"balls run from {chosen.min()} to {chosen.max()}; there are 0 to {n_balls - 1}.")
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("balls has repeats; a block holds each ball once, with its weight.")
    return chosen.astype(np.int64)


def _assemble(search: BallSearch, min_size: int) -> Neighborhoods:
    """Every ball of a search, small ones dropped, identical ones merged."""
    n = search.n_rows
    if isinstance(search, RadiusSearch) and search.max_size is None:
        if search.is_one_ball:
            return Neighborhoods.whole(n).at_least(min_size)
        # Copies of one x have one ball: search once for each distinct x.
        centres, ball_of_row = np.unique(search.leader, return_inverse=True)
    else:
        # Copies side by side, so that a chunk finds their common ball once.
        centres = np.argsort(search.leader, kind="stable")
        ball_of_row = np.argsort(centres)
    copies = np.bincount(ball_of_row, minlength=len(centres))
    parts, numbers, weights, done, known = [], [], [], 0, 0
    for found in search.chunks(centres):
        # Merging inside each chunk first keeps duplicates from ever being held together.
        distinct, number, weight = merge(found, copies[done : done + len(found.sizes)])
        parts.append(distinct)
        numbers.append(number + known)
        weights.append(weight)
        done, known = done + len(found.sizes), known + len(distinct.sizes)
    merged, number, weight = merge(Balls.join(parts), np.concatenate(weights))
    hoods = Neighborhoods(merged, n, weight, number[np.concatenate(numbers)][ball_of_row])
    return _in_row_order(hoods).at_least(min_size)


def _in_row_order(hoods: Neighborhoods) -> Neighborhoods:
    """Number the balls by the first row whose own they are."""
    own = hoods.ball_of_row.numpy()
    kept, first = np.unique(own, return_index=True)
    order = kept[np.argsort(first)]
    if (order == np.arange(len(order))).all():
        return hoods
    place = np.argsort(order)
    return Neighborhoods(hoods.balls.take(order), hoods.n_rows, hoods.weights.numpy()[order], place[own])


def _warn_of_singletons(alone: int, rows: int, setting: str, stacklevel: int) -> None:
    if rows > 1 and alone >= 0.9 * rows:
        warnings.warn(
            f"{setting} leaves {alone} of {rows} balls with one row, where the loss cannot see spread. "
            "Take a larger delta or more neighbours: Neighborhoods.nearest(x, 20) gives every row 20.",
            stacklevel=stacklevel,
        )
