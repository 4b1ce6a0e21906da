"""The loss that a regressor's network is trained by: on what the mean leaves, in the chosen balls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.estimators.regression.balls import ChosenBalls, near_rows
from localw2.estimators.regression.mean import local_spread
from localw2.losses.discrepancies import Discrepancy
from localw2.losses.objective import Objective
from localw2.losses.problem import Problem

if TYPE_CHECKING:
    from localw2.balls.lazy import LazyNeighborhoods
    from localw2.balls.neighborhoods import Neighborhoods

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


MOST = 3.0  # a quarter of what a ball says about the mean is left; firmer slows the fit of the spread


@final
@dataclass(frozen=True)
class Anchored(Discrepancy):
    r"""A discrepancy plus ``strength`` times :math:`\frac1N\sum_i \|E\hat f(x_i,\omega)\|^2`.

    The square is estimated without bias by products of independent draws, so it needs S >= 2. A ball whose
    residuals average to r then moves the network's mean to about r / (1 + strength) only. Of a block of balls
    the sum is over the rows whose own these are; ``by_ball`` takes the mean over balls of the mean over their
    rows instead, of which a few balls say more.
    """

    inner: Discrepancy
    strength: float
    by_ball: bool = False

    @property
    def min_draws(self) -> int:
        """Two draws give a product whose mean is the squared mean."""
        return max(2, self.inner.min_draws)

    @property
    def min_size(self) -> int:
        """What the discrepancy needs."""
        return self.inner.min_size

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """The discrepancy's problem with the penalty added."""
        inner = self.inner.bind(y, hoods, weights)
        return _Penalised(y, hoods, weights, inner, self.strength, self._shares(hoods, y))

    def _shares(self, hoods: Neighborhoods, like: Tensor) -> Tensor | None:
        """What each row counts, (N,), in all 1; None where all rows count alike."""
        weights, sizes = hoods.weights.numpy(), hoods.sizes.numpy()
        own = hoods.ball_of_row.numpy()
        if self.by_ball:
            edges = np.repeat(weights / sizes, sizes)
            shares = np.bincount(hoods.rows.numpy(), edges, hoods.n_rows)
        else:
            owners = np.bincount(own[own >= 0], minlength=len(weights))
            shares = np.where(own >= 0, (weights / np.maximum(owners, 1))[own], 0.0)
            if (shares == 1).all():
                return None
        return torch.from_numpy(shares / shares.sum()).to(like)


@final
@dataclass(frozen=True)
class _Penalised(Problem):
    inner: Problem
    strength: float
    shares: Tensor | None = None

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients of both parts."""
        values, grads = self.inner.solve(yhat)
        draws, _, n, d = yhat.shape
        others = yhat.sum(0) - yhat
        if self.shares is not None:
            others = others * (self.shares[:, None] * (self.strength / (draws * (draws - 1) * d)))
            return values + (yhat * others).sum((0, 2, 3)), grads + 2 * others
        share = self.strength / (draws * (draws - 1) * n * d)
        penalty = (yhat * others).sum((0, 2, 3)) * share
        return values + penalty, grads + others * (2 * share)

    def repeated(self, times: int) -> Problem:
        """The same problem for several stacked models."""
        return replace(self, y=self.y.repeat(times, 1, 1), inner=self.inner.repeated(times))


def anchor_strength(hoods: Neighborhoods, residuals: Array) -> float:
    r"""How firmly the network's mean should be held at 0, from residuals (N, d) that have unit spread.

    If nothing of the mean is left, the mean of a ball of k residuals has variance 1/k. What they vary
    beyond that is signal; James and Stein shrink them by :math:`\gamma = (1 - \text{noise}/\text{total})_+`,
    which is what a strength of :math:`1/\gamma - 1` does.
    """
    sizes, starts = hoods.sizes.numpy(), hoods.indptr.numpy()[:-1]
    means = np.add.reduceat(residuals[hoods.rows.numpy()], starts, axis=0) / sizes[:, None]
    weights = hoods.weights.numpy() / hoods.weights.numpy().sum()
    total, noise = weights @ (means**2).mean(1), weights @ (1 / sizes) * (residuals**2).mean()
    signal = max(total - noise, 0.0)
    return float(min(MOST, noise / signal)) if signal > 0 else MOST
