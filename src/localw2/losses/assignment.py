"""Optimal assignment inside every ball (d > 1) by lapx, or by scipy if lapx is not installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from localw2._validation import Array

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

# Cost-matrix entries (8 bytes each) solved at a time.
COST_ELEMENTS = 1 << 18

Solver = Callable[[Array], Array]

_TOO_LARGE = (
    "y or yhat has NaN or values beyond 1e150, whose squared distances are not finite. Rescale the outputs, "
    "or check whether the model has diverged."
)


def assign(a: Array, b: Array, hoods: Neighborhoods) -> Array:
    r"""Pair the rows of a and b (B, N, d) inside every ball at the lowest squared cost.

    Returns (B, edges): row ``hoods.rows[e]`` of ``a[i]`` goes to row ``result[i, e]`` of ``b[i]``.
    """
    solve = _solver()
    batches, _, d = a.shape
    partner = np.empty((batches, hoods.n_edges), np.int64)
    both = np.stack([a, b]).astype(np.float64, copy=False)
    if not np.abs(both).max() < 1e150:
        raise ValueError(_TOO_LARGE)
    for edges, rows in hoods.compute_once("balls of equal size", lambda: _equal_sizes(hoods)):
        width = rows.shape[1]
        step = max(1, COST_ELEMENTS // (batches * width**2))
        for low in range(0, len(rows), step):
            part = rows[low : low + step]
            costs = _costs(both.take(part, axis=2).reshape(2, -1, width, d))
            best = (_best_of_all(costs) if width <= 3 else solve(costs)).reshape(batches, -1, width)
            partner[:, edges[low : low + step]] = part[np.arange(len(part))[:, None], best]
    return partner


@dataclass(frozen=True)
class Centred:
    """One sample (N, d), centred in float64, with the terms of its pairing costs computed once.

    ``factors`` (N, d + 1) holds -2 times the centred rows, then their squares.
    """

    factors: Array
    size: float

    @classmethod
    def of(cls, rows: Array) -> Centred:
        """Centre the rows."""
        moved = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
        squares = np.einsum("ij,ij->i", moved, moved)
        return cls(np.column_stack([-2 * moved, squares]), float(squares.sum()))

    def pair(self, other: Array) -> Array:
        """The row of ``other`` (N, d) that each row is paired with at the lowest squared cost, in one ball.

        The costs are those of ``_costs`` divided by the ratio of scales, computed as one matrix product.
        """
        n, d = other.shape
        factors = np.empty((d + 1, n))
        moved = factors[:d]
        np.subtract(other.T, (np.add.reduce(other, 0, np.float64) / n)[:, None], moved)
        size = float(np.vdot(moved, moved))
        if not max(size, self.size) < 1e300:
            raise ValueError(_TOO_LARGE)
        factors[d] = math.sqrt(size / self.size) if min(size, self.size) > 0 else 1.0
        columns: Array = _solver()((self.factors @ factors)[None])[0]
        return columns


def _equal_sizes(hoods: Neighborhoods) -> list[tuple[Array, Array]]:
    """The balls grouped by size: the edges and the rows of each group, (balls, size)."""
    starts = hoods.indptr.numpy()
    groups = []
    for bucket in hoods.buckets(1.0):
        rows = bucket.rows.numpy()
        groups.append((starts[bucket.balls.numpy(), None] + np.arange(rows.shape[1]), rows))
    return groups


def _costs(both: Array) -> Array:
    """Costs (balls, m, m) with the same best pairing as squared distances; both is (2, balls, m, d).

    The best pairing depends only on the inner products, up to a positive factor and constants per row or
    column. So each ball is centred (three times faster where means differ by one standard deviation, and no
    digits are lost far from the origin), b is brought to the scale of a (a third faster at half the scale),
    and the column constants |b|^2, which the solver's first step would remove, are left out.
    """
    both = both - np.add.reduce(both, 2, keepdims=True) / both.shape[2]
    squares = np.einsum("snij,snij->sni", both, both)
    size_a, size_b = np.add.reduce(squares, 2)
    ratio = np.where(np.minimum(size_a, size_b) > 0, size_a / np.maximum(size_b, 1e-300), 1)
    costs: Array = both[0] @ (both[1] * (-2 * np.sqrt(ratio))[:, None, None]).swapaxes(1, 2)
    costs += squares[0][:, :, None]
    return costs


def _best_of_all(costs: Array) -> Array:
    """Try every permutation of a small ball, where calling the solver would cost more than that."""
    orders = np.array(list(permutations(range(costs.shape[1]))))
    totals = costs[:, np.arange(costs.shape[1]), orders].sum(2)
    best: Array = orders[totals.argmin(1)]
    return best


@cache
def _solver() -> Solver:
    """The batch solver, from costs (balls, m, m) to columns (balls, m)."""
    try:
        from lap import lapjvh, lapjvh_batch
    except ImportError:  # not installed, or an unrelated package with the same module name
        return lambda costs: np.stack([linear_sum_assignment(cost)[1] for cost in costs])

    def solve(costs: Array) -> Array:
        if len(costs) == 1:  # a batch of one would only add its overhead
            single: Array = lapjvh(costs[0], return_cost=False)[1]
            return single[None]
        _, columns = lapjvh_batch(costs, return_cost=False, n_threads=torch.get_num_threads())
        return np.stack(columns)

    return solve
