"""Balls of rows as a ragged list: select, concatenate, and merge balls that hold the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from localw2._validation import Array

# Edges compared at a time where balls with equal hashes are checked for equality.
MERGE_EDGES = 1 << 22
# Copies of a row, on average, up to which weights are represented exactly; an assignment takes their cube.
MOST_COPIES = 3


@final
@dataclass(frozen=True)
class Balls:
    """Balls as a ragged list: ``sizes`` (balls,), and ``rows``, ascending in each ball, concatenated."""

    sizes: Array
    rows: Array

    @cached_property
    def indptr(self) -> Array:
        """Where each ball begins in ``rows``, and where the last one ends, (balls + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @property
    def starts(self) -> Array:
        """Where each ball begins in ``rows``."""
        return self.indptr[:-1]

    def take(self, which: Array) -> Balls:
        """Some of the balls, by indices (in that order) or by a mask."""
        if which.dtype == bool:
            return Balls(self.sizes[which], self.rows[np.repeat(which, self.sizes)])
        starts, sizes = self.starts[which], self.sizes[which]
        return Balls(sizes, self.rows[np.repeat(starts, sizes) + steps(sizes)])

    @classmethod
    def join(cls, parts: list[Balls]) -> Balls:
        """The balls of several lists, concatenated."""
        return cls(np.concatenate([p.sizes for p in parts]), np.concatenate([p.rows for p in parts]))


@final
@dataclass(frozen=True)
class Bucket:
    """Balls of similar size as a rectangle: ``rows`` (balls, width), padded with the number of rows."""

    balls: Tensor
    rows: Tensor


def index_type(n_rows: int) -> type[np.integer[Any]]:
    """The narrowest type that can number so many rows."""
    return np.int32 if n_rows < 2**31 else np.int64


def steps(sizes: Array) -> Array:
    """0 .. sizes[i] - 1 for every i, concatenated."""
    ends = np.cumsum(sizes)
    positions: Array = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    return positions


def runs(work: Array, most: int) -> Iterator[slice]:
    """Runs of balls whose work (one number per ball) adds up to at most ``most``, unless it is one ball."""
    done, low = np.cumsum(work), 0
    while low < len(work):
        before = done[low - 1] if low else 0
        high = max(low + 1, int(np.searchsorted(done, before + most, side="right")))
        yield slice(low, high)
        low = high


def compact(balls: Balls) -> tuple[Array, Balls]:
    """The distinct rows of some balls, ascending, and the balls re-indexed to them."""
    rows, local = np.unique(balls.rows, return_inverse=True)
    return rows.astype(np.int64), Balls(balls.sizes, local.astype(balls.rows.dtype))


def merge(balls: Balls, copies: Array) -> tuple[Balls, Array, Array]:
    """Merge balls with the same rows: the distinct balls, the new index of each old one, and the weights."""
    keys = _keys(balls)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    leader = first[group]
    doubtful = np.flatnonzero(leader != np.arange(len(leader)))
    if len(doubtful) == 0:
        return balls, leader, copies
    # A 64-bit key can collide; the rows themselves decide, a bounded number of edges at a time.
    same = balls.sizes[doubtful] == balls.sizes[leader[doubtful]]
    leader[doubtful[~same]] = doubtful[~same]
    doubtful = doubtful[same]
    for run in runs(balls.sizes[doubtful], MERGE_EDGES):
        part = doubtful[run]
        mine, theirs = balls.take(part), balls.take(leader[part])
        differs = np.add.reduceat((mine.rows != theirs.rows).astype(np.int64), mine.starts) > 0
        leader[part[differs]] = part[differs]
    leads = leader == np.arange(len(leader))
    renumbered = (np.cumsum(leads) - 1)[leader]
    return balls.take(leads), renumbered, np.bincount(renumbered, weights=copies)


def _keys(balls: Balls) -> Array:
    """A hash of each ball's set of rows, a bounded number of edges at a time."""
    keys, starts = np.empty(len(balls.sizes), np.uint64), balls.starts
    for part in runs(balls.sizes, MERGE_EDGES):
        first = int(starts[part.start])
        codes = mix(balls.rows[first : first + int(balls.sizes[part].sum())].astype(np.uint64))
        keys[part] = np.add.reduceat(codes, starts[part] - first)
    return keys


def mix(values: Array) -> Array:
    """A 64-bit hash of each uint64 (the finaliser of splitmix64)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = z ^ (z >> np.uint64(31))
    return mixed


def count_copies(balls: Balls, shares: Array) -> Array:
    """How often each row of each ball is repeated to have its share (edges,) in the ball, (edges,).

    This is exact in a ball whose shares are multiples of one number, with at most ``MOST_COPIES`` copies of
    a row on average. Any other ball gets that many on average, by largest remainders: the share of a row is
    then off by less than 1 / (``MOST_COPIES`` x rows of the ball).

    >>> count_copies(Balls(np.array([3]), np.arange(3)), np.array([1 / 3, 1 / 6, 1 / 2]))
    array([2, 1, 3])
    """
    sizes, starts = balls.sizes, balls.starts
    ball = np.repeat(np.arange(len(sizes)), sizes)
    found, open_ = _apportion(shares, sizes, starts, ball), np.ones(len(sizes), bool)
    least = np.minimum.reduceat(shares, starts)[ball]
    for parts in range(1, MOST_COPIES + 1):
        counts = shares / least * parts
        whole = np.round(counts)
        exact = np.logical_and.reduceat(np.isclose(counts, whole, rtol=1e-9, atol=0), starts)
        exact &= open_ & (np.add.reduceat(whole, starts) <= MOST_COPIES * sizes)
        found[exact[ball]] = whole[exact[ball]]
        open_ &= ~exact
    return found


def _apportion(shares: Array, sizes: Array, starts: Array, ball: Array) -> Array:
    """Copies (edges,) by shares, ``MOST_COPIES`` times the rows of each ball in all."""
    exact = shares * (MOST_COPIES * sizes)[ball]
    counts: Array = np.floor(exact).astype(np.int64)
    by_rest = np.lexsort((counts - exact, ball))  # ball by ball, the largest remainder first
    missing = MOST_COPIES * sizes - np.add.reduceat(counts, starts)
    place = np.arange(len(ball)) - starts[ball]
    counts[by_rest] += place < missing[ball]
    return counts
