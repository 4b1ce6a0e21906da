"""The mean that a law is centred on: scikit-learn regressors, cross-fitted, stacked, and their choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.optimize import nnls
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

from localw2._validation import Array, average, mean_of_all, take_rows
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.norms import Weighted
from localw2.balls.spread import local_spread, rough_balls
from localw2.estimators.regression.boosting import BoostedTrees, Boosting
from localw2.estimators.regression.category_codes import CategoryCodes
from localw2.estimators.regression.kernel_mean import tune_kernel
from localw2.estimators.regression.polynomial_ridge import PolynomialRidge
from localw2.estimators.regression.scale import Scale
from localw2.metrics import crps
from localw2.training.progress import Stages

if TYPE_CHECKING:
    from localw2.estimators.tables import Columns

BASE_ROWS = 100_000  # that base="auto" is fitted on, where there are more
SCREENED_ROWS, MOST_SCREENED = 2500, 20_000  # that show which candidates are worth a cross-fit: a quarter,
SCREENED_FOLDS = 2  # but not fewer or more than these
FOLDS, MANY_FOLDS, FEW_ROWS = 5, 10, 200  # below FEW_ROWS rows a fold less matters, and fits are quick
# Fewer and larger steps than scikit-learn's 100 of .1: as accurate on 13 tables, in half of the time.
_BOOSTING = {
    "boosting": Boosting(n_trees=40, learning_rate=0.2, depth=4, min_rows=15, columns=0.5),
    # Where noise is small, leaves of 15 rows and few trees are too coarse for a few hundred rows,
    "fine boosting": Boosting(n_trees=100, learning_rate=0.3, depth=4, min_rows=5, columns=0.7),
    # and where noise is large, they are too fine.
    "coarse boosting": Boosting(n_trees=60, learning_rate=0.25, depth=2, min_rows=10, columns=0.5),
}
# From so many rows on more trees pay, and scikit-learn's compiled loops over rows are faster than numpy's.
_MANY_ROWS = 5000
_LONG_BOOSTING: dict[str, dict[str, Any]] = {
    "boosting": {"learning_rate": 0.15, "max_iter": 60},
    "fine boosting": {"learning_rate": 0.15, "max_iter": 300, "max_leaf_nodes": 15, "min_samples_leaf": 5},
    "coarse boosting": {"learning_rate": 0.15, "max_iter": 60, "max_leaf_nodes": 4, "min_samples_leaf": 10},
    "long boosting": {"max_iter": 500, "early_stopping": True},
}
_WEIGHTED = "weighted "  # before the name of a candidate that was fitted with weights
_MOST_COLUMNS = {2: 20, 3: 4}  # degree -> columns of x up to which the polynomial is a candidate
_HANDICAP = 1 / 0.9  # on the kernel's error, where a candidate is chosen
_LITTLE_NOISE, _SOME_SIGNAL = 0.15, 0.5  # shares of the variance of y that are left to explain
_KERNEL_COLUMNS, _KERNEL_TRIAL = 30, 160  # columns up to which length scales take seconds; rows of its trial
_STACK_GAIN, _SMOOTHER = 0.98, 1.01  # how much better a stack, or trees, must be than one smooth regressor
_LEAST, _MOST_PARTS = 0.1, 3  # weight of a part of a stack, and how many there are
_RELEVANCE_ROWS, _RELEVANCE_MODELS = 500, 3  # enough to tell which columns move a mean
_SIMILAR = 25  # rows on either side in the order of the mean, whose residuals stand for a row's own
_SEARCHED_ROWS, _CELL_ROWS = 1000, 200  # up to which nearest rows are searched, and rows of a cell beyond
_PURPOSE = 7  # keeps these random numbers apart from others of the same seed


@final
@dataclass(frozen=True, eq=False)
class Views:
    """Rows x (N, p) as learners want them: codes and missing values natively, or numbers only."""

    x: Array
    columns: Columns

    @cached_property
    def expanded(self) -> Array:
        """Numbers only, for learners that take nothing else."""
        return self.columns.expand(self.x)

    def native(self, codes: CategoryCodes) -> Array:
        """Categorical columns first, recoded, as boosting keeps them."""
        if not codes.maps:
            return self.x
        numbers = codes.apply(self.x)
        first = sorted(codes.maps)
        return np.hstack([numbers[:, first], np.delete(numbers, first, axis=1)])

    def take(self, rows: Any) -> Views:
        """Some of the rows."""
        part = Views(self.x[rows], self.columns)
        if "expanded" in self.__dict__:
            part.__dict__["expanded"] = self.expanded[rows]
        return part


@final
@dataclass(frozen=True, eq=False)
class FittedModel:
    """A regressor fitted to some rows; ``codes`` if it takes categories natively."""

    regressor: Any
    codes: CategoryCodes | None

    def predict(self, views: Views, d: int) -> Array:
        """Means (N, d)."""
        if self.codes is None:
            rows = views.expanded
        elif isinstance(self.regressor, BoostedTrees):
            rows = self.codes.apply(views.x)
        else:
            rows = views.native(self.codes)
        return np.asarray(self.regressor.predict(rows), dtype=np.float64).reshape(-1, d)


Models = dict[tuple[str, tuple[int, ...]], FittedModel]  # by name and the folds that were left out


@final
@dataclass(frozen=True, eq=False)
class Part:
    """A kind of regressor in a stack, with one fitted model for each fold."""

    name: str
    models: tuple[FittedModel, ...]
    weight: float


@final
@dataclass(frozen=True, eq=False)
class FoldedMean:
    r"""A mean :math:`m_f(x) = a + \lambda \sum_k w_k\, g_{kf}(x)`, with regressors for each fold f.

    ``slope`` (:math:`\lambda`, between 0 and 1) and ``intercept`` (a) come from the regression of y on the
    out-of-fold predictions: a regressor that finds only noise gets slope 0, so it cannot inflate the spread.
    Without regressors the mean is the intercept. All of it is on ``scale``.
    """

    columns: Columns
    parts: tuple[Part, ...]
    intercept: Array
    slope: Array
    scale: Scale = field(default_factory=Scale)

    @property
    def name(self) -> str:
        """What it is made of, such as ``"0.70 ridge + 0.30 boosting"``."""
        if len(self.parts) < 2:
            return self.parts[0].name if self.parts else "none"
        return " + ".join(f"{part.weight:.2f} {part.name}" for part in self.parts)

    @property
    def smooth(self) -> bool:
        """Whether it varies smoothly with x."""
        return all(model.codes is None for part in self.parts for model in part.models)

    @property
    def compiled(self) -> bool:
        """Whether it has boosted trees of scikit-learn."""
        models = [model for part in self.parts for model in part.models]
        return any(m.codes is not None and not isinstance(m.regressor, BoostedTrees) for m in models)

    @property
    def n_folds(self) -> int:
        """How many folds have a mean of their own."""
        return len(self.parts[0].models) if self.parts else 1

    @property
    def models(self) -> tuple[Any, ...]:
        """The regressors of all folds, part by part."""
        return tuple(model.regressor for part in self.parts for model in part.models)

    def predict_each(self, x: Array) -> Array:
        """Every fold's mean at x, (folds, N, d); (1, N, d) without regressors."""
        d = len(self.intercept)
        if not self.parts:
            return np.broadcast_to(self.intercept, (1, len(x), d))
        views = Views(x, self.columns)
        total = np.zeros((self.n_folds, len(x), d))
        for part in self.parts:
            for fold, model in enumerate(part.models):
                total[fold] += part.weight * model.predict(views, d)
        means: Array = self.intercept + self.slope * total
        return means


@final
@dataclass(frozen=True, eq=False)
class CrossFit:
    """A mean and what the cross-fit that made it shows of the training rows.

    ``out_of_fold`` (N, d), on the mean's scale, has for every row the mean of regressors that have not seen
    it, those of fold ``folds`` (N,); ``n_rows`` rows were fitted. ``without`` has the same for the rows
    outside of some folds, by models that have not seen those folds; a stack's weights are those of all rows.
    ``weights`` (N,) are those of the rows, None where all count alike.
    """

    mean: FoldedMean
    out_of_fold: Array
    folds: Array
    n_rows: int
    without: tuple[tuple[tuple[int, ...], CrossFit], ...] = ()
    weights: Array | None = None


def count_folds(n: int) -> int:
    """Into how many folds n rows are divided.

    >>> count_folds(3), count_folds(100), count_folds(10_000)
    (3, 10, 5)
    """
    return min(n, MANY_FOLDS if n < FEW_ROWS else FOLDS)


def cross_fit(
    base: Any,
    x: Array,
    y: Array,
    columns: Columns,
    seed: int,
    *,
    chosen: FoldedMean | None = None,
    shift: bool = True,
    held: Sequence[tuple[int, ...]] = (),
    stages: Stages | None = None,
    weights: Array | None = None,
) -> CrossFit:
    """The mean of rows x (N, p), y (N, d), fitted fold by fold: ``base`` is "auto", None or a regressor.

    With "auto" and many rows a sample is fitted, and each other row gets the mean of one fold's models at
    random, none of which has seen it. Without a base the mean is that of y, or 0 without ``shift``.
    ``chosen`` is a mean that was chosen before, on similar rows: its parts are fitted again. Without each
    of the ``held`` sets of folds the cross-fit is repeated. ``weights`` (N,) are those of the rows.
    """
    n, d = y.shape
    rng = np.random.default_rng([seed, _PURPOSE])
    folds = np.arange(n) % count_folds(n)
    rng.shuffle(folds)
    if base is None:
        intercept = average(y, weights) if shift else np.zeros(d)
        flat = FoldedMean(columns, (), intercept, np.zeros(d))
        fitted = CrossFit(flat, np.broadcast_to(intercept, y.shape), folds, 0, weights=weights)
        without = [(some, _flat_without(fitted, y, ~np.isin(folds, some), shift)) for some in held]
        return replace(fitted, without=tuple(without))
    stages = Stages(enabled=False) if stages is None else stages
    views = Views(x, columns)
    sampled = np.arange(n)
    if isinstance(base, str) and n > BASE_ROWS:
        sampled = np.sort(rng.choice(n, BASE_ROWS, replace=False))
    part = views.take(sampled) if len(sampled) < n else views
    fitter = _Fitter(part, y[sampled], folds[sampled], seed, stages, take_rows(weights, sampled))
    known: Models = {}
    if not isinstance(base, str):
        regressor = seed_regressor(clone(base), seed)
        if d > 1 and not _takes_several_outputs(base):
            regressor = MultiOutputRegressor(regressor)
        if weights is not None:
            _name_weights(regressor)  # raises for a base that takes none
        kinds, scale = [Candidate("given", regressor, native=False)], Scale()
    elif chosen is not None:
        names = [p.name.removeprefix(_WEIGHTED) for p in chosen.parts]
        listed = _list_candidates(part, y[sampled], seed, only=names, compiled=chosen.compiled)
        kinds = [replace(listed[p.name.removeprefix(_WEIGHTED)], name=p.name) for p in chosen.parts]
        scale = chosen.scale
    else:
        stages.start("choosing the mean model", 2)
        kinds, scale, known = fitter.screen()
    fitted = fitter.complete(kinds, scale, held, known)
    if len(sampled) < n:
        fitted = _spread_to_all(fitted, x, sampled, folds, weights)
    return fitted


@final
@dataclass(frozen=True)
class Candidate:
    """A regressor that a mean may be made of; a ``native`` one takes categories and missing values."""

    name: str
    regressor: Any
    native: bool

    @property
    def smooth(self) -> bool:
        """Whether its predictions vary smoothly with x."""
        return not self.native


def _list_candidates(
    views: Views,
    y: Array,
    seed: int,
    only: Sequence[str] | None = None,
    n: int | None = None,
    compiled: bool = False,
) -> dict[str, Candidate]:
    """What ``base="auto"`` chooses from for these rows, some of n; the kernel is tuned when it is tried.

    Candidates that were chosen before, ``only``, have scikit-learn's boosting if that is what was
    ``compiled``.
    """
    n, d = len(y) if n is None else n, y.shape[1]
    if n < 8 and not (only is not None and "mean" not in only):
        return {"mean": Candidate("mean", DummyRegressor(), native=False)}
    p = views.columns.expanded_width
    chosen = only is not None  # before, on more rows
    found = {"ridge": Candidate("ridge", PolynomialRidge(), native=False)}
    for degree, most in _MOST_COLUMNS.items():
        if p <= most and (n >= 12 * degree or chosen):
            name = f"ridge of degree {degree}"
            found[name] = Candidate(name, PolynomialRidge(degree), native=False)
    if n >= 75 or chosen:
        n_categorical = len(views.columns.categorical)
        # Our trees have one order of categories for all outputs.
        compiled = compiled or (not chosen and (n >= _MANY_ROWS or (d > 1 and n_categorical > 0)))
        boosting: dict[str, Any] = dict(_BOOSTING)
        if compiled:
            boosting = {name: _make_trees(d, seed, n_categorical, **s) for name, s in _LONG_BOOSTING.items()}
        found |= {name: Candidate(name, trees, native=True) for name, trees in boosting.items()}
    if p <= _KERNEL_COLUMNS and (n >= 25 or chosen):
        found["kernel"] = Candidate("kernel", None, native=False)
    return found if only is None else {name: found[name] for name in only if name in found}


def _make_trees(d: int, seed: int, n_categorical: int, **settings: Any) -> Any:
    categorical = list(range(n_categorical)) if n_categorical else None
    trees = HistGradientBoostingRegressor(random_state=seed, categorical_features=categorical, **settings)
    return trees if d == 1 else MultiOutputRegressor(trees)


@final
@dataclass(frozen=True, eq=False)
class _Fitter:
    """Fits candidates to rows that are divided into folds."""

    views: Views
    y: Array
    folds: Array
    seed: int
    stages: Stages
    weights: Array | None = None

    @property
    def n_folds(self) -> int:
        return int(self.folds.max()) + 1

    def take(self, rows: Array) -> _Fitter:
        """The same for some of the rows."""
        weights = take_rows(self.weights, rows)
        return _Fitter(self.views.take(rows), self.y[rows], self.folds[rows], self.seed, self.stages, weights)

    @cached_property
    def near(self) -> Neighborhoods:
        """Balls that define what is local; of many rows they are disjoint cells, which take no search."""
        x = self.views.expanded
        if len(x) <= _SEARCHED_ROWS:
            balls = rough_balls(x)
        else:
            balls = Neighborhoods.cells(x - x.mean(0), _CELL_ROWS, Weighted.standardised(x))
        return balls if self.weights is None else balls.weigh(self.weights)

    def screen(self) -> tuple[list[Candidate], Scale, Models]:
        """The candidates that are worth a cross-fit, their scale, and models that are fitted already.

        A few folds of some rows decide. A candidate is worth it if it has a part in the stack of all that
        predicts held-out rows best, each row weighted by its inverse local variance. Of two scales the one
        with the smaller CRPS is taken.
        """
        few = self
        size = min(MOST_SCREENED, max(SCREENED_ROWS, len(self.y) // 4))
        if len(self.y) > size:
            rows = np.sort(
                np.random.default_rng([self.seed, _PURPOSE, 1]).choice(len(self.y), size, replace=False)
            )
            few = self.take(rows)
        candidates = _list_candidates(few.views, few.y, self.seed, n=len(self.y))
        later = {"kernel", "fine boosting"} | ({"boosting"} if len(self.y) < _MANY_ROWS else set())
        first = [candidate for name, candidate in candidates.items() if name not in later]
        screening = few._screen_on(first, Scale())
        self.stages.advance()
        # Where there is little noise fine trees pay, and medium ones are skipped. Elsewhere a step towards
        # finer trees is only worth its time if the step before it was.
        sizes = ["coarse boosting", "boosting", "fine boosting"]
        if min(screening.errors.values()) < _LITTLE_NOISE:
            sizes.remove("boosting")
        for coarser, finer in pairwise(sizes if sizes[0] in candidates else []):
            if finer not in screening.errors:
                screening = few._screen_on([candidates[finer]], Scale(), screening)
            if screening.errors[finer] > screening.errors[coarser]:
                break
        # Where a straight line is best, a curve is not worth the time.
        some_signal = min(screening.errors.values()) < _SOME_SIGNAL
        if "kernel" in candidates and screening.best != "ridge" and some_signal:
            screening = few._try_kernel(screening)
        self.stages.advance()
        logarithm = Scale.candidate(self.y)
        if not logarithm.is_identity:
            names = {"ridge", *(candidate.name for candidate in screening.kept)}
            other = few._screen_on([c for c in screening.candidates if c.name in names], logarithm)
            screening = min(screening, other, key=lambda one: one.score)
        # A kernel that is kept is tuned again, on rows of all folds.
        kept = [
            replace(kind, regressor=None) if kind.name == "kernel" else kind
            for kind in self._try_weights(screening, few)
        ]
        known = {key: model for key, model in screening.models.items() if few is self and key[0] != "kernel"}
        return kept, screening.scale, known

    def _screen_on(
        self,
        candidates: list[Candidate],
        scale: Scale,
        known: _Screening | None = None,
        n_folds: int = SCREENED_FOLDS,
    ) -> _Screening:
        folds = range(min(n_folds, self.n_folds))
        held = self.folds < len(folds)
        y = scale.forward(self.y)
        predicted = dict(known.predicted) if known is not None else {}
        models = dict(known.models) if known is not None else {}
        for candidate in candidates:
            values = np.empty_like(y)
            fitted = self._fit(candidate, y, [(fold,) for fold in folds])
            for fold, model in zip(folds, fitted, strict=True):
                test = self.folds == fold
                models[candidate.name, (fold,)] = model
                values[test] = model.predict(self.views.take(test), y.shape[1])
            predicted[candidate.name] = values[held]
        everything = [*(known.candidates if known is not None else []), *candidates]
        return _Screening.of(everything, predicted, models, self.near, held, self.y, scale, self.weights)

    def _try_kernel(self, screening: _Screening) -> _Screening:
        """The same with the kernel, tuned on some rows, if it beats all other smooth candidates by a tenth.

        The kernel can follow noise that is nearly as smooth as the mean: on the nonlinear example it would be
        chosen now and then for an error smaller by 1 %, where the polynomials' mean is a quarter closer. Of
        many rows it has to be better than the best candidate on a few first, for it takes long on all.
        """
        # Not on the rows that candidates are compared on.
        others = np.flatnonzero(self.folds >= SCREENED_FOLDS)
        rows = np.random.default_rng([self.seed, _PURPOSE, 2]).permutation(others)
        size = min(_KERNEL_TRIAL, round(0.75 * len(rows)))
        train, test = rows[:size], rows[size : 4 * size]
        views, y = self.views.take(train), self.y[train]
        tuned = Candidate("kernel", tune_kernel(views.expanded, y, self.seed), native=False)
        if len(rows) > _SEARCHED_ROWS:
            best = next(one for one in screening.candidates if one.name == screening.best)
            errors = []
            for candidate in (tuned, best):
                model = fit_model(candidate, views, y, take_rows(self.weights, train))
                left = (self.y[test] - model.predict(self.views.take(test), y.shape[1])) / _unit(self.y)
                errors.append(mean_of_all(left**2, take_rows(self.weights, test)))
            if errors[0] * _HANDICAP > errors[1]:
                return screening
        again = self._screen_on([tuned], Scale(), screening)
        smooth = [again.errors[one.name] for one in screening.candidates if one.smooth]
        return again if again.errors["kernel"] * _HANDICAP < min(smooth) else screening

    def _try_weights(self, screening: _Screening, few: _Fitter) -> list[Candidate]:
        """The kept candidates; a leading polynomial with rows weighted by precision if that is better.

        In few columns polynomials take milliseconds: all folds then say which of them is best.
        """
        first, *others = screening.kept
        if not first.name.startswith("ridge"):
            return screening.kept
        quick = few.views.columns.expanded_width <= _MOST_COLUMNS[3]
        plain = [
            candidate
            for candidate in screening.candidates
            if candidate is first or (quick and not others and candidate.name.startswith("ridge"))
        ]
        weighted = [replace(candidate, name=_WEIGHTED + candidate.name) for candidate in plain]
        if quick:
            again = few._screen_on([*plain, *weighted], screening.scale, n_folds=few.n_folds)
        else:
            again = few._screen_on(weighted, screening.scale, screening)
        best = min([*plain, *weighted], key=lambda candidate: again.errors[candidate.name])
        return [best, *others]

    def complete(
        self, kinds: list[Candidate], scale: Scale, held: Sequence[tuple[int, ...]], known: Models
    ) -> CrossFit:
        """Cross-fit these candidates on all rows and stack them; and again without each held set of folds."""
        kinds = [
            replace(kind, regressor=tune_kernel(self.views.expanded, scale.forward(self.y), self.seed))
            if kind.regressor is None
            else kind
            for kind in kinds
        ]
        models = dict(known)
        everyone = range(self.n_folds)
        left_out = sorted({tuple(sorted((*some, g))) for some in held for g in everyone if g not in some})
        single = [(f,) for f in everyone]
        # Boosting takes little longer for more fits at once; of all else, what has no weight is not fitted.
        at_once = [kind for kind in kinds if isinstance(kind.regressor, Boosting)]
        one_by_one = [kind for kind in kinds if kind not in at_once]
        self._fit_all(at_once, [*single, *left_out], scale, models, "fitting the mean")
        self._fit_all(one_by_one, single, scale, models, "fitting the mean")
        whole = self._stack(kinds, scale, everyone, lambda name, g: models[name, (g,)])
        found = {part.name: part.weight for part in whole.mean.parts}
        kinds = [kind for kind in kinds if kind.name in found]
        weights = [found[kind.name] for kind in kinds]
        self._fit_all(kinds, left_out, scale, models, "fitting it out of fold")
        without = []
        for some in held:
            rows = np.flatnonzero(~np.isin(self.folds, some))
            part = self.take(rows)
            others = [g for g in everyone if g not in some]
            again = part._stack(kinds, scale, others, partial(_find_without, models, some), weights)
            without.append((some, again))
        return replace(whole, without=tuple(without))

    def _fit_all(
        self,
        kinds: list[Candidate],
        left_out: Sequence[tuple[int, ...]],
        scale: Scale,
        models: Models,
        title: str,
    ) -> None:
        """Fit every kind without each of these sets of folds, unless ``models`` has it already."""
        y = scale.forward(self.y)
        missing = {kind: [f for f in left_out if (kind.name, f) not in models] for kind in kinds}
        if any(missing.values()):
            self.stages.start(title, sum(map(len, missing.values())))
        for kind, sets in missing.items():
            for folds, model in zip(sets, self._fit(kind, y, sets), strict=True):
                models[kind.name, folds] = model
                self.stages.advance()

    def _stack(
        self,
        kinds: list[Candidate],
        scale: Scale,
        folds: Iterable[int],
        find: Callable[[str, int], FittedModel],
        weights: list[float] | None = None,
    ) -> CrossFit:
        """The stack of models that are fitted already, one for each of these folds."""
        y, d = scale.forward(self.y), self.y.shape[1]
        folds = list(folds)
        predicted = {kind.name: np.empty_like(y) for kind in kinds}
        for g in folds:
            test = self.folds == g
            views = self.views.take(test)
            for kind in kinds:
                predicted[kind.name][test] = find(kind.name, g).predict(views, d)
        spread = local_spread(self.near, y - next(iter(predicted.values())))
        importance = 1 / spread[:, None] ** 2
        if self.weights is not None:
            importance = importance * self.weights[:, None]
        if weights is None:
            weights = [float(w) for w in _weigh_candidates(kinds, predicted, y, importance)]
        total = np.sum([w * predicted[kind.name] for w, kind in zip(weights, kinds, strict=True)], axis=0)
        intercept, slope = _calibrate(y, total, importance)
        parts = tuple(
            Part(kind.name, tuple(find(kind.name, g) for g in folds), w)
            for kind, w in zip(kinds, weights, strict=True)
            if w > 0 or len(kinds) == 1
        )
        mean = FoldedMean(self.views.columns, parts, intercept, slope, scale)
        places = np.searchsorted(folds, self.folds)
        return CrossFit(mean, intercept + slope * total, places, len(y), weights=self.weights)

    def _fit(
        self, candidate: Candidate, y: Array, left_out: Sequence[tuple[int, ...]]
    ) -> Iterator[FittedModel]:
        """The candidate fitted without each of these sets of folds."""
        used = [~np.isin(self.folds, some) for some in left_out]
        if isinstance(candidate.regressor, Boosting) and used:
            yield from _boost(candidate.regressor, self.views, y, np.stack(used), self.seed, self.weights)
            return
        # One after the other: scikit-learn's boosting keeps Python's lock, so that threads only wait for it.
        for rows in used:
            views, target, weights = self.views.take(rows), y[rows], take_rows(self.weights, rows)
            model = fit_model(candidate, views, target, weights)
            if candidate.name.startswith(_WEIGHTED):
                left = np.zeros_like(y)
                left[rows] = target - model.predict(views, y.shape[1])
                precision = 1 / local_spread(self.near, left, rows)[rows] ** 2
                model = fit_model(
                    candidate, views, target, precision if weights is None else weights * precision
                )
            yield model


@final
@dataclass(frozen=True, eq=False)
class _Screening:
    """What a few folds say about candidates on one scale."""

    candidates: list[Candidate]
    predicted: dict[str, Array]
    models: Models
    errors: dict[str, float]
    kept: list[Candidate]
    score: float
    scale: Scale

    @property
    def best(self) -> str:
        """The candidate with the smallest error."""
        return min(self.errors, key=lambda name: self.errors[name])

    @classmethod
    def of(
        cls,
        candidates: list[Candidate],
        predicted: dict[str, Array],
        models: Models,
        hoods: Neighborhoods,
        held: Array,
        y: Array,
        scale: Scale,
        of_rows: Array | None,
    ) -> _Screening:
        """Compare out-of-fold predictions of the held rows of y (N, d), which is not on the scale."""
        everything, y = y, y[held]
        target = scale.forward(y)
        unit = _unit(target)
        own = take_rows(of_rows, held)
        plain = {name: mean_of_all(((target - m) / unit) ** 2, own) for name, m in predicted.items()}
        rough = min(plain, key=lambda name: plain[name])
        left = np.zeros_like(everything)
        left[held] = target - predicted[rough]
        importance = 1 / local_spread(hoods, left, held)[held, None] ** 2
        if own is not None:
            importance = importance * (own / own.mean())[:, None]
        errors = {
            name: float((importance * ((target - m) / unit) ** 2).mean()) for name, m in predicted.items()
        }
        by_name = {candidate.name: candidate for candidate in candidates}
        weights = _weigh_candidates([by_name[name] for name in predicted], predicted, target, importance)
        center = np.sum([w * m for w, m in zip(weights, predicted.values(), strict=True)], axis=0)
        order = sorted(zip(weights, predicted, strict=True), key=lambda pair: -pair[0])
        names = [name for weight, name in order[:_MOST_PARTS] if weight > 0]
        return cls(
            candidates,
            predicted,
            models,
            errors,
            [by_name[name] for name in names],
            _rough_score(y, center, scale, own),
            scale,
        )


def _rough_score(y: Array, center: Array, scale: Scale, weights: Array | None) -> float:
    """The CRPS of y (N, d) if a row's residuals are those of rows with a similar mean."""
    order = np.argsort(center[:, 0])
    residuals = (scale.forward(y) - center)[order]
    offsets = np.delete(np.arange(-_SIMILAR, _SIMILAR + 1), _SIMILAR)
    near = np.clip(np.arange(len(y)) + offsets[:, None], 0, len(y) - 1)
    draws = scale.backward(center[order] + residuals[near])
    return mean_of_all(crps(y[order], draws), take_rows(weights, order))


def _find_without(models: Models, some: tuple[int, ...], name: str, g: int) -> FittedModel:
    """The model of a fold g that was fitted without some folds too."""
    return models[name, tuple(sorted((*some, g)))]


def fit_model(candidate: Candidate, views: Views, y: Array, weights: Array | None = None) -> FittedModel:
    """A candidate fitted to rows and outputs y (N, d)."""
    if isinstance(candidate.regressor, Boosting):
        return _boost(candidate.regressor, views, y, np.ones((1, len(y)), bool), 0, weights)[0]
    target = y[:, 0] if y.shape[1] == 1 else y
    regressor = clone(candidate.regressor)
    extra = {} if weights is None else {_name_weights(regressor): weights}
    if not candidate.native:
        return FittedModel(regressor.fit(views.expanded, target, **extra), None)
    codes = CategoryCodes.contiguous(views.x, views.columns.categorical)
    rows = views.native(codes)
    empty = np.isnan(rows).all(0)  # some versions of scikit-learn fail there; no tree can use it
    regressor.fit(np.where(empty, 0.0, rows) if empty.any() else rows, target, **extra)
    for trees in getattr(regressor, "estimators_", [regressor]):
        # It would translate codes into the same codes again, and holds a function, which no file can.
        trees._preprocessor = None
    return FittedModel(regressor, codes)


def _name_weights(regressor: Any) -> str:
    """The argument of ``fit`` that takes the weights of rows; in a pipeline that of its last step."""
    if isinstance(regressor, Pipeline):
        name, last = regressor.steps[-1]
        return f"{name}__{_name_weights(last)}"
    inner = regressor.estimator if isinstance(regressor, MultiOutputRegressor) else regressor
    if not has_fit_parameter(inner, "sample_weight"):
        raise ValueError(
            f"base={type(inner).__name__} takes no sample_weight in fit, so the mean would ignore it. "
            "Give a base that takes them, such as Ridge() or 'auto', or fit without."
        )
    return "sample_weight"


def _boost(
    boosting: Boosting, views: Views, y: Array, used: Array, seed: int, weights: Array | None
) -> list[FittedModel]:
    """A fit to each of these sets of rows (F, N), all at once."""
    fits = boosting.fit_many(views.x, y, used, views.columns.categorical, seed, weights)
    return [FittedModel(*fit) for fit in fits]


def measure_relevance(mean: FoldedMean, x: Array) -> Array | None:
    r"""How much each expanded column moves the mean, (q,): the root mean square change when it is shuffled.

    None where no column moves it at all. Outputs are put on one scale.
    """
    rng = np.random.default_rng(0)
    rows = x[np.sort(rng.permutation(len(x))[:_RELEVANCE_ROWS])]
    parts = tuple(replace(part, models=part.models[:_RELEVANCE_MODELS]) for part in mean.parts)
    few = replace(mean, parts=parts)
    before = few.predict_each(rows)
    scale = before.std(1).mean(0)
    moved = np.zeros(rows.shape[1])
    for column in range(rows.shape[1]):
        shuffled = rows.copy()
        shuffled[:, column] = rng.permutation(rows[:, column])
        change = (few.predict_each(shuffled) - before) / np.where(scale > 0, scale, 1.0)
        moved[column] = np.sqrt((change**2).mean())
    moved = moved[mean.columns.sources]
    return moved if moved.any() else None


def seed_regressor(estimator: Any, seed: int) -> Any:
    """The regressor with every ``random_state`` that was left at None set, so that a fit can be repeated."""
    loose = [
        name
        for name, value in estimator.get_params(deep=True).items()
        if name.rpartition("__")[2] == "random_state" and value is None
    ]
    return estimator.set_params(**dict.fromkeys(loose, seed % 2**31))


def _spread_to_all(
    fitted: CrossFit, x: Array, sampled: Array, folds: Array, weights: Array | None
) -> CrossFit:
    """The cross-fit of a sample for all rows: each other row gets the mean of its fold's models."""

    def extend(part: CrossFit, rows: Array, known: Array) -> CrossFit:
        labels = np.unique(folds[rows])
        places = np.searchsorted(labels, folds[rows])
        out_of_fold = np.empty((len(rows), part.out_of_fold.shape[1]))
        seen = np.isin(rows, known)
        out_of_fold[seen] = part.out_of_fold
        for place in range(part.mean.n_folds):
            new = ~seen & (places == place)
            one = tuple(replace(p, models=p.models[place : place + 1]) for p in part.mean.parts)
            out_of_fold[new] = replace(part.mean, parts=one).predict_each(x[rows[new]])[0]
        own = take_rows(weights, rows)
        return replace(part, out_of_fold=out_of_fold, folds=places, weights=own)

    everything = np.arange(len(x))
    without = tuple(
        (some, extend(part, everything[~np.isin(folds, some)], sampled[~np.isin(folds[sampled], some)]))
        for some, part in fitted.without
    )
    return replace(extend(fitted, everything, sampled), without=without)


def _flat_without(fitted: CrossFit, y: Array, kept: Array, shift: bool) -> CrossFit:
    weights = take_rows(fitted.weights, kept)
    intercept = average(y[kept], weights) if shift else np.zeros(y.shape[1])
    mean = replace(fitted.mean, intercept=intercept)
    folds = np.zeros(kept.sum(), np.int64)
    return CrossFit(mean, np.broadcast_to(intercept, y[kept].shape), folds, 0, weights=weights)


def _weigh_candidates(
    candidates: list[Candidate], predicted: dict[str, Array], y: Array, importance: Array
) -> Array:
    """The weights of a stack, or all of it for one candidate that is nearly as good, a smooth one rather."""
    unit = _unit(y)

    def error(m: Array) -> float:
        return float((importance * ((y - m) / unit) ** 2).mean())

    each = [predicted[candidate.name] for candidate in candidates]
    weights = _stack_weights(each, y, importance)
    errors = [error(m) for m in each]
    handicapped = [e * (1.0 if c.smooth else _SMOOTHER) for e, c in zip(errors, candidates, strict=True)]
    best = int(np.argmin(handicapped))
    stacked = error(np.sum([w * m for w, m in zip(weights, each, strict=True)], axis=0))
    return weights if stacked <= _STACK_GAIN * errors[best] else np.eye(len(each))[best]


def _stack_weights(predicted: list[Array], y: Array, importance: Array) -> Array:
    """Weights on the simplex with the least weighted squared error; small ones are 0."""
    if len(predicted) == 1:
        return np.ones(1)
    unit = _unit(y)
    root = np.sqrt(importance / importance.mean()) * np.ones_like(y)
    columns = np.stack([((m - y) / unit * root).ravel() for m in predicted], axis=1)
    # Differences from y: what is minimised under sum(w) = 1 is |columns w|; a heavy row keeps the sum.
    heavy = 1e3 * np.sqrt((columns**2).sum())
    weights, _ = nnls(
        np.vstack([columns, np.full((1, columns.shape[1]), heavy)]), np.append(np.zeros(len(columns)), heavy)
    )
    weights[weights < _LEAST] = 0.0
    total = weights.sum()
    if not total > 0:
        weights[int(np.argmin((columns**2).sum(0)))] = total = 1.0
    found: Array = weights / total
    return found


def _unit(y: Array) -> Array:
    scale = y.std(0)
    return np.where(scale > 0, scale, 1.0)


def _takes_several_outputs(regressor: Any) -> bool:
    try:
        return bool(get_tags(regressor).target_tags.multi_output)
    except (AttributeError, TypeError):  # a regressor that only looks like scikit-learn's: let it try
        return True


def _calibrate(y: Array, predicted: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted least squares of y on its prediction, output by output, with the slope kept in [0, 1]."""
    weights = weights / weights.sum()
    y_mean, mean = (weights * y).sum(0), (weights * predicted).sum(0)
    variance = (weights * (predicted - mean) ** 2).sum(0)
    together = (weights * (predicted - mean) * (y - y_mean)).sum(0)
    slope = np.clip(together / np.where(variance > 0, variance, 1.0), 0.0, 1.0)
    return y_mean - slope * mean, slope
