"""The scale that a mean and its residuals live on: that of y, or its logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.stats import skew

from localw2._validation import Array

_FEWEST_ROWS = 50  # below, the shape of y cannot be told
_SKEWED = 0.7  # from this skewness on the logarithm is worth a trial
_SMALL = 0.05  # the quantile of positive y that is added where y can be 0
_LARGEST = 700.0  # exp of more is infinite


@final
@dataclass(frozen=True)
class Scale:
    r"""The identity, or :math:`\log(y + c)` with the shift c; draws come back without values below 0.

    >>> Scale(0.0).backward(Scale(0.0).forward(np.array([[1.0], [20.0]]))).ravel()
    array([ 1., 20.])
    >>> Scale() == Scale.candidate(np.array([[-1.0], [1.0]])), Scale().is_identity
    (True, True)
    """

    shift: float | None = None

    @property
    def is_identity(self) -> bool:
        """Whether nothing changes."""
        return self.shift is None

    def forward(self, y: Array) -> Array:
        """Outputs on this scale."""
        return y if self.shift is None else np.log(y + self.shift)

    def backward(self, values: Array) -> Array:
        """Values of this scale as outputs."""
        if self.shift is None:
            return values
        found: Array = np.exp(np.minimum(values, _LARGEST)) - self.shift
        return np.maximum(found, 0.0)

    @classmethod
    def candidate(cls, y: Array) -> Scale:
        """The logarithm if y (N, 1) is never negative and skewed to the right, else the identity."""
        if y.shape[1] > 1 or len(y) < _FEWEST_ROWS or y.min() < 0 or np.ptp(y) <= 1e-9 * y.max():
            return cls()
        shift = 0.0 if y.min() > 0 else float(np.quantile(y[y > 0], _SMALL))
        plain, logarithm = float(skew(y[:, 0])), float(skew(np.log(y[:, 0] + shift)))
        return cls(shift) if plain > _SKEWED and abs(logarithm) < plain else cls()
