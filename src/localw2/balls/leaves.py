"""The leaves of trees as balls: which rows of x share a leaf, tree by tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from localw2._validation import Array
from localw2.balls.ragged import Balls, index_type

# Leaf numbers up to so many times the rows are counted instead of sorted: a tree numbers its inner nodes too.
_COUNTED = 8


def find_leaves(forest: Any, x: Any) -> tuple[Balls, Array]:
    r"""The leaves of all trees that hold rows of x, tree by tree, and their weights.

    Row i gives each of the :math:`T_i` leaves that it lies in the weight :math:`1 / T_i`. One tree is handled
    at a time, in linear time, so that beyond the edges themselves only some arrays of N numbers are needed.

    >>> balls, weights = find_leaves([[3, 7], [3, 5], [4, 5]], x=[0.0, 1.0, 2.0])
    >>> balls.sizes, balls.rows, weights
    (array([2, 1, 2, 1]), array([0, 1, 2, 1, 2, 0], dtype=int32), array([1. , 0.5, 1. , 0.5]))
    """
    numbers = read_leaf_numbers(forest, x)
    n_rows, n_trees = numbers.shape
    trees_of_row = np.zeros(n_rows, np.int64)
    for tree in range(n_trees):
        trees_of_row += numbers[:, tree] >= 0
    if not trees_of_row.any():
        raise ValueError("every leaf number is negative, so no row is in a leaf; number leaves from 0.")
    rows, sizes, done = np.empty(int(trees_of_row.sum()), index_type(n_rows)), [], 0
    for tree in range(n_trees):
        members, size = _sort_tree(numbers[:, tree])
        rows[done : done + len(members)] = members
        sizes.append(size)
        done += len(members)
    balls = Balls(np.concatenate(sizes), rows)
    if bool((trees_of_row == n_trees).all()):
        return balls, balls.sizes / n_trees
    shares = 1 / np.maximum(trees_of_row, 1)
    return balls, np.add.reduceat(shares[rows], balls.starts)


def read_leaf_numbers(forest: Any, x: Any) -> Array:
    """The leaf of every row in every tree, (N, n_trees): ``forest.apply(x)``, or an array of such numbers."""
    table = x.detach().cpu().numpy() if isinstance(x, Tensor) else x
    n_rows = table.shape[0] if hasattr(table, "shape") else len(table)
    if callable(getattr(forest, "apply", None)) and not _is_array(forest):
        if np.ndim(table) == 1 and not hasattr(table, "columns"):
            table = np.reshape(table, (-1, 1))
        numbers = np.asarray(forest.apply(table))
    elif _is_array(forest):
        numbers = np.asarray(forest)
    else:
        raise ValueError(
            f"forest is {type(forest).__name__}, which has no method apply(x). Pass a fitted forest or tree "
            "of scikit-learn, or the leaf numbers themselves, integers (N, n_trees), such as LightGBM's "
            "predict(x, pred_leaf=True)."
        )
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    if numbers.ndim != 2 or numbers.size == 0 or len(numbers) != n_rows:
        raise ValueError(
            f"the leaf numbers have shape {numbers.shape} and x has {n_rows} rows; expected one row for each "
            "row of x and one column for each tree."
        )
    if numbers.dtype.kind == "f" and bool((numbers == np.floor(numbers)).all()):
        return numbers.astype(np.int64)  # gradient boosting numbers its leaves by floats
    if numbers.dtype.kind not in "iu":
        raise ValueError(
            f"the leaf numbers have dtype {numbers.dtype}; leaves are numbered by integers. Pass the forest "
            "itself, or what its apply(x) returns."
        )
    return numbers


def _is_array(values: Any) -> bool:
    """Whether these are leaf numbers; a data frame or a tensor has an ``apply`` of its own."""
    return isinstance(values, list | tuple | Tensor) or hasattr(values, "__array__")


def _sort_tree(numbers: Array) -> tuple[Array, Array]:
    """The rows of one tree, leaf by leaf and ascending inside each, and the sizes of its leaves."""
    if numbers.min() < 0:
        inside = np.flatnonzero(numbers >= 0)
        if len(inside) == 0:
            return inside, inside
        rows, sizes = _sort_tree(numbers[inside])
        return inside[rows], sizes
    if int(numbers.max()) >= _COUNTED * len(numbers) + 1000:
        numbers = np.unique(numbers, return_inverse=True)[1]
    n_leaves = int(numbers.max()) + 1
    # scipy's change from rows to columns is a stable counting sort: linear, and much faster than argsort.
    index = index_type(max(n_leaves, len(numbers)))
    entries = np.ones(len(numbers), np.int8), numbers.astype(index), np.arange(len(numbers) + 1, dtype=index)
    by_leaf = sp.csr_matrix(entries, shape=(len(numbers), n_leaves)).tocsc()
    sizes = np.diff(by_leaf.indptr)
    return by_leaf.indices, sizes[sizes > 0].astype(np.int64)
