"""The loss that a regressor's network is trained by: on what the mean leaves, in the chosen balls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from localw2._validation import Array
from localw2.estimators.anchoring import Anchored, anchor_strength
from localw2.estimators.bases import local_spread
from localw2.estimators.choosing import ChosenBalls, near_rows
from localw2.lazy_neighborhoods import LazyNeighborhoods
from localw2.losses import Discrepancy, Objective
from localw2.neighborhoods import Neighborhoods

SCALE_FLOOR = 0.3  # of the overall spread, where the loss divides residuals by their local spread


@final
@dataclass(frozen=True)
class ResidualLoss:
    """How a network is compared with residuals.

    ``anchored`` residuals come from a mean that is as good as it can be: rows then weigh alike, whatever
    their spread, and the network's own mean is held near 0.
    """

    discrepancy: Discrepancy
    anchored: bool
    device: torch.device

    def objective(
        self,
        X: Array,
        residuals: Array,
        chosen: ChosenBalls,
        balls: Neighborhoods | LazyNeighborhoods,
        in_batches: bool = False,
    ) -> Objective:
        """The loss of residuals (N, d), in the network's units, at rows X (N, p) in these chosen balls."""
        discrepancy, scale = self.discrepancy, None
        if self.anchored:
            near = near_rows(balls, chosen.balls, X)
            spread = np.maximum(local_spread(near, residuals), SCALE_FLOOR)
            scale = np.broadcast_to(spread[:, None], residuals.shape)
            discrepancy = Anchored(discrepancy, anchor_strength(near, residuals / scale), in_batches)
        target = torch.tensor(residuals, dtype=torch.float32, device=self.device)
        return Objective(target, balls, discrepancy, scale=scale)
