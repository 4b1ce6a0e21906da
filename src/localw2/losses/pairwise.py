"""Losses on all pairs inside a ball: kernels of the squared distance, in bounded memory.

Balls of similar size are padded into rectangles, and these are cut along rows, so that no scratch array
exceeds ``SCRATCH_ELEMENTS`` (or one row of one ball; on a GPU more). No Python loop runs over balls.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from localw2.balls.ragged import Bucket
from localw2.losses.problem import Problem

# Well within a core's second-level cache: a larger scratch array is slower, a smaller one has more overhead.
SCRATCH_ELEMENTS = 1 << 17

# A GPU is kept busy only by many balls at once; half a gigabyte in double precision.
DEVICE_ELEMENTS = 1 << 26


def count_scratch(device: torch.device) -> int:
    """How many numbers a scratch array may hold."""
    return SCRATCH_ELEMENTS if device.type == "cpu" else DEVICE_ELEMENTS


def _sum_distances(a: Tensor, b: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum |a_i - b_j| over the pairs inside each ball, (n,), with the gradients in a and b, (n, w, d).

    ``inside`` (n, w) is 1, or its weight, for a row of a ball and 0 for padding.
    """
    n, width, _ = a.shape
    total = a.new_zeros(n)
    in_a, in_b = torch.zeros_like(a), torch.zeros_like(b)
    step = max(1, count_scratch(a.device) // (n * width))
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

    scratch: ClassVar[int] = SCRATCH_ELEMENTS  # numbers of a scratch array on a CPU
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
        return self._solve_pairs(yhat, self.y)

    def _solve_pairs(
        self, yhat: Tensor, observed: Tensor, left: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same for ``observed`` (B, N, d), from all balls or from those that are ``left`` (n_balls,)."""
        batches, n_rows = yhat.shape[1:3]
        totals = yhat.new_zeros(batches)
        grad = yhat.new_zeros(yhat.shape[0], batches, n_rows + 1, yhat.shape[3])
        of_rows = None if self.hoods.sample_weight is None else self.hoods.sample_weight.to(yhat.device)
        for bucket in self._buckets(yhat.device):
            rows, balls = bucket.rows, bucket.balls
            if left is not None:
                rows, balls = rows[left[balls]], balls[left[balls]]
                if not len(balls):
                    continue
            weights = self.weights[balls]
            inside = (rows < n_rows).to(yhat)
            at = rows.clamp(max=n_rows - 1)
            sizes = counts = inside.sum(1)
            if of_rows is not None:  # in double precision: only ratios of weights have to be of usual size
                mass = inside * of_rows[at]
                counts = mass.sum(1)
                inside = (mass / counts[:, None]).to(yhat)
                sizes = torch.ones_like(sizes)
            for batch in range(batches):
                y, simulated = observed[batch][at], yhat[:, batch][:, at]
                # Only differences matter, and centred values keep their digits.
                middle = torch.bmm((inside / sizes[:, None])[:, None], y)
                loss, slope = self._ball_losses(y - middle, simulated - middle, inside, sizes, counts)
                totals[batch] += weights @ loss
                scaled = slope * weights[:, None, None]
                grad[:, batch].index_add_(1, rows.reshape(-1), scaled.flatten(1, 2))
        return totals, grad[:, :, :n_rows]

    def _buckets(self, device: torch.device) -> list[Bucket]:
        def build() -> list[Bucket]:
            found, scratch = [], self.scratch if device.type == "cpu" else DEVICE_ELEMENTS
            for bucket in self.hoods.buckets(self.widths):
                step = max(1, scratch // bucket.rows.shape[1] ** 2)
                for balls, rows in zip(bucket.balls.split(step), bucket.rows.split(step), strict=True):
                    found.append(Bucket(balls.to(device), rows.to(device).long()))
            return found

        return self.hoods.compute_once(("pairwise", self.widths, self.scratch, device), build)


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
