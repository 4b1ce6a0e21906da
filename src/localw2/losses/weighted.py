r"""Squared W2 of one output inside every ball, where rows have weights.

A weighted sample has a quantile function with steps, and

.. math:: W_2^2 = \int_0^1 (Q_y(u) - Q_{\hat y}(u))^2\,du

is a sum over the steps that both have in common: exact, with an exact gradient, in linear time after sorts.
For several outputs rows are repeated as often as their weights say (``Neighborhoods.repeat_rows``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2.losses.problem import Match

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

# Steps of all samples, for all balls of a piece, that are compared at a time: few enough for the cache.
PIECE_STEPS = 1 << 15


@final
class WeightedSorted(Match):
    r"""d = 1: quantile functions of y (B, N, 1) and of S draws yhat (S, B, N, 1), step by step.

    With :math:`\bar a` the mean of the draws' quantile functions :math:`a_s`, the value of a ball is

    .. math:: \int (\bar a - Q_y)^2\,du + c \sum_s \int (a_s - \bar a)^2\,du,

    c being :math:`1/S`, or :math:`-1/(S(S-1))` if debiased. Every integral is one over the steps that all
    samples have in common, along which :math:`\bar a` and :math:`Q_y` change by one sample's jump at a time.
    Rows are numbered consecutively over batch entries, each of which ends with a row of weight 0 as padding.
    """

    def __init__(self, y: Tensor, yhat: Tensor, hoods: Neighborhoods, debiased: bool) -> None:
        self._like, self._hoods, draws = yhat, hoods, len(yhat)
        self._factor = -1 / (draws * (draws - 1)) if debiased else 1 / draws
        samples = torch.nn.functional.pad(torch.cat([y[None], yhat])[..., 0], (0, 1), value=torch.inf)
        ordered, order = torch.sort(samples, dim=2, stable=True)
        ordered = ordered.masked_fill(
            order == samples.shape[2] - 1, 0.0
        )  # padding, whose steps have no length
        self._first = samples.shape[2] * torch.arange(samples.shape[1], device=yhat.device)[:, None]
        self._ordered, self._order = ordered.double().flatten(1), (order + self._first).flatten(1)
        numbers = torch.arange(self._order.shape[1], device=yhat.device).expand_as(self._order)
        self._ranks = torch.empty_like(self._order).scatter_(1, self._order, numbers)

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add 2 * scale * (the integral over a step of half the slope) to the row whose step it is."""
        draws, batches, n, _ = self._like.shape
        values = torch.empty_like(scale, memory_format=torch.contiguous_format)
        total = torch.zeros_like(self._ordered)
        masses, pieces = self._hoods.compute_once(
            ("weighted pieces", self._like.device, draws), lambda: _cut(self._hoods, draws, self._like.device)
        )
        for balls, rows in pieces:
            group = max(1, PIECE_STEPS // (rows.numel() * (draws + 1)))
            for low in range(0, batches, group):
                some = slice(low, low + group)
                places = _sort(self._ranks[:, (self._first[some, :, None] + rows).flatten(0, 1)])
                ranks = places.flatten(1)
                owners = self._order.gather(1, ranks)
                steps = self._ordered.gather(1, ranks).view(places.shape)
                mass = masses[owners % len(masses)].view(places.shape)
                value, pull = _compare(steps, mass, self._factor, with_y)
                values[some, balls] = value.view(-1, len(balls)).to(values)
                pull = pull * (2 * scale[some, balls].reshape(-1, 1))
                total.scatter_add_(1, owners, pull.flatten(1))
        grads = total.view(draws + 1, batches, n + 1, 1)[:, :, :n].to(self._like)
        return values, grads[1:], grads[0] if with_y else None


def _cut(
    hoods: Neighborhoods, draws: int, device: torch.device
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The weights (N + 1,) of all rows, 0 for padding; balls and their rows (balls, width), padded with N."""
    assert hoods.sample_weight is not None
    buckets = hoods.buckets(1.25, max(1, PIECE_STEPS // (draws + 1)))
    pieces = [(bucket.balls.to(device), bucket.rows.to(device, torch.int64)) for bucket in buckets]
    return torch.nn.functional.pad(hoods.sample_weight, (0, 1)).to(device), pieces


def _compare(steps: Tensor, mass: Tensor, factor: float, with_y: bool) -> tuple[Tensor, Tensor]:
    """The value of every ball, (balls,), and half its slope in every step, (samples, balls, width).

    ``steps`` and ``mass`` of that shape are the values of y, then of the draws, ascending, and their weights,
    which are 0 for padding. The slope in y is 0 unless ``with_y``.
    """
    samples, balls, width = steps.shape
    draws = samples - 1
    whole = mass[0].sum(1)
    share = mass / whole[:, None]
    # Only differences matter, and centred values keep their digits.
    steps = steps - (share[0] * steps[0]).sum(1, keepdim=True)
    # Sums in another order differ in their last digit, but all quantile functions end where the first does.
    last = torch.arange(width, device=steps.device) >= (mass[0] > 0).sum(1, keepdim=True) - 1
    ends = torch.where(last, whole[:, None], torch.minimum(mass.cumsum(2), whole[:, None]))
    jumps = torch.nn.functional.pad(steps.diff(dim=2), (0, 1)).masked_fill(last, 0.0)
    ends, jumps = (v.transpose(0, 1).reshape(balls, -1) for v in (ends, jumps))
    by_end = _argsort(ends)
    length = ends.gather(1, by_end).diff(dim=1, prepend=ends.new_zeros(balls, 1)) / whole[:, None]
    jumps, of_y = jumps.gather(1, by_end), by_end < width
    observed = _along(steps[0, :, 0], torch.where(of_y, jumps, 0.0))
    middle = _along(steps[1:, :, 0].sum(0), torch.where(of_y, 0.0, jumps)) / draws
    gap = middle - observed
    value = (gap.square() * length).sum(1)
    if draws > 1:
        squares = (share[1:] * steps[1:].square()).sum((0, 2))
        spread = (squares - draws * (middle.square() * length).sum(1)).clamp_min(0)
        value = value + factor * spread

    def integrate(slope: Tensor) -> Tensor:
        """The integral over every step of each sample of a function on the common steps."""
        up_to = torch.empty_like(ends).scatter_(1, by_end, (slope * length).cumsum(1))
        return (
            up_to.view(balls, samples, width)
            .transpose(0, 1)
            .diff(dim=2, prepend=ends.new_zeros(samples, balls, 1))
        )

    pull = integrate(gap / draws - factor * middle) + factor * share * steps
    pull[0] = share[0] * steps[0] - integrate(middle)[0] if with_y else 0.0
    return value, pull


def _along(start: Tensor, jumps: Tensor) -> Tensor:
    """A function (balls, steps) that starts at ``start`` (balls,) and jumps at the end of every step."""
    return start[:, None] + jumps.cumsum(1) - jumps


def _sort(values: Tensor) -> Tensor:
    """Whole numbers ascending along the last axis; numpy is six times faster on the host."""
    if values.device.type != "cpu":
        return torch.sort(values, dim=-1).values
    return torch.from_numpy(np.sort(values.numpy().astype(np.int32), axis=-1).astype(np.int64))


def _argsort(values: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return torch.argsort(values, dim=-1, stable=True)
    # Stable: it merges the runs that are ascending already.
    return torch.from_numpy(np.argsort(values.numpy(), axis=-1, kind="stable"))
