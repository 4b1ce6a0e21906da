"""Gradient boosting of many fits to one table at once, each with different rows left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np
import torch

from localw2._validation import Array
from localw2.estimators.regression.category_codes import CategoryCodes

MOST_BINS = 64  # of a column: splits lie between them
_FEWEST_COLUMNS = 3  # that a tree may use, so that it can follow what they do together
_CHOICES = 10  # of the columns of a tree, which take turns
_AT_A_TIME = 1 << 22  # cells of the table, or histogram bins of one level, that are processed at once


@final
@dataclass(frozen=True)
class Boosting:
    """Regression trees one after the other, each fitted to the residuals of those before it.

    A tree has ``depth`` levels and at least ``min_rows`` rows in every leaf; ``learning_rate`` shrinks the
    values of leaves, and each tree may use a share ``columns`` of the columns. Random sets of columns take
    turns, such that each column is in some of them. Columns are divided into bins at their quantiles, and
    sums over bins show the best split, as in LightGBM and scikit-learn. A level of a tree is a few calls of
    numpy *for all fits together*, so that a cross-fit of some hundred rows takes little longer than one fit;
    scikit-learn's boosting spends as much time in Python for every one of them. Weights of rows enter all
    sums; ``min_rows`` counts rows.
    """

    n_trees: int
    learning_rate: float
    depth: int
    min_rows: int
    columns: float = 1.0

    def fit_many(
        self,
        x: Array,
        y: Array,
        used: Array,
        categorical: list[int],
        seed: int,
        weights: Array | None = None,
    ) -> list[tuple[BoostedTrees, CategoryCodes]]:
        """A fit to the rows of x (N, p), y (N, d) in each row of ``used`` (F, N), with its category codes.

        >>> x = np.arange(100.0)[:, None]
        >>> used = np.arange(100) % 2 == np.array([[0], [1]])  # every other row, and the rest
        >>> (even, _), (odd, _) = Boosting(50, 0.5, 2, 5).fit_many(x, x > 49.5, used, [], seed=0)
        >>> even.predict(np.array([[9.0], [91.0]])).round(2), odd.start
        (array([[0.],
               [1.]]), array([0.5]))
        """
        d = y.shape[1]
        cells = max(int(used.sum(1).max()) * x.shape[1], (MOST_BINS * x.shape[1]) << (self.depth - 1))
        step = max(1, _AT_A_TIME // (cells * d))
        found = []
        for start in range(0, len(used), step):
            found += self._fit_together(x, y, used[start : start + step], categorical, seed, weights)
        return found

    def _fit_together(
        self,
        x: Array,
        y: Array,
        used: Array,
        categorical: list[int],
        seed: int,
        weights: Array | None,
    ) -> list[tuple[BoostedTrees, CategoryCodes]]:
        d = y.shape[1]
        rows = [np.flatnonzero(mask) for mask in used]
        codes = [CategoryCodes({})] * len(rows)
        if categorical:
            codes = [CategoryCodes.by_rank(x, y[:, 0], categorical, some, weights) for some in rows]
        edges = _divide_columns(x, {j: len(values) for j, values in codes[0].maps.items()})
        missing: Array = np.asarray(np.isnan(x).any(0))
        missing[categorical] = False  # missing categories have a rank
        shared = None if categorical else _find_bins(x, edges)
        problems = []  # a fit and an output each
        for one, some in zip(codes, rows, strict=True):
            bins = _find_bins(one.apply(x[some]), edges) if shared is None else shared[some]
            problems += [(bins, y[some, k]) for k in range(d)]
        bins = np.concatenate([part for part, _ in problems])
        target = np.concatenate([values for _, values in problems])
        problem = np.repeat(np.arange(len(problems)), [len(values) for _, values in problems])
        each = None if weights is None else np.concatenate([weights[some] for some in rows for _ in range(d)])
        start, scale = _moments(target, problem, each)
        varies = scale[problem] > 0
        residual = np.where(varies, target - start[problem], 0.0) / np.where(varies, scale[problem], 1.0)
        *splits, values = _grow(self, edges, missing, bins, problem, residual, each, seed)
        parts = (start, *splits, values * scale[:, None, None])
        return [
            (BoostedTrees(*(part[i * d : (i + 1) * d] for part in parts)), one) for i, one in enumerate(codes)
        ]


@final
@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Fitted trees for d outputs, T complete binary trees each; the children of node i are 2i + 1 and 2i + 2.

    A row goes on to the left if its ``feature`` (d, T, inner nodes) is at most ``threshold``, or is missing
    and ``missing_left``. The prediction is ``start`` (d,) plus the ``values`` (d, T, leaves) of its leaves.
    """

    start: Array
    feature: Array
    threshold: Array
    missing_left: Array
    values: Array

    def predict(self, x: Array) -> Array:
        """Means (N, d) at rows x (N, p) of numbers."""
        step = max(1, _AT_A_TIME // self.feature.shape[1])
        parts = [self._lead_down(x[start : start + step]) for start in range(0, len(x), step)]
        return np.concatenate(parts) if parts else np.empty((0, len(self.start)))

    def _lead_down(self, x: Array) -> Array:
        d, n_trees, n_inner = self.feature.shape
        missing, rows = bool(np.isnan(x).any()), np.arange(len(x))[:, None]
        first = np.arange(n_trees)
        found = np.empty((len(x), d))
        for k in range(d):
            feature, threshold, to_left = (
                part[k].ravel() for part in (self.feature, self.threshold, self.missing_left)
            )
            node = np.zeros((len(x), n_trees), np.int64)
            for _ in range(n_inner.bit_length()):
                place = node + first * n_inner
                values = x[rows, feature[place]]
                right = values > threshold[place]
                if missing:
                    right |= np.isnan(values) & ~to_left[place]
                node = 2 * node + 1 + right
            leaves = node - n_inner + first * (n_inner + 1)
            found[:, k] = self.start[k] + self.values[k].ravel()[leaves].sum(1)
        return found


@final
@dataclass(frozen=True, eq=False)
class _Bins:
    """Bins of some columns, numbered one column after the other; the last one of each has missing values.

    ``ends`` is one more than the last bin of every column, ``column`` the column of every bin, and bin b has
    values up to ``thresholds[b]``. ``with_missing`` are the bins of columns that have missing values.
    """

    ends: Array
    column: Array
    thresholds: Array
    with_missing: Array

    @classmethod
    def of(cls, edges: list[Array], missing: Array, columns: Array) -> _Bins:
        """The bins of these columns, whose values are divided at ``edges``."""
        sizes = np.array([len(edges[j]) + 2 for j in columns])
        column = np.repeat(np.arange(len(columns)), sizes)
        last = np.full(2, np.inf)
        thresholds = np.concatenate([part for j in columns for part in (edges[j], last)])
        return cls(np.cumsum(sizes), column, thresholds, np.flatnonzero(missing[columns][column]))


def _divide_columns(x: Array, n_categories: dict[int, int]) -> list[Array]:
    """Where the values of each column are divided: at quantiles, or between all of them if they are few."""
    edges = []
    levels = np.arange(1, MOST_BINS - 1) / (MOST_BINS - 1)
    for j, column in enumerate(x.T):
        values = np.arange(float(n_categories[j])) if j in n_categories else column[~np.isnan(column)]
        distinct = np.unique(values)
        few = len(distinct) < MOST_BINS
        edges.append((distinct[1:] + distinct[:-1]) / 2 if few else np.unique(np.quantile(values, levels)))
    return edges


def _find_bins(x: Array, edges: list[Array]) -> Array:
    """The bin of every number (N, p) in its column."""
    found = np.empty(x.shape, np.int64)
    for j, some in enumerate(edges):
        found[:, j] = np.searchsorted(some, x[:, j])
        found[np.isnan(x[:, j]), j] = len(some) + 1
    return found


def _choose_columns(p: int, n_columns: int, rng: np.random.Generator) -> list[Array]:
    """Sets of columns, ascending: consecutive pieces of random orders, so that no column is left out.

    >>> [some.tolist() for some in _choose_columns(4, 4, np.random.default_rng(0))]
    [[0, 1, 2, 3]]
    """
    if n_columns == p:
        return [np.arange(p)]
    orders = np.concatenate([rng.permutation(p) for _ in range(-(-_CHOICES * n_columns // p))])
    return [np.unique(orders[k * n_columns : (k + 1) * n_columns]) for k in range(_CHOICES)]


def _moments(values: Array, group: Array, weights: Array | None) -> tuple[Array, Array]:
    """Mean and standard deviation of the values (n,) in each group, the latter 0 where all are equal."""
    sizes = np.bincount(group, weights)
    mean = np.bincount(group, _times(values, weights)) / sizes
    unit = np.zeros(len(sizes))
    np.maximum.at(unit, group, np.abs(values - mean[group]))  # squares of large numbers overflow
    in_units = (values - mean[group]) / np.where(unit > 0, unit, 1.0)[group]
    spread = unit * np.sqrt(np.bincount(group, _times(in_units**2, weights)) / sizes)
    return mean, np.where(spread > 1e-12 * np.abs(mean), spread, 0.0)


def _times(values: Array, weights: Array | None) -> Array:
    return values if weights is None else values * weights


def _grow(
    settings: Boosting,
    edges: list[Array],
    missing: Array,
    bins_of_rows: Array,
    problem: Array,
    residual: Array,
    weights: Array | None,
    seed: int,
) -> tuple[Array, Array, Array, Array]:
    """Feature, threshold and side of missing values in all trees of all problems, and the values of leaves.

    ``bins_of_rows`` (n, p) are the bins of the rows in their columns, each row belongs to a ``problem`` (n,),
    and ``residual`` (n,) is what the trees are to explain, with ``weights`` (n,) of the rows.
    """
    n_problems, (n, p) = int(problem[-1]) + 1, bins_of_rows.shape
    inner = (1 << settings.depth) - 1
    shape = n_problems, settings.n_trees, inner
    feature, threshold = np.empty(shape, np.int32), np.empty(shape)
    missing_left, values = np.empty(shape, bool), np.empty((*shape[:2], inner + 1))
    everyone = np.arange(n)
    n_columns = min(p, max(_FEWEST_COLUMNS, round(settings.columns * p)))
    choices = _choose_columns(p, n_columns, np.random.default_rng([seed, 13]))

    def find_places(number: int) -> tuple[_Bins, Array]:
        bins = _Bins.of(edges, missing, choices[number])
        places = bins_of_rows[:, choices[number]]
        places[:, 1:] += bins.ends[:-1]
        return bins, places

    if n * n_columns <= _AT_A_TIME:  # of wide tables they would take too much memory
        find_places = cache(find_places)
    for tree in range(settings.n_trees):
        columns, (bins, places) = choices[tree % len(choices)], find_places(tree % len(choices))
        node, in_bins = problem, _fill(bins, places, residual, weights, problem, n_problems)
        for level in range(settings.depth):
            nodes = slice((1 << level) - 1, (2 << level) - 1)
            column, last, to_left = _find_splits(in_bins, bins, settings.min_rows)
            feature[:, tree, nodes] = columns[column].reshape(n_problems, -1)
            threshold[:, tree, nodes] = bins.thresholds[last].reshape(n_problems, -1)
            missing_left[:, tree, nodes] = to_left.reshape(n_problems, -1)
            place = places[everyone, column[node]]
            right = place > last[node]
            if len(bins.with_missing):
                right &= ~(to_left[node] & (place == bins.ends[column[node]] - 1))
            if nodes.stop < inner:
                stay = np.flatnonzero(~right)
                own = None if weights is None else weights[stay]
                on_left = _fill(bins, places[stay], residual[stay], own, node[stay], len(column))
                # What is not on the left is on the right: only half of the rows have to be looked at.
                in_bins = np.stack([on_left, in_bins - on_left], 2).reshape(
                    len(in_bins), -1, in_bins.shape[2]
                )
            node = 2 * node + right
        n_leaves = n_problems * (inner + 1)
        sizes = np.bincount(node, weights, n_leaves)
        sizes = np.where(sizes > 0, sizes, 1)
        step = settings.learning_rate * np.bincount(node, _times(residual, weights), n_leaves) / sizes
        values[:, tree] = step.reshape(n_problems, -1)
        residual = residual - step[node]
    return feature, threshold, missing_left, values


def _fill(
    bins: _Bins, places: Array, residual: Array, weights: Array | None, node: Array, n_nodes: int
) -> Array:
    """The sum of the residual in each bin of each node, and how many rows it has, (2, nodes, bins).

    With weights the rows have theirs, and the number of rows comes third.
    """
    n_bins, width = len(bins.column), places.shape[1]
    index = ((node * n_bins)[:, None] + places).ravel()
    filled = np.empty((2 if weights is None else 3, n_nodes * n_bins), np.float32)
    filled[0] = np.bincount(index, np.repeat(_times(residual, weights), width), filled.shape[1])
    filled[-1] = np.bincount(index, minlength=filled.shape[1])
    if weights is not None:
        filled[1] = np.bincount(index, np.repeat(weights, width), filled.shape[1])
    return filled.reshape(-1, n_nodes, n_bins)


def _find_splits(in_bins: Array, bins: _Bins, min_rows: int) -> tuple[Array, Array, Array]:
    """The best split of every node (K,): column, last bin on the left, and whether missing values go there.

    ``in_bins`` (2 or 3, K, M) are sums, weights and counts of the rows in each bin. Without a split that
    leaves enough rows on both sides all of them go to the left.
    """
    nodes = np.arange(in_bins.shape[1])
    everything = in_bins[:, :, : bins.ends[0]].sum(2, keepdims=True)
    # Where a column starts, all that the one before it has is taken away: one sum then runs over all columns.
    on_left = in_bins.copy()
    on_left[:, :, bins.ends[:-1]] -= everything
    torch.cumsum(tensor := torch.from_numpy(on_left), 2, out=tensor)  # in a quarter of numpy's time
    gain = _gain(on_left, everything, min_rows)
    best = gain.argmax(1)
    most = gain[nodes, best]
    to_left = np.zeros(len(nodes), bool)
    if len(some := bins.with_missing):
        missing = bins.ends[bins.column[some]] - 1
        other = _gain(on_left[:, :, some] + in_bins[:, :, missing], everything, min_rows)
        second = other.argmax(1)
        to_left = other[nodes, second] > most
        best, most = np.where(to_left, some[second], best), np.maximum(most, other[nodes, second])
    # Where a node has seen no missing value, one goes where more of its rows go.
    unseen = in_bins[-1][nodes, bins.ends[bins.column[best]] - 1] == 0
    to_left = np.where(unseen, 2 * on_left[1][nodes, best] >= everything[1, :, 0], to_left)
    none = most <= 0
    best = np.where(none, bins.ends[0] - 1, best)
    return bins.column[best], best, to_left | none


def _gain(on_left: Array, everything: Array, min_rows: int) -> Array:
    """How much a split reduces the sum of squares, divided by the rows of its node; 0 without enough rows."""
    if len(everything) == 3:
        return _weighted_gain(on_left, everything, min_rows)
    total, size = everything
    n_left, n_right = on_left[1], size - on_left[1]
    gain: Array = (total / np.maximum(size, 1)) * n_left
    gain -= on_left[0]
    gain *= gain
    enough = np.minimum(n_left, n_right) >= min_rows
    n_right *= n_left
    gain /= np.maximum(n_right, 1, out=n_right)
    gain *= enough
    return gain


def _weighted_gain(on_left: Array, everything: Array, min_rows: int) -> Array:
    """The same with weights of rows, which may be small: only where there are enough rows is it computed."""
    total, weight, size = everything
    left, right = on_left[1], weight - on_left[1]
    enough = (np.minimum(on_left[2], size - on_left[2]) >= min_rows) & (np.minimum(left, right) > 0)
    gap = (total / np.where(weight > 0, weight, 1)) * left - on_left[0]
    gain: Array = np.where(enough, gap**2 / np.where(enough, left * right, 1), 0)
    return gain
