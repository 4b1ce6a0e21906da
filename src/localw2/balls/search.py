"""Which rows lie in which ball: KD-tree queries in chunks of bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
import scipy.sparse as sp
import torch
from scipy.spatial import cKDTree
from sklearn.neighbors import KDTree

from localw2._validation import Array, as_rows
from localw2.balls.ragged import Balls, index_type, mix, runs, steps

if TYPE_CHECKING:
    from localw2.balls.norms import Norm

# Edges (ball, row) that one chunk of a search may hold, at about 40 bytes each.
CHUNK_EDGES = 2_000_000


@dataclass(frozen=True)
class BallSearch(ABC):
    """Find the balls around given rows of the embedded x (N, p).

    ``max_size`` thins larger balls to a random subset that keeps the centre. Which rows are kept depends
    only on (seed, x, row), so that a ball is the same in every chunk or block.
    """

    embedded: Array
    max_size: int | None
    seed: int

    @property
    def n_rows(self) -> int:
        """Number of rows, which is also the number of possible centres."""
        return len(self.embedded)

    @cached_property
    def leader(self) -> Array:
        """The first row with the same x as each row, (N,)."""
        # If hashes of their bits differ, so do the rows: ten times faster than sorting rows.
        code = np.zeros(self.n_rows, np.uint64)
        for column in self.embedded.T:
            bits = (column.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 + 0.0 is 0.0
            code = mix(code ^ bits)
        if len(np.unique(code)) == self.n_rows:
            return np.arange(self.n_rows)
        _, first, inverse = np.unique(self.embedded, axis=0, return_index=True, return_inverse=True)
        leader: Array = first[inverse.ravel()]
        return leader

    @abstractmethod
    def balls(self, centres: Array) -> Balls:
        """The balls around these rows."""

    @abstractmethod
    def sizes(self, centres: Array) -> Array:
        """The sizes of these balls, without storing their edges."""

    @abstractmethod
    def order(self) -> Array:
        """All rows, (N,), in the order of the tree's leaves, so that consecutive rows are near each other."""

    @abstractmethod
    def _work(self, centres: Array) -> Array:
        """The number of edges visited to find each of these balls."""

    def chunks(self, centres: Array) -> Iterator[Balls]:
        """The balls around these rows, a bounded number of edges at a time (a single ball may exceed it)."""
        for part in runs(self._work(centres), CHUNK_EDGES):
            yield self.balls(centres[part])


@final
@dataclass(frozen=True)
class RadiusSearch(BallSearch):
    """Closed balls: every row at distance at most ``radius``."""

    radius: float

    # scikit-learn's tree returns arrays from radius queries, scipy's returns lists (8 times slower here).
    @cached_property
    def _tree(self) -> Any:
        return KDTree(self.embedded)

    @cached_property
    def is_one_ball(self) -> bool:
        """Whether the bounding box shows that the radius reaches from every row to every other."""
        return bool(np.linalg.norm(np.ptp(self.embedded, axis=0)) <= self.radius)

    @cached_property
    def leader(self) -> Array:
        """A row that has the same full ball: the first with the same x, or row 0 in one large ball."""
        return np.zeros(self.n_rows, np.int64) if self.is_one_ball else super().leader

    def _counts(self, centres: Array) -> Array:
        counts: Array = self._tree.query_radius(self.embedded[centres], self.radius, count_only=True)
        return counts

    def order(self) -> Array:
        """The rows in the order of the tree's leaves."""
        return np.asarray(self._tree.idx_array)

    def sizes(self, centres: Array) -> Array:
        """The sizes counted by the tree, once for all copies of an x."""
        leaders, inverse = np.unique(self.leader[centres], return_inverse=True)
        counts = self._counts(leaders)[inverse]
        return counts if self.max_size is None else np.minimum(counts, self.max_size)

    def _work(self, centres: Array) -> Array:
        if self.max_size is None:
            return self.sizes(centres)
        # Copies share one search, which is charged to the first of them.
        leaders, first, inverse = np.unique(self.leader[centres], return_index=True, return_inverse=True)
        counts = self._counts(leaders)
        work = np.minimum(counts, self.max_size)[inverse]
        work[first] += counts
        return work

    def balls(self, centres: Array) -> Balls:
        """The balls around these rows; full balls are found once for all copies of an x."""
        leaders, inverse = np.unique(self.leader[centres], return_inverse=True)
        found = self._tree.query_radius(self.embedded[leaders], self.radius)
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        full = _sort_balls(sizes, np.concatenate(found), self.n_rows)
        if self.max_size is None or full.sizes.max() <= self.max_size:
            return full if len(leaders) == len(centres) and is_range(inverse) else full.take(inverse)
        return self._thin(full, leaders, inverse, centres)

    def _thin(self, full: Balls, leaders: Array, ball: Array, centres: Array) -> Balls:
        """A random subset of each centre's ball: the rows that follow the centre in a random cyclic order.

        The order belongs to the full ball, so that copies of one x take different windows of it and every
        row is in equally many balls. ``ball`` is the full ball of each centre.
        """
        assert self.max_size is not None
        owner = np.repeat(np.arange(len(leaders)), full.sizes)
        lottery = mix(
            mix(leaders[owner].astype(np.uint64) + np.uint64(self.seed)) ^ full.rows.astype(np.uint64)
        )
        shuffled = full.rows[np.lexsort((lottery, owner))]
        place = np.empty(self.n_rows, np.int64)
        mine = self.leader[shuffled] == leaders[owner]
        place[shuffled[mine]] = steps(full.sizes)[mine]
        total = full.sizes[ball]
        sizes = np.minimum(total, self.max_size)
        window = (np.repeat(place[centres], sizes) + steps(sizes)) % np.repeat(total, sizes)
        rows = shuffled[np.repeat(full.starts[ball], sizes) + window]
        return _sort_balls(sizes, rows, self.n_rows)


@final
@dataclass(frozen=True)
class NearestSearch(BallSearch):
    """The k nearest rows, always including the row itself; copies of one x are chosen at random.

    With ``slack`` s > 0 the search may stop early: the k-th row found is at most 1 + s times as far as the
    k-th nearest.
    """

    k: int
    slack: float = 0.0

    @property
    def _kept(self) -> int:
        return self.k if self.max_size is None else min(self.k, self.max_size)

    @cached_property
    def _distinct(self) -> tuple[Any, Array, Array, Array, Array]:
        """A tree of the distinct x; the rows grouped by x in random order, the start and size of each group,
        and the position of every row in its group."""
        rows = np.arange(self.n_rows)
        if is_range(self.leader):  # copies of x and its indices would take gigabytes for millions of rows
            once, zero = (np.broadcast_to(np.int64(value), rows.shape) for value in (1, 0))
            return cKDTree(self.embedded), rows, rows, once, zero
        leaders, group, count = np.unique(self.leader, return_inverse=True, return_counts=True)
        members = np.lexsort((mix(rows.astype(np.uint64) + np.uint64(self.seed)), group))
        start = np.cumsum(count) - count
        place = np.empty(self.n_rows, np.int64)
        place[members] = steps(count)
        return cKDTree(self.embedded[leaders]), members, start, count, place

    def order(self) -> Array:
        """The rows in the order of the leaves of the tree of distinct x, the rows of each x together."""
        tree, members, start, count, _ = self._distinct
        counts = count[tree.indices]
        rows: Array = members[np.repeat(start[tree.indices], counts) + steps(counts)]
        return rows

    def sizes(self, centres: Array) -> Array:
        """The same size for every ball."""
        return np.full(len(centres), self._kept, np.int64)

    def _work(self, centres: Array) -> Array:
        return np.full(len(centres), self.k, np.int64)

    def balls(self, centres: Array) -> Balls:
        """Visit the distinct x outwards from each centre and take their rows until there are k.

        At the x where k is reached only some rows are taken: those that follow, in the random cyclic order
        of the group, the centre itself or a position that depends on (seed, centre, x).
        """
        tree, members, start, count, place = self._distinct
        n = len(centres)
        reach = min(self.k, tree.n)
        threads = torch.get_num_threads()
        _, groups = tree.query(self.embedded[centres], k=reach, eps=self.slack, workers=threads)
        groups = groups.reshape(n, reach)
        if len(members) == tree.n:  # every x occurs once
            return self._of_rows(members[groups], centres)
        reached = np.cumsum(count[groups], axis=1)
        wanted = np.clip(self.k - (reached - count[groups]), 0, count[groups])
        begin = (
            mix(mix(self._code(centres)) ^ groups.astype(np.uint64)) % count[groups].astype(np.uint64)
        ).astype(np.int64)
        own = start[groups] + place[centres][:, None]
        begin = np.where(
            members[np.minimum(own, self.n_rows - 1)] == centres[:, None], place[centres][:, None], begin
        )
        sizes, flat = wanted.ravel(), groups.ravel()
        window = (np.repeat(begin.ravel(), sizes) + steps(sizes)) % np.repeat(count[flat], sizes)
        return self._of_rows(members[np.repeat(start[flat], sizes) + window].reshape(n, self.k), centres)

    def _of_rows(self, rows: Array, centres: Array) -> Balls:
        """The balls of the k rows found for each centre, thinned at random if ``max_size`` is smaller."""
        if self._kept < self.k:
            lottery = mix(mix(self._code(centres)) ^ rows.astype(np.uint64))
            lottery[rows == centres[:, None]] = 0
            rows = np.take_along_axis(
                rows, np.argpartition(lottery, self._kept - 1, axis=1)[:, : self._kept], 1
            )
        ascending = np.sort(rows.astype(index_type(self.n_rows)), axis=1)
        return Balls(np.full(len(centres), self._kept, np.int64), ascending.ravel())

    def _code(self, centres: Array) -> Array:
        code: Array = centres[:, None].astype(np.uint64) + np.uint64(self.seed)
        return code


def radius_search(x: Any, delta: float, norm: Norm, max_size: int | None, seed: int) -> RadiusSearch:
    """Prepare closed balls of radius delta, widened by the rounding of x itself, 1e-9 to 1e-3 of delta.

    Neighbours on the grid 0, .1, .2, ... are .1 apart up to the rounding of the coordinates, which is
    eps of x's own dtype times their magnitude: for float32 x that is 1e-6 of delta, not 1e-16.
    """
    rows = as_rows(x)
    embedded = np.ascontiguousarray(norm.embed(rows))
    if delta not in (0.0, np.inf):
        eps = float(np.finfo(rows.dtype).eps)
        delta *= 1 + float(np.clip(4 * eps * np.abs(embedded).max() / delta, 1e-9, 1e-3))
    return RadiusSearch(embedded, max_size, seed, delta)


def nearest_search(
    x: Any, k: int, norm: Norm, max_size: int | None, seed: int, slack: float = 0.0
) -> NearestSearch:
    """Prepare the k nearest rows of every row."""
    return NearestSearch(np.ascontiguousarray(norm.embed(as_rows(x))), max_size, seed, k, slack)


def space_order(x: Array) -> Array:
    """An order (N,) of the rows of x (N, p) in which consecutive rows are near each other.

    >>> space_order(np.array([[0.0], [9.0], [1.0], [8.0]] * 8))[:16] % 2
    array([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    """
    return np.asarray(cKDTree(x).indices)


def cells(x: Any, size: int, norm: Norm) -> Balls:
    """Split all rows into disjoint cells of ``size`` / 2 to ``size`` rows; rows with one x stay together."""
    tree = cKDTree(np.ascontiguousarray(norm.embed(as_rows(x))), leafsize=size)
    starts, nodes = [], [tree.tree]
    while nodes:
        node = nodes.pop()
        if node.split_dim == -1:
            starts.append(node.start_idx)
        else:
            nodes += [node.lesser, node.greater]
    sizes = np.diff(np.append(np.sort(starts), tree.n))
    return _sort_balls(sizes, tree.indices, tree.n)


def is_range(values: Array) -> bool:
    """Whether the values are 0, 1, 2, and so on."""
    return bool((values == np.arange(len(values))).all())


def _sort_balls(sizes: Array, rows: Array, n_rows: int) -> Balls:
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    entries = (np.ones(len(rows), np.int8), rows.astype(index_type(n_rows)), indptr)
    graph = sp.csr_matrix(entries, shape=(len(sizes), n_rows))
    graph.sort_indices()
    return Balls(sizes, graph.indices)
