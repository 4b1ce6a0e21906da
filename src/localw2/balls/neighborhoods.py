"""Neighbourhoods: sparse balls of rows, the graph on which every local loss is computed."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar, final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from localw2._validation import (
    Array,
    as_array,
    as_rows,
    check_count,
    check_number,
    check_radius,
    check_sample_weight,
    seed_from,
)
from localw2.balls.leaves import find_leaves
from localw2.balls.norms import Norm, check_norm
from localw2.balls.ragged import Balls, Bucket, compact, count_copies, index_type, merge, steps
from localw2.balls.search import (
    BallSearch,
    RadiusSearch,
    cells,
    is_range,
    nearest_search,
    radius_search,
)

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Nearest:
    """Adaptive balls: the k rows nearest to each row, itself included.

    >>> Neighborhoods.of([0.0, 1.0, 3.0, 7.0], Nearest(2))
    Neighborhoods(4 rows, 3 balls of 2 rows (1 identical ones merged), 6 edges)
    """

    k: int

    def __post_init__(self) -> None:
        check_count(self.k, "k of Nearest", 1, why="a ball holds its own row")


class BallGraph(ABC):
    """Balls of rows, in whichever way they are stored: how they are requested and checked."""

    @classmethod
    def within(
        cls,
        x: Any,
        delta: float,
        norm: Norm | None = None,
        min_size: int = 1,
        max_size: int | None = None,
        random_state: Any = None,
    ) -> Self:
        r"""Closed balls: ball i holds every j with :math:`|x_j - x_i|_x \le\delta`, i included.

        The comparison allows for the rounding of x (1e-9 to 1e-3 of delta), so that on a grid with step
        delta every inner row has its two neighbours. ``min_size`` drops smaller balls; ``max_size`` thins
        larger ones at random, always keeping the centre (full balls are still searched, once for each
        distinct x).

        >>> Neighborhoods.within(np.arange(10) / 10, delta=0.1).sizes
        tensor([2, 3, 3, 3, 3, 3, 3, 3, 3, 2])
        """
        radius, limits = check_radius(delta), _size_limits(min_size, max_size, random_state)
        search = radius_search(x, radius, check_norm(norm), *limits)
        return cls._around(search, min_size, f"delta={radius:.6g}")

    @classmethod
    def nearest(
        cls,
        x: Any,
        k: int,
        norm: Norm | None = None,
        min_size: int = 1,
        max_size: int | None = None,
        random_state: Any = 0,
        slack: float = 0.0,
    ) -> Self:
        """Adaptive balls: ball i holds the k rows nearest to row i, i included.

        Where more rows share an x than are needed, ``random_state`` chooses among them, so that all are used.
        With ``slack`` s the k-th row found may be 1 + s times as far away as the k-th nearest. On a million
        rows with 8 columns, s = 1 is 8 times faster and makes that distance 3 % larger.

        >>> Neighborhoods.nearest([0.0, 1.0, 3.0, 7.0], k=2).rows.reshape(-1, 2)
        tensor([[0, 1],
                [1, 2],
                [2, 3]], dtype=torch.int32)
        """
        rows, limits = as_rows(x), _size_limits(min_size, max_size, random_state)
        k = check_count(k, "k", 1, len(rows), f"x has only {len(rows)} rows")
        words = "a number >= 0: 0 is exact, 1 is fast and nearly exact"
        slack = check_number(slack, "slack", lambda s: 0 <= s < math.inf, words)
        search = nearest_search(rows, k, check_norm(norm), *limits, slack)
        return cls._around(search, min_size, f"k={k}")

    @classmethod
    def of(cls, x: Any, balls: Nearest | float, norm: Norm | None = None, slack: float = 0.0) -> Self:
        """Balls of a given radius, or of ``Nearest(k)`` rows, where k is at most the number of rows."""
        if isinstance(balls, Nearest):
            return cls.nearest(x, min(balls.k, len(as_rows(x))), norm, slack=slack)
        return cls.within(x, balls, norm)

    @classmethod
    def _around(cls, search: BallSearch, min_size: int, setting: str) -> Self:
        hoods = cls._find(search, min_size)
        if min_size == 1:
            cure = "Use a larger delta, or a fixed number of rows per ball: Neighborhoods.nearest(x, 20)."
            _warn_of_singletons(hoods._some_sizes(), f"{setting} leaves", cure, stacklevel=4)
        return hoods

    @classmethod
    @abstractmethod
    def _find(cls, search: BallSearch, min_size: int) -> Self:
        """The balls of a search that have at least ``min_size`` rows."""

    @abstractmethod
    def _some_sizes(self) -> Array:
        """The sizes of the balls of all rows, or of enough of them to tell how many are alone."""


@final
class Neighborhoods(BallGraph):
    r"""Balls of rows in compressed (CSR) form: ball b holds ``rows[indptr[b]:indptr[b + 1]]``, ascending.

    Rows whose balls hold the same rows share one stored ball. Its entry in ``weights`` is the number of
    such rows, and ``ball_of_row`` gives the ball of each row (-1 where ``min_size`` dropped it). A local loss
    is the weighted mean over the kept balls, :math:`\sum_b w_b v_b / \sum_b w_b`; if none is dropped, this
    is the paper's :math:`\frac1N\sum_i`. With ``leaves`` a ball belongs to all rows that it holds, and a row
    has a ball in every tree; the loss is then the mean over rows and their trees. ``weigh`` gives the rows
    weights, ``sample_weight`` (N,), which is None where all rows count alike.

    Memory: 4 bytes per edge (8 beyond 2^31 rows). Construction takes up to four times that, plus about 300 MB
    for a chunk of the search (``make bench-neighbors``). ``LazyNeighborhoods`` never holds all edges.

    >>> hoods = Neighborhoods.within([0.0, 0.1, 0.2, 0.9], delta=0.1)
    >>> hoods
    Neighborhoods(4 rows, 4 balls of 1 to 3 rows, median 2, 8 edges)
    >>> hoods.sizes
    tensor([2, 3, 2, 1])
    >>> hoods.ball(1)
    tensor([0, 1, 2])
    """

    def __init__(
        self,
        balls: Balls,
        n_rows: int,
        weights: Array,
        ball_of_row: Array | None = None,
        sample_weight: Array | None = None,
    ) -> None:
        # Without ball_of_row a ball belongs to all rows that it holds.
        self.balls = balls
        self.n_rows = n_rows
        self.indptr = torch.from_numpy(balls.indptr)
        self.rows = torch.from_numpy(balls.rows)
        self.sizes = torch.from_numpy(balls.sizes.astype(np.int64, copy=False))
        self.weights = torch.from_numpy(weights.astype(np.float64, copy=False))
        self.sample_weight = None if sample_weight is None else torch.from_numpy(sample_weight)
        self._own = None if ball_of_row is None else ball_of_row.astype(np.int64, copy=False)
        self._cache: dict[Any, Any] = {}

    @classmethod
    def _find(cls, search: BallSearch, min_size: int) -> Neighborhoods:
        """All balls of a search, with small ones dropped and identical ones merged."""
        if isinstance(search, RadiusSearch) and search.max_size is None:
            if search.is_one_ball:
                return cls.whole(search.n_rows).at_least(min_size)
            # Copies of one x share a ball: search once for each distinct x.
            centres, ball_of_row = np.unique(search.leader, return_inverse=True)
        else:
            # Copies side by side, so that a chunk finds their common ball once.
            centres = np.argsort(search.leader, kind="stable")
            ball_of_row = np.argsort(centres)
        copies = np.bincount(ball_of_row, minlength=len(centres))
        parts, numbers, weights, done, known = [], [], [], 0, 0
        for found in search.chunks(centres):
            # Merge inside each chunk first, so that all duplicates are never in memory at once.
            distinct, number, weight = merge(found, copies[done : done + len(found.sizes)])
            parts.append(distinct)
            numbers.append(number + known)
            weights.append(weight)
            done, known = done + len(found.sizes), known + len(distinct.sizes)
        balls, number, weight = merge(Balls.join(parts), np.concatenate(weights))
        own = number[np.concatenate(numbers)][ball_of_row]
        # Balls are numbered by the first row that they belong to.
        order = np.argsort(np.unique(own, return_index=True)[1])
        if not is_range(order):
            balls, weight, own = balls.take(order), weight[order], np.argsort(order)[own]
        return cls(balls, search.n_rows, weight, own).at_least(min_size)

    def _some_sizes(self) -> Array:
        return self.row_sizes().numpy()

    @classmethod
    def whole(cls, n: int) -> Neighborhoods:
        """One ball with all n rows, on which a local loss is the global loss.

        >>> Neighborhoods.whole(1000)
        Neighborhoods(1000 rows, 1 ball of 1000 rows, 1000 edges)
        """
        n = check_count(n, "n", 1)
        balls = Balls(np.array([n]), np.arange(n, dtype=index_type(n)))
        return cls(balls, n, balls.sizes)

    @classmethod
    def singletons(cls, n: int) -> Neighborhoods:
        """One ball per row, on which squared W2 is the mean squared error and the energy score is row-wise.

        >>> Neighborhoods.singletons(3)
        Neighborhoods(3 rows, 3 balls of 1 row, 3 edges)
        """
        n = check_count(n, "n", 1)
        balls = Balls(np.ones(n, np.int64), np.arange(n, dtype=index_type(n)))
        return cls(balls, n, balls.sizes)

    @classmethod
    def cells(cls, x: Any, size: int, norm: Norm | None = None) -> Neighborhoods:
        """Disjoint balls: every row is in one cell of ``size`` / 2 to ``size`` rows, found by halving x.

        This takes linear memory, and seconds for a million rows: enough where "local" may be approximate.

        >>> Neighborhoods.cells(np.arange(1000.0), size=100)
        Neighborhoods(1000 rows, 16 balls of 62 to 63 rows, median 62, 1000 edges)
        """
        size = check_count(size, "size", 2, why="a cell of one row shows no spread")
        balls = cells(x, size, check_norm(norm))
        return cls(balls, len(balls.rows), balls.sizes)

    @classmethod
    def leaves(cls, forest: Any, x: Any, min_size: int = 1) -> Neighborhoods:
        r"""Balls from trees: every leaf of every tree is a ball, with the rows of x that fall into it.

        ``forest`` is a fitted forest or tree with ``apply(x)``, as scikit-learn's have it, or the leaf
        numbers themselves, integers (N, n_trees) or (N,); a negative one says that the row is in no leaf of
        that tree, such as a row that the tree was grown on. The rows x (N, p) are those of the loss.

        Every row counts equally: it gives each of its :math:`T_i` leaves the weight :math:`1 / T_i`, so that
        the loss is the mean over rows of the mean over their leaves. If all rows are in all T trees, a leaf
        of m rows weighs m / T, and ``ball_of_row`` is (N, T), column t for tree t, or (N,) for one tree.
        Balls are numbered tree by tree, and equal leaves of different trees are all kept. ``min_size`` drops
        smaller leaves.

        A tree that was grown on the y of these very rows chose its leaves to make y alike in them, so the
        spread in a leaf is too small. Use large leaves, or grow the trees on other rows.

        >>> hoods = Neighborhoods.leaves([[0, 1], [0, 2], [1, 2]], x=[0.0, 1.0, 2.0])
        >>> hoods
        Neighborhoods(3 rows, 4 balls of 1 to 2 rows, median 1, 6 edges)
        >>> hoods.ball_of_row.tolist(), hoods.weights.tolist()
        ([[0, 2], [0, 3], [1, 3]], [1.0, 0.5, 0.5, 1.0])
        """
        check_count(min_size, "min_size", 1)
        balls, weights = find_leaves(forest, x)
        if min_size == 1:
            cure = "Grow larger leaves, for example with min_samples_leaf=20."
            _warn_of_singletons(balls.sizes, "the trees leave", cure, stacklevel=3)
        n_rows = x.shape[0] if hasattr(x, "shape") else len(x)
        return cls(balls, n_rows, weights).at_least(min_size)

    @property
    def ball_of_row(self) -> Tensor:
        """The ball of each row, (N,), -1 for none; (N, T) if rows have up to T balls, as in the leaves of T
        trees: their numbers in ascending order, then -1."""
        return self.compute_once("ball_of_row", lambda: torch.from_numpy(self._find_owned()))

    def _find_owned(self) -> Array:
        if self._own is not None:
            return self._own
        entries = np.ones(len(self.balls.rows), np.int8), self.balls.rows, self.balls.indptr
        by_row = sp.csr_matrix(entries, shape=(self.n_balls, self.n_rows)).tocsc()
        counts = np.diff(by_row.indptr)
        owned = np.full((self.n_rows, max(1, int(counts.max()))), -1, np.int64)
        owned[np.repeat(np.arange(self.n_rows), counts), steps(counts)] = by_row.indices
        return owned[:, 0] if owned.shape[1] == 1 else owned

    def balls_of(self, rows: Array) -> tuple[Array, Array]:
        """The balls that belong to some distinct rows, as pairs (place in ``rows``, ball), by place and ball.

        >>> Neighborhoods.leaves([[0, 1], [0, 2], [1, 2]], x=[0.0, 1.0, 2.0]).balls_of(np.array([2, 0]))
        (array([0, 0, 1, 1]), array([1, 3, 0, 2]))
        """
        if self._own is not None:
            places = np.flatnonzero(self._own[rows] >= 0)
            return places, self._own[rows][places]
        wanted, place = np.zeros(self.n_rows, bool), np.zeros(self.n_rows, np.int64)
        wanted[rows], place[rows] = True, np.arange(len(rows))
        edges = np.flatnonzero(wanted[self.balls.rows])
        places = place[self.balls.rows[edges]]
        by_place = np.argsort(places, kind="stable")
        balls = np.searchsorted(self.balls.indptr, edges[by_place], side="right") - 1
        return places[by_place], balls

    def average(self, values: Array, otherwise: float) -> Array:
        """The mean of one value per ball over the balls of each row, (N,); ``otherwise`` for a row without.

        >>> Neighborhoods.leaves([[0, 1], [0, 2], [1, 2]], x=[0.0, 1.0, 2.0]).average(np.arange(4.0), 0.0)
        array([1. , 1.5, 2. ])
        """
        if self._own is not None:
            return np.where(self._own >= 0, values[self._own], otherwise)
        counts = np.bincount(self.balls.rows, minlength=self.n_rows)
        totals = np.bincount(self.balls.rows, np.repeat(values, self.balls.sizes), self.n_rows)
        means: Array = np.where(counts > 0, totals / np.maximum(counts, 1), otherwise)
        return means

    def weigh(self, sample_weight: Any) -> Neighborhoods:
        r"""The same balls with weights of their rows, (N,) and >= 0: whole numbers count as copies of a row.

        Inside a ball, observed and simulated rows have these weights, relative to their sum in the ball. The
        ball of row i counts :math:`w_i` times in the mean over balls, and a row of weight 0 is in no ball.

        >>> hoods = Neighborhoods.within([0.0, 0.1, 0.2, 0.9], delta=0.1).weigh([1, 2, 0, 1])
        >>> hoods.sizes.tolist(), hoods.weights.tolist()
        ([2, 2, 1], [1.0, 2.0, 1.0])
        """
        weights = check_sample_weight(sample_weight, self.n_rows)
        if self.sample_weight is not None:
            raise ValueError("these balls have weights of rows already; weigh the balls without them.")
        rows = self.balls.rows
        if self._own is None:  # a row's weight is divided among its balls
            part = 1 / np.bincount(rows, minlength=self.n_rows).clip(1)
            now, before = (np.add.reduceat(each[rows], self.balls.starts) for each in (part * weights, part))
        else:
            owned = self._own[self._own >= 0]
            now = np.bincount(owned, weights[self._own >= 0], self.n_balls)
            before = np.bincount(owned, minlength=self.n_balls)
        counts = self.weights.numpy() * now / np.maximum(before, 1e-300)
        if weights.min() > 0:
            return Neighborhoods(self.balls, self.n_rows, counts, self._own, weights)
        inside = weights[rows] > 0
        sizes = np.add.reduceat(inside.astype(np.int64), self.balls.starts)
        kept = counts > 0
        balls = Balls(sizes[kept], rows[inside & np.repeat(kept, self.balls.sizes)])
        own = None
        if self._own is not None:
            own = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)[self._own]
            own[weights == 0] = -1
        return Neighborhoods(balls, self.n_rows, counts[kept], own, weights)

    def shares(self) -> Array:
        """The share of every row in its ball, (edges,): its weight over those of all rows of the ball."""

        def build() -> Array:
            if self.sample_weight is None:
                return np.repeat(1 / self.balls.sizes, self.balls.sizes)
            edges = self.sample_weight.numpy()[self.balls.rows]
            total = np.add.reduceat(edges, self.balls.starts)
            share: Array = edges / np.repeat(total, self.balls.sizes)
            return share

        return self.compute_once("shares", build)

    def repeat_rows(self) -> Neighborhoods:
        """The balls with every row as often as its weight says, for losses that know whole rows only.

        Weights are rounded where that takes too many copies, see ``count_copies``.

        >>> Neighborhoods.whole(3).weigh([1.0, 0.5, 1.5]).repeat_rows().rows
        tensor([0, 0, 1, 2, 2, 2], dtype=torch.int32)
        """
        copies = count_copies(self.balls, self.shares())
        sizes = np.add.reduceat(copies, self.balls.starts)
        balls = Balls(sizes, np.repeat(self.balls.rows, copies))
        return Neighborhoods(balls, self.n_rows, self.weights.numpy())

    def row_weights(self) -> Array:
        """The weight of each row, (N,): each ball's, divided among the rows that it belongs to, evenly or by
        their weights."""
        weights = self.weights.numpy()
        if self.sample_weight is not None:
            own = self.sample_weight.numpy()
            if self._own is None:
                return np.bincount(
                    self.balls.rows, np.repeat(weights, self.balls.sizes) * self.shares(), self.n_rows
                )
            held = self._own >= 0
            total = np.bincount(self._own[held], own[held], self.n_balls)
            return own * self.average(weights / np.where(total > 0, total, 1.0), 0.0)
        if self._own is None:
            edges = np.repeat(weights / self.balls.sizes, self.balls.sizes)
            return np.bincount(self.balls.rows, edges, self.n_rows)
        owners = np.bincount(self._own[self._own >= 0], minlength=self.n_balls)
        return self.average(weights / np.maximum(owners, 1), 0.0)

    @property
    def n_balls(self) -> int:
        """Number of stored (distinct) balls."""
        return len(self.sizes)

    @property
    def n_unmerged(self) -> int:
        """Number of balls before identical ones were merged: one per kept row, or the leaves as they are."""
        if self._own is None:
            return self.n_balls
        if self.sample_weight is not None:
            return int((self._own >= 0).sum())
        return round(float(self.weights.sum()))

    @property
    def n_edges(self) -> int:
        """Number of (ball, row) pairs stored."""
        return len(self.rows)

    def ball(self, index: int) -> Tensor:
        """The rows of one stored ball, ascending."""
        index = check_count(index, "index", 0, self.n_balls - 1, "stored balls are numbered from 0")
        return self.rows[self.indptr[index] : self.indptr[index + 1]].long()

    def block(self, balls: Any, weights: Any = None) -> tuple[Tensor, Neighborhoods]:
        """The rows that these balls need, and the balls re-indexed to those rows.

        Use it for a mini-batch, or for a shard on each of several machines: simulate only ``x[rows]``, then
        compute the loss on the returned graph. Each ball keeps its weight unless ``weights`` are given (how
        often it was drawn, for example); a row's own ball is -1 if it is not in the block.

        >>> rows, part = Neighborhoods.within([0.0, 0.1, 0.2, 0.9], 0.1).block([0, 3])
        >>> rows, part.sizes
        (tensor([0, 1, 3]), tensor([2, 1]))
        """
        chosen = check_balls(balls, self.n_balls)
        rows, local = compact(self.balls.take(chosen))
        own = None
        if self._own is not None:
            place = np.full(self.n_balls + 1, -1)
            place[chosen] = np.arange(len(chosen))
            own = place[self._own[rows]]
        weight = self.weights.numpy()[chosen] if weights is None else check_weights(weights, len(chosen))
        of_rows = None if self.sample_weight is None else self.sample_weight.numpy()[rows]
        return torch.from_numpy(rows), Neighborhoods(local, len(rows), weight, own, of_rows)

    def order(self, places: Array) -> Array:
        """The balls in the order of the positions ``places`` (N,) of the first row that each belongs to."""
        if self._own is None:
            return np.argsort(places[self.balls.rows[self.balls.starts]], kind="stable")
        kept, first = np.unique(self._own, return_index=True)
        balls: Array = kept[kept >= 0][np.argsort(places[first[kept >= 0]], kind="stable")]
        return balls

    def at_least(self, min_size: int) -> Neighborhoods:
        """The same graph with only the balls of at least ``min_size`` rows."""
        if bool((self.sizes >= min_size).all()):
            return self
        kept = self.sizes.numpy() >= min_size
        if not kept.any():
            raise ValueError(
                f"no ball has {min_size} rows (the largest has {int(self.sizes.max())}). "
                "Use a larger delta, Neighborhoods.nearest(x, k), or larger leaves."
            )
        own = None
        if self._own is not None:
            own = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)[self._own]
        of_rows = None if self.sample_weight is None else self.sample_weight.numpy()
        return Neighborhoods(self.balls.take(kept), self.n_rows, self.weights.numpy()[kept], own, of_rows)

    def buckets(self, growth: float, max_elements: int | None = None) -> list[Bucket]:
        """The balls in padded rectangles of similar size, at most ``growth`` times as wide as any ball in it.

        ``max_elements`` bounds balls x width of a rectangle (a single ball may exceed it).
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
        """The sizes of each row's balls, of the shape of ``ball_of_row``; 0 where it has none."""
        return torch.cat([self.sizes, torch.zeros(1, dtype=torch.int64)])[self.ball_of_row]

    def compute_once(self, key: Any, build: Callable[[], T]) -> T:
        """Compute something once per graph (the layout of an engine, for example) and keep it."""
        if key not in self._cache:
            self._cache[key] = build()
        found: T = self._cache[key]
        return found

    def __repr__(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        median = int(self.sizes.median())
        spread = f"{high} row{'s' * (high > 1)}" if low == high else f"{low} to {high} rows, median {median}"
        merged = self.n_unmerged - self.n_balls
        note = f" ({merged} identical ones merged)" if merged and self.n_balls > 1 else ""
        balls = f"{self.n_balls} ball{'s' * (self.n_balls > 1)} of {spread}{note}"
        return f"Neighborhoods({self.n_rows} rows, {balls}, {self.n_edges} edges)"


def _size_limits(min_size: int, max_size: int | None, random_state: Any) -> tuple[int | None, int]:
    """Check the limits on ball sizes; return the largest size and a seed."""
    check_count(min_size, "min_size", 1)
    if max_size is not None:
        check_count(max_size, "max_size", min_size, why="it must be at least min_size")
    return max_size, seed_from(random_state)


def _warn_of_singletons(sizes: Array, subject: str, cure: str, stacklevel: int) -> None:
    """Warn if nearly all balls hold one row."""
    alone = int((sizes == 1).sum())
    if len(sizes) > 1 and alone >= 0.9 * len(sizes):
        warnings.warn(
            f"{subject} {alone} of {len(sizes)} balls with one row, where the loss cannot see spread. {cure}",
            stacklevel=stacklevel,
        )


def check_given(hoods: Neighborhoods, name: str, n_rows: int, norm: Norm | None = None) -> None:
    """Raise unless balls that are given hold the rows in question, and no norm is given beside them."""
    if hoods.n_rows != n_rows:
        raise ValueError(
            f"{name} holds balls of {hoods.n_rows} rows and x has {n_rows}; they must be the same rows."
        )
    if norm is not None:
        raise ValueError(f"norm has no effect on the balls that {name} gives; leave it out.")


def check_weights(weights: Any, n_balls: int) -> Array:
    """Return one positive weight per ball, (n_balls,)."""
    values = as_array(weights, "weights").astype(np.float64)
    if values.shape != (n_balls,) or not (values > 0).all():
        raise ValueError(
            f"weights has shape {values.shape} and minimum {values.min():g}; give a number > 0 for each of "
            f"the {n_balls} balls."
        )
    return values


def check_balls(balls: Any, n_balls: int) -> Array:
    """Return distinct indices of balls as an array."""
    chosen = np.atleast_1d(np.asarray(balls))
    if chosen.ndim != 1 or len(chosen) == 0 or chosen.dtype.kind not in "iu":
        raise ValueError(f"balls={balls!r} must be a non-empty list of integers.")
    if chosen.min() < 0 or chosen.max() >= n_balls:
        raise ValueError(
            f"balls has indices from {chosen.min()} to {chosen.max()}; valid are 0 to {n_balls - 1}."
        )
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("balls has duplicates; a block holds each ball once, with its weight.")
    return chosen.astype(np.int64)
