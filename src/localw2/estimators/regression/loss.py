"""The loss that a network is trained with: on the residuals from the mean, in the chosen balls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, mean_of_all
from localw2.balls.neighborhoods import Nearest, Neighborhoods
from localw2.balls.spread import SCALE_ROWS, local_spread, rough_balls
from localw2.losses.discrepancies import Discrepancy
from localw2.losses.objective import Objective
from localw2.losses.problem import Problem

if TYPE_CHECKING:
    from localw2.balls.lazy import LazyNeighborhoods
    from localw2.estimators.regression.balls import ChosenBalls

SCALE_FLOOR = 0.3  # of the overall spread, where the loss divides residuals by their local spread
MOST = 3.0  # leaves a quarter of what a ball says about the mean; a firmer hold slows the fit of the spread


@final
@dataclass(frozen=True)
class ResidualLoss:
    """How a network is compared with residuals.

    ``anchored`` residuals come from a mean that is as good as it gets: rows then have equal weight whatever
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
        weights: Array | None = None,
    ) -> Objective:
        """The loss of residuals (N, d), in the network's units, at rows X (N, p) in these chosen balls.

        ``weights`` (N,) are those of the rows.
        """
        discrepancy, scale = self.discrepancy, None
        if self.anchored:
            rough, near = rough_balls(X, SCALE_ROWS), find_near(balls, chosen.balls, X)
            if weights is not None:
                rough, near = rough.weigh(weights), near.weigh(weights)
            spread = np.maximum(local_spread(rough, residuals), SCALE_FLOOR)
            scale = np.broadcast_to(spread[:, None], residuals.shape)
            discrepancy = Anchored(discrepancy, anchor_strength(near, residuals / scale), in_batches)
        target = torch.tensor(residuals, dtype=torch.float32, device=self.device)
        return Objective(target, balls, discrepancy, scale=scale, sample_weight=weights)


@final
@dataclass(frozen=True)
class Anchored(Discrepancy):
    r"""A discrepancy plus ``strength`` times :math:`\frac1N\sum_i \|E\hat f(x_i,\omega)\|^2`.

    A network that is added to a good mean should leave that mean alone. The square is estimated without bias
    by products of independent draws, so it needs S >= 2. A ball whose residuals average to r then moves the
    network's mean to about r / (1 + strength) only. In a block of balls the sum is over the rows that they
    belong to; ``by_ball`` takes the mean over balls of the mean over their rows instead, which a few balls
    estimate better.
    """

    inner: Discrepancy
    strength: float
    by_ball: bool = False

    @property
    def min_draws(self) -> int:
        """The product of two independent draws has the squared mean as its mean."""
        return max(2, self.inner.min_draws)

    @property
    def min_size(self) -> int:
        """What the discrepancy needs."""
        return self.inner.min_size

    @property
    def takes_weights(self) -> bool:  # type: ignore[override]  # it is that of another
        """Whether the discrepancy heeds the weights of rows; the penalty does."""
        return self.inner.takes_weights

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """The discrepancy's problem with the penalty added."""
        inner = self.inner.bind(y, hoods, weights)
        return _Penalised(y, hoods, weights, inner, self.strength, self._shares(hoods, y))

    def _shares(self, hoods: Neighborhoods, like: Tensor) -> Tensor | None:
        """The weight of each row, (N,), with sum 1; None where all weights are equal."""
        if self.by_ball:
            weights, sizes = hoods.weights.numpy(), hoods.sizes.numpy()
            edges = np.repeat(weights / sizes, sizes)
            if hoods.sample_weight is not None:
                edges = np.repeat(weights, sizes) * hoods.shares()
            shares = np.bincount(hoods.rows.numpy(), edges, hoods.n_rows)
        else:
            shares = hoods.row_weights()
            if np.ptp(shares) <= 1e-12 * shares.max():
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

    def repeat(self, times: int) -> Problem:
        """The same problem for several stacked models."""
        return replace(self, y=self.y.repeat(times, 1, 1), inner=self.inner.repeat(times))


def anchor_strength(hoods: Neighborhoods, residuals: Array) -> float:
    r"""How firmly the network's mean should be held at 0, from residuals (N, d) that have unit spread.

    If the residuals have mean 0 everywhere, the mean of a ball of k of them has variance 1/k. Variation
    beyond that is signal; James and Stein shrink the means by
    :math:`\gamma = (1 - \text{noise}/\text{total})_+`, which is what a strength of :math:`1/\gamma - 1` does.
    """
    sizes, starts = hoods.sizes.numpy(), hoods.indptr.numpy()[:-1]
    weights = hoods.weights.numpy() / hoods.weights.numpy().sum()
    if hoods.sample_weight is None:
        means = np.add.reduceat(residuals[hoods.rows.numpy()], starts, axis=0) / sizes[:, None]
        alone, size = 1 / sizes, float((residuals**2).mean())
    else:  # 1 / k becomes the sum of squared shares
        shares = hoods.shares()
        means = np.add.reduceat(residuals[hoods.rows.numpy()] * shares[:, None], starts, axis=0)
        alone = np.add.reduceat(shares**2, starts)
        size = mean_of_all(residuals**2, hoods.sample_weight.numpy())
    total, noise = weights @ (means**2).mean(1), weights @ alone * size
    signal = max(total - noise, 0.0)
    return float(min(MOST, noise / signal)) if signal > 0 else MOST


def find_near(hoods: Neighborhoods | LazyNeighborhoods, balls: Nearest | float, X: Array) -> Neighborhoods:
    """Balls that show how far means vary around every row: those of the loss, or rough ones.

    Balls of a given radius may be too small for that, and lazy ones are never all at hand.
    """
    return hoods if isinstance(hoods, Neighborhoods) and isinstance(balls, Nearest) else rough_balls(X)
