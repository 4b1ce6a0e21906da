"""Maximum mean discrepancy inside balls: from pairs, or for large balls of one output from frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2.losses.pairwise import PairwiseLoss, count_scratch, sum_squares
from localw2.losses.spectral import Plan, Summary, compare_spectra, measure_bandwidths

if TYPE_CHECKING:
    from localw2._validation import Array

# Times the rows of a ball: so many frequencies take as long as all its pairs.
FREQUENCIES = 3.0

# In units of the bandwidth: its square is finite in single precision, and its kernel is 0.
FAR = 1e15


@final
@dataclass(frozen=True)
class WeightedMMD(PairwiseLoss):
    """Maximum mean discrepancy, its Gaussian kernels scaled by the pooled mean squared distance."""

    n_kernels: int
    multiplier: float

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of weight times loss, (B,), and its gradient: by frequencies where these cost less.

        How many it takes depends on the values, and a GPU would have to wait for the answer.
        """
        if yhat.shape[3] > 1 or yhat.device.type != "cpu" or yhat.dtype not in (torch.float32, torch.float64):
            return super().solve(yhat)
        totals, grad = yhat.new_zeros(yhat.shape[1]), torch.zeros_like(yhat)
        for batch, y in enumerate(self.y):
            for simulated, slope in zip(yhat[:, batch], grad[:, batch], strict=True):
                loss, found = self._solve_one(y, simulated, self._observed[batch])
                totals[batch] += loss / len(yhat)
                slope.copy_(found / len(yhat))
        return totals, grad

    def _solve_one(self, y: Tensor, yhat: Tensor, summary: Summary) -> tuple[Tensor, Tensor]:
        """The loss of one draw yhat (N, 1) and its gradient."""
        balls, shares = self.hoods.balls, self.hoods.shares()
        observed, simulated = y[:, 0].numpy(), yhat[:, 0].numpy()
        with np.errstate(all="ignore"):  # what is not finite is left to pairs
            theirs = Summary.of(simulated, balls, shares)
            powers = np.arange(self.n_kernels) - self.n_kernels // 2
            bandwidths = (
                measure_bandwidths(summary, theirs, self._counts)[:, None] * float(self.multiplier) ** powers
            )
            plan = Plan.of(summary, theirs, bandwidths, observed.dtype)
            quick = plan.counts <= FREQUENCIES * balls.sizes
        total, slope = yhat.new_zeros(()), torch.zeros_like(yhat)
        if quick.any():
            weights = self.weights.double().numpy()
            chosen = np.flatnonzero(quick)
            loss, found = compare_spectra(observed, simulated, balls, shares, weights, plan, chosen)
            total, slope = total + loss, torch.from_numpy(found)[:, None]
        if not quick.all():
            losses, pulled = self._solve_pairs(yhat[None, None], y[None], torch.from_numpy(~quick))
            total, slope = total + losses[0], slope + pulled[0, 0]
        return total, slope

    @cached_property
    def _observed(self) -> list[Summary]:
        return [Summary.of(y[:, 0].numpy(), self.hoods.balls, self.hoods.shares()) for y in self.y]

    @cached_property
    def _counts(self) -> Array:
        """How many rows each ball has, or how much they weigh."""
        balls, weights = self.hoods.balls, self.hoods.sample_weight
        if weights is None:
            return balls.sizes.astype(np.float64)
        counts: Array = np.add.reduceat(weights.numpy()[balls.rows], balls.starts)
        return counts

    def _ball_losses(
        self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses, slopes = torch.zeros_like(sizes), []
        pairs = sizes.square()
        for simulated in yhat:
            bandwidth = self._bandwidth(y, simulated, inside, sizes, counts)
            own, _ = self._sums(y, y, inside, bandwidth, slopes=False)
            cross, in_cross = self._sums(y, simulated, inside, bandwidth)
            theirs, in_theirs = self._sums(simulated, simulated, inside, bandwidth)
            losses += (own + theirs - 2 * cross) / pairs
            # A simulated value occurs on both sides of its own pairs, with the same slope.
            slopes.append(2 * (in_theirs - in_cross) / pairs[:, None, None])
        return losses / len(yhat), torch.stack(slopes) / len(yhat)

    def _bandwidth(self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor) -> Tensor:
        """Mean squared distance over ordered pairs of the pooled sample of 2m, constant in the gradient.

        The sum over all pairs is 2 (2m) times the squared deviations from the pooled mean.
        """
        pooled, mask = torch.cat([y, yhat], 1), torch.cat([inside, inside], 1)[..., None]
        count = 2 * sizes[:, None, None]
        deviations = (pooled - (pooled * mask).sum(1, keepdim=True) / count) * mask
        if self.hoods.sample_weight is None:
            bandwidth = 2 * deviations.square().sum((1, 2)) / (2 * sizes - 1)
        else:  # weights may be small fractions: the 1, for a row and itself, must not outweigh them
            squares = torch.where(mask > 0, deviations.square() / mask, 0)
            bandwidth = 2 * squares.sum((1, 2)) / (2 - 1 / counts).clamp(min=1).to(squares)
        return torch.where(bandwidth > 0, bandwidth, 1)[:, None, None]

    def _sums(
        self, a: Tensor, b: Tensor, inside: Tensor, bandwidth: Tensor, slopes: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The sum of all kernels over pairs, (n,), and its slope in b, (n, w, d), or 0 without ``slopes``.

        In units of the widest kernel the others are its powers. Sums along rows are faster here than matrix
        products, which would have too few columns.
        """
        n, width, d = a.shape
        mass = None if self.hoods.sample_weight is None else inside
        inside = inside if mass is None else (inside > 0).to(inside)
        powers = [self.multiplier ** (self.n_kernels - 1 - k) for k in range(self.n_kernels)]
        unit = (bandwidth * self.multiplier ** (self.n_kernels - 1 - self.n_kernels // 2)).rsqrt()
        # Padding is moved so far away, in opposite directions, that all its kernels are 0.
        outside = (1 - inside)[..., None] * FAR
        a, b = a * unit * inside[..., None] + outside, b * unit * inside[..., None] - outside
        total, in_b = a.new_zeros(n), torch.zeros_like(b)
        step = max(1, count_scratch(a.device) // (n * width))
        for low in range(0, width, step):
            cut = slice(low, low + step)
            squares = sum_squares(b[:, cut], a)
            term = torch.exp(-squares)
            value, slope = term.clone(), term.clone()
            for power in powers[:-1]:
                ratio = powers[0] / power * self.multiplier
                # Halving the bandwidth squares the kernel, so one exponential serves all.
                term = term.square_() if self.multiplier == 2 else torch.exp(squares * -ratio)
                value += term
                slope.add_(term, alpha=ratio)
            if mass is not None:
                pairs = mass[:, cut, None] * mass[:, None]
                value, slope = value * pairs, slope * pairs
            total += value.sum((1, 2))
            if slopes:
                weights = slope.sum(2, keepdim=True)
                pulled = torch.stack([(slope * a[:, None, :, k]).sum(2) for k in range(d)], 2)
                in_b[:, cut] = -2 * (b[:, cut] * weights - pulled)
        return total, in_b * unit * inside[..., None]
