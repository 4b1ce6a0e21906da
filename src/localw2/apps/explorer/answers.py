"""What can be asked of a model: draws, quantiles, densities, sweeps, and the conditional test."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from scipy.ndimage import gaussian_filter1d
from sklearn.utils.validation import check_is_fitted

from localw2._validation import Array
from localw2.apps.explorer.observed import Observed
from localw2.apps.explorer.quick_trees import quickened
from localw2.balls.norms import Norm
from localw2.balls.ragged import Nearest
from localw2.estimators.coefficients.regressor import RandomCoefficientRegressor
from localw2.estimators.regression.regressor import LocalW2Regressor
from localw2.estimators.tables import on_numbers
from localw2.judging.seen_rows import SeenRows, judge_seen
from localw2.judging.swap_test.conditional import conditional_test
from localw2.judging.swap_test.plots import strongest_input

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
DENSITY_DRAWS, DENSITY_POINTS, SWEEP_POINTS = 2000, 160, 41
# Rows, balls and swaps of the test: enough for power, few enough for seconds.
TESTED_ROWS, LEAST_TESTED, TEST_BALL, TEST_SWAPS = 4000, 20, 40, 499
REMEMBERED = 32  # predictions of each base model
LARGEST_INPUT = 1e30  # cubes of it, squared, are still numbers


class NoAnswer(ValueError):
    """A question that this model or these data cannot answer."""


@final
class Remembered:
    """A regressor that keeps its last predictions: mean, quantiles and draws at an input ask it three times.

    >>> class Slow:
    ...     def predict(self, x):
    ...         print("asked")
    ...         return x[:, 0]
    >>> quick = Remembered(Slow())
    >>> quick.predict(np.ones((1, 1))), quick.predict(np.ones((1, 1)))
    asked
    (array([1.]), array([1.]))
    """

    def __init__(self, regressor: Any) -> None:
        self._regressor = regressor
        self._known: OrderedDict[tuple[bytes, tuple[int, ...]], Array] = OrderedDict()
        self._lock = threading.Lock()

    def predict(self, X: Array) -> Array:
        """The regressor's prediction at rows X (N, p)."""
        key = X.tobytes(), X.shape
        with self._lock:
            if key in self._known:
                return self._known[key]
        values = np.asarray(self._regressor.predict(X))
        with self._lock:
            self._known[key] = values
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return values


@final
class Answers:
    """A fitted model with observed rows, and the questions about both; every answer is plain data.

    ``X`` (N, p) and ``y`` (N,) or (N, d) may be None. Answers to the same question are equal: the draws
    behind a density and the test come from fixed seeds, those of ``sample`` from the one it is given.
    """

    def __init__(
        self,
        model: Any,
        X: Any,
        y: Any,
        feature_names: Sequence[str] | None,
        target_names: Sequence[str] | None,
    ) -> None:
        if not isinstance(model, LocalW2Regressor | RandomCoefficientRegressor):
            raise ValueError(
                f"model is a {type(model).__name__}; the explorer shows a fitted LocalW2Regressor or "
                "RandomCoefficientRegressor."
            )
        check_is_fitted(model)
        if (X is None) != (y is None):
            raise ValueError("X and y must come together: observed rows are inputs with their outputs.")
        model, X, feature_names = on_numbers(model, X, feature_names)
        self.kind = type(model).__name__
        self.seen_rows: SeenRows | None = getattr(model, "seen_rows_", None)
        self.names = _names(feature_names, model, X, model.n_features_in_)
        self.model = _quiet(model)
        with np.errstate(all="ignore"):
            mean = np.asarray(self.model.predict(np.zeros((1, len(self.names)))))
        self.is_vector = mean.ndim == 1
        self.targets = _target_names(target_names, y, 1 if self.is_vector else mean.shape[1])
        norm = getattr(model, "norm_", model.norm)
        self.data = (
            None
            if X is None
            else Observed(X, y, len(self.names), len(self.targets), norm if isinstance(norm, Norm) else None)
        )
        self._test: dict[str, Any] | None = None
        self._testing = threading.Lock()
        self._means: Array | None = None
        self._learning = threading.Lock()

    @property
    def largest_input(self) -> float:
        """The size up to which inputs are accepted."""
        seen = 0.0 if self.data is None else float(np.abs(self.data.X).max())
        return max(LARGEST_INPUT, 10 * seen)

    def sample(self, x: Array, n_samples: int, random_state: int | None) -> dict[str, Any]:
        """The draws of ``model.sample`` at rows x (N, p): (S, N) or (S, N, d)."""
        draws = _within(lambda: self.model.sample(x, n_samples, random_state=random_state))
        return {"y": draws.tolist()}

    def quantiles(self, x: Array, q: Array) -> dict[str, Any]:
        """The quantiles of ``model.predict_quantiles`` at rows x (N, p): (Q, N) or (Q, N, d)."""
        return {"quantiles": _within(lambda: self.model.predict_quantiles(x, q)).tolist()}

    def about(self) -> dict[str, Any]:
        """What the page needs to begin: names and ranges of the inputs and outputs, and what is there."""
        lows, highs, starts = self._ranges()
        data = self.data
        inputs = []
        for j, name in enumerate(self.names):
            whole = data is not None and bool((data.X[:, j] == np.round(data.X[:, j])).all())
            step = 1.0 if whole and highs[j] - lows[j] >= 4 else _step(highs[j] - lows[j])
            limits = {"low": float(lows[j]), "high": float(highs[j])}
            inputs.append(
                {"name": name, **limits, "start": _rounded(starts[j], lows[j], highs[j], step), "step": step}
            )
        outputs: list[dict[str, Any]] = [{"name": name, "low": None, "high": None} for name in self.targets]
        if data is not None:
            for output, low, high in zip(outputs, data.y.min(0), data.y.max(0), strict=True):
                output.update(low=float(low), high=float(high))
        share, seen = self._seen()
        return {
            "model": self.kind,
            "inputs": inputs,
            "outputs": outputs,
            "n_rows": 0 if data is None else len(data),
            "k": 0 if data is None else data.usual_k,
            "most_k": 0 if data is None else min(len(data), 500),
            "can_test": data is not None and len(data) >= LEAST_TESTED,
            "trained_on": share if seen else None,
        }

    def distribution(self, x: Array, k: int | None = None, carried: bool = False) -> dict[str, Any]:
        """The law of y at one input x (p,): moments, quantiles and density of each output; rows nearby.

        Rows nearby are not at x. ``carried`` moves their outputs by what the model's mean changes on the way,
        so that they show the spread at x: y_i + m(x) - m(x_i).
        """
        rows = x[None]
        mean, std = self._columns(_within(lambda: np.stack(self.model.predict(rows, return_std=True))))[:, 0]
        quantiles = self._columns(_within(lambda: self.model.predict_quantiles(rows, LEVELS)))[:, 0]
        draws = self._columns(_within(lambda: self.model.sample(rows, DENSITY_DRAWS, random_state=0)))[:, 0]
        curves = [density(column) for column in draws.T]
        answer = {
            "levels": list(LEVELS),
            "outputs": [
                {
                    "mean": float(mean[j]),
                    "std": float(std[j]),
                    "quantiles": quantiles[:, j].tolist(),
                    "y": curves[j][0].tolist(),
                    "density": curves[j][1].tolist(),
                }
                for j in range(len(self.targets))
            ],
            "interval": self._interval(rows),
            "neighbours": None,
            "outside": [],
        }
        if self.data is not None:
            k = self.data.usual_k if k is None else min(k, len(self.data))
            nearest, distances = self.data.nearest(x, k)
            y = self.data.y[nearest]
            if carried:
                y = y + mean - self._means_of(self.data, nearest)
            answer["neighbours"] = {
                "y": y.T.tolist(),
                "nearest": float(distances[0]),
                "farthest": float(distances[-1]),
                "usual": self.data.limit(k) if len(self.data) > 1 else None,
            }
            answer["outside"] = self.data.outside(x, self.names, k)
        return answer

    def sweep(self, x: Array, column: int) -> dict[str, Any]:
        """Mean and quantiles of y along one input, the others as in x (p,), with the rows it passes by."""
        lows, highs, _ = self._ranges()
        grid = np.linspace(lows[column], highs[column], SWEEP_POINTS)
        rows = np.repeat(x[None], len(grid), axis=0)
        rows[:, column] = grid
        mean = self._columns(_within(lambda: self.model.predict(rows)))
        quantiles = self._columns(_within(lambda: self.model.predict_quantiles(rows, LEVELS)))
        answer = {
            "x": grid.tolist(),
            "levels": list(LEVELS),
            "mean": mean.T.tolist(),
            "quantiles": quantiles.transpose(2, 0, 1).tolist(),
            "rows": None,
        }
        if self.data is not None:
            near = self.data.beside(x, column, max(60, 2 * self.data.usual_k))
            answer["rows"] = {"x": self.data.X[near, column].tolist(), "y": self.data.y[near].T.tolist()}
        return answer

    def test(self) -> dict[str, Any]:
        """The conditional test on the observed rows (4000 of them at most), made once and remembered."""
        if self.data is None or len(self.data) < LEAST_TESTED:
            raise NoAnswer(f"the test needs at least {LEAST_TESTED} observed rows; give X and y.")
        with self._testing:
            if self._test is None:
                self._test = self._tested(self.data)
            return self._test

    def _tested(self, data: Observed) -> dict[str, Any]:
        chosen = np.sort(np.random.default_rng(0).permutation(len(data))[:TESTED_ROWS])
        x, y = data.X[chosen], data.y[chosen]
        found = conditional_test(
            x,
            y[:, 0] if self.is_vector else y,
            self.model,
            Nearest(min(TEST_BALL, max(LEAST_TESTED, len(x) // 10))),
            norm=data.norm,
            n_permutations=TEST_SWAPS,
            random_state=0,
        )
        share, seen = self._seen()
        return {
            "pvalue": found.pvalue,
            "verdict": found.verdict,
            "trained_on": share if seen else None,
            "n_rows": len(x),
            "ball": int(np.median(found.ball_sizes)),
            "centers": found.center_x.T.tolist(),
            "z": found.ball_statistics.tolist(),
            "rejected": found.rejected_balls.tolist(),
            "limit": found.ball_limit if np.isfinite(found.ball_limit) else None,
            "strongest": strongest_input(found.center_x, found.ball_statistics),
        }

    def _means_of(self, data: Observed, rows: Array) -> Array:
        """The model's mean at observed rows, (len(rows), d); each is computed once."""
        with self._learning:
            if self._means is None:
                self._means = np.full(data.y.shape, np.nan)
            new = rows[np.isnan(self._means[rows, 0])]
            if len(new):
                self._means[new] = self._columns(_within(lambda: self.model.predict(data.X[new])))
            known: Array = self._means[rows]
            return known

    def _seen(self) -> tuple[float, bool]:
        if self.data is None or self.seen_rows is None:
            return 0.0, False
        return judge_seen(self.seen_rows, self.data.X, self.data.y)

    def _interval(self, rows: Array) -> list[list[float]] | None:
        """The calibrated 90 % interval of each output, where the fit has one."""
        if getattr(self.model, "calibration_", None) is None:
            return None
        ends = self._columns(_within(lambda: np.stack(self.model.predict_interval(rows, 0.9))))[:, 0]
        listed: list[list[float]] = ends.T.tolist()
        return listed

    def _columns(self, values: Array) -> Array:
        return values[..., None] if self.is_vector else values

    def _ranges(self) -> tuple[Array, Array, Array]:
        """The lowest, the highest and the first value of every slider."""
        if self.data is not None:
            lows, highs, starts = self.data.X.min(0), self.data.X.max(0), np.median(self.data.X, axis=0)
        else:
            # Without rows the scales of the fit are the best guess, where it has any.
            centre = np.asarray(getattr(self.model, "_x_mean", np.zeros(len(self.names))))
            reach = 2 * np.asarray(getattr(self.model, "_x_scale", np.ones(len(self.names))))
            lows, highs, starts = centre - reach, centre + reach, centre
        flat = highs <= lows
        reach = np.maximum(1.0, np.abs(lows))
        return np.where(flat, lows - reach, lows), np.where(flat, highs + reach, highs), starts


def density(draws: Array) -> tuple[Array, Array]:
    """Points and the density of draws (S,) there: a histogram smoothed by a Gaussian; empty without spread.

    >>> y, values = density(np.random.default_rng(0).normal(size=2000))
    >>> round(float(np.interp(0, y, values)), 1), round(float(values.sum() * (y[1] - y[0])), 2)
    (0.4, 1.0)
    """
    low, first, third, high = np.quantile(draws, [0.002, 0.25, 0.75, 0.998])
    spread = float(min(draws.std(), (third - first) / 1.349) or draws.std())
    if not spread > 1e-9 * float(np.abs(draws).max()):
        return np.empty(0), np.empty(0)
    width = 0.9 * spread * len(draws) ** -0.2
    edges = np.linspace(low - 3 * width, high + 3 * width, DENSITY_POINTS + 1)
    step = edges[1] - edges[0]
    counts = np.histogram(draws, edges)[0] / (len(draws) * step)
    smooth: Array = gaussian_filter1d(counts, width / step, mode="constant")
    return (edges[:-1] + edges[1:]) / 2, smooth


def _within(ask: Callable[[], Array]) -> Array:
    """The model's numbers, or the news that it has none so far away."""
    with np.errstate(all="ignore"):
        values = np.asarray(ask())
    if not np.isfinite(values).all():
        raise NoAnswer("the model's values overflow at this input; take one nearer to the data.")
    return values


def _quiet(model: Any) -> Any:
    """A copy to ask with arrays, from many threads: without column names, and with remembered base models."""
    quiet = copy.copy(model)
    # scikit-learn would warn of arrays without names, the test of rows that were trained on; warnings from
    # threads go nowhere, and the page says both itself.
    for name in ("feature_names_in_", "seen_rows_"):
        vars(quiet).pop(name, None)
    if hasattr(quiet, "base_models_"):
        quiet.base_models_ = tuple(
            Remembered(quickened(regressor, model.n_features_in_)) for regressor in quiet.base_models_
        )
    return quiet


def _names(given: Any, model: Any, X: Any, count: int) -> tuple[str, ...]:
    found = given
    if found is None:
        found = getattr(model, "feature_names_in_", getattr(X, "columns", None))
    if found is None:
        found = [f"x{j + 1}" for j in range(count)]
    return _checked_names(found, count, "feature_names", "input")


def _target_names(given: Any, y: Any, count: int) -> tuple[str, ...]:
    found = given
    if found is None and count == 1:
        found = [getattr(y, "name", None) or "y"]
    elif found is None:
        found = getattr(y, "columns", [f"y{j + 1}" for j in range(count)])
    return _checked_names(found, count, "target_names", "output")


def _checked_names(found: Any, count: int, name: str, what: str) -> tuple[str, ...]:
    names = (found,) if isinstance(found, str) else tuple(str(each) for each in found)
    if len(names) != count:
        raise ValueError(
            f"{name} has {len(names)} name(s) and the model {count} {what}(s); give one for each."
        )
    return names


def _step(span: float) -> float:
    """A round number near a two-hundredth of the span: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(span / 200))
    return float(power * next(m for m in (1, 2, 5, 10) if m * power >= span / 200))


def _rounded(value: float, low: float, high: float, step: float) -> float:
    """The value in whole steps, so that the box shows few digits, within the range."""
    nice = float(f"{np.round(value / step) * step:.10g}")
    return float(np.clip(nice, low, high))
