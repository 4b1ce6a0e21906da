"""The mean that a regressor is centred on: any scikit-learn regressor, used out of fold, and its choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils import get_tags

from localw2._validation import Array
from localw2.estimators.regression.kernel_mean import tuned

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

SPREAD_FLOOR = 0.1  # of the overall spread: rows without noise must not outweigh all others
_ALPHAS = tuple(float(alpha) for alpha in np.logspace(-6, 3, 19))
# Where noise is small, leaves of 20 rows and 100 trees, as they come, are too coarse for a few hundred rows.
_FINE = {"learning_rate": 0.15, "max_iter": 300, "max_leaf_nodes": 15, "min_samples_leaf": 5}
_WEIGHTED = "weighted "  # before the name of a candidate that was fitted with weights
_MOST_COLUMNS = {2: 20, 3: 4}  # degree -> columns of x up to which the polynomial is a candidate
_HANDICAP = 1 / 0.9  # of the kernel's error, where a candidate is chosen
_KERNEL_COLUMNS, _KERNEL_ROWS = 30, 100_000  # up to which length scales, and sums over rows, take seconds


@final
@dataclass(frozen=True)
class FoldedMean:
    r"""A mean :math:`m_f(x) = a + \lambda\, g_f(x)`, with one regressor :math:`g_f` for each fold f.

    ``out_of_fold`` (N, d) holds, for every training row, the value of the regressor that has not seen it.
    ``slope`` (:math:`\lambda`, between 0 and 1) and ``intercept`` (a) come from the regression of y on the
    out-of-fold values: a regressor that finds only noise gets slope 0, so it cannot inflate the spread.
    """

    name: str
    models: tuple[Any, ...]
    intercept: Array
    slope: Array
    out_of_fold: Array

    def predict_each(self, x: Array) -> Array:
        """Every fold's mean at x, (folds, N, d)."""
        return predict_each(self.models, self.intercept, self.slope, x)


def predict_each(models: Any, intercept: Array, slope: Array, x: Array) -> Array:
    """Each fold model's mean, corrected by slope and intercept, (folds, N, d); (1, N, d) without models."""
    if len(models) == 0:
        return np.broadcast_to(intercept, (1, len(x), len(intercept)))
    values = np.stack([_columns(model.predict(x), len(intercept)) for model in models])
    means: Array = intercept + slope * values
    return means


def candidates(n: int, x: Array, y: Array, seed: int, only: str | None = None) -> dict[str, Any]:
    """What ``base="auto"`` chooses from, for n training rows out of x (N, p) and y (N, d).

    Only the length scales of the kernel come from the numbers in x and y, from 300 rows of them. ``only`` is
    the name of one that is wanted alone, if it is a candidate.

    >>> x, y = np.random.default_rng(0).normal(size=(1000, 40)), np.zeros((1000, 1))
    >>> list(candidates(900, x[:, :3], y, 0)), list(candidates(900, x, y, 0)), list(candidates(4, x, y, 0))
    (['ridge', 'ridge of degree 2', 'ridge of degree 3', 'boosting', 'fine boosting', 'kernel'],
     ['ridge', 'boosting', 'fine boosting'], ['mean'])
    """
    if n < 6:
        return {"mean": DummyRegressor()}
    (_, p), d = x.shape, y.shape[1]
    found: dict[str, Any] = {"ridge": make_pipeline(StandardScaler(), RidgeCV(_ALPHAS))}
    for degree, most in _MOST_COLUMNS.items():
        if p <= most and n >= 10 * degree:
            powers = PolynomialFeatures(degree, include_bias=False)
            found[f"ridge of degree {degree}"] = make_pipeline(
                StandardScaler(), powers, StandardScaler(), RidgeCV(_ALPHAS)
            )
    if n >= 60:
        for name, settings in (("boosting", {}), ("fine boosting", _FINE)):
            trees = HistGradientBoostingRegressor(random_state=seed, **settings)
            found[name] = trees if d == 1 else MultiOutputRegressor(trees)
    if only in (None, "kernel") and 20 <= n <= _KERNEL_ROWS and p <= _KERNEL_COLUMNS:
        found["kernel"] = tuned(x, y, seed)
    return {only: found[only]} if only in found else found


def local_spread(hoods: Neighborhoods, residuals: Array, rows: Array | None = None) -> Array:
    """The size of the residuals (N, d) around every row: their mean absolute value in its ball, (N,).

    Outputs are put on one scale first. ``rows`` (a mask) restricts the mean to those rows. Values are
    relative to the overall spread and at least ``SPREAD_FLOOR``; without any spread they are all 1.
    """
    seen = np.ones(len(residuals), bool) if rows is None else rows
    overall = np.sqrt((residuals[seen] ** 2).mean(0))
    if not overall.any():
        return np.ones(len(residuals))
    size = np.sqrt(((residuals / np.where(overall > 0, overall, 1.0)) ** 2).mean(1))
    indices, starts = hoods.rows.numpy(), hoods.indptr.numpy()[:-1]
    total = np.add.reduceat((size * seen)[indices], starts)
    count = np.add.reduceat(seen[indices].astype(float), starts)
    means = np.where(count > 0, total / np.maximum(count, 1.0), size[seen].mean())
    spread: Array = np.maximum(means[hoods.ball_of_row.numpy()], SPREAD_FLOOR)
    return spread


def fold_base(
    base: Any, x: Array, y: Array, hoods: Neighborhoods, n_folds: int, seed: int, chosen: str | None = None
) -> FoldedMean:
    """Fit a base regressor fold by fold, or choose one: ``base`` is "auto" or a scikit-learn regressor.

    "auto" takes the candidate with the smallest out-of-fold squared error, each row weighted by its inverse
    local variance, and fits it once more with those weights if that makes the error smaller still.
    ``hoods`` says what "local" is. ``chosen`` is the name of one that was chosen before, on like rows.
    """
    folds = list(KFold(min(n_folds, len(x)), shuffle=True, random_state=seed).split(x))
    if base != "auto":
        regressor = seeded(clone(base), seed)
        if y.shape[1] > 1 and not _takes_several_outputs(base):
            regressor = MultiOutputRegressor(regressor)
        fits = [_Folded("given", regressor, x, y, folds)]
    else:
        fewest = min(len(train) for train, _ in folds)
        known = None if chosen is None else chosen.removeprefix(_WEIGHTED)
        options = candidates(fewest, x, y, seed, known)
        fits = [_Folded(name, model, x, y, folds) for name, model in options.items()]
    scale = np.where(y.std(0) > 0, y.std(0), 1.0)

    def error(fit: _Folded, weights: Array | float = 1.0) -> float:
        return float((weights * ((y - fit.out_of_fold) / scale) ** 2).mean())

    rough = _clear_winner(fits, error)
    weights = 1 / local_spread(hoods, y - rough.out_of_fold)[:, None] ** 2
    best = _clear_winner(fits, partial(error, weights=weights))
    if base == "auto" and (chosen is None or chosen.startswith(_WEIGHTED)):
        weighted = best.reweighted(x, y, folds, hoods)
        better = error(weighted, weights) < error(best, weights)
        best = weighted if chosen is not None or better else best
    intercept, slope = _calibrate(y, best.out_of_fold, weights)
    out_of_fold = intercept + slope * best.out_of_fold
    return FoldedMean(best.name, tuple(best.models), intercept, slope, out_of_fold)


def _clear_winner(fits: list[_Folded], error: Callable[[_Folded], float]) -> _Folded:
    """The fit of least error; the kernel only if it is better by a tenth.

    It can follow noise that is nearly as smooth as the mean: on the nonlinear example, where it would be
    chosen now and then for an error smaller by 1 %, the mean of polynomials is a quarter closer to the truth.
    """
    return min(fits, key=lambda fit: error(fit) * (_HANDICAP if fit.name == "kernel" else 1.0))


def seeded(estimator: Any, seed: int) -> Any:
    """The estimator with every ``random_state`` that was left at None set, so that a fit can be repeated."""
    loose = [
        name
        for name, value in estimator.get_params(deep=True).items()
        if name.rpartition("__")[2] == "random_state" and value is None
    ]
    return estimator.set_params(**dict.fromkeys(loose, seed % 2**31))


class _Folded:
    """A regressor fitted once for each fold on the other rows."""

    def __init__(
        self,
        name: str,
        regressor: Any,
        x: Array,
        y: Array,
        folds: list[tuple[Array, Array]],
        weigh: Callable[[int], Array] | None = None,
    ) -> None:
        self.name, self.regressor = name, regressor
        self.models: list[Any] = []
        self.out_of_fold = np.empty_like(y)
        target = y[:, 0] if y.shape[1] == 1 else y
        for fold, (train, test) in enumerate(folds):
            weights = {} if weigh is None else {_weight_name(regressor): weigh(fold)[train]}
            model = clone(regressor).fit(x[train], target[train], **weights)
            self.out_of_fold[test] = _columns(model.predict(x[test]), y.shape[1])
            self.models.append(model)

    def reweighted(
        self, x: Array, y: Array, folds: list[tuple[Array, Array]], hoods: Neighborhoods
    ) -> _Folded:
        """The same with rows weighted by inverse local variance, as each fold's training rows show it."""

        def weigh(fold: int) -> Array:
            seen = np.zeros(len(x), bool)
            seen[folds[fold][0]] = True
            residuals = y - _columns(self.models[fold].predict(x), y.shape[1])
            weights: Array = 1 / local_spread(hoods, residuals, seen) ** 2
            return weights

        return _Folded(f"{_WEIGHTED}{self.name}", self.regressor, x, y, folds, weigh)


def _takes_several_outputs(regressor: Any) -> bool:
    try:
        return bool(get_tags(regressor).target_tags.multi_output)
    except (AttributeError, TypeError):  # a regressor that only looks like scikit-learn's: let it try
        return True


def _weight_name(regressor: Any) -> str:
    return f"{regressor.steps[-1][0]}__sample_weight" if isinstance(regressor, Pipeline) else "sample_weight"


def _calibrate(y: Array, predicted: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted least squares of y on its prediction, output by output, with the slope kept in [0, 1]."""
    weights = weights / weights.sum()
    y_mean, mean = (weights * y).sum(0), (weights * predicted).sum(0)
    variance = (weights * (predicted - mean) ** 2).sum(0)
    together = (weights * (predicted - mean) * (y - y_mean)).sum(0)
    slope = np.clip(together / np.where(variance > 0, variance, 1.0), 0.0, 1.0)
    return y_mean - slope * mean, slope


def _columns(values: Any, d: int) -> Array:
    columns: Array = np.asarray(values, dtype=np.float64).reshape(-1, d)
    return columns
