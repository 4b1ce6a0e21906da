"""Trajectories of single subjects, given what was observed of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, check_probability


@final
@dataclass(frozen=True, eq=False)
class IndividualPredictions:
    """Draws (S, n, T, p) of the trajectories of n subjects with labels, given their observations.

    ``times`` is (n, T); where a subject has fewer times than others, all are NaN. ``population`` (n, T, p) is
    the mean of other subjects with the same doses, covariates and inputs.

    >>> draws = np.arange(8.0).reshape(4, 1, 2, 1)
    >>> found = IndividualPredictions(["a"], np.array([[0.0, 1.0]]), draws, draws[0] + 2)
    >>> found.mean[..., 0], found.interval(0.5)[1][..., 0]
    (array([[3., 4.]]), array([[4.5, 5.5]]))
    """

    subjects: list[Any]
    times: Array
    samples: Array
    population: Array

    @property
    def mean(self) -> Array:
        """The mean (n, T, p)."""
        found: Array = self.samples.mean(0)
        return found

    def interval(self, coverage: float = 0.9) -> tuple[Array, Array]:
        """The central interval of that probability: lower and upper ends (n, T, p)."""
        tail = (1 - check_probability(coverage, "coverage")) / 2
        lower, upper = np.quantile(self.samples, [tail, 1 - tail], axis=0)
        return lower, upper
