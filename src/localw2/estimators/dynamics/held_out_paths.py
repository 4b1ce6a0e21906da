"""When a network has learned enough: the score of trajectories that are held out of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.discrepancies import EnergyScore
from localw2.losses.objective import Objective
from localw2.models.paths import ObservedPaths
from localw2.models.solver import SolverError

if TYPE_CHECKING:
    from localw2.estimators.dynamics.trajectories import Rows
    from localw2.models.base import RandomMap

# A tenth of the trajectories is held out, at most so many; fewer than so many do not show when to stop.
SHARE, MOST, FEWEST = 10, 100, 5
# Simulated trajectories for each that is held out.
DRAWS = 16
# The score of a model whose trajectories explode: worse than any other, and finite.
WORST = 1e9
_PURPOSE = 5  # separates these random numbers from others of the same seed


def hold_out(n: int, seed: int) -> Array:
    """Which of n trajectories (n,) are held out, none if there are too few.

    >>> hold_out(250, 0).sum(), hold_out(40, 0).sum(), hold_out(5000, 0).sum()
    (np.int64(25), np.int64(0), np.int64(100))
    """
    found = np.zeros(n, bool)
    count = min(n // SHARE, MOST)
    if count >= FEWEST:
        found[np.random.default_rng([seed, _PURPOSE]).permutation(n)[:count]] = True
    return found


@final
@dataclass(frozen=True)
class HeldOutScore:
    """The energy score of held-out trajectories, row by row, in the units of the loss.

    It is proper, and needs no balls: each trajectory is compared with simulated ones from its own initial
    state, so that a few will do. All scores of a fit have the same draws, and differ by the model alone.
    """

    inputs: Tensor
    objective: Objective
    seed: int

    @classmethod
    def of(cls, rows: Rows, held_out: Array, inputs: Tensor, whole: Objective, seed: int) -> HeldOutScore:
        """The score of the held-out trajectories among all rows, whose loss is ``whole``."""
        chosen = np.flatnonzero(held_out[rows.number])
        at = torch.from_numpy(chosen).to(inputs.device)
        scale = None if whole.scale is None else whole.scale[at]
        weights = whole.hoods.sample_weight
        of_rows = None if weights is None else weights[chosen].numpy()
        alone = Neighborhoods.singletons(len(chosen))
        return cls(inputs[at], Objective(whole.y[at], alone, EnergyScore(), None, scale, of_rows), seed)

    def __call__(self, model: RandomMap, generator: torch.Generator) -> float:
        """The score of a model now."""
        assert isinstance(model, ObservedPaths)
        generator.manual_seed(self.seed)
        try:
            drawn = model.simulate_as_trained(self.inputs, DRAWS, generator)
        except SolverError:
            return WORST
        if not bool(drawn.isfinite().all()):  # equal steps may also run away without a word
            return WORST
        score = float(self.objective(drawn))
        return score if abs(score) < WORST else WORST  # also if it is not a number
