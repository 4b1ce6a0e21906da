"""Losses on means and variances inside each ball: MSE and the paper's mean2+var."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from localw2.forward_gradient import Problem


@final
@dataclass(frozen=True)
class WeightedMSE(Problem):
    """Mean squared error of each ball's rows: in all, one weighted mean over rows."""

    @cached_property
    def _per_row(self) -> Tensor:
        share = (self.weights / self.hoods.sizes.to(self.weights)).cpu()
        edges = torch.repeat_interleave(share, self.hoods.sizes)
        return share.new_zeros(self.hoods.n_rows).index_add_(0, self.hoods.rows, edges).to(self.weights)

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted squared differences, averaged over draws."""
        gap = yhat - self.y
        slope = gap * (2 / len(yhat) * self._per_row)[:, None]
        return gap.square().sum(3).mean(0) @ self._per_row, slope


@final
@dataclass(frozen=True)
class WeightedMeanVar(Problem):
    """MSE plus the absolute difference of the variances of y and yhat in each ball."""

    summed: bool

    @cached_property
    def _mse(self) -> WeightedMSE:
        return WeightedMSE(self.y, self.hoods, self.weights)

    @cached_property
    def _rows(self) -> Tensor:
        return self.hoods.rows.to(self.y.device)

    @cached_property
    def _ball(self) -> Tensor:
        return torch.repeat_interleave(self.hoods.sizes).to(self.y.device)

    @cached_property
    def _sizes(self) -> Tensor:
        return self.hoods.sizes.to(self.y)

    @cached_property
    def _observed(self) -> Tensor:
        return self._variances(self.y)[0]

    def _variances(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(..., N, d) to (..., n_balls), and the deviations (..., edges, d) they come from.

        Deviations rather than raw squares, which would lose the digits of a small variance.
        """
        edges = values.index_select(-2, self._rows)
        deviations = edges - (self._sums(edges) / self._sizes[:, None]).index_select(-2, self._ball)
        total = self._sums(deviations.square()).sum(-1)
        return total if self.summed else total / self._sizes, deviations

    def _sums(self, edges: Tensor) -> Tensor:
        shape = (*edges.shape[:-2], len(self._sizes), edges.shape[-1])
        return edges.new_zeros(shape).index_add_(-2, self._ball, edges)

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """The sign of each ball's difference decides which way its deviations are pulled."""
        totals, slope = self._mse.solve(yhat)
        variances, deviations = self._variances(yhat)
        excess = variances - self._observed
        share = self.weights if self.summed else self.weights / self._sizes
        pull = (2 / len(yhat) * share * excess.sign()).index_select(-1, self._ball)
        slope = slope.index_add(2, self._rows, deviations * pull[..., None])
        return totals + excess.abs().mean(0) @ self.weights, slope
