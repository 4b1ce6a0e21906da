"""Which rows lie in which ball: KD-tree queries, in chunks of bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import scipy.sparse as sp
from scipy.spatial import cKDTree
from sklearn.neighbors import KDTree

from localw2._validation import Array, as_rows
from localw2.norms import Norm

# Edges (ball, row) that one chunk of a search may hold; a chunk costs about 40 bytes an edge.
CHUNK_EDGES = 2_000_000


@dataclass(frozen=True)
class Balls:
    """Some balls as a ragged list: ``sizes`` (balls,) and the concatenated, ascending ``rows`` of each."""

    sizes: Array
    rows: Array

    @property
    def starts(self) -> Array:
        """Where each ball begins in ``rows``."""
        return np.cumsum(self.sizes) - self.sizes

    def take(self, which: Array) -> Balls:
        """The chosen balls: by indices, in that order, or by a mask."""
        if which.dtype == bool:
            return Balls(self.sizes[which], self.rows[np.repeat(which, self.sizes)])
        starts, sizes = self.starts[which], self.sizes[which]
        return Balls(sizes, self.rows[_ragged_positions(starts, sizes)])


def _ragged_positions(starts: Array, sizes: Array) -> Array:
    """The positions ``starts[i] .. starts[i] + sizes[i] - 1`` of every i, concatenated."""
    offsets = starts - (np.cumsum(sizes) - sizes)
    positions: Array = np.repeat(offsets, sizes) + np.arange(int(sizes.sum()))
    return positions


@dataclass(frozen=True)
class BallSearch(ABC):
    """Finds the ball around given rows of the embedded x (N, p).

    ``max_size`` thins larger balls to a random subset that keeps the centre. Which rows stay depends
    on (seed, centre, row) alone, so a ball is the same in whatever chunk or block it is asked for.
    """

    embedded: Array
    max_size: int | None
    seed: int

    @property
    def n_rows(self) -> int:
        """Number of rows, which is also the number of possible centres."""
        return len(self.embedded)

    @abstractmethod
    def _find(self, centres: Array) -> Balls: ...

    @abstractmethod
    def sizes(self) -> Array:
        """The size of every row's ball, without holding the edges."""

    def balls(self, centres: Array) -> Balls:
        """The balls around these rows."""
        found = self._find(centres)
        return found if self.max_size is None else _thin(found, centres, self.max_size, self.seed)

    def chunks(self, centres: Array) -> Iterator[Balls]:
        """The balls around these rows, a bounded number of edges at a time."""
        done, step = 0, 128
        while done < len(centres):
            found = self._find(centres[done : done + step])
            part = centres[done : done + step]
            yield found if self.max_size is None else _thin(found, part, self.max_size, self.seed)
            done += step
            step = max(1, min(4 * step, CHUNK_EDGES // max(1, int(found.sizes.mean()))))


@final
@dataclass(frozen=True)
class RadiusSearch(BallSearch):
    """Closed balls: every row at distance at most ``radius``."""

    radius: float

    # scikit-learn's tree answers radius queries with arrays, scipy's with lists (8 times slower here).
    @cached_property
    def _tree(self) -> Any:
        return KDTree(self.embedded)

    def _find(self, centres: Array) -> Balls:
        found = self._tree.query_radius(self.embedded[centres], self.radius)
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        return _sorted_balls(sizes, np.concatenate(found), self.n_rows)

    def sizes(self) -> Array:
        """The size of every row's ball, without holding the edges."""
        counts: Array = self._tree.query_radius(self.embedded, self.radius, count_only=True)
        return counts if self.max_size is None else np.minimum(counts, self.max_size)

    def is_one_ball(self) -> bool:
        """Whether the radius surely reaches from every row to every other (the bounding box fits)."""
        return bool(np.linalg.norm(np.ptp(self.embedded, axis=0)) <= self.radius)


@final
@dataclass(frozen=True)
class NearestSearch(BallSearch):
    """The k nearest rows, the row itself always among them."""

    k: int

    @cached_property
    def _tree(self) -> Any:
        return cKDTree(self.embedded)

    def _find(self, centres: Array) -> Balls:
        rows = self._tree.query(self.embedded[centres], k=self.k, workers=-1)[1].reshape(len(centres), self.k)
        # More than k copies of one x: the tree may return only the others.
        missing = ~(rows == centres[:, None]).any(1)
        rows[missing, -1] = centres[missing]
        sizes = np.full(len(centres), self.k, np.int64)
        return Balls(sizes, np.sort(rows, axis=1).astype(_index_type(self.n_rows)).ravel())

    def sizes(self) -> Array:
        """The size of every row's ball: k."""
        return np.full(self.n_rows, self.k, np.int64)


def radius_search(x: Any, delta: float, norm: Norm, max_size: int | None, seed: int) -> RadiusSearch:
    """Prepare closed balls of radius delta, a hair wider so that rounding does not split a grid."""
    embedded = np.ascontiguousarray(norm.embed(as_rows(x)))
    return RadiusSearch(embedded, max_size, seed, delta * (1 + _tolerance(x, embedded, delta)))


def nearest_search(x: Any, k: int, norm: Norm, max_size: int | None, seed: int) -> NearestSearch:
    """Prepare the k nearest rows of every row."""
    return NearestSearch(np.ascontiguousarray(norm.embed(as_rows(x))), max_size, seed, k)


def _tolerance(x: Any, embedded: Array, delta: float) -> float:
    """How much wider than delta a ball is, as a fraction: the rounding of x itself, 1e-9 to 1e-3.

    The grid 0, .1, .2, ... has neighbours at .1 give or take the rounding of the coordinates, which is
    an eps of x's own type times their magnitude; with float32 x that is 1e-6 of delta, not 1e-16.
    """
    if delta in (0.0, np.inf):
        return 0.0
    eps = float(np.finfo(as_rows(x).dtype).eps)
    return float(np.clip(4 * eps * np.abs(embedded).max() / delta, 1e-9, 1e-3))


def _index_type(n_rows: int) -> type[np.integer[Any]]:
    return np.int32 if n_rows < 2**31 else np.int64


def _sorted_balls(sizes: Array, rows: Array, n_rows: int) -> Balls:
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    graph = sp.csr_matrix(
        (np.ones(len(rows), np.int8), rows.astype(_index_type(n_rows)), indptr), shape=(len(sizes), n_rows)
    )
    graph.sort_indices()
    return Balls(sizes, graph.indices)


def _thin(balls: Balls, centres: Array, max_size: int, seed: int) -> Balls:
    large = balls.sizes > max_size
    if not large.any():
        return balls
    ball = np.repeat(np.arange(len(centres)), balls.sizes)
    centre = centres[ball].astype(np.uint64)
    lottery = mix(mix(centre + np.uint64(seed)) ^ balls.rows.astype(np.uint64))
    lottery[balls.rows == centres[ball]] = 0
    # Sorting by (ball, lottery) puts each ball's winners first.
    ranked = np.lexsort((lottery, ball))
    place = np.arange(len(ball)) - balls.starts[ball]
    kept = np.sort(ranked[place < max_size])
    return Balls(np.minimum(balls.sizes, max_size), balls.rows[kept])


def mix(values: Array) -> Array:
    """A 64-bit hash of each uint64 (the finaliser of splitmix64)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = z ^ (z >> np.uint64(31))
    return mixed
