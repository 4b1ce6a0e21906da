"""The mean that a regressor is centred on: any scikit-learn regressor, cross-fitted, and its choice."""

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
from localw2.balls.lazy import MANY_ROWS
from localw2.balls.spread import local_spread, rough_balls
from localw2.estimators.regression.kernel_mean import KernelMean, tune_kernel

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

BASE_ROWS = 50_000  # that base="auto" is chosen and fitted on, where there are more than MANY_ROWS
_ALPHAS = tuple(float(alpha) for alpha in np.logspace(-6, 3, 19))
# Where noise is small, the default leaves of 20 rows and 100 trees are too coarse for a few hundred rows.
_FINE = {"learning_rate": 0.15, "max_iter": 300, "max_leaf_nodes": 15, "min_samples_leaf": 5}
_WEIGHTED = "weighted "  # before the name of a candidate that was fitted with weights
_MOST_COLUMNS = {2: 20, 3: 4}  # degree -> columns of x up to which the polynomial is a candidate
_HANDICAP = 1 / 0.9  # on the kernel's error, where a candidate is chosen
_KERNEL_COLUMNS, _KERNEL_ROWS = 30, 100_000  # up to which length scales, and sums over rows, take seconds
_RELEVANCE_ROWS, _RELEVANCE_MODELS = 500, 3  # enough to tell which columns move a mean
_PURPOSE = 7  # keeps these random numbers apart from others of the same seed


@final
@dataclass(frozen=True, eq=False)
class FoldedMean:
    r"""A mean :math:`m_f(x) = a + \lambda\, g_f(x)`, with one regressor :math:`g_f` for each fold f.

    ``slope`` (:math:`\lambda`, between 0 and 1) and ``intercept`` (a) come from the regression of y on the
    out-of-fold predictions: a regressor that finds only noise gets slope 0, so it cannot inflate the spread.
    Without regressors the mean is the intercept.
    """

    name: str
    models: tuple[Any, ...]
    intercept: Array
    slope: Array

    def predict_each(self, x: Array) -> Array:
        """Every fold's mean at x, (folds, N, d); (1, N, d) without regressors."""
        if len(self.models) == 0:
            return np.broadcast_to(self.intercept, (1, len(x), len(self.intercept)))
        values = np.stack([_columns(model.predict(x), len(self.intercept)) for model in self.models])
        means: Array = self.intercept + self.slope * values
        return means


@final
@dataclass(frozen=True, eq=False)
class CrossFit:
    """A mean and what the cross-fit that made it shows of the training rows.

    ``out_of_fold`` (N, d) has, for every row, the mean of a regressor that has not seen it; ``n_rows`` rows
    were fitted. ``relevance`` (p,) says how much each column moves the mean, if that was asked for and any
    does.
    """

    mean: FoldedMean
    out_of_fold: Array
    n_rows: int
    relevance: Array | None = None


def cross_fit(
    base: Any,
    x: Array,
    y: Array,
    n_folds: int,
    seed: int,
    chosen: str | None = None,
    shift: bool = True,
    with_relevance: bool = False,
) -> CrossFit:
    """The mean of rows x (N, p), y (N, d), fitted fold by fold: ``base`` is "auto", None or a regressor.

    With "auto" and many rows a sample is fitted, and each other row gets the mean of one fold's model at
    random, none of which has seen it. Without a base the mean is that of y, or 0 without ``shift``.
    ``chosen`` is the name of a candidate that was chosen before, on similar rows.
    """
    if base is None:
        intercept = y.mean(0) if shift else np.zeros(y.shape[1])
        flat = FoldedMean("none", (), intercept, np.zeros(y.shape[1]))
        return CrossFit(flat, np.broadcast_to(intercept, y.shape), 0)
    if len(x) <= MANY_ROWS or not isinstance(base, str):
        mean, out_of_fold = fold_base(base, x, y, rough_balls(x), n_folds, seed, chosen)
        n_rows = len(x)
    else:
        order = np.random.default_rng([seed, _PURPOSE]).permutation(len(x))
        rows, others = np.sort(order[:BASE_ROWS]), order[BASE_ROWS:]
        mean, fitted = fold_base(base, x[rows], y[rows], rough_balls(x[rows]), n_folds, seed, chosen)
        out_of_fold, n_rows = np.empty_like(y), len(rows)
        out_of_fold[rows] = fitted
        for fold, part in enumerate(np.array_split(others, len(mean.models))):
            one = FoldedMean(mean.name, mean.models[fold : fold + 1], mean.intercept, mean.slope)
            out_of_fold[part] = one.predict_each(x[part])[0]
    return CrossFit(mean, out_of_fold, n_rows, measure_relevance(mean, x) if with_relevance else None)


def candidates(n: int, x: Array, y: Array, seed: int, only: str | None = None) -> dict[str, Any]:
    """What ``base="auto"`` chooses from, for n training rows out of x (N, p) and y (N, d).

    Only the length scales of the kernel depend on the numbers in x and y, and on 300 rows of them. ``only``
    names the one candidate that is wanted, if it is among them.

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
            found[f"ridge of degree {degree}"] = _make_polynomial(degree)
    if n >= 60:
        found |= {"boosting": _make_trees(d, seed), "fine boosting": _make_trees(d, seed, **_FINE)}
    if only in (None, "kernel") and 20 <= n <= _KERNEL_ROWS and p <= _KERNEL_COLUMNS:
        found["kernel"] = tune_kernel(x, y, seed)
    return {only: found[only]} if only in found else found


def list_kinds(d: int) -> list[Any]:
    """One regressor of every kind that ``candidates`` can give for d outputs."""
    return [DummyRegressor(), _make_polynomial(2), _make_trees(d, 0), KernelMean()]


def _make_polynomial(degree: int) -> Pipeline:
    powers = PolynomialFeatures(degree, include_bias=False)
    return make_pipeline(StandardScaler(), powers, StandardScaler(), RidgeCV(_ALPHAS))


def _make_trees(d: int, seed: int, **settings: Any) -> Any:
    trees = HistGradientBoostingRegressor(random_state=seed, **settings)
    return trees if d == 1 else MultiOutputRegressor(trees)


def fold_base(
    base: Any, x: Array, y: Array, hoods: Neighborhoods, n_folds: int, seed: int, chosen: str | None = None
) -> tuple[FoldedMean, Array]:
    """Fit a base regressor fold by fold, or choose one; the mean, and its out-of-fold values (N, d).

    "auto" takes the candidate with the smallest out-of-fold squared error, each row weighted by its inverse
    local variance, and refits it with those weights if that lowers the error further. ``hoods`` defines what
    is local.
    """
    folds = list(KFold(min(n_folds, len(x)), shuffle=True, random_state=seed).split(x))
    if base != "auto":
        regressor = seed_regressor(clone(base), seed)
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
        weighted = best.reweight(x, y, folds, hoods)
        better = error(weighted, weights) < error(best, weights)
        best = weighted if chosen is not None or better else best
    intercept, slope = _calibrate(y, best.out_of_fold, weights)
    mean = FoldedMean(best.name, tuple(best.models), intercept, slope)
    return mean, intercept + slope * best.out_of_fold


def measure_relevance(mean: FoldedMean, x: Array) -> Array | None:
    r"""How much each column moves the mean, (p,): the root mean square change of m when it is shuffled.

    None where no column moves it at all. Outputs are put on one scale.
    """
    rng = np.random.default_rng(0)
    rows = x[np.sort(rng.permutation(len(x))[:_RELEVANCE_ROWS])]
    few = FoldedMean(mean.name, mean.models[:_RELEVANCE_MODELS], mean.intercept, mean.slope)
    before = few.predict_each(rows)
    scale = before.std(1).mean(0)
    moved = np.zeros(x.shape[1])
    for column in range(x.shape[1]):
        shuffled = rows.copy()
        shuffled[:, column] = rng.permutation(rows[:, column])
        change = (few.predict_each(shuffled) - before) / np.where(scale > 0, scale, 1.0)
        moved[column] = np.sqrt((change**2).mean())
    return moved if moved.any() else None


def seed_regressor(estimator: Any, seed: int) -> Any:
    """The regressor with every ``random_state`` that was left at None set, so that a fit can be repeated."""
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

    def reweight(self, x: Array, y: Array, folds: list[tuple[Array, Array]], hoods: Neighborhoods) -> _Folded:
        """The same with rows weighted by inverse local variance, as each fold's training rows show it."""

        def weigh(fold: int) -> Array:
            seen = np.zeros(len(x), bool)
            seen[folds[fold][0]] = True
            residuals = y - _columns(self.models[fold].predict(x), y.shape[1])
            weights: Array = 1 / local_spread(hoods, residuals, seen) ** 2
            return weights

        return _Folded(f"{_WEIGHTED}{self.name}", self.regressor, x, y, folds, weigh)


def _clear_winner(fits: list[_Folded], error: Callable[[_Folded], float]) -> _Folded:
    """The fit with the smallest error; the kernel only if it is better by a tenth.

    The kernel can follow noise that is nearly as smooth as the mean: on the nonlinear example it would be
    chosen now and then for an error smaller by 1 %, where the polynomials' mean is a quarter closer to the
    truth.
    """
    return min(fits, key=lambda fit: error(fit) * (_HANDICAP if fit.name == "kernel" else 1.0))


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
