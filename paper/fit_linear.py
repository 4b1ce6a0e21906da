"""One fit of the linear example, from plain settings to plain values.

Everything that decides a record is here and in its settings: a change of pictures does not recompute it.
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
    """Fit, and the paper's errors: sum|b - bhat| / sum|b| over intercept and slopes, likewise for |s|."""
    if cell["method"] == "truth":
        return {"draws": _rounded(_true_draws(cell))}
    x, y = TRUTH.sample(cell["rows"], random_state=cell["seed"])
    start = time.perf_counter()
    with warnings.catch_warnings():
        # That the printed delta leaves one row in most balls is what the records are to show.
        warnings.filterwarnings("ignore", message=".*(leaves|hold one row).*")
        model = estimator(cell, x, y).fit(x, y)
        rows = None if cell["delta"] is None else ball_rows(x, y, radius(cell), cell["norm"])
    seconds = time.perf_counter() - start
    b = np.append(model.intercept_mean_, model.coef_mean_)
    s = np.append(model.intercept_std_, model.coef_std_)
    values: Values = {
        "b_error": relative_error(TRUTH.coefficient_means, b),
        "s_error": relative_error(TRUTH.coefficient_stds, s),
        "b": _rounded(b),
        "s": _rounded(s),
        "ball_rows": rows,
        "fit_seconds": round(seconds, 3),
    }
    if cell["line"] is not None:
        values["draws"] = _rounded(model.sample(on_line(cell["line"]), cell["draws"], cell["seed"] + 1))
    return values


def estimator(cell: Cell, x: Array, y: Array) -> RandomCoefficientRegressor:
    """The estimator that a cell names; only a printed or given delta has a norm of its own."""
    method, seed = cell["method"], cell["seed"]
    if method == "maximum likelihood":
        return RandomCoefficientRegressor(method="ml", random_state=seed)
    if method == "ours":
        return RandomCoefficientRegressor(random_state=seed)
    return RandomCoefficientRegressor(
        debiased=method == "debiased",
        delta=radius(cell),
        norm=norm_of(cell["norm"], x, y),
        random_state=seed,
        **cell["training"],
    )


def radius(cell: Cell) -> float:
    """The radius of the balls: delta read literally, or as the bound on the *squared* norm."""
    delta = float(cell["delta"])
    return math.sqrt(delta) if cell["reading"] == "root" else delta


def norm_of(name: str, x: Array, y: Array) -> Norm:
    """The paper's two norms (Eq. norm_def)."""
    return Euclidean() if name == "homo" else Weighted.from_regression(x, y)


def ball_rows(x: Array, y: Array, delta: float, norm: str) -> float:
    """Rows in a ball, mean over the balls of all rows."""
    hoods = Neighborhoods.within(x, delta, norm_of(norm, x, y))
    return round(float(hoods.row_sizes().double().mean()), 2)


def relative_error(truth: Any, estimate: Any) -> float:
    """Sum of absolute differences of sizes over the sum of sizes (paper, Eq. error_metric; i = 0..3)."""
    t, e = np.asarray(truth, dtype=float), np.asarray(estimate, dtype=float)
    return float(np.abs(t - e).sum() / np.abs(t).sum())


def on_line(line: Any) -> Array:
    """The inputs (x0, x0, x0), from ``line``: first and last x0, and how many."""
    return np.repeat(np.linspace(*line)[:, None], 3, axis=1)


def _true_draws(cell: Cell) -> Array:
    rng = np.random.default_rng([cell["seed"], 1])
    return np.stack([TRUTH.sample_y(on_line(cell["line"]), rng) for _ in range(cell["draws"])])


def _rounded(values: Array) -> Any:
    return np.round(values, 4).tolist()
