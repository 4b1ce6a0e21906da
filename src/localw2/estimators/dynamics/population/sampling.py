"""Simulated observations of subjects with their own doses, inputs and covariates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, as_array

if TYPE_CHECKING:
    from localw2.estimators.dynamics.population.individuals import Equation
    from localw2.models.measurement import MeasurementNoise

# Trajectories that are solved for at a time.
AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class SimulatedCohort:
    """Draws of what subjects would show, each with its own omega; with errors of measurement, if given."""

    equation: Equation
    noise: MeasurementNoise | None
    limit: float | None
    n_draws: int
    seed: int

    @torch.no_grad()
    def sample(self) -> Array:
        """Independent draws (S, n, T, p)."""
        generator = torch.Generator().manual_seed(self.seed)
        n = len(self.equation.cohort)
        rows = torch.arange(n).repeat(self.n_draws)
        parts = [self._observe(self._draw(own, generator), own, generator) for own in rows.split(AT_ONCE)]
        found: Array = torch.cat(parts).reshape(self.n_draws, n, *parts[0].shape[1:]).numpy()
        return found

    @torch.no_grad()
    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, 1, T * p) of each subject, whose numbers are x (n, 1), with the same omegas for all."""
        for i, number in enumerate(x[:, 0].astype(int)):
            generator = torch.Generator().manual_seed(self.seed)
            rows = torch.full((self.n_draws,), int(number))
            seen = self._observe(self._draw(rows, generator), rows, generator)
            yield slice(i, i + 1), seen.numpy().reshape(self.n_draws, 1, -1)

    def _draw(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        law = self.equation.field.law
        covariates = law.standardise(self.equation.cohort.covariates)
        own = None if covariates is None else covariates[rows]
        return law.scores(law.draw(len(rows), generator), own)

    def _observe(self, scores: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        y = self.equation.exact(scores, rows)
        y = y if self.noise is None else self.noise.draw(y, generator)
        return y if self.limit is None else y.clamp_min(self.limit)


def count_subjects(y0: Any, t: Any, doses: Any, covariates: Any) -> int:
    """How many subjects are meant: what has a row for each says it, and must agree."""
    counts = {}
    if y0 is not None and np.ndim(y0) == 2:
        counts["y0"] = len(y0)
    if np.ndim(t) == 2:
        counts["t"] = len(t)
    if covariates is not None:
        counts |= {name: len(v) for name in covariates if np.ndim(v := covariates[name]) == 1}
    if len(set(counts.values())) > 1:
        described = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise ValueError(f"the number of subjects is unclear: {described}.")
    if counts:
        return next(iter(counts.values()))
    if doses is not None and "subject" in (doses.columns if hasattr(doses, "columns") else doses):
        return int(np.max(np.asarray(doses["subject"]))) + 1
    return 1


def spread_times(t: Any, n: int) -> Array:
    """Times (n, T), rising, from (T,) or (n, T)."""
    times = as_array(t, "t").astype(float)
    times = np.broadcast_to(times, (n, len(times))) if times.ndim == 1 else times
    if times.ndim != 2 or len(times) != n or times.shape[1] == 0 or (np.diff(times, axis=1) <= 0).any():
        raise ValueError(
            f"t has shape {times.shape}; expected rising times (T,), or ({n}, T) for {n} subjects."
        )
    return np.ascontiguousarray(times)
