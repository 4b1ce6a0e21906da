r"""Squared W2 inside balls under many swaps of (y, yhat) in random rows, without a sort for each swap.

Swapping moves values from one sample to the other but does not change the pooled 2m values of a ball. So
each ball is sorted once; a swap then only decides which sorted values belong to which sample, and selecting
them in order gives both samples sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from localw2._validation import Array

if TYPE_CHECKING:
    from localw2.balls.ragged import Balls

# Edges (ball, row) handled at a time: few enough for the cache, enough to hide the cost of a numpy call.
BLOCK_EDGES = 1 << 15
# Swap flags (1 byte each, two per row) held at a time.
CHUNK_FLAGS = 1 << 24
# Sums of equal terms may differ by rounding; statistics closer than this (relative) count as tied.
TIE = 1e-10


@final
@dataclass(frozen=True)
class _Piece:
    """Some balls of one column: their pooled values and the positions of these in the column's order."""

    first: int
    places: Array
    values: Array
    starts: Array
    sizes: Array


@final
@dataclass(frozen=True)
class PooledBalls:
    r"""The balls' pooled values of y and yhat (N, C) in sorted order, column by column.

    ``distances(swaps)`` gives, for swaps (P, N) of True and False, the (P, balls) values

    .. math:: \frac1C \sum_c \frac1m \sum_{k=1}^m \big(a_{(k)c} - b_{(k)c}\big)^2,

    the squared W2 between the two samples after the swap, averaged over the columns.

    >>> y, yhat = np.array([[0.0], [1.0]]), np.array([[3.0], [2.0]])
    >>> from localw2.balls.ragged import Balls
    >>> pooled = PooledBalls.of(y, yhat, Balls(np.array([2]), np.array([0, 1])))
    >>> pooled.distances(np.array([[False, False], [True, False]]))
    array([[4.],
           [1.]])
    """

    n_rows: int
    n_balls: int
    orders: tuple[Array, ...]
    pieces: tuple[tuple[_Piece, ...], ...]

    @classmethod
    def of(cls, y: Array, yhat: Array, balls: Balls) -> PooledBalls:
        """Sort each column once and locate every ball's values in that order."""
        cuts = np.flatnonzero(np.diff(np.cumsum(balls.sizes) // BLOCK_EDGES)) + 1
        bounds = np.concatenate([[0], cuts, [len(balls.sizes)]])
        orders, pieces = [], []
        for a, b in zip(y.T, yhat.T, strict=True):
            pooled = np.stack([a, b], axis=1).ravel()
            order = np.argsort(pooled, kind="stable")
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            orders.append(order)
            pieces.append(tuple(_make_piece(pooled[order], place, balls, *span) for span in pairwise(bounds)))
        return cls(len(y), len(balls.sizes), tuple(orders), tuple(pieces))

    def distances(self, swaps: Array) -> Array:
        """The squared W2 of every ball under each swap, (P, balls), a bounded number of swaps at a time."""
        found = np.zeros((len(swaps), self.n_balls))
        step = max(1, CHUNK_FLAGS // (2 * self.n_rows))
        for low in range(0, len(swaps), step):
            part = swaps[low : low + step]
            # Which pooled values are in the first sample: y of rows that stay, yhat of rows that swap.
            flags = np.stack([~part, part], axis=2).reshape(len(part), -1)
            for order, pieces in zip(self.orders, self.pieces, strict=True):
                ordered = flags.take(order, axis=1)
                for piece in pieces:
                    _add_distances(piece, ordered, found[low : low + step])
        found /= len(self.orders)
        return found


def _make_piece(pooled: Array, place: Array, balls: Balls, low: int, high: int) -> _Piece:
    sizes = balls.sizes[low:high]
    begin = int(balls.sizes[:low].sum())
    rows = balls.rows[begin : begin + int(sizes.sum())].astype(np.int64)
    # Ball and position in one number: sorting these numbers sorts every ball at once.
    base = np.repeat(np.arange(len(sizes)) * len(place), sizes)
    keys = np.concatenate([base + place[2 * rows], base + place[2 * rows + 1]])
    keys.sort()
    places = (keys % len(place)).astype(np.int32 if len(place) < 2**31 else np.int64)
    return _Piece(low, places, pooled[places], np.cumsum(sizes) - sizes, sizes)


def _add_distances(piece: _Piece, flags: Array, found: Array) -> None:
    columns = slice(piece.first, piece.first + len(piece.sizes))
    for flag, row in zip(flags, found, strict=True):
        first = flag.take(piece.places)
        # Integer positions: selecting by a random mask is three times slower in numpy.
        gap = piece.values.take(first.nonzero()[0])
        gap -= piece.values.take((~first).nonzero()[0])
        gap *= gap
        row[columns] += np.add.reduceat(gap, piece.starts) / piece.sizes


def draw_swaps(n: int, n_rows: int, rng: np.random.Generator) -> Array:
    """n random swaps, (n, n_rows): each row is swapped independently with probability 1/2."""
    return rng.integers(0, 2, (n, n_rows), dtype=np.uint8).astype(bool)


def permutation_pvalue(observed: float, null: Array) -> float:
    r"""The exact p-value :math:`(1 + \#\{T^* \ge T\}) / (B + 1)`; ties count against rejection.

    >>> permutation_pvalue(3.0, np.array([1.0, 3.0, 2.0]))
    0.5
    """
    return float((1 + np.count_nonzero(null >= observed - TIE * abs(observed))) / (len(null) + 1))


def max_t(distances: Array, level: float) -> tuple[Array, Array, float]:
    r"""Westfall and Young's max-T over balls: z, adjusted p-values, and the z that a rejected ball exceeds.

    ``distances`` is (B + 1, balls), the observed ones first. With mean and SD of each ball over all B + 1,

    .. math:: z_b = (T_b - \bar T_b) / s_b, \quad p_b = (1 + \#\{\max_{b'} z^*_{b'} \ge z_b\}) / (B + 1).

    The observed data are among the B + 1, so that all of these are treated alike and under the null the
    probability of any p_b <= level is at most level.

    >>> z, p, limit = max_t(np.array([[9.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 1.0]]), level=0.5)
    >>> z.round(2), p, round(limit, 2)
    (array([ 1.72, -0.58]), array([0.5, 1. ]), -0.37)
    """
    mean, spread = distances.mean(0), distances.std(0)
    moves = spread > TIE * mean
    z = np.where(moves, distances - mean, 0.0) / np.where(moves, spread, 1.0)
    highest = np.sort(z[1:].max(1))
    observed = z[0]
    exceeding = len(highest) - np.searchsorted(highest, observed - TIE * np.abs(observed))
    # p_b <= level when fewer than this many maxima reach z_b.
    allowed = int(np.floor(level * len(distances) * (1 + TIE)))
    limit = float(highest[-allowed]) if 0 < allowed <= len(highest) else np.inf
    return observed, (1 + exceeding) / len(distances), limit
