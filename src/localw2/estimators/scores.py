"""The scores of a regressor on observed rows: commands and reports get them here, so that they agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, as_array
from localw2.estimators.mixed.views import NumberOutputs
from localw2.metrics import coverage, interval_width

if TYPE_CHECKING:
    from localw2.estimators.mixed.judging import MixedDiagnosis
    from localw2.estimators.mixed.regressor import LocalW2MixedRegressor
    from localw2.judging.diagnosis.diagnose import Diagnosis

COVERAGE = 0.9
DRAWS = 200
ENERGY_DRAWS = 100
PIT_BINS = 10


@final
@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Observed outputs, predicted means and the ends of 90 % intervals, all (N, d), and the diagnosis."""

    y: Array
    mean: Array
    lower: Array
    upper: Array
    diagnosis: Diagnosis

    def list_scores(self, targets: Sequence[str]) -> dict[str, dict[str, Any]]:
        """CRPS, RMSE, MAE, R2, coverage and width at 90 %, and the shares of the PIT, by target."""
        found = {}
        for k, name in enumerate(targets):
            y, lower, upper = self.y[:, k], self.lower[:, k], self.upper[:, k]
            error = self.mean[:, k] - y
            spread = float(((y - y.mean()) ** 2).sum())
            counts = np.histogram(self.diagnosis.pit[:, k], PIT_BINS, (0, 1))[0]
            found[name] = {
                "crps": self.diagnosis.crps[k],
                "rmse": float(np.sqrt((error**2).mean())),
                "mae": float(np.abs(error).mean()),
                "r2": 1 - float((error**2).sum()) / spread if spread > 0 else float("nan"),
                "coverage": coverage(y, lower, upper),
                "width": interval_width(lower, upper),
                "pit": (counts / len(y)).tolist(),
            }
        return found


@final
@dataclass(frozen=True, eq=False)
class MixedScores:
    """Scores of the outputs ``names``: ``numbers`` or None, and the diagnosis of these and of categories.

    ``energy`` is the energy score of all outputs together, numbers in SDs and a mismatch at its cost.
    """

    names: tuple[str, ...]
    numbers: ScoredRows | None
    diagnosis: MixedDiagnosis
    energy: float

    def list_scores(self, targets: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The scores of a number, or of the probabilities of a category, in the order of the fit.

        ``targets`` may be other names than the fit's.
        """
        classes = self.diagnosis.classes
        numeric = [name for name in self.names if name not in classes]
        found = {} if self.numbers is None else self.numbers.list_scores(numeric)
        every = {name: found[name] if name in found else dict(classes[name]) for name in self.names}
        return dict(zip(targets, every.values(), strict=True))


def score_mixed(
    estimator: LocalW2MixedRegressor,
    X: Any,
    Y: Any,
    names: Any,
    n_samples: int = DRAWS,
    random_state: Any = 0,
) -> MixedScores:
    """Score a fitted mixed regressor on rows X and Y, as ``score_rows`` does."""
    view = NumberOutputs(estimator)
    diagnosis = estimator.diagnose(X, Y, n_samples=n_samples, random_state=random_state, names=names)
    numbers = None
    if diagnosis.numbers is not None:
        observed = estimator.coding_.read(Y)[0]
        numbers = ScoredRows(
            observed, view.predict(X), *view.predict_interval(X, COVERAGE), diagnosis.numbers
        )
    energy = estimator.energy_scores(X, Y, n_samples=min(n_samples, ENERGY_DRAWS), random_state=random_state)
    return MixedScores(estimator.coding_.names, numbers, diagnosis, float(energy.mean()))


def score_rows(
    estimator: Any, X: Any, y: Any, names: Sequence[str], n_samples: int = DRAWS, random_state: Any = 0
) -> ScoredRows:
    """Score a fitted regressor on rows X and y (N,) or (N, d), from ``n_samples`` draws per row.

    ``names`` are those of the columns of X. The same rows, model and seed give the same scores, whoever asks.
    """
    diagnosis = estimator.diagnose(X, y, n_samples=n_samples, random_state=random_state, names=names)
    values = (as_array(y, "y"), estimator.predict(X), *estimator.predict_interval(X, COVERAGE))
    observed, mean, lower, upper = (np.asarray(v, dtype=np.float64).reshape(len(v), -1) for v in values)
    return ScoredRows(observed, mean, lower, upper, diagnosis)
