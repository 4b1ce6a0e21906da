"""Trajectories of a fitted equation that a law is known by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from localw2._validation import Array

if TYPE_CHECKING:
    from localw2.models.measurement import MeasurementNoise
    from localw2.models.ode import RandomODE


@final
@dataclass(frozen=True, eq=False)
class SimulatedPaths:
    """What is observed of ``n_draws`` solutions from any initial state, with the same omegas for all."""

    model: RandomODE
    observe: Callable[..., Tensor] | None
    n_draws: int
    seed: int
    noise: MeasurementNoise | None = None

    @torch.no_grad()
    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, 1, T * p) from each of the states x (n, d), the omegas being those of the seed.

        One state at a time: solutions that are made together share their steps, and a law would depend, by
        the solver's tolerance, on the others that come with it.
        """
        for i, state in enumerate(torch.from_numpy(x)):
            generator = torch.Generator().manual_seed(self.seed)
            path = self.model(state.expand(self.n_draws, -1), None, generator)
            seen = path if self.observe is None else self.observe(path)
            seen = seen if self.noise is None else self.noise.draw(seen, generator)
            yield slice(i, i + 1), seen.double().numpy().reshape(self.n_draws, 1, -1)
