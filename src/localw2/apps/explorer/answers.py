"""What can be asked of a model: draws, quantiles, densities, pairs, sweeps, and the conditional test."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.ndimage import gaussian_filter1d
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.utils.validation import check_is_fitted

from localw2._validation import Array
from localw2.apps.explorer.observations import Observations
from localw2.apps.tables.inputs import Inputs
from localw2.balls.neighborhoods import Nearest
from localw2.estimators.mixed.views import CodedOutputs, PointOutputs
from localw2.judging.inputs import is_whole
from localw2.judging.seen_rows import judge_seen
from localw2.judging.swap_test.conditional import conditional_test
from localw2.judging.swap_test.plots import find_strongest_input
from localw2.metrics import distance_correlation
from localw2.models.sampler import encode_rows

if TYPE_CHECKING:
    from localw2.judging.seen_rows import SeenRows

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
DENSITY_DRAWS, DENSITY_POINTS, SWEEP_POINTS, SWEPT_CATEGORIES = 2000, 160, 41, 30
PARTS_OF_A_DAY = (1.0, 1 / 4, 1 / 24, 1 / 96, 1 / 1440)  # steps of a slider for moments
# Rows, balls and swaps of the test: enough for power, few enough for seconds.
TESTED_ROWS, LEAST_TESTED, TEST_BALL, TEST_SWAPS = 4000, 20, 40, 499
REMEMBERED = 32  # calls of each base model
FEW_ROWS = 4  # with more, scikit-learn's own trees are as fast as ours
JOINT_DRAWS = 500  # of two outputs, to be shown and for the distance correlation; more would hide each other
# What a categorical output has in place of the numbers of a distribution.
NO_NUMBERS: dict[str, Any] = {"mean": None, "std": None, "quantiles": [], "y": [], "density": []}
LARGEST_INPUT = 1e30  # the square of its cube is still a number


class NoAnswer(ValueError):
    """A question that this model or these data cannot answer."""


@final
class Answers:
    """A fitted model with observed rows, and the questions about both; every answer is plain data.

    ``X`` (N, p) and ``y`` (N,) or (N, d) may be None. The same question gets the same answer: the draws
    behind a density and the test have fixed seeds, and ``sample`` uses the seed that it is given.
    """

    def __init__(
        self,
        model: Any,
        X: Any = None,
        y: Any = None,
        feature_names: Sequence[str] | None = None,
        target_names: Sequence[str] | None = None,
    ) -> None:
        mixed = hasattr(model, "coding_")  # of a LocalW2MixedRegressor
        known = hasattr(model, "predict_quantiles") and not hasattr(model, "predict_band")  # no fields
        if not mixed and (not known or not hasattr(model, "sample")):
            raise ValueError(
                f"model is a {type(model).__name__}; the explorer shows a fitted LocalW2Regressor, "
                "LocalW2MixedRegressor or RandomCoefficientRegressor."
            )
        check_is_fitted(model)
        if (X is None) != (y is None):
            raise ValueError("X and y must be passed together: observed rows are inputs with their outputs.")
        if feature_names is None and not hasattr(model, "feature_names_in_"):
            feature_names = getattr(X, "columns", None)
        self.kind = type(model).__name__
        self.history = getattr(getattr(model, "fit_", None), "history", ())
        self.seen_rows: SeenRows | None = getattr(model, "seen_rows_", None)
        self.inputs = Inputs(model, feature_names)
        self.model = _prepare(self.inputs.model)
        self.mixed: CodedOutputs | None = None
        if mixed:
            self._points = PointOutputs(self.model)
            self.model = self.mixed = CodedOutputs(self.model)
            y = None if y is None else self.mixed.read(y)
            target_names = model.coding_.names
        # The classes of an output, by its place; of a number there are none.
        self.classes: dict[int, list[str]] = {} if self.mixed is None else self.mixed.classes
        x = None if X is None else self.inputs.encode(X)
        means = getattr(self._network_units(), "x_mean", ())
        plain = len(means) == len(self.inputs)  # otherwise the network sees other columns than the table has
        self._typical = self.inputs.find_typical(x, means if plain else 0.0)
        with np.errstate(all="ignore"):
            mean = np.asarray(self.model.predict(self.inputs.decode(self._typical[None])))
        self.is_vector = mean.ndim == 1
        self.targets = _name_outputs(target_names, y, 1 if self.is_vector else mean.shape[1])
        self.data: Observations | None = None
        if x is not None:
            self._norm = self.inputs.choose_norm(x)
            self.data = Observations(x, y, len(self.targets), self._embed)
        self._test: dict[str, Any] | None = None
        self._testing = threading.Lock()
        self._means: Array | None = None
        self._learning = threading.Lock()

    @property
    def largest_input(self) -> float:
        """The largest absolute value that an input may have."""
        seen = 0.0 if self.data is None else float(np.abs(np.nan_to_num(self.data.x)).max())
        return max(LARGEST_INPUT, 10 * seen)

    def read(self, rows: Sequence[Sequence[Any]]) -> Array:
        """Rows of a request as numbers (N, p)."""
        return np.array(
            [[each.from_plain(v) for each, v in zip(self.inputs.each, row, strict=True)] for row in rows]
        )

    def sample(self, x: Array, n_samples: int, random_state: int | None) -> dict[str, Any]:
        """The draws of ``model.sample`` at rows x (N, p): (S, N) or (S, N, d)."""
        draws = _ask(lambda: self.model.sample(self.inputs.decode(x), n_samples, random_state=random_state))
        if self.classes:
            words = draws.astype(object)
            for j, names in self.classes.items():
                words[..., j] = np.array(names, dtype=object)[draws[..., j].astype(int)]
            draws = words
        return {"y": draws.tolist()}

    def quantiles(self, x: Array, q: Array) -> dict[str, Any]:
        """The quantiles of ``model.predict_quantiles`` at rows x (N, p): (Q, N) or (Q, N, d).

        A category has none: null.
        """
        found = _ask(lambda: self.model.predict_quantiles(self.inputs.decode(x), q))
        if self.classes:
            found = found.astype(object)
            found[..., list(self.classes)] = None
        return {"quantiles": found.tolist()}

    def probabilities(self, x: Array) -> dict[str, Any]:
        """The probabilities of the classes at rows x (N, p), by output: (N, classes), null of a number."""
        found = self._probabilities(self.inputs.decode(x))
        return {"probabilities": [found[j].tolist() if j in found else None for j in self._places]}

    def describe(self) -> dict[str, Any]:
        """What the page needs to start: names and ranges of the inputs and outputs, and what is available."""
        data = self.data
        outputs: list[dict[str, Any]] = [
            {"name": name, "low": None, "high": None, "classes": self.classes.get(j)}
            for j, name in enumerate(self.targets)
        ]
        if data is not None:
            for output, low, high in zip(outputs, data.y.min(0), data.y.max(0), strict=True):
                output.update(low=float(low), high=float(high))
        return {
            "model": self.kind,
            "inputs": [self._describe_input(j) for j in range(len(self.inputs))],
            "left_out": [{"name": name, "reason": why} for name, why in self.inputs.left_out.items()],
            "outputs": outputs,
            "n_rows": 0 if data is None else len(data),
            "k": 0 if data is None else data.usual_k,
            "most_k": 0 if data is None else min(len(data), 500),
            "distance": "the model's norm" if self.inputs.has_norm else "standard deviations of the inputs",
            "can_test": data is not None and len(data) >= LEAST_TESTED,
            "trained_on": self._trained_on(),
        }

    def distribution(self, x: Array, k: int | None = None, shifted: bool = False) -> dict[str, Any]:
        """The distribution of each output at one input x (p,), and the observed rows near it.

        Rows nearby are not at x. ``shifted`` moves their outputs by the change in the model's mean,
        y_i + m(x) - m(x_i), so that they show the spread at x.
        """
        rows = self.inputs.decode(x[None])
        mean, std = self._columns(_ask(lambda: np.stack(self.model.predict(rows, return_std=True))))[:, 0]
        quantiles = self._columns(_ask(lambda: self.model.predict_quantiles(rows, LEVELS)))[:, 0]
        draws = self._columns(_ask(lambda: self.model.sample(rows, DENSITY_DRAWS, random_state=0)))[:, 0]
        curves = [estimate_density(column) for column in draws.T]
        chances = self._probabilities(rows)
        answer = {
            "levels": list(LEVELS),
            "outputs": [
                {
                    "mean": float(mean[j]),
                    "std": float(std[j]),
                    "quantiles": quantiles[:, j].tolist(),
                    "y": curves[j][0].tolist(),
                    "density": curves[j][1].tolist(),
                    "probabilities": None,
                }
                if j not in chances
                else NO_NUMBERS | {"probabilities": chances[j][0].tolist()}
                for j in self._places
            ],
            "interval": self._interval(rows),
            "neighbours": None,
            "outside": [],
        }
        if self.data is not None:
            k = self.data.usual_k if k is None else min(k, len(self.data))
            nearest, distances = self.data.nearest(x, k)
            y = self._outputs_at(self.data, nearest, mean if shifted else None)
            answer["neighbours"] = {
                "y": y.T.tolist(),
                "nearest": float(distances[0]),
                "farthest": float(distances[-1]),
                "usual": self.data.limit(k) if len(self.data) > 1 else None,
            }
            answer["outside"] = self.data.explain_extrapolation(x, self.inputs.each, k)
        return answer

    def joint(
        self, x: Array, outputs: Sequence[int], k: int | None = None, shifted: bool = False
    ) -> dict[str, Any]:
        """Draws of two outputs at one input x (p,), and the observed rows near it, as in ``distribution``."""
        if len(self.targets) < 2:
            raise NoAnswer("the model has one output; a joint distribution is that of two.")
        if outputs[0] == outputs[1]:
            raise NoAnswer(f"outputs={list(outputs)} are the same; choose two different ones.")
        pair, rows = list(outputs), self.inputs.decode(x[None])
        draws = _ask(lambda: self.model.sample(rows, DENSITY_DRAWS, random_state=0))[:, 0][:, pair]
        shown = _thin(draws)
        plain = not self.classes.keys() & set(pair)  # the numbers of classes say nothing
        correlation = correlate(draws)[0] if plain else None
        varies = (np.ptp(shown, axis=0) > 0).all() if not plain else correlation is not None
        parts = [self._as_distances(shown[:, k], j) for k, j in enumerate(pair)]
        answer: dict[str, Any] = {
            "draws": shown.T.tolist(),
            "correlation": correlation,
            "distance": distance_correlation(*parts) if varies else None,
            "rows": None,
        }
        if self.data is not None:
            nearest, _ = self.data.nearest(x, self.data.usual_k if k is None else k)
            mean = _ask(lambda: self.model.predict(rows))[0] if shifted else None
            y = self._outputs_at(self.data, nearest, mean)[:, pair]
            correlation, error = correlate(y) if plain else (None, None)
            answer["rows"] = {"y": y.T.tolist(), "correlation": correlation, "error": error}
        return answer

    def sweep(self, x: Array, column: int) -> dict[str, Any]:
        """Mean and quantiles of y along one input, the others as in x (p,), with the rows close to them."""
        grid, each = self._make_grid(column), self.inputs.each[column]
        places = np.repeat(x[None], len(grid), axis=0)
        places[:, column] = grid
        rows = self.inputs.decode(places)
        mean = self._columns(_ask(lambda: self.model.predict(rows)))
        quantiles = self._columns(_ask(lambda: self.model.predict_quantiles(rows, LEVELS)))
        chances = self._probabilities(rows)
        answer = {
            "x": list(map(each.to_plain, grid)),
            "levels": list(LEVELS),
            "mean": mean.T.tolist(),
            "quantiles": quantiles.transpose(2, 0, 1).tolist(),
            "probabilities": [chances[j].T.tolist() if j in chances else None for j in self._places],
            "rows": None,
        }
        if self.data is not None:
            near = self.data.along(x, column, max(60, 2 * self.data.usual_k))
            places = self.data.x[near, column]
            answer["rows"] = {"x": list(map(each.to_plain, places)), "y": self.data.y[near].T.tolist()}
        return answer

    def test(self) -> dict[str, Any]:
        """The conditional test on the observed rows (at most 4000 of them), run once and remembered."""
        if self.data is None or len(self.data) < LEAST_TESTED:
            raise NoAnswer(f"the test needs at least {LEAST_TESTED} observed rows; pass X and y.")
        with self._testing:
            if self._test is None:
                self._test = self._run_test(self.data)
            return self._test

    def _run_test(self, data: Observations) -> dict[str, Any]:
        chosen = np.sort(np.random.default_rng(0).permutation(len(data))[:TESTED_ROWS])
        x, y = data.x[chosen], data.y[chosen]
        outputs = y[:, 0] if self.is_vector else y
        found = conditional_test(
            self.inputs.decode(x),
            outputs if self.mixed is None else self.mixed.points(y),
            self.model if self.mixed is None else self._points,
            Nearest(min(TEST_BALL, max(LEAST_TESTED, len(x) // 10))),
            norm=self._norm,
            n_permutations=TEST_SWAPS,
            random_state=0,
        )
        centers = x[found.centers]
        return {
            "pvalue": found.pvalue,
            "verdict": found.verdict,
            "trained_on": self._trained_on(),
            "n_rows": len(x),
            "ball": int(np.median(found.ball_sizes)),
            "centers": [
                list(map(each.to_plain, column))
                for each, column in zip(self.inputs.each, centers.T, strict=True)
            ],
            "z": found.ball_statistics.tolist(),
            "rejected": found.rejected_balls.tolist(),
            "limit": found.ball_limit if np.isfinite(found.ball_limit) else None,
            "strongest": find_strongest_input(centers, found.ball_statistics),
        }

    def _embed(self, x: Array) -> Array:
        """Rows x (N, p) where the distance is Euclidean."""
        embedded: Array = self._norm.embed(self.inputs.embed(x))
        return embedded

    def _outputs_at(self, data: Observations, rows: Array, mean: Array | None) -> Array:
        """The outputs (n, d) of observed rows, or with a mean (d,) what they would be around it."""
        y: Array = data.y[rows]
        if mean is None:
            return y
        moved: Array = y + mean - self._means_at(data, rows)
        moved[:, list(self.classes)] = y[:, list(self.classes)]  # a class stays what it is
        return moved

    def _means_at(self, data: Observations, rows: Array) -> Array:
        """The model's mean at observed rows, (len(rows), d); each is computed once."""
        with self._learning:
            if self._means is None:
                self._means = np.full(data.y.shape, np.nan)
            new = rows[np.isnan(self._means[rows, 0])]
            if len(new):
                places = self.inputs.decode(data.x[new])
                self._means[new] = self._columns(_ask(lambda: self.model.predict(places)))
            known: Array = self._means[rows]
            return known

    def _trained_on(self) -> float | None:
        """The share of observed rows that the model was trained on; None unless it is more than chance."""
        if self.data is None or self.seen_rows is None:
            return None
        x = encode_rows(self.model, self.inputs.decode(self.data.x))
        y = self.data.y if self.mixed is None else self.mixed.points(self.data.y)
        share, beyond_chance = judge_seen(self.seen_rows, x, y)
        return share if beyond_chance else None

    def _interval(self, rows: Any) -> list[list[float]] | None:
        """The calibrated 90 % interval of each output, if the fit has one."""
        if getattr(self.model, "calibration_", None) is None:
            return None
        ends = self._columns(_ask(lambda: np.stack(self.model.predict_interval(rows, 0.9))))[:, 0]
        listed: list[list[float]] = ends.T.tolist()
        return listed

    @property
    def _places(self) -> range:
        return range(len(self.targets))

    def _probabilities(self, rows: Any) -> dict[int, Array]:
        """Those of the classes (N, K) of each categorical output, by its place."""
        return {} if self.mixed is None else self.mixed.probabilities(rows)

    def _as_distances(self, values: Array, output: int) -> Array:
        """Values (n,) of an output so that distances mean something: all classes are equally far apart."""
        if output not in self.classes:
            return values
        corners: Array = np.eye(len(self.classes[output]))[values.astype(int)]
        return corners

    def _columns(self, values: Array) -> Array:
        return values[..., None] if self.is_vector else values

    def _describe_input(self, j: int) -> dict[str, Any]:
        """An input with its chooser or slider, which starts at a typical value."""
        each = self.inputs.each[j]
        about = {"name": each.name, "kind": each.kind, "missing": each.gaps}
        if each.kind == "category":
            return about | {"start": each.to_plain(self._typical[j]), "values": list(each.categories)}
        low, high = self._range(j)
        whole = self._is_whole(j)
        step = 1.0 if whole else _choose_step(high - low)
        if each.kind == "date" and not whole:
            step = next((part for part in PARTS_OF_A_DAY if 100 * part <= high - low), PARTS_OF_A_DAY[-1])
        start = _round_to_step(self._typical[j], low, high, step)
        ends = {"low": each.to_plain(low), "high": each.to_plain(high)}
        return about | ends | {"start": each.to_plain(start), "step": step}

    def _make_grid(self, j: int) -> Array:
        """The values of an input along which a sweep goes."""
        each = self.inputs.each[j]
        if each.kind != "category":
            grid = np.linspace(*self._range(j), SWEEP_POINTS)
            return np.unique(np.round(grid)) if self._is_whole(j) else grid
        codes = np.arange(float(len(each.categories)))
        if self.data is not None and len(codes) > SWEPT_CATEGORIES:
            column = self.data.x[:, j]
            counts = np.bincount(column[np.isfinite(column)].astype(int), minlength=len(codes))
            codes = np.sort(np.argsort(-counts, kind="stable")[:SWEPT_CATEGORIES]).astype(np.float64)
        return np.append(codes[:SWEPT_CATEGORIES], [np.nan] if each.gaps else [])

    def _is_whole(self, j: int) -> bool:
        return self.data is not None and is_whole(self.data.x[:, j])

    def _range(self, j: int) -> tuple[float, float]:
        """The ends of a slider: those of the observed rows, or else about those of the training rows."""
        middle = float(self._typical[j])
        low = high = middle
        if self.data is not None and np.isfinite(self.data.x[:, j]).any():
            low, high = float(np.nanmin(self.data.x[:, j])), float(np.nanmax(self.data.x[:, j]))
        elif self.data is None and (spread := self._training_spread(j)) > 0:
            low, high = middle - 2 * spread, middle + 2 * spread
        if high > low:
            return low, high
        reach = max(1.0, 0.1 * abs(low))
        return low - reach, high + reach

    def _network_units(self) -> Any:
        """The means and scales of the training rows, if the law has a network."""
        return getattr(getattr(getattr(self.model, "law_", None), "network", None), "units", None)

    def _training_spread(self, j: int) -> float:
        """The SD of an input in the training rows, which the network's units show; 0 without a network."""
        if (units := self._network_units()) is None:
            return 0.0
        moved = self._typical.copy()
        moved[j] += 1
        # The network may see other columns than the table has: the one that moves along is this input.
        change = self.inputs.embed(moved[None]) - self.inputs.embed(self._typical[None])
        return float(units.x_scale[np.abs(change[0]).argmax()])


def estimate_density(draws: Array) -> tuple[Array, Array]:
    """Points and the density of draws (S,) there: a smoothed histogram; empty if the draws have no spread.

    >>> y, values = estimate_density(np.random.default_rng(0).normal(size=2000))
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


def correlate(pair: Array) -> tuple[float | None, float | None]:
    """The correlation of two columns (n, 2) and its standard error; None if a column has no spread.

    >>> correlate(np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 5.0], [3.0, 7.0]]))
    (1.0, 0.0)
    >>> correlate(np.ones((9, 2)))
    (None, None)
    """
    n, units = len(pair), pair - pair.mean(0)
    scale = np.abs(units).max(0)
    if n < 4 or not (scale > 1e-12 * np.abs(pair).max(0)).all():
        return None, None
    units = units / scale
    units /= np.sqrt((units**2).sum(0))
    correlation = float(np.clip(units[:, 0] @ units[:, 1], -1, 1))
    return correlation, float((1 - correlation**2) / np.sqrt(n - 1))


def _thin(rows: Array) -> Array:
    """At most 500 of these rows, evenly spaced: the first draws of a pool may be those of one member."""
    return rows[:: -(-len(rows) // JOINT_DRAWS)]


def _ask(question: Callable[[], Array]) -> Array:
    """The model's values; NoAnswer if they overflow."""
    with np.errstate(all="ignore"):
        values = np.asarray(question())
    if not np.isfinite(values).all():
        raise NoAnswer("the model's values overflow at this input; choose one closer to the data.")
    return values


def _prepare(model: Any) -> Any:
    """A copy for threads: it gives no warnings, and asks its base models once per input."""
    own = copy.deepcopy(model)
    # The test would warn of rows that were trained on. Warnings in threads reach nobody, and the page says
    # it itself.
    vars(own).pop("seen_rows_", None)
    for regressor in getattr(own, "base_models_", ()):
        vars(regressor)["predict"] = _remember(quicken(regressor))  # frozen or not
    return own


def _remember(predict: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The same function with a memory: mean, quantiles and draws at an input each need its value."""

    @lru_cache(maxsize=REMEMBERED)
    def known(content: bytes, n_columns: int) -> Array:
        return np.asarray(predict(np.frombuffer(content).reshape(-1, n_columns).copy()))

    def ask(X: Any) -> Array:
        rows = np.asarray(X, dtype=np.float64)
        return known(rows.tobytes(), rows.shape[1])

    return ask


def quicken(regressor: Any) -> Callable[[Array], Array]:
    """``regressor.predict``, for boosted trees one that is fast at a few rows and gives the same bits.

    scikit-learn calls a compiled function for every tree: at one row 300 trees take 1.8 ms, but 0.05 ms if
    they are all walked together. How it stores its trees is private, so this is used only if it reproduces
    the regressor's predictions.

    >>> x = np.random.default_rng(0).uniform(size=(100, 2))
    >>> trees = HistGradientBoostingRegressor(max_iter=20).fit(x, x[:, 0])
    >>> bool((quicken(trees)(x[:3]) == trees.predict(x[:3])).all())
    True
    """
    predict: Callable[[Array], Array] = regressor.predict
    if not isinstance(regressor, HistGradientBoostingRegressor):
        return predict
    try:
        if regressor.is_categorical_ is not None:
            return predict
        trees = [iteration[0].nodes for iteration in regressor._predictors]
        nodes = np.concatenate(trees)
        sizes = [len(tree) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])
        first, own = np.repeat(roots, sizes), np.arange(len(nodes))
        leaf = nodes["is_leaf"].astype(bool)
        # A leaf leads to itself: trees that are done wait for the others.
        left, right = (
            np.where(leaf, own, first + nodes[side].astype(np.int64)) for side in ("left", "right")
        )
        feature = np.where(leaf, 0, nodes["feature_idx"].astype(np.int64))
        threshold, value, depth = nodes["num_threshold"].copy(), nodes["value"].copy(), nodes["depth"].max()
        baseline = float(np.ravel(regressor._baseline_prediction)[0])

        def walk(x: Array) -> float:
            place = roots
            for _ in range(depth):
                place = np.where(x[feature[place]] <= threshold[place], left[place], right[place])
            # Added one after the other, as scikit-learn does: a pairwise sum differs in the last digits.
            return float(np.cumsum(np.append(baseline, value[place]))[-1])

        limits = threshold[np.isfinite(threshold)]
        rows = np.random.default_rng(0).choice(limits, size=(16, regressor.n_features_in_))
        same = np.array_equal([walk(row) for row in rows], predict(rows))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # another version of scikit-learn
        return predict
    if not same:
        return predict

    def quick(X: Array) -> Array:
        # Where a missing value goes is written in the trees elsewhere.
        if len(X) > FEW_ROWS or np.isnan(X).any():
            return predict(X)
        return np.array([walk(x) for x in X])

    return quick


def _name_outputs(given: Any, y: Any, count: int) -> tuple[str, ...]:
    found = given
    if found is None and count == 1:
        found = [getattr(y, "name", None) or "y"]
    elif found is None:
        found = getattr(y, "columns", [f"y{j}" for j in range(count)])
    names = (found,) if isinstance(found, str) else tuple(str(each) for each in found)
    if len(names) != count:
        raise ValueError(
            f"target_names has {len(names)} name(s), but the model has {count} output(s); give one for each."
        )
    return names


def _choose_step(span: float) -> float:
    """A round number near a two-hundredth of the span: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(span / 200))
    return float(power * next(m for m in (1, 2, 5, 10) if m * power >= span / 200))


def _round_to_step(value: float, low: float, high: float, step: float) -> float:
    """The value in whole steps, so that the box shows few digits, within the range."""
    nice = float(f"{np.round(value / step) * step:.10g}")
    return float(np.clip(nice, low, high))
