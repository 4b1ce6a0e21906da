"""Trees that divide rows, as plain arrays: each node is a ball of rows with a similar y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from sklearn import config_context
from sklearn.tree import ExtraTreeRegressor
from sklearn.utils.parallel import Parallel, delayed

from localw2._validation import Array
from localw2.estimators.column_screening import ROUNDING
from localw2.estimators.regression.category_codes import CategoryCodes

MOST_ROWS = 50_000  # that one tree is grown on, and that its leaves hold
_SHARE = 0.8  # of the rows that a tree is grown on: the others fall into leaves that they did not shape
_COLUMNS = 1.0  # of the columns, which a split may choose from; its threshold is random
_LEVELS, _FEW_OUTPUTS = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6), 4  # of those thresholds, and outputs up to which
_WORTH_THREADS = 20_000  # numbers in a table from which on trees grow faster at the same time
_AT_A_TIME = 1 << 22  # rows times trees that are led down at once
_FAR = 1e4  # times its range that a column may be from 0: trees grow in single precision, whose digits end
_HUGE, _LARGEST = 1e30, 1e38  # numbers of single precision, whose exponents end
_STRAYS = 0.1  # of the numbers of a column, at each end, that do not decide its unit
_LOOKED_AT = 10_000  # rows at most, evenly spaced, that decide it


@final
@dataclass(frozen=True, eq=False)
class Forest:
    """Trees one after the other in arrays of M nodes; tree t starts at node ``roots[t]``.

    A row goes to ``left`` if its ``feature`` is at most ``threshold`` (or is missing and ``missing_left``),
    else to ``right``; ``feature`` is -1 in leaves. Features are compared as trees saw them when they grew:
    less the ``center`` of their column, in its ``unit`` and in single precision.
    """

    codes: CategoryCodes
    roots: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    missing_left: Array
    center: Array
    unit: Array

    @property
    def n_trees(self) -> int:
        """How many trees there are."""
        return len(self.roots)

    @classmethod
    def grow(
        cls,
        x: Array,
        y: Array,
        categorical: list[int],
        n_trees: int,
        min_rows: int,
        seed: int,
        n_jobs: Any,
        weights: Array | None = None,
    ) -> Forest:
        """Extremely randomised trees for y (N, d), whose leaves hold ``min_rows`` grown rows at least.

        Splits separate rows by y and by how often it lies below some thresholds: the distribution may change
        where the mean does not. Each tree sees its own sample of the rows without copies, and x may have
        missing values. With ``weights`` (N,) of the rows splits reduce weighted sums of squares.
        """
        below = (
            [y <= np.quantile(y, level, axis=0) for level in _LEVELS] if y.shape[1] <= _FEW_OUTPUTS else []
        )
        target = np.hstack([y, *below])
        scale = target.std(0)
        target /= np.where(scale > 0, scale, 1.0)
        codes = CategoryCodes({})
        if categorical:
            codes = CategoryCodes.by_mean(x, target[:, 0], categorical, weights)
        numbers = codes.apply(x) if categorical else x
        center, unit = _place(numbers)
        numbers = _shrink(numbers, center, unit)
        seeds = np.random.SeedSequence([seed, 11]).spawn(n_trees)
        jobs = 1 if numbers.size < _WORTH_THREADS else -1 if n_jobs is None else n_jobs
        missing = bool(np.isnan(numbers).any())
        tasks = [(numbers, target, weights, min_rows, missing, s) for s in seeds]
        # Checks of parameters take a fifth of the time of a small tree, and so does handing it to a thread.
        with config_context(skip_parameter_validation=True):
            if jobs == 1:
                trees = [_grow_tree(*task) for task in tasks]
            else:
                trees = Parallel(n_jobs=jobs, prefer="threads")(delayed(_grow_tree)(*task) for task in tasks)
        counts = np.array([tree.node_count for tree in trees])
        roots = np.cumsum(counts) - counts
        starts = np.repeat(roots, counts)
        nodes = [tree.__getstate__()["nodes"] for tree in trees]
        feature = np.concatenate([tree.feature for tree in trees])
        leaf = feature < 0
        left, right = (
            np.where(leaf, -1, starts + np.concatenate([part[side] for part in nodes])).astype(np.int32)
            for side in ("left_child", "right_child")
        )
        return cls(
            codes,
            roots.astype(np.int32),
            np.where(leaf, -1, feature).astype(np.int32),
            np.concatenate([tree.threshold for tree in trees]).astype(np.float64),
            left,
            right,
            np.concatenate([part["missing_go_to_left"] for part in nodes]).astype(bool),
            center,
            unit,
        )

    def tree(self, t: int) -> Forest:
        """One of the trees, whose nodes start at 0."""
        start, end = np.append(self.roots, len(self.feature))[t : t + 2]
        left, right = (
            np.where(side < 0, -1, side - start) for side in (self.left[start:end], self.right[start:end])
        )
        nodes = slice(start, end)
        return Forest(
            self.codes,
            np.zeros(1, np.int32),
            self.feature[nodes],
            self.threshold[nodes],
            left.astype(np.int32),
            right.astype(np.int32),
            self.missing_left[nodes],
            self.center,
            self.unit,
        )

    def levels(self) -> list[Array]:
        """The inner nodes of all trees, level by level from the roots."""
        found = []
        nodes = self.roots
        while len(nodes):
            inner = nodes[self.feature[nodes] >= 0]
            found.append(inner)
            nodes = np.concatenate([self.left[inner], self.right[inner]])
        return found

    def apply(self, x: Array, may_enter: Array | None = None) -> Array:
        """The leaf (a node) of every row x (N, p) in every tree, (N, T).

        With ``may_enter`` (M,) a row stops above the first node that it may not enter.
        """
        numbers = _shrink(self.codes.apply(x), self.center, self.unit)
        step = max(1, _AT_A_TIME // self.n_trees)
        parts = [self._lead_down(numbers[i : i + step], may_enter) for i in range(0, len(x), step)]
        return np.concatenate(parts) if parts else np.empty((0, self.n_trees), np.int32)

    def _lead_down(self, x: Array, may_enter: Array | None) -> Array:
        node = np.tile(self.roots, len(x))
        rows = np.repeat(np.arange(len(x), dtype=np.int32), self.n_trees)
        moving = np.flatnonzero(self.feature[node] >= 0)
        while len(moving):
            here = node[moving]
            values = x[rows[moving], self.feature[here]]
            left = (values <= self.threshold[here]) | (np.isnan(values) & self.missing_left[here])
            below = np.where(left, self.left[here], self.right[here])
            if may_enter is not None:
                entered = may_enter[below]
                moving, below = moving[entered], below[entered]
            node[moving] = below
            moving = moving[self.feature[below] >= 0]
        return node.reshape(len(x), self.n_trees)


def _place(x: Array) -> tuple[Array, Array]:
    """Center and unit (p,) in which single precision tells most numbers of each column apart.

    They are 0 and 1 unless most of a column is far from 0 for its range, or narrow or huge. Trees do not
    split between numbers that are closer than 1e-7. Units are powers of two, which cost no digit. Strays do
    not count, and what varies by rounding only is a constant.

    >>> center, unit = _place(np.array([[0.0, 1.7e9, 1e45, 0.0], [9.0, 1.7e9 + 8, 3e45, 1e-9]]))
    >>> center.tolist(), np.log2(unit).tolist()
    ([0.0, 1700000004.0, 2e+45, 0.0], [0.0, 3.0, 150.0, -30.0])
    """
    ordered = np.sort(x[:: len(x) // _LOOKED_AT + 1], axis=0)  # missing values come last
    last = np.maximum(np.isfinite(ordered).sum(0) - 1, 0)
    strays = (_STRAYS * last).astype(np.int64)
    most, whole = (
        np.take_along_axis(ordered, np.stack([skipped, last - skipped]), 0) for skipped in (strays, 0 * last)
    )
    low, high = np.where(_vary(most), most, whole)
    varies, reach = _vary(np.stack([low, high])), np.maximum(np.abs(low), np.abs(high))
    width = np.where(varies, high - low, np.maximum(np.nan_to_num(reach), 1.0))
    far = varies & ((reach > _FAR * width) | (reach > _HUGE))
    unit = np.where(far | ~varies | (width < 1), np.exp2(np.floor(np.log2(width)).clip(-1000, 1000)), 1.0)
    return np.where(far, low + width / 2, 0.0), unit


def _vary(ends: Array) -> Array:
    """Whether the least and the largest number of each column (2, p) differ by more than rounding."""
    found: Array = ends[1] - ends[0] > ROUNDING * np.abs(ends).max(0)
    return found


def _shrink(x: Array, center: Array, unit: Array) -> Array:
    """The numbers that trees compare, in single precision, which ends beyond all that they have seen."""
    if center.any() or (unit != 1).any():
        with np.errstate(over="ignore"):
            x = (x - center) / unit
    found: Array = x.clip(-_LARGEST, _LARGEST).astype(np.float32)
    return found


def _grow_tree(
    x: Array, y: Array, weights: Array | None, min_rows: int, missing: bool, seed: np.random.SeedSequence
) -> Any:
    rng = np.random.default_rng(seed)
    size = min(MOST_ROWS, max(int(_SHARE * len(x)), min(len(x), 2 * min_rows)))
    rows = np.sort(rng.choice(len(x), size, replace=False))
    tree = ExtraTreeRegressor(
        min_samples_leaf=min_rows, max_features=_COLUMNS, random_state=int(rng.integers(2**31))
    )
    # Checks take as long as a small tree; only they find out where values are missing.
    own = None if weights is None else weights[rows]
    return tree.fit(x[rows], y[rows], sample_weight=own, check_input=missing).tree_
