"""One fit of the linear example, from plain settings to plain values.

``run`` and its settings determine a record completely; changing a figure does not invalidate it.
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np

from localw2 import Euclidean, Neighborhoods, RandomCoefficientRegressor, Weighted
from localw2._validation import Array
from localw2.balls.norms import Norm
from localw2.datasets import Linear
from records import Cell, Values

TRUTH = Linear()


def run(cell: Cell) -> Values:
    """Fit a cell; errors are the paper's: sum|b - bhat| / sum|b| over intercept and slopes, same for |s|."""
    x, y = TRUTH.sample(cell["rows"], random_state=cell["seed"])
    start = time.process_time()
    with warnings.catch_warnings():
        # The records are meant to show that the printed delta leaves most balls with one row.
        warnings.filterwarnings("ignore", message=".*(leaves|hold one row).*")
        model = make_estimator(cell, x, y).fit(x, y)
        rows = None if cell["delta"] is None else count_ball_rows(x, y, read_radius(cell), cell["norm"])
    seconds = time.process_time() - start
    b = np.append(model.intercept_mean_, model.coef_mean_)
    s = np.append(model.intercept_std_, model.coef_std_)
    return {
        "b_error": relative_error(TRUTH.coefficient_means, b),
        "s_error": relative_error(TRUTH.coefficient_stds, s),
        "b": _round(b),
        "s": _round(s),
        "ball_rows": rows,
        "fit_seconds": round(seconds, 3),
    }


def make_estimator(cell: Cell, x: Array, y: Array) -> RandomCoefficientRegressor:
    """Make the estimator of a cell; only methods with a delta of their own take a norm."""
    method, seed = cell["method"], cell["seed"]
    if method == "maximum likelihood":
        return RandomCoefficientRegressor(method="ml", random_state=seed)
    if method == "ours":
        return RandomCoefficientRegressor(random_state=seed)
    return RandomCoefficientRegressor(
        debiased=method == "debiased",
        delta=read_radius(cell),
        norm=make_norm(cell["norm"], x, y),
        random_state=seed,
        **cell["training"],
    )


def read_radius(cell: Cell) -> float:
    """The radius of the balls: delta itself, or its root where delta bounds the *squared* norm."""
    delta = float(cell["delta"])
    return math.sqrt(delta) if cell["reading"] == "root" else delta


def make_norm(name: str, x: Array, y: Array) -> Norm:
    """The paper's two norms (Eq. norm_def)."""
    return Euclidean() if name == "homo" else Weighted.from_regression(x, y)


def count_ball_rows(x: Array, y: Array, delta: float, norm: str) -> float:
    """The mean number of rows per ball, over the balls of all rows."""
    hoods = Neighborhoods.within(x, delta, make_norm(norm, x, y))
    return round(float(hoods.row_sizes().double().mean()), 2)


def relative_error(truth: Any, estimate: Any) -> float:
    """Sum of absolute differences over the sum of absolute values (paper, Eq. error_metric; i = 0..3)."""
    t, e = np.asarray(truth, dtype=float), np.asarray(estimate, dtype=float)
    return float(np.abs(t - e).sum() / np.abs(t).sum())


def place_on_line(line: Any) -> Array:
    """The inputs (x0, x0, x0) along ``line``: the first x0, the last one, and how many."""
    return np.repeat(np.linspace(*line)[:, None], 3, axis=1)


def _round(values: Array) -> Any:
    return np.round(values, 4).tolist()
