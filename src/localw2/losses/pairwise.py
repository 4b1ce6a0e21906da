"""Losses on all pairs inside a ball: kernels of the squared distance, in bounded memory.

Balls of similar size are padded into rectangles, and these are cut along rows, so that no scratch array
exceeds ``SCRATCH_ELEMENTS`` (or one row of one ball; on a GPU more). No Python loop runs over balls. The
discrepancy of large balls of one output comes from frequencies instead of pairs (``spectral``), to the same
digits.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from localw2.balls.ragged import Bucket
from localw2.losses.problem import Problem
from localw2.losses.spectral import compare_spectra, count_frequencies, measure_periods

# Well within a core's second-level cache: a larger scratch array is slower, a smaller one has more overhead.
SCRATCH_ELEMENTS = 1 << 17

# A GPU is kept busy only by many balls at once; half a gigabyte in double precision.
DEVICE_ELEMENTS = 1 << 26

# Times the rows of a ball: so many frequencies take as long as all its pairs.
FREQUENCIES = 1.5

# In units of the bandwidth: its square is finite in single precision, and its kernel is 0.
FAR = 1e15


def _count_scratch(device: torch.device) -> int:
    return SCRATCH_ELEMENTS if device.type == "cpu" else DEVICE_ELEMENTS


def _sum_distances(a: Tensor, b: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum |a_i - b_j| over the pairs inside each ball, (n,), with the gradients in a and b, (n, w, d).

    ``inside`` (n, w) is 1, or its weight, for a row of a ball and 0 for padding.
    """
    n, width, _ = a.shape
    total = a.new_zeros(n)
    in_a, in_b = torch.zeros_like(a), torch.zeros_like(b)
    step = max(1, _count_scratch(a.device) // (n * width))
    b_inside = b * inside[:, :, None]
    for low in range(0, width, step):
        cut = slice(low, low + step)
        here, mask = a[:, cut], inside[:, cut]
        value = sum_squares(here, b).sqrt()
        slope = torch.where(value > 0, 0.5 / value, 0)  # in the squared distance
        total += ((value @ inside[:, :, None])[..., 0] * mask).sum(1)
        in_a[:, cut] = 2 * mask[:, :, None] * (here * (slope @ inside[:, :, None]) - slope @ b_inside)
        back = slope.transpose(1, 2)
        in_b += 2 * inside[:, :, None] * (b * (back @ mask[:, :, None]) - back @ (here * mask[:, :, None]))
    return total, in_a, in_b


def sum_squares(a: Tensor, b: Tensor) -> Tensor:
    """Distances (n, i, j) between all a (n, i, d) and b (n, j, d), output by output to lose no digits."""
    squares = (a[:, :, None, 0] - b[:, None, :, 0]).square_()
    for k in range(1, a.shape[2]):
        gap = a[:, :, None, k] - b[:, None, :, k]
        squares.addcmul_(gap, gap)
    return squares


class PairwiseLoss(Problem):
    """The weighted sum over balls of a loss on pairs."""

    widths: ClassVar[float] = 1.1  # the widest of the balls that are padded together, over the narrowest

    @abstractmethod
    def _ball_losses(
        self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss of each ball (n,) and its gradient in yhat (S, n, w, d); y is (n, w, d).

        ``inside`` (n, w) is 1 for rows, or their share of the ball's weight, and 0 for padding; ``sizes``
        (n,) are its sums, and ``counts`` (n,) how many rows there are, or how much they weigh.
        """

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of weight times loss, (B,), and its gradient (S, B, N, d)."""
        batches, n_rows = yhat.shape[1:3]
        totals = yhat.new_zeros(batches)
        grad = yhat.new_zeros(yhat.shape[0], batches, n_rows + 1, yhat.shape[3])
        of_rows = None if self.hoods.sample_weight is None else self.hoods.sample_weight.to(yhat.device)
        for bucket in self._buckets(yhat.device):
            rows, weights = bucket.rows, self.weights[bucket.balls]
            inside = (rows < n_rows).to(yhat)
            at = rows.clamp(max=n_rows - 1)
            sizes = counts = inside.sum(1)
            if of_rows is not None:  # in double precision: only ratios of weights have to be of usual size
                mass = inside * of_rows[at]
                counts = mass.sum(1)
                inside = (mass / counts[:, None]).to(yhat)
                sizes = torch.ones_like(sizes)
            for batch in range(batches):
                y, simulated = self.y[batch][at], yhat[:, batch][:, at]
                # Only differences matter, and centred values keep their digits.
                middle = ((y * inside[..., None]).sum(1) / sizes[:, None])[:, None]
                loss, slope = self._ball_losses(y - middle, simulated - middle, inside, sizes, counts)
                totals[batch] += weights @ loss
                scaled = slope * weights[:, None, None]
                grad[:, batch].index_add_(1, rows.reshape(-1), scaled.flatten(1, 2))
        return totals, grad[:, :, :n_rows]

    def _buckets(self, device: torch.device) -> list[Bucket]:
        def build() -> list[Bucket]:
            found, scratch = [], _count_scratch(device)
            for bucket in self.hoods.buckets(self.widths):
                step = max(1, scratch // self._scratch(bucket.rows.shape[1]))
                for balls, rows in zip(bucket.balls.split(step), bucket.rows.split(step), strict=True):
                    found.append(Bucket(balls.to(device), rows.to(device).long()))
            return found

        return self.hoods.compute_once(("pairwise", self.widths, self._scratch(2), device), build)

    def _scratch(self, width: int) -> int:
        """The numbers that a ball of this width needs at once."""
        return width**2


@final
@dataclass(frozen=True)
class WeightedMMD(PairwiseLoss):
    """Maximum mean discrepancy, its Gaussian kernels scaled by the pooled mean squared distance."""

    n_kernels: int
    multiplier: float

    def _ball_losses(
        self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses, slopes = torch.zeros_like(sizes), []
        pairs = sizes.square()
        for simulated in yhat:
            bandwidth = self._bandwidth(y, simulated, inside, sizes, counts)
            found = self._from_spectra(y, simulated, inside / sizes[:, None], bandwidth[:, :, 0])
            if found is not None:
                losses += found[0]
                slopes.append(found[1][..., None])
                continue
            own, _ = self._sums(y, y, inside, bandwidth, slopes=False)
            cross, in_cross = self._sums(y, simulated, inside, bandwidth)
            theirs, in_theirs = self._sums(simulated, simulated, inside, bandwidth)
            losses += (own + theirs - 2 * cross) / pairs
            # A simulated value occurs on both sides of its own pairs, with the same slope.
            slopes.append(2 * (in_theirs - in_cross) / pairs[:, None, None])
        return losses / len(yhat), torch.stack(slopes) / len(yhat)

    def _scratch(self, width: int) -> int:
        """Those of its rows alone: what is made of them is cut to size where it is made."""
        return width

    def _from_spectra(
        self, y: Tensor, yhat: Tensor, shares: Tensor, bandwidth: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """The losses and slopes of balls of one output, if frequencies cost less than pairs.

        How many it takes depends on the values, and a GPU would have to wait for the answer.
        """
        width, d = y.shape[1:]
        if d > 1 or y.is_cuda:
            return None
        powers = torch.arange(self.n_kernels).to(bandwidth) - self.n_kernels // 2
        bandwidths = bandwidth * self.multiplier**powers
        one = y[..., 0], yhat[..., 0], shares, bandwidths
        periods = measure_periods(*one)
        count = float(count_frequencies(periods, bandwidths).max())
        if not count <= FREQUENCIES * width:  # nor if it is not a number
            return None
        return compare_spectra(*one, periods, int(count))

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
        step = max(1, _count_scratch(a.device) // (n * width))
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


@final
@dataclass(frozen=True)
class WeightedEnergy(PairwiseLoss):
    """Energy score of the ball's mixture, E|y - yhat| - E|yhat - yhat'| / 2, where yhat' is another draw."""

    def _ball_losses(
        self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        draws = len(yhat)
        losses, slopes = torch.zeros_like(sizes), torch.zeros_like(yhat)
        for s in range(draws):
            total, _, in_s = _sum_distances(y, yhat[s], inside)
            losses += total / draws
            slopes[s] += in_s / draws
            for r in range(s):
                total, in_r, in_s = _sum_distances(yhat[r], yhat[s], inside)
                losses -= total / (draws * (draws - 1))
                slopes[r] -= in_r / (draws * (draws - 1))
                slopes[s] -= in_s / (draws * (draws - 1))
        return losses / sizes.square(), slopes / sizes.square()[:, None, None]
