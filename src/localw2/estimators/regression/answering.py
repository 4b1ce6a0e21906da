"""What a fitted regressor answers: means, quantiles, intervals and draws, from one network and its base."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from localw2._validation import Array, check_count, check_flag, check_probability
from localw2.estimators.regression.calibration import intervals
from localw2.estimators.regression.integration import balanced_draws, independent_draws
from localw2.estimators.regression.mean import predict_each
from localw2.estimators.settings import check_levels, fresh_seed
from localw2.estimators.tables import Columns, read_rows

if TYPE_CHECKING:
    from localw2.estimators.regression.outcomes import Outcomes
    from localw2.models.network import RandomMLP

PREDICTION_DRAWS = 2000  # draws that predict and predict_quantiles integrate over
FARTHEST = 1e100  # from 0, in the network's units: squares are still numbers
_INTEGRATED = 1 << 19  # draws times rows held at a time


class Answering:
    """The part of ``LocalW2Regressor`` that needs a finished fit."""

    model_: RandomMLP
    base_models_: tuple[Any, ...]
    base_intercept_: Array
    base_slope_: Array
    columns_: Columns | None
    outcomes_: Outcomes
    n_outputs_: int
    _x_mean: Array
    _x_scale: Array
    _y_factor: Array
    _y_ndim: int
    _prediction_seed: int

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of y at each row, (N,) or (N, d), and with ``return_std`` its standard deviation.

        An integral over draws of omega common to all rows, from a stored seed: a row's prediction is always
        the same, whatever rows come with it.
        """
        X = self._validated(X)
        if not self.outcomes_.free:
            return self._moments_of_outcomes(X, return_std)
        centers = self._centers(X)
        mean, std = centers.mean(0), centers.var(0)
        for rows, draws in self._common_draws(X):
            mean[rows] += draws.mean(0)
            std[rows] += draws.var(0)
        return (self._shaped(mean), self._shaped(np.sqrt(std))) if return_std else self._shaped(mean)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Independent draws of y at every row, (S, N) or (S, N, d); rows of a draw are independent too."""
        X = self._validated(X)
        n_samples = check_count(n_samples, "n_samples", 1)
        rng = np.random.default_rng(fresh_seed(random_state))
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        centers = self._centers(X)
        which = rng.integers(len(centers), size=(n_samples, len(X)))
        draws = independent_draws(self.model_, self._inputs(X), n_samples, generator).numpy() @ self._y_factor
        return self._shaped(self.outcomes_.apply(draws + centers[which, np.arange(len(X))]))

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of y at every row, (len(q), N) or (len(q), N, d), output by output; 0 < q < 1.

        From the same common draws as ``predict``; each row's quantiles rise with q. Never calibrated.
        """
        X, levels = self._validated(X), check_levels(q)
        quantiles = np.empty((len(levels), len(X), self.n_outputs_))
        for rows, draws in self._outcome_draws(X):
            quantiles[:, rows] = self.outcomes_.quantiles(draws, levels)
        return self._shaped(quantiles)

    def predict_interval(self, X: Any, coverage: float = 0.9, joint: bool = False) -> tuple[Array, Array]:
        """The central interval that holds y with probability ``coverage``: its lower and upper ends.

        Each output has its own, or with ``joint`` they form a box that holds all outputs together. Calibrated
        if the fit was (``calibrate=True``), otherwise as the draws have it.
        """
        check_is_fitted(self, "model_")
        return intervals(self, X, check_probability(coverage, "coverage"), check_flag(joint, "joint"))

    def _validated(self, X: Any) -> Array:
        check_is_fitted(self, "model_")
        rows = read_rows(self, X, self.columns_)
        reach = np.abs((rows - self._x_mean) / self._x_scale)
        if not reach.max(initial=0.0) <= FARTHEST:
            raise ValueError(
                f"a row of X has the value {rows.flat[reach.argmax()]:g}, in the network's units "
                f"{reach.max():.1g}, where nothing can be computed. Check its units."
            )
        return rows

    def _inputs(self, X: Array) -> Tensor:
        return torch.tensor((X - self._x_mean) / self._x_scale, dtype=torch.float64)

    def _centers(self, X: Array) -> Array:
        return predict_each(self.base_models_, self.base_intercept_, self.base_slope_, X)

    def _common_draws(self, X: Array) -> Iterator[tuple[slice, Array]]:
        """Draws around the mean with the same omegas for every row, (draws, rows, d), some rows at a time."""
        inputs = self._inputs(X)
        step = max(1, _INTEGRATED // PREDICTION_DRAWS)
        for start in range(0, len(X), step):
            rows = slice(start, start + step)
            generator = torch.Generator().manual_seed(self._prediction_seed)
            draws = balanced_draws(self.model_, inputs[rows], PREDICTION_DRAWS, generator)
            yield rows, draws.numpy() @ self._y_factor

    def _outcome_draws(self, X: Array) -> Iterator[tuple[slice, Array]]:
        """Common draws of y itself, (draws, rows, d), some rows at a time: each with one fold's mean."""
        centers = self._centers(X)
        which = np.arange(PREDICTION_DRAWS) % len(centers)
        for rows, draws in self._common_draws(X):
            yield rows, self.outcomes_.apply(draws + centers[:, rows][which])

    def _moments_of_outcomes(self, X: Array, return_std: bool) -> Any:
        """Mean and standard deviation of draws that keep to bounds or values."""
        mean, std = np.empty((2, len(X), self.n_outputs_))
        for rows, draws in self._outcome_draws(X):
            mean[rows], std[rows] = draws.mean(0), draws.std(0)
        return (self._shaped(mean), self._shaped(std)) if return_std else self._shaped(mean)

    def _shaped(self, values: Array) -> Array:
        return values[..., 0] if self._y_ndim == 1 else values
