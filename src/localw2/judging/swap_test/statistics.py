r"""Squared W2 inside balls under many swaps of (y, yhat) in random rows, without a sort for each swap.

Swapping moves values from one sample to the other but does not change the pooled 2m values of a ball. So
each ball is sorted once; a swap then only decides which sorted values belong to which sample, and selecting
them in order gives both samples sorted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from localw2._validation import Array

if TYPE_CHECKING:
    from localw2.balls.ragged import Balls

# Edges (ball, row) handled at a time: few enough for the cache, enough to hide the cost of a numpy call.
BLOCK_EDGES = 1 << 15
# Sums of equal terms may differ by rounding; statistics closer than this (relative) count as tied.
TIE = 1e-10


def measure_distances(y: Array, yhat: Array, balls: Balls, swaps: Array) -> Array:
    r"""Squared W2 of every ball under each swap (P, N), averaged over the C columns of y and yhat (N, C).

    .. math:: \frac1C \sum_c \frac1m \sum_{k=1}^m \big(a_{(k)c} - b_{(k)c}\big)^2

    The result is (P, balls); a and b are the two samples of a ball after the swap.

    >>> y, yhat = np.array([[0.0], [1.0]]), np.array([[3.0], [2.0]])
    >>> from localw2.balls.ragged import Balls
    >>> swaps = np.array([[False, False], [True, False]])
    >>> measure_distances(y, yhat, Balls(np.array([2]), np.array([0, 1])), swaps)
    array([[4.],
           [1.]])
    """
    found = np.zeros((len(swaps), len(balls.sizes)))
    cuts = np.flatnonzero(np.diff(np.cumsum(balls.sizes) // BLOCK_EDGES)) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(balls.sizes)]):
        block = balls.take(np.arange(low, high))
        rows, ball = np.tile(block.rows, 2), np.tile(np.repeat(np.arange(low, high), block.sizes), 2)
        drawn, starts = np.arange(len(rows)) >= len(block.rows), block.starts
        for column in zip(y.T, yhat.T, strict=True):
            values = np.concatenate([sample[block.rows] for sample in column])
            order = np.lexsort((values, ball))
            pooled, row, of_yhat = values[order], rows[order], drawn[order]
            for swap, distances in zip(swaps, found, strict=True):
                # The first sample: y of rows that stay, yhat of rows that swap.
                first = swap.take(row) == of_yhat
                # Integer positions: selecting by a random mask is three times slower in numpy.
                gap = pooled.take(first.nonzero()[0])
                gap -= pooled.take((~first).nonzero()[0])
                gap *= gap
                distances[low:high] += np.add.reduceat(gap, starts) / block.sizes
    found /= y.shape[1]
    return found


def permutation_pvalue(observed: float, null: Array) -> float:
    r"""The exact p-value :math:`(1 + \#\{T^* \ge T\}) / (B + 1)`; ties count against rejection.

    >>> permutation_pvalue(3.0, np.array([1.0, 3.0, 2.0]))
    0.5
    """
    return float((1 + np.count_nonzero(null >= observed - TIE * abs(observed))) / (len(null) + 1))


def standardise(distances: Array) -> Array:
    """Each column (B + 1,) by its mean and SD; 0 where it does not vary."""
    mean, spread = distances.mean(0), distances.std(0)
    moves = spread > TIE * mean
    z: Array = np.where(moves, distances - mean, 0.0) / np.where(moves, spread, 1.0)
    return z


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
    z = standardise(distances)
    highest = np.sort(z[1:].max(1))
    observed = z[0]
    exceeding = len(highest) - np.searchsorted(highest, observed - TIE * np.abs(observed))
    # p_b <= level when fewer than this many maxima reach z_b.
    allowed = int(np.floor(level * len(distances) * (1 + TIE)))
    limit = float(highest[-allowed]) if 0 < allowed <= len(highest) else np.inf
    return observed, (1 + exceeding) / len(distances), limit
