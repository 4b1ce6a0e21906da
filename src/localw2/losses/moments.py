"""Losses on means and variances inside each ball: MSE and the paper's mean2+var."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from localw2.losses.problem import Problem


@final
@dataclass(frozen=True)
class WeightedMSE(Problem):
    """Mean squared error in each ball, which amounts to one weighted mean over rows."""

    @cached_property
    def _per_row(self) -> Tensor:
        share = (self.weights / self.hoods.sizes.to(self.weights)).cpu()
        edges = torch.repeat_interleave(share, self.hoods.sizes)
        if self.hoods.sample_weight is not None:
            edges = torch.repeat_interleave(self.weights.cpu(), self.hoods.sizes)
            edges = edges * torch.from_numpy(self.hoods.shares()).to(edges)
        return share.new_zeros(self.hoods.n_rows).index_add_(0, self.hoods.rows, edges).to(self.weights)

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Weight the squared differences, averaged over draws."""
        gap = yhat - self.y
        slope = gap * (2 / len(yhat) * self._per_row)[:, None]
        # Sum in float64: over the rows of a large ball float32 would lose digits.
        total = gap.double().square().sum(3).mean(0) @ self._per_row.double()
        return total.to(yhat), slope


@final
@dataclass(frozen=True)
class WeightedMeanVar(Problem):
    """MSE plus the absolute difference of the variances of y and yhat in each ball."""

    summed: bool

    @cached_property
    def _mse(self) -> WeightedMSE:
        return WeightedMSE(self.y, self.hoods, self.weights)

    @cached_property
    def _graph(self) -> tuple[Tensor, Tensor, Tensor]:
        """The row and the ball of every edge, and the sizes of the balls: their rows, or sums of weights."""
        hoods, device = self.hoods, self.y.device
        ball = torch.repeat_interleave(hoods.sizes).to(device)
        rows, sizes = hoods.rows.to(device), hoods.sizes.to(device).double()
        if self._edge_weights is not None:
            sizes = torch.zeros_like(sizes).index_add_(0, ball, self._edge_weights[:, 0])
        return rows, ball, sizes

    @cached_property
    def _edge_weights(self) -> Tensor | None:
        """The weight of the row of every edge, (edges, 1)."""
        weights = self.hoods.sample_weight
        return None if weights is None else weights[self.hoods.rows.long(), None].to(self.y.device)

    def _weigh(self, edges: Tensor) -> Tensor:
        return edges if self._edge_weights is None else edges * self._edge_weights

    @cached_property
    def _observed(self) -> list[Tensor]:
        return [self._variances(y)[0] for y in self.y]

    def _variances(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Variances (n_balls,) of (N, d) in every ball, and the deviations (edges, d), in float64.

        They are computed from deviations, since raw squares would lose the digits of a small variance.
        """
        rows, ball, sizes = self._graph
        edges = values.double().index_select(0, rows)
        zeros = edges.new_zeros((len(sizes), edges.shape[1]))
        means = zeros.index_add(0, ball, self._weigh(edges)) / sizes[:, None]
        deviations = edges - means.index_select(0, ball)
        total = zeros.index_add_(0, ball, self._weigh(deviations.square())).sum(1)
        return total if self.summed else total / sizes, deviations

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Add the difference of variances; its sign in a ball gives the direction of the ball's gradient.

        One draw and batch entry at a time, since the deviations of all edges dominate the memory.
        """
        totals, slope = self._mse.solve(yhat)
        weights = self.weights.double() / len(yhat)
        rows, ball, sizes = self._graph
        share = weights if self.summed else weights / sizes
        for draw in range(yhat.shape[0]):
            for batch, observed in enumerate(self._observed):
                variances, deviations = self._variances(yhat[draw, batch])
                excess = variances - observed
                totals[batch] += (excess.abs() @ weights).to(totals)
                pull = (2 * share * excess.sign()).index_select(0, ball)
                slope[draw, batch].index_add_(0, rows, (self._weigh(deviations) * pull[:, None]).to(slope))
        return totals, slope
