"""What a fitted population leaves over: observations against predictions, one row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import ndtri

from localw2._validation import Array


@final
@dataclass(frozen=True, eq=False)
class Residuals:
    """Observations (R,) with predictions: ``quantity`` is 0 to p - 1, ``subject`` 0 to n - 1.

    ``population`` is the mean of what subjects like this one would show, ``individual`` that of this subject
    given its data. ``standardised`` are residuals by individual predictions in SDs of the noise (NaN at or
    below the limit); ``normalised`` are ranks among simulated observations, as standard normal numbers: they
    are N(0, 1) if the model is right, whatever its laws.
    """

    subject: Array
    time: Array
    quantity: Array
    observed: Array
    population: Array
    individual: Array
    standardised: Array
    normalised: Array
    below: Array
    subjects: list[Any]
    quantities: list[str]

    @classmethod
    def of(
        cls,
        times: Array,
        values: Array,
        draws: Array,
        individual: Array,
        std: Array,
        limit: float | None,
        subjects: list[Any],
        quantities: list[str],
        rng: np.random.Generator,
    ) -> Residuals:
        """From times (n, T), values (n, T, p), NaN where there are none, and draws (S, n, T, p)."""
        subject, place, quantity = np.nonzero(np.isfinite(values))
        at = (subject, place, quantity)
        observed, own, mean = values[at], draws[:, subject, place, quantity], individual[at]
        below = np.zeros(len(observed), bool) if limit is None else observed <= limit
        standardised = np.where(below, np.nan, (observed - mean) / std[at])
        # Equal values share a rank by chance, so that ranks are uniform.
        lower, equal = (own < observed).sum(0), (own == observed).sum(0)
        rank = (lower + rng.uniform(size=len(observed)) * (equal + 1)) / (len(own) + 1)
        edge = 0.25 / (len(own) + 1)
        return cls(
            subject,
            times[subject, place],
            quantity,
            observed,
            own.mean(0),
            mean,
            standardised,
            ndtri(np.clip(rank, edge, 1 - edge)),
            below,
            subjects,
            quantities,
        )

    def columns(self) -> dict[str, Array]:
        """A table with a row for each observation."""
        return {
            "subject": np.array(self.subjects, dtype=object)[self.subject],
            "time": self.time,
            "quantity": np.array(self.quantities, dtype=object)[self.quantity],
            "observed": self.observed,
            "population": self.population,
            "individual": self.individual,
            "standardised": self.standardised,
            "normalised": self.normalised,
        }
