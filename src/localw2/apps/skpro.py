"""Estimators for skpro, so that its metrics, pipelines and searches work: ``pip install 'localw2[skpro]'``.

skpro (https://skpro.readthedocs.io) has one interface for the probabilistic regressors of many packages.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from pandas import DataFrame, Index, RangeIndex, concat
from sklearn.base import clone
from sklearn.linear_model import Ridge

from localw2 import BallLaw, LocalW2Regressor, RandomCoefficientRegressor
from localw2._validation import Array, brief
from localw2.distribution import Distribution, DrawsDistribution, NormalDistribution

try:
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError:
    raise ImportError("this adapter needs skpro: pip install 'localw2[skpro]'") from None

_LEVELS = (np.arange(1000) + 0.5) / 1000  # of quantiles that an energy is the mean over
_AT_A_TIME = 4096  # rows whose quantiles are held at a time


class ProbaRegressor(BaseProbaRegressor):  # type: ignore[misc]  # skpro has no types
    """A ``LocalW2Regressor``, or another estimator with ``predict_distribution``, as a regressor of skpro.

    ``predict_proba`` returns its distribution (``PredictedDistribution``), and ``predict_interval`` the
    estimator's own intervals, calibrated if it is. ``regressor=None`` means ``LocalW2Regressor()``, and the
    fitted one is ``regressor_``.

    >>> from pandas import DataFrame
    >>> from localw2 import LocalW2Regressor
    >>> from localw2.apps.skpro import ProbaRegressor
    >>> from localw2.datasets import Nonlinear
    >>> X, y = map(DataFrame, Nonlinear().sample(200, random_state=0))
    >>> model = ProbaRegressor(LocalW2Regressor(law="balls", random_state=0)).fit(X, y)
    >>> law = model.predict_proba(X[:3])
    >>> law.cdf(8.0).shape, law.quantile([0.05, 0.95]).shape
    ((3, 1), (3, 2))
    """

    _tags = {  # noqa: RUF012  # skpro wants a plain dict
        "authors": ["localw2"],
        "capability:multioutput": True,
        "capability:missing": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, regressor: Any = None) -> None:
        self.regressor = regressor
        super().__init__()

    def _fit(self, X: DataFrame, y: DataFrame) -> Self:
        estimator = LocalW2Regressor() if self.regressor is None else clone(self.regressor)
        if not hasattr(estimator, "predict_distribution"):
            raise ValueError(
                f"regressor={brief(estimator)} has no predict_distribution(X), which is what skpro asks for. "
                "Give a LocalW2Regressor or a RandomCoefficientRegressor."
            )
        outputs = y.to_numpy()
        self.regressor_ = estimator.fit(_name_by_text(X), outputs[:, 0] if y.shape[1] == 1 else outputs)
        self._y_columns = y.columns
        return self

    def _predict(self, X: DataFrame) -> DataFrame:
        return self._frame(X, self.regressor_.predict(_name_by_text(X)))

    def _predict_var(self, X: DataFrame) -> DataFrame:
        return self._frame(X, self.regressor_.predict(_name_by_text(X), return_std=True)[1] ** 2)

    def _predict_proba(self, X: DataFrame) -> PredictedDistribution:
        law = self.regressor_.predict_distribution(_name_by_text(X))
        return PredictedDistribution(law, index=X.index, columns=self._y_columns)

    def _predict_quantiles(self, X: DataFrame, alpha: list[float]) -> DataFrame:
        columns = self._get_columns(method="predict_quantiles", alpha=alpha)
        return self._frame(X, self.regressor_.predict_quantiles(_name_by_text(X), alpha), columns)

    def _predict_interval(self, X: DataFrame, coverage: list[float]) -> DataFrame:
        found = np.array([self.regressor_.predict_interval(_name_by_text(X), level) for level in coverage])
        return self._frame(X, found, self._get_columns(method="predict_interval", coverage=coverage))

    def _frame(self, X: DataFrame, values: Array, columns: Any = None) -> DataFrame:
        """Values (..., N) or (..., N, d) as columns, all those of an output one after the other."""
        found = values.reshape(-1, len(X), len(self._y_columns)).transpose(1, 2, 0).reshape(len(X), -1)
        return DataFrame(found, index=X.index, columns=self._y_columns if columns is None else columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Settings that skpro's checks are made with."""
        quick = LocalW2Regressor(BallLaw(n_trees=5), base=Ridge(), random_state=0)
        return [{"regressor": quick}, {"regressor": RandomCoefficientRegressor("ml")}]


class PredictedDistribution(BaseDistribution):  # type: ignore[misc]
    """A ``Distribution`` with laws (N,) or (N, d), or a single one, as a distribution of skpro.

    ``pdf`` is smoothed where the law is known by draws, and ``energy``, which the CRPS is made of, is a mean
    over 1000 quantiles; all else is exact. ``sample`` draws the outputs of a row together.

    >>> from localw2.apps.skpro import PredictedDistribution
    >>> from localw2.distribution import NormalDistribution
    >>> law = PredictedDistribution(NormalDistribution([0.0, 1.0], [1.0, 1.0]), columns=["y"])
    >>> law.cdf(0.0).round(2).to_numpy().ravel()
    array([0.5 , 0.16])
    """

    _tags = {  # noqa: RUF012
        "authors": ["localw2"],
        "capabilities:approx": ["pdf", "log_pdf", "pdfnorm", "energy"],
        "capabilities:exact": ["mean", "var", "cdf", "ppf", "pmf", "log_pmf"],
        "distr:measuretype": "mixed",
        "distr:paramtype": "nonparametric",
    }

    def __init__(self, law: Distribution, index: Any = None, columns: Any = None) -> None:
        self.law = law
        if law.shape and index is None:
            index = RangeIndex(len(law))
        if law.shape and columns is None:
            columns = RangeIndex(1 if len(law.shape) == 1 else law.shape[1])
        super().__init__(index=index, columns=columns)
        if isinstance(law, DrawsDistribution) and law.support.discrete.all():
            self.set_tags(**{"distr:measuretype": "discrete"})
        elif isinstance(law, NormalDistribution):
            self.set_tags(**{"distr:measuretype": "continuous"})

    def _cdf(self, x: Array) -> Array:
        return self._shaped(self.law.cdf(self._of_law(x)))

    def _ppf(self, p: Array) -> Array:
        return self._shaped(self.law.ppf(self._of_law(p)))

    def _pdf(self, x: Array) -> Array:
        return self._shaped(self.law.pdf(self._of_law(x)))

    def _log_pdf(self, x: Array) -> Array:
        with np.errstate(divide="ignore"):  # impossible values
            return np.asarray(np.log(self._pdf(x)))

    def _pmf(self, x: Array) -> Array:
        return self._shaped(self.law.pmf(self._of_law(x)))

    def _log_pmf(self, x: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._pmf(x)))

    def _mean(self) -> Array:
        return self._shaped(self.law.mean())

    def _var(self) -> Array:
        return self._shaped(self.law.var())

    def _energy_self(self) -> Array:
        """E|X - Y|, summed over outputs: twice the mean of quantiles, weighted by 2 q - 1."""
        return self._mean_over_quantiles(lambda z, levels, _: 2 * z * (2 * levels - 1))

    def _energy_x(self, x: Array) -> Array:
        """E|X - x|, summed over outputs."""
        return self._mean_over_quantiles(lambda z, _, rows: np.abs(z - self._of_law(x)[rows]))

    def _mean_over_quantiles(self, weigh: Any) -> Array:
        levels = _LEVELS.reshape(-1, *[1] * len(self.law.shape))
        if not self.law.shape:
            return np.asarray(weigh(self.law.ppf(levels), levels, ()).mean())
        parts = []
        for start in range(0, len(self.law), _AT_A_TIME):
            rows = slice(start, start + _AT_A_TIME)
            mean = weigh(self.law[rows].ppf(levels), levels, rows).mean(0)
            parts.append(mean.reshape(len(mean), -1).sum(1))
        return np.concatenate(parts)

    def _sample(self, n_samples: int | None = None) -> Any:
        drawn = self.law.rvs(n_samples)
        if not self.law.shape:
            return drawn if n_samples is None else DataFrame(drawn)
        if n_samples is None:
            return DataFrame(self._shaped(drawn), index=self.index, columns=self.columns)
        draws = drawn.reshape(n_samples, *self.shape)
        frames = [DataFrame(one, index=self.index, columns=self.columns) for one in draws]
        return concat(frames, keys=range(n_samples))

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> Any:
        if all(np.ndim(key) == 0 and not isinstance(key, slice | None) for key in (rowidx, colidx)):
            return self._iat(rowidx, colidx)
        keys = (slice(None) if key is None else key for key in (rowidx, colidx))
        rows, columns = (
            np.arange(n)[key if isinstance(key, slice) else np.atleast_1d(key)]
            for key, n in zip(keys, self.shape, strict=True)
        )
        law = self.law[rows]
        law = law[:, columns] if len(law.shape) > 1 else law
        return type(self)(law, index=self.index.take(rows), columns=self.columns.take(columns))

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> PredictedDistribution:
        if rowidx is None or colidx is None:
            raise ValueError("iat needs the number of a row and that of a column.")
        return type(self)(self.law[rowidx, colidx] if len(self.law.shape) > 1 else self.law[rowidx])

    def _of_law(self, values: Array) -> Array:
        return np.asarray(values).reshape(self.law.shape)

    def _shaped(self, values: Any) -> Array:
        return np.asarray(values).reshape(self.shape)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Laws that skpro's checks are made with."""
        rng = np.random.default_rng(0)
        drawn = DrawsDistribution.of(rng.normal(size=(50, 4, 2)))
        counts = DrawsDistribution.of(rng.poisson(2.0, size=(50, 4)).astype(float), discrete=True)
        normal = NormalDistribution(np.arange(4.0), np.arange(1.0, 5.0))
        names = {"index": Index(list("abcd")), "columns": Index(["u", "v"])}
        return [
            {"law": drawn, **names},
            {"law": counts},
            {"law": normal},
            {"law": normal[0]},
            {"law": drawn[1, 1]},
        ]


def _name_by_text(X: DataFrame) -> DataFrame:
    """The same table with names that are text: scikit-learn refuses a mixture of text and numbers."""
    return X.set_axis(X.columns.astype(str), axis=1)
