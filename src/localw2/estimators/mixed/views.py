"""A fitted mixed estimator as others take it: its numbers as those of a regressor, all outputs as points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, check_probability
from localw2.distribution import DrawsDistribution
from localw2.estimators import cells, settings
from localw2.estimators.judged import Judged

if TYPE_CHECKING:
    from localw2.estimators.mixed.regressor import LocalW2MixedRegressor
    from localw2.judging.inputs import Input


class OutputView(Judged):
    """Some outputs of a fitted ``model``, which reads the tables."""

    def __init__(self, model: LocalW2MixedRegressor) -> None:
        self.model, self.law = model, model.law_
        self.columns_, self.n_features_in_ = model.columns_, model.n_features_in_

    def encode(self, X: Any) -> Array:
        """The numbers (N, q) that a table becomes: codes for categories, NaN for missing values."""
        return self.model.encode(X)

    def list_inputs(self, X: Any, names: Any = None) -> tuple[Array, list[Input]]:
        """The used columns of a table as numbers (N, p), and what they mean to people."""
        return self.model.list_inputs(X, names)


@final
class NumberOutputs(OutputView):
    """The d numeric outputs alone, with the methods of a regressor; ``names`` are theirs."""

    def __init__(self, model: LocalW2MixedRegressor) -> None:
        super().__init__(model)
        self.names = [model.coding_.names[j] for j in model.coding_.numeric]
        self.n_outputs_ = len(self.names)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Independent draws (S, N, d)."""
        return self.model.draw(X, n_samples, random_state)[0]

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean (N, d) at each row, and with ``return_std`` its standard deviation."""
        found = [(draws.mean(0), draws.std(0)) for draws in self._common(X)]
        mean, std = (np.concatenate(same) for same in zip(*found, strict=True))
        return (mean, std) if return_std else mean

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles (len(q), N, d), those of the draws behind ``predict``."""
        levels = settings.check_levels(q)
        return np.concatenate([np.quantile(draws, levels, axis=0) for draws in self._common(X)], 1)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Array, Array]:
        """The central prediction interval of each number: its lower and upper ends (N, d)."""
        tail = (1 - check_probability(coverage, "coverage")) / 2
        lower, upper = self.predict_quantiles(X, [tail, 1 - tail])
        return lower, upper

    def predict_distribution(self, X: Any) -> DrawsDistribution:
        """The distributions (N, d), those of the draws behind ``predict``."""
        return DrawsDistribution.of(np.concatenate(self._common(X), 1))

    def _common(self, X: Any) -> list[Array]:
        return [numbers for _, numbers, _ in self.law.common_draws(self.model.standardise(X))]


@final
class PointOutputs(OutputView):
    """All outputs together as points (N, D), for tests that take numbers."""

    def __init__(self, model: LocalW2MixedRegressor) -> None:
        super().__init__(model)
        self.seen_rows_ = getattr(model, "seen_rows_", None)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Independent draws (S, N, D)."""
        return self.law.coding.embed(*self.model.draw(X, n_samples, random_state))


@final
class CodedOutputs(OutputView):
    """All d outputs as numbers (N, d), a category as its place among ``classes``, by the output's place."""

    def __init__(self, model: LocalW2MixedRegressor) -> None:
        super().__init__(model)
        coding = model.coding_
        self.classes = {j: [str(word) for word in words] for j, words in coding.classes.items()}
        self._numbers, self._numeric = NumberOutputs(model), coding.numeric
        self.n_outputs_ = len(coding.names)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Independent draws (S, N, d)."""
        numbers, codes = self.model.draw(X, n_samples, random_state)
        return self._join(numbers, codes)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean (N, d) of numbers and the most probable class; ``return_std`` adds SDs, 0 of a class."""
        p = self.probabilities(X)
        codes = np.stack([p[j].argmax(1) for j in self.classes], 1)
        if not self._numeric:
            mean = self._join(np.empty((len(codes), 0)), codes)
            return (mean, np.zeros_like(mean)) if return_std else mean
        mean, std = self._numbers.predict(X, return_std=True)
        joined = self._join(mean, codes)
        return (joined, self._join(std, np.zeros_like(codes))) if return_std else joined

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles (len(q), N, d) of numbers; a class has none, and 0 in their place."""
        levels = settings.check_levels(q)
        n = len(self.encode(X))
        found = np.zeros((*np.shape(levels), n, self.n_outputs_))
        if self._numeric:
            found[..., self._numeric] = self._numbers.predict_quantiles(X, levels)
        return found

    def probabilities(self, X: Any) -> dict[int, Array]:
        """The probabilities (N, K_j) of the classes of each category, by its place."""
        found = self.law.column_probabilities(self.model.standardise(X))
        return dict(zip(self.classes, found, strict=True))

    def read(self, Y: Any) -> Array:
        """Observed outputs as numbers (N, d)."""
        return self._join(*self.law.coding.read(cells.as_pandas(Y)))

    def points(self, coded: Array) -> Array:
        """Numbers (N, d) of outputs as the points (N, D) that ``PointOutputs`` draws."""
        codes = coded[:, list(self.classes)].astype(np.int64)
        return self.law.coding.embed(coded[:, self._numeric], codes)

    def _join(self, numbers: Array, codes: Array) -> Array:
        found = np.empty((*codes.shape[:-1], self.n_outputs_))
        found[..., self._numeric] = numbers
        found[..., list(self.classes)] = codes
        return found
