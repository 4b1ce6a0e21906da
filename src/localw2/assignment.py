"""Optimal assignment inside every ball (d > 1): lapx, or scipy where lapx is not installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import permutations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from localw2._validation import Array
from localw2.neighborhoods import Neighborhoods

# Cost-matrix entries (8 bytes each) solved at a time.
COST_ELEMENTS = 1 << 20

Solver = Callable[[Array], Array]


def assign(a: Tensor, b: Tensor, hoods: Neighborhoods) -> Tensor:
    r"""Pair the rows of a and b (N, d) inside every ball at the least squared cost.

    Returns, for each edge of the graph, the edge of the same ball whose row of b its row of a goes to:
    row ``hoods.rows[e]`` of a is paired with row ``hoods.rows[result[e]]`` of b.
    """
    solve = _solver()
    left, right = (v.detach().cpu().to(torch.float64).numpy() for v in (a, b))
    partner = np.arange(hoods.n_edges)
    starts = hoods.indptr.numpy()
    for bucket in hoods.cached("balls of equal size", lambda: hoods.buckets(1.0)):
        rows, width = bucket.rows.numpy(), bucket.rows.shape[1]
        if width == 1:
            continue
        first = starts[bucket.balls.numpy()]
        step = max(1, COST_ELEMENTS // width**2)
        for low in range(0, len(rows), step):
            part = rows[low : low + step]
            costs = _squared_distances(left[part], right[part])
            pairs = _best_of_all(costs) if width <= 3 else solve(costs)
            at = first[low : low + step, None]
            partner[at + np.arange(width)] = at + pairs
    return torch.from_numpy(partner)


def _squared_distances(a: Array, b: Array) -> Array:
    """Pairwise squared distances (balls, m, m), up to constants per row and column.

    Centring each ball only changes such constants, which do not affect the best pairing; it keeps the
    digits that an expanded square would lose far from the origin, and starts the solver near its end.
    """
    a = a - a.mean(1, keepdims=True)
    b = b - b.mean(1, keepdims=True)
    costs: Array = np.matmul(-2 * a, b.swapaxes(1, 2))
    costs += (a**2).sum(2)[:, :, None]
    costs += (b**2).sum(2)[:, None, :]
    return costs


def _best_of_all(costs: Array) -> Array:
    """Try every permutation of a small ball: a call to the solver would cost more than its work."""
    orders = np.array(list(permutations(range(costs.shape[1]))))
    totals = costs[:, np.arange(costs.shape[1]), orders].sum(2)
    best: Array = orders[totals.argmin(1)]
    return best


@cache
def _solver() -> Solver:
    """The batch solver: (balls, m, m) costs to (balls, m) columns."""
    try:
        from lap import lapjvh_batch
    except ImportError:  # not installed, or the unrelated package of the same module name
        return lambda costs: np.stack([linear_sum_assignment(cost)[1] for cost in costs])

    def solve(costs: Array) -> Array:
        _, columns = lapjvh_batch(costs, return_cost=False, n_threads=torch.get_num_threads())
        return np.stack(columns)

    return solve
