"""Regression with random coefficients: the mean and the spread of each, with standard errors."""

from __future__ import annotations

import math
from typing import Any, Self, final

import numpy as np
import torch
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, validate_data

from localw2._validation import (
    LARGEST,
    Array,
    check_count,
    check_flag,
    check_probability,
    check_radius,
    check_range,
    seed_from,
)
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.norms import Weighted
from localw2.distribution import NormalDistribution
from localw2.estimators import settings, stored_values
from localw2.estimators.cells import warn_of_missing_in_r
from localw2.estimators.coefficients.gaussian import (
    CoefficientLaw,
    Frame,
    free_entries,
    gather_residuals,
    match_balls,
    most_likely,
    regress_squares,
    robust_errors,
    warn_if_unidentified,
    with_ones,
)
from localw2.estimators.judged import Judged
from localw2.estimators.strays import find_strays, warn_of_strays
from localw2.estimators.tables import Columns
from localw2.judging.seen_rows import SeenRows
from localw2.losses.discrepancies import SquaredW2
from localw2.losses.objective import Objective
from localw2.losses.stacked import StackedLosses
from localw2.storage.model_file import Stored
from localw2.training.config import FitConfig

_TOGETHER = 10  # refits of a bootstrap as published that take their steps together: twice as fast as alone
_LAW = ("mean", "std", "covariance")  # what a file always holds,
_ERRORS = ("mean_se", "std_se", "mean_interval", "std_interval", "covariance_se")  # and after a bootstrap


@final
class RandomCoefficientRegressor(Judged, stored_values.Storable, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Linear regression whose coefficients are drawn afresh for every row (paper, section 2, Fig. example2).

    .. math:: y = w_0 + \sum_i w_i x_i, \qquad w \sim N(b, C), \qquad C = \mathrm{diag}(s^2)
        \text{ or any covariance}

    ``method="w2"`` makes simulated and observed y agree in small balls by the debiased local W2, with noise
    of the shape that residuals have; ``"ml"`` is exact Gaussian maximum likelihood. Both find the means and
    SDs of coefficients of any law with finite variance. ``debiased=False`` is the paper's loss and training
    as published. ``delta="auto"`` uses the ``n_neighbors`` nearest rows as balls (the paper: radius 0.1), a
    number uses balls of that radius. With ``norm="auto"`` rows are near if their variance responds similarly
    to the spread of every coefficient, or, for a given or published delta, by ``Weighted.from_regression``.
    ``n_bootstrap`` > 0 adds standard errors and intervals by a bootstrap of standardised residuals (rows that
    are drawn twice would shrink the spread), ``n_jobs`` refits at a time; they do not assume Gaussian
    coefficients. These need a finite variance, and standard errors of their SDs need a finite kurtosis. With
    weights of rows they are those of a weighted fit to N rows (weights as in a survey, not as copies).

    ``X`` is (N, p) and ``y`` (N,). A fit sets ``intercept_mean_``, ``intercept_std_``, ``coef_mean_`` and
    ``coef_std_`` (p,), and ``covariance_`` (p + 1, p + 1) with the intercept first (``law_`` has them all); a
    bootstrap adds ``..._se_`` to each and, except for the covariance, ``..._interval_`` with a leading axis
    (lower, upper) and probability ``confidence_``.

    >>> from localw2.datasets import Linear
    >>> model = RandomCoefficientRegressor(random_state=0).fit(*Linear().sample(1000, random_state=0))
    >>> model.coef_mean_.round(1), model.coef_std_.round(1)
    (array([1., 2., 3.]), array([0.2, 0.3, 0.4]))
    """

    def __init__(
        self,
        method: str = "w2",
        covariance: str = "diag",
        debiased: bool = True,
        delta: Any = "auto",
        norm: Any = "auto",
        n_neighbors: int = 12,
        n_draws: int = 32,
        n_bootstrap: int = 0,
        confidence: float = 0.9,
        max_epochs: int = 1000,
        learning_rate: float = 0.02,
        weight_decay: float = 0.005,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.covariance = covariance
        self.debiased = debiased
        self.delta = delta
        self.norm = norm
        self.n_neighbors = n_neighbors
        self.n_draws = n_draws
        self.n_bootstrap = n_bootstrap
        self.confidence = confidence
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Estimate the law of the coefficients from X (N, p) and y (N,).

        ``sample_weight`` (N,) >= 0 says how much a row counts relative to others, in the likelihood or the
        loss: only ratios matter, and a row of weight 0 is as if it were not there.
        """
        self._check_settings()
        kept, weights = None, None
        if sample_weight is not None:
            X, y, kept, weights = settings.weigh_rows(X, y, sample_weight)
        warn_of_missing_in_r(X, "X", stacklevel=2)
        warn_of_missing_in_r(y, "y", stacklevel=2)
        # A fresh estimator reads the table: a refit that fails leaves the old fit whole.
        reader = type(self)()
        x, y = validate_data(reader, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        columns, y = Columns.noted(reader), y.astype(np.float64)
        check_range(x, "X")
        check_range(y[:, None], "y")
        _check_units(x, y)
        warn_if_unidentified(x, ["intercept", *columns.used_names], self.covariance == "full")
        seen = SeenRows.of(x, y)
        strays = find_strays(y[:, None])
        warn_of_strays(strays, y[:, None], stacklevel=2, numbers=kept)
        x, y = np.delete(x, strays, axis=0), np.delete(y, strays)
        weights = None if weights is None else np.delete(weights, strays)
        rng = np.random.default_rng(seed_from(self.random_state))
        (law,) = self._estimate(x, [y], [seed_from(rng)], weights=weights)
        errors = self._bootstrap(x, y, weights, law, rng) if self.n_bootstrap else None
        self._keep(law, columns, seen, errors, self.confidence)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of y at each row, (N,), and with ``return_std`` its standard deviation."""
        mean, std = self._moments(X)
        return (mean, std) if return_std else mean

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draw y at each row, with fresh coefficients for every row and draw: (n_samples, N).

        ``random_state=None`` gives new draws every time, whatever the estimator's own; an int repeats them.
        """
        count = check_count(n_samples, "n_samples", 1)
        mean, std = self._moments(X)
        rng = np.random.default_rng(seed_from(random_state))
        # Given x, w.x is Gaussian: one normal number a row has the law of a whole set of coefficients.
        drawn: Array = mean + std * rng.standard_normal((count, len(mean)))
        return drawn

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> Array:
        """The quantiles q of y at each row, exact for the fitted law: (len(q), N); 0 < q < 1."""
        levels = settings.check_levels(q)
        mean, std = self._moments(X)
        quantiles: Array = mean + stats.norm.ppf(levels)[:, None] * std
        return quantiles

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Array, Array]:
        """The central prediction interval of probability ``coverage``: lower and upper ends, (N,) each."""
        tail = (1 - check_probability(coverage, "coverage")) / 2
        lower, upper = self.predict_quantiles(X, [tail, 1 - tail])
        return lower, upper

    def predict_distribution(self, X: Any) -> NormalDistribution:
        """The Gaussian distribution of y at each row, exact for the fitted law, with the names of scipy.

        >>> x, y = [[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.2, 2.8]
        >>> model = RandomCoefficientRegressor(random_state=0).fit(x, y)
        >>> law = model.predict_distribution([[1.0], [2.0]])
        >>> bool((law.mean() == model.predict([[1.0], [2.0]])).all()), law.sf(1.5) > 0.5
        (True, array([False,  True]))
        """
        return NormalDistribution(*self._moments(X))

    def summary(self) -> str:
        """A table of the mean and SD of every coefficient, with standard errors and intervals if known."""
        check_is_fitted(self)
        known = hasattr(self, "coef_mean_se_")
        interval = f"{100 * self.confidence_:g} % interval" if known else ""
        plain = [f"x{j}" for j in range(self.n_features_in_)]
        names = ["intercept", *getattr(self, "feature_names_in_", plain)]
        width = max(map(len, names))
        columns = [f"{'':{width}}"]
        for what in ("mean", "SD"):
            columns.append(f"{what:>10}" + (f"{'se':>10}{interval:>24}" if known else ""))
        lines = ["".join(columns)]
        for place, name in enumerate(names):
            cells = [f"{name:{width}}"]
            for kind in ("mean", "std"):
                cells.append(f"{self._entry(kind, place):10.4g}")
                if known:
                    lower, upper = self._entry(f"{kind}_interval", place)
                    span = f"[{lower:.4g}, {upper:.4g}]"
                    cells.append(f"{self._entry(f'{kind}_se', place):10.2g}{span:>24}")
            lines.append("".join(cells))
        if not known:
            lines.append("n_bootstrap=200 adds standard errors and intervals.")
        return "\n".join(lines)

    def to_stored(self) -> Stored:
        """Everything that prediction and ``summary`` need, as plain settings and tensors."""
        check_is_fitted(self, "law_")
        names = getattr(self, "feature_names_in_", None)
        counts, tensors = stored_values.store_seen(self.seen_rows_)
        plain = {
            "parameters": stored_values.store_parameters(self.get_params(deep=False)),
            "feature_names": None if names is None else [str(name) for name in names],
            "n_features": self.n_features_in_,
            "confidence": getattr(self, "confidence_", None),
            "seen_rows": counts,
        }
        arrays = {"mean": self.law_.mean, "std": self.law_.std, "covariance": self.law_.covariance}
        arrays |= {} if self._errors is None else self._errors
        tensors |= {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}
        return Stored(type(self).__name__, plain, tensors)

    @classmethod
    def from_stored(cls, stored: Stored) -> RandomCoefficientRegressor:
        """The estimator that ``to_stored`` described; its predictions are equal bit for bit."""
        with stored_values.check_fits_together(stored, cls.__name__):
            plain = stored.settings
            estimator = cls()
            parameters = stored_values.restore_parameters(plain["parameters"])
            stored_values.set_stored_parameters(estimator, parameters)
            p = stored_values.whole_number(plain["n_features"], 1, stored_values.MOST_COLUMNS)
            columns = Columns.from_stored(None, p, plain["feature_names"])
            seen = stored_values.restore_seen(plain.get("seen_rows"), stored.tensors)
            known = set(stored.tensors) - {"seen_rows"}
            if known not in ({*_LAW}, {*_LAW, *_ERRORS}):
                raise ValueError(
                    f"it has {sorted(known)}, but needs {_LAW}, and standard errors all together."
                )
            arrays = {
                name: stored_values.sized_array(name, stored.tensors[name], *_shape(name, p))
                for name in known
            }
            law = CoefficientLaw(arrays["mean"], arrays["covariance"])
            _check_law(law, arrays["std"])
            errors = {name: arrays[name] for name in _ERRORS} if len(arrays) > len(_LAW) else None
            if errors is not None:
                check_probability(plain["confidence"], "confidence")
            estimator._keep(law, columns, seen, errors, plain["confidence"])
        return estimator

    def _entry(self, kind: str, place: int) -> Any:
        if place == 0:
            return getattr(self, f"intercept_{kind}_")
        return getattr(self, f"coef_{kind}_")[..., place - 1]

    def _moments(self, X: Any) -> tuple[Array, Array]:
        check_is_fitted(self, "law_")
        warn_of_missing_in_r(X, "X", stacklevel=3)
        return self.law_.moments(validate_data(self, X, dtype=np.float64, reset=False))

    def _keep(
        self,
        law: CoefficientLaw,
        columns: Columns,
        seen: SeenRows | None,
        errors: dict[str, Array] | None,
        confidence: float | None,
    ) -> None:
        """Take over a law and what describes it, with nothing left of an older fit."""
        self._forget()
        self.law_, self.seen_rows_, self._errors = law, seen, errors
        self.n_features_in_ = columns.n_features
        if columns.names is not None:
            self.feature_names_in_ = np.array(columns.names, dtype=object)
        self.covariance_ = law.covariance
        self.intercept_mean_, self.coef_mean_ = float(law.mean[0]), law.mean[1:]
        self.intercept_std_, self.coef_std_ = float(law.std[0]), law.std[1:]
        if errors is not None and confidence is not None:
            self.confidence_ = float(confidence)
            self.covariance_se_ = errors["covariance_se"]
            for name in _ERRORS[:-1]:
                setattr(self, f"intercept_{name}_", errors[name][..., 0])
                setattr(self, f"coef_{name}_", errors[name][..., 1:])

    @property
    def _as_printed(self) -> bool:
        return self.method == "w2" and not self.debiased

    def _estimate(
        self,
        x: Array,
        ys: list[Array],
        seeds: list[int],
        near: CoefficientLaw | None = None,
        weights: Array | None = None,
    ) -> list[CoefficientLaw]:
        """Fits to several outputs on the same rows, each from a seed, so the same on any machine.

        ``near`` is a law that they are not far from.
        """
        generators = [np.random.default_rng(seed) for seed in seeds]
        if self._as_printed:
            return self._train_as_printed(x, ys, weights, generators)
        return [self._solve(x, y, weights, rng, near) for y, rng in zip(ys, generators, strict=True)]

    def _solve(
        self,
        x: Array,
        y: Array,
        weights: Array | None,
        rng: np.random.Generator,
        near: CoefficientLaw | None,
    ) -> CoefficientLaw:
        frame = Frame.of(x, y, self.covariance == "full", weights)
        if frame.scale == 0:  # an exact fit has no spread, and no logarithm
            return frame.law(np.zeros_like(frame.free, dtype=float))
        if self.method == "ml":
            return frame.law(most_likely(frame))
        given = None if self.delta == "auto" and isinstance(self.norm, str) else self._balls(x, y)
        levels = rng.random((self.n_draws, len(y)))
        return frame.law(match_balls(frame, levels, given, self.n_neighbors, near))

    def _balls(self, x: Array, y: Array) -> Neighborhoods:
        norm = Weighted.from_regression(x, y) if isinstance(self.norm, str) else self.norm
        if not self.debiased:
            return Neighborhoods.within(x, 0.1 if self.delta == "auto" else self.delta, norm)
        if self.delta == "auto":
            return Neighborhoods.nearest(x, min(self.n_neighbors, len(x)), norm)
        return Neighborhoods.within(x, self.delta, norm, min_size=2)

    def _train_as_printed(
        self, x: Array, ys: list[Array], weights: Array | None, generators: list[np.random.Generator]
    ) -> list[CoefficientLaw]:
        """The paper's loss and training (its table of settings): b and s start at 1, one draw per epoch.

        All fits take each step together; no number of one enters another.
        """

        def find_balls(y: Array) -> Neighborhoods:
            balls = self._balls(x, y)
            return balls if weights is None else balls.weigh(weights)

        shared = None if isinstance(self.norm, str) else find_balls(ys[0])
        losses = StackedLosses([Objective(y, shared or find_balls(y), SquaredW2()) for y in ys])
        design = torch.from_numpy(with_ones(x))
        count, n_fits = design.shape[1], len(ys)
        mean = torch.ones(n_fits, count, dtype=torch.float64, requires_grad=True)
        factor = torch.eye(count, dtype=torch.float64).repeat(n_fits, 1, 1).requires_grad_()
        free = torch.from_numpy(free_entries(count, self.covariance == "full")).double()
        optimiser = torch.optim.AdamW([mean, factor], lr=self.learning_rate, weight_decay=self.weight_decay)
        for _ in range(self.max_epochs):
            noise = torch.from_numpy(np.stack([rng.standard_normal(design.shape) for rng in generators]))
            coefficients = mean[:, None] + noise @ (factor * free).mT
            total = losses((coefficients * design).sum(2)[:, None]).sum()
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
        fitted = (factor * free).detach().numpy()
        return [CoefficientLaw(b.copy(), f @ f.T) for b, f in zip(mean.detach().numpy(), fitted, strict=True)]

    def _bootstrap(
        self,
        x: Array,
        y: Array,
        weights: Array | None,
        law: CoefficientLaw,
        rng: np.random.Generator,
    ) -> dict[str, Array]:
        """Standard errors and intervals from refits to outputs that follow the fit.

        Their noise is the fit's SD at each row times a standardised residual of a row like it: coefficients
        need not be Gaussian, nor have laws of the same shape.
        """
        design, free = with_ones(x), free_entries(x.shape[1] + 1, self.covariance == "full")
        centre, std = design @ law.mean, np.sqrt(law.variance(design))
        residuals = gather_residuals(design, y, law, weights)
        rows = np.arange(len(x))
        seeds = rng.integers(2**63, size=(self.n_bootstrap, 2))
        picks = [np.random.default_rng(s).integers(residuals.shape[1], size=len(x)) for s, _ in seeds]
        outputs = [centre + std * residuals[rows, pick] for pick in picks]
        size = _TOGETHER if self._as_printed else 1
        parts = [slice(start, start + size) for start in range(0, len(seeds), size)]
        batches = Parallel(n_jobs=self.n_jobs)(
            delayed(self._estimate)(x, outputs[part], seeds[part, 1].tolist(), law, weights) for part in parts
        )
        refits = [law for laws in batches for law in laws]
        pairs = [(y, law), *zip(outputs, refits, strict=True)]  # the fit first
        errors = [robust_errors(design, rows, found, free, weights) for rows, found in pairs]
        mean_errors, variance_errors = (np.array(part) for part in zip(*errors, strict=True))
        variances = np.array([regress_squares(design, rows, found, free, weights) for rows, found in pairs])
        means, stds = (np.array([getattr(refit, name) for refit in refits]) for name in ("mean", "std"))
        found = {
            "mean_se": means.std(0, ddof=1),
            "std_se": stds.std(0, ddof=1),
            "covariance_se": np.std([refit.covariance for refit in refits], axis=0, ddof=1),
        }
        found["mean_interval"] = studentised_interval(
            law.mean, mean_errors[0], means, mean_errors[1:], self.confidence
        )
        found["std_interval"] = _std_interval(law.std, variances, variance_errors, self.confidence)
        return found

    def _check_settings(self) -> None:
        settings.check_jobs(self.n_jobs)
        for name, choices in (("method", ("w2", "ml")), ("covariance", ("diag", "full"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; choose one of {choices}.")
        check_flag(self.debiased, "debiased")
        settings.check_norm_setting(self.norm)
        if not (isinstance(self.delta, str) and self.delta == "auto"):
            check_radius(self.delta)
        check_count(self.n_neighbors, "n_neighbors", 2, why="one row alone does not show spread")
        check_count(self.n_draws, "n_draws", 2, why="one draw does not show the model's own spread")
        check_count(self.n_bootstrap, "n_bootstrap", 0)
        if self.n_bootstrap == 1:
            raise ValueError("n_bootstrap=1 has no spread; give 0 for no standard errors, or at least 100.")
        FitConfig(self.max_epochs, self.learning_rate, self.weight_decay)  # checks them
        check_probability(self.confidence, "confidence")


def studentised_interval(
    estimate: Array, error: Array, replicates: Array, errors: Array, confidence: float
) -> Array:
    r"""Lower and upper ends (2, p): :math:`\hat\theta \pm c\,\hat\sigma`, c from replicates (B, p).

    c is the quantile of :math:`|\theta^* - \hat\theta| / \sigma^*`. An estimate that is too small by chance
    tends to have too small an error as well, above all if tails are heavy; c allows for that, where a normal
    or percentile interval covers too little (a bootstrap-t, symmetric: Hall, 1988).

    >>> rng = np.random.default_rng(0)
    >>> replicates, errors = rng.normal(size=(100_000, 1)), np.ones((100_000, 1))
    >>> studentised_interval(np.zeros(1), np.full(1, 2.0), replicates, errors, 0.9).round(1).ravel()
    array([-3.3,  3.3])
    """
    moved = np.abs(replicates - estimate)
    ratios = np.divide(moved, errors, out=np.zeros_like(moved), where=errors > 0)
    # The k-th of B replicates, of which the estimate itself would be one more: too few are not too narrow.
    place = min(len(ratios), math.ceil(confidence * (len(ratios) + 1) - 1e-9))
    reach = np.sort(ratios, axis=0)[place - 1] * error
    return np.stack([estimate - reach, estimate + reach])


def _std_interval(std: Array, variances: Array, errors: Array, confidence: float) -> Array:
    r"""The interval of SDs (2, p) from variances that may be negative, (1 + B, p), that of the fit first.

    A bootstrap-t by way of the variance, because the error of an SD is not defined at 0. The upper end is the
    larger of that with equal tails, :math:`\hat\theta - q\,\hat\sigma` with q from the refits'
    :math:`(\theta^* - \mathrm{std}^2) / \sigma^*`, and the symmetric one; the lower is half-way between the
    two. Variances of heavy-tailed coefficients are mostly estimated too small and refits, whose tails end
    with the largest residual, show that in part only: equal tails alone hold .85 to .87 instead of .9 (t5 and
    exponential coefficients, one spread small beside the others), and the wider of both ends .93 to .95 of
    Gaussian ones.
    """
    centre = variances[0]
    moved = variances[1:] - std**2
    ratios = np.divide(moved, errors[1:], out=np.zeros_like(moved), where=errors[1:] > 0)
    tail = (1 - confidence) / 2
    equal = centre - errors[0] * np.quantile(ratios, [1 - tail, tail], axis=0, method="weibull")
    even = studentised_interval(centre, errors[0], centre + moved, errors[1:], confidence)
    lower = (equal[0] + np.minimum(equal[0], even[0])) / 2
    upper = np.maximum(equal[1], even[1])
    ends = np.sqrt(np.maximum([lower, upper], 0))
    return np.stack([np.minimum(ends[0], std), np.maximum(ends[1], std)])


def _check_units(x: Array, y: Array) -> None:
    """Raise where the square of a coefficient would overflow or vanish."""
    spread = np.ptp(x, axis=0)
    sizes = np.ptp(y) / spread[spread > 0]
    if ((sizes > LARGEST) | ((sizes > 0) & (sizes < 1 / LARGEST))).any():
        raise ValueError(
            f"coefficients would have sizes from {sizes.min():.2g} to {sizes.max():.2g}, whose squares "
            "overflow or vanish: X and y are in units too far apart. Change them, so that values are near 1."
        )


def _shape(name: str, p: int) -> tuple[int, ...]:
    """The shape of an array of p + 1 coefficients in a file."""
    if name.startswith("covariance"):
        return p + 1, p + 1
    return (2, p + 1) if "interval" in name else (p + 1,)


def _check_law(law: CoefficientLaw, std: Array) -> None:
    """Raise unless a law from a file is one, with these standard deviations."""
    covariance, lengths = law.covariance, np.linalg.eigvalsh(law.covariance)
    symmetric = np.allclose(covariance, covariance.T, rtol=1e-9, atol=0)
    if not symmetric or lengths.min() < -1e-9 * abs(lengths).max():
        raise ValueError("covariance is not symmetric and positive semidefinite.")
    if (std < 0).any() or not np.allclose(std**2, np.diag(covariance), rtol=1e-6, atol=0):
        raise ValueError("std is negative, or does not match the covariance.")
