"""The learned joint distribution of named parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from localw2._validation import Array

if TYPE_CHECKING:
    from localw2.models.fields import FunctionField


@final
@dataclass(frozen=True)
class LearnedParameters:
    """Draws (S,) of every parameter from the learned joint distribution, and their summaries.

    >>> law = LearnedParameters({"r": np.array([1.0, 2.0, 3.0])})
    >>> law.mean, law.quantiles([0.5])
    ({'r': 2.0}, {'r': array([2.])})
    """

    samples: dict[str, Array]

    @classmethod
    def of(cls, field: FunctionField, n: int, seed: int) -> LearnedParameters:
        """Draw n times from the law of a field's parameters."""
        with torch.no_grad():
            values = field.parameters_of(field.draw(n, torch.Generator().manual_seed(seed)))
        return cls({name: value.double().numpy().copy() for name, value in values.items()})

    @property
    def names(self) -> list[str]:
        """The parameters in the order in which they were named."""
        return list(self.samples)

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each."""
        return {name: float(v.mean()) for name, v in self.samples.items()}

    @property
    def std(self) -> dict[str, float]:
        """The standard deviation of each between trajectories, 0 if it is shared by all."""
        return {name: float(v.std()) for name, v in self.samples.items()}

    def quantiles(self, q: Any = (0.05, 0.5, 0.95)) -> dict[str, Array]:
        """Quantiles of each, in the order of q."""
        return {name: np.quantile(v, q) for name, v in self.samples.items()}

    @property
    def correlation(self) -> Array:
        """Correlation matrix (k, k) in the order of ``names``; NaN beside a parameter that does not vary."""
        table = np.stack(list(self.samples.values()))
        table = table - table.mean(1, keepdims=True)
        spread = np.sqrt((table**2).mean(1))
        size = np.array([np.abs(values).max() for values in self.samples.values()])
        spread[spread <= 1e-12 * size] = np.nan
        correlation: Array = (table @ table.T) / table.shape[1] / np.outer(spread, spread)
        return correlation

    def __repr__(self) -> str:
        lines = [f"{'parameter':12}{'mean':>10}{'sd':>10}{'5%':>11}{'50%':>11}{'95%':>11}"]
        mean, std, quantiles = self.mean, self.std, self.quantiles()
        for name in self.names:
            low, middle, high = quantiles[name]
            lines.append(f"{name:12}{mean[name]:10.4g}{std[name]:10.3g}{low:11.4g}{middle:11.4g}{high:11.4g}")
        return "\n".join(lines)
