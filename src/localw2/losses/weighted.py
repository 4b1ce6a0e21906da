r"""Squared W2 of one output inside every ball, where rows have weights.

A weighted sample has a quantile function with steps, and

.. math:: W_2^2 = \int_0^1 (Q_y(u) - Q_{\hat y}(u))^2\,du

is a sum over the steps that both have in common: exact, with an exact gradient, after one sort. For several
outputs rows are repeated as often as their weights say (``Neighborhoods.repeat_rows``) and assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2.losses.problem import Match

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

# Steps of all samples, for all balls of a piece, that are compared at a time.
PIECE_STEPS = 1 << 18

# From draws a (S, steps), y (1, steps) and S to half the gradients in a and -y, and the cost of each step.
Terms = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


@final
class WeightedSorted(Match):
    """d = 1: quantile functions of y (B, N, 1) and of S draws yhat (S, B, N, 1), step by step.

    Rows are numbered consecutively over batch entries, each of which ends with a row of weight 0 as padding.
    """

    def __init__(self, y: Tensor, yhat: Tensor, hoods: Neighborhoods, terms: Terms) -> None:
        self._like, self._hoods, self._terms = yhat, hoods, terms
        samples = torch.nn.functional.pad(torch.cat([y[None], yhat])[..., 0], (0, 1), value=torch.inf)
        ordered, order = torch.sort(samples, dim=2, stable=True)
        first = samples.shape[2] * torch.arange(samples.shape[1], device=yhat.device)[:, None]
        self._first = first
        self._ordered = torch.nan_to_num(ordered, posinf=0.0).flatten(
            1
        )  # of padding, whose steps have no length
        self._order = (order + first).flatten(1)
        numbers = torch.arange(self._order.shape[1], device=yhat.device).expand_as(self._order)
        self._ranks = torch.empty_like(self._order).scatter_(1, self._order, numbers)

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add 2 * scale * length * (difference) of every step to the row whose value it is."""
        draws, batches, n, _ = self._like.shape
        values = torch.empty_like(scale, memory_format=torch.contiguous_format)
        total = torch.zeros_like(self._ordered)
        pieces = self._hoods.compute_once(
            ("weighted pieces", self._like.device, draws), lambda: _cut(self._hoods, draws, self._like.device)
        )
        for balls, rows, masses in pieces:
            step = max(1, PIECE_STEPS // (rows.numel() * (draws + 1)))
            for low in range(0, batches, step):
                some = slice(low, low + step)
                here = (self._first[some, :, None] + rows).flatten(0, 1)
                places, length = _common_steps(self._ranks[:, here], self._order, masses)
                steps = places.flatten(1)
                found = self._ordered.gather(1, steps)
                pull, gap, cost = self._terms(found[1:], found[:1], draws)
                length = length.to(found)
                values[some, balls] = (cost.view(length.shape) * length).sum(1).view(-1, len(balls))
                factor = (2 * length * scale[some, balls].reshape(-1, 1)).flatten()
                owners = self._order.gather(1, steps)
                total[1:].scatter_add_(1, owners[1:], pull * factor)
                if with_y:
                    total[:1].scatter_add_(1, owners[:1], -gap * factor)
        grads = total.view(draws + 1, batches, n + 1, 1)[:, :, :n].contiguous()
        return values, grads[1:], grads[0] if with_y else None


def _cut(hoods: Neighborhoods, draws: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Balls, their rows (balls, width) padded with N, and the weights (N + 1,) of all rows, 0 for padding."""
    assert hoods.sample_weight is not None
    masses = torch.nn.functional.pad(hoods.sample_weight, (0, 1)).to(device)
    return [
        (bucket.balls.to(device), bucket.rows.to(device, torch.int64), masses)
        for bucket in hoods.buckets(1.25, max(1, PIECE_STEPS // (draws + 1)))
    ]


def _common_steps(ranks: Tensor, order: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """The steps that all samples of a ball share, from the ranks of its rows, (samples, balls, width).

    ``order`` leads from ranks back to rows. Returns the rank of each sample's value on every step, (samples,
    balls, steps), and the length of the steps, (balls, steps), which add up to 1 in a ball.
    """
    samples, balls, width = ranks.shape
    places = _sort(ranks)
    mass = masses[order.gather(1, places.flatten(1)) % len(masses)].view(places.shape)
    ends = mass.cumsum(2)
    # Sums in another order differ in their last digit, but all quantile functions end at 1.
    whole = ends[:1, :, -1:]
    last = torch.arange(width, device=ranks.device) >= (mass[0] > 0).sum(1, keepdim=True) - 1
    ends = torch.where(last, whole, torch.minimum(ends, whole))
    ends = ends.transpose(0, 1).reshape(balls, -1)
    by_end = _argsort(ends)
    length = ends.gather(1, by_end).diff(dim=1, prepend=ends.new_zeros(balls, 1)) / whole[0]
    # On the step that ends here, a sample has as many values behind it as it had ends before.
    passed = (by_end // width == torch.arange(samples, device=ranks.device)[:, None, None]).to(torch.int32)
    index = (passed.cumsum(2) - passed).clamp_max_(width - 1)
    return places.gather(2, index), length


def _sort(values: Tensor) -> Tensor:
    """Whole numbers ascending along the last axis; numpy is six times faster on the host."""
    if values.device.type != "cpu":
        return torch.sort(values, dim=-1).values
    return torch.from_numpy(np.sort(values.numpy().astype(np.int32), axis=-1).astype(np.int64))


def _argsort(values: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return torch.argsort(values, dim=-1)
    # Stable: it merges the runs that are ascending already.
    return torch.from_numpy(np.argsort(values.numpy(), axis=-1, kind="stable"))
