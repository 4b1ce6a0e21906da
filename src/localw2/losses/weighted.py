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
PIECE_STEPS = 1 << 16


@final
class WeightedSorted(Match):
    r"""d = 1: quantile functions of y (B, N, 1) and of S draws yhat (S, B, N, 1), step by step.

    With :math:`\bar a` the mean of the draws' quantile functions :math:`a_s`, the value of a ball is

    .. math:: \int (\bar a - Q_y)^2\,du + c \sum_s \int (a_s - \bar a)^2\,du,

    c being :math:`1/S`, or :math:`-1/(S(S-1))` if debiased. Half its slope in a value of draw s is the
    integral of :math:`h + c\,a_s` over the value's step, :math:`h = (\bar a - Q_y) / S - c\,\bar a`. Along
    the steps that all samples have in common, h changes by one sample's jump at a time. Values are kept by
    rank, sample after sample; each batch entry ends with a value of weight 0, as padding.
    """

    def __init__(self, y: Tensor, yhat: Tensor, hoods: Neighborhoods, debiased: bool) -> None:
        self._like, self._hoods, draws = yhat, hoods, len(yhat)
        self._factor = -1 / (draws * (draws - 1)) if debiased else 1 / draws
        samples = torch.nn.functional.pad(torch.cat([y[None], yhat])[..., 0], (0, 1), value=torch.inf)
        ordered, self._order = torch.sort(samples, dim=2, stable=True)
        ordered[..., -1] = 0.0  # padding, which must be a number
        places = torch.arange(ordered.numel(), device=yhat.device).view(ordered.shape)
        self._ordered = ordered.double().flatten()
        self._places = torch.empty_like(places).scatter_(2, self._order, places)

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add 2 * scale * (half the slope in a value) to the row that has it."""
        draws, batches, n, _ = self._like.shape
        assert draws == 1 or not with_y
        masses, pieces = self._hoods.compute_once(
            ("weighted pieces", self._like.device, draws), lambda: _cut(self._hoods, draws, self._like.device)
        )
        values = torch.empty_like(scale, memory_format=torch.contiguous_format)
        by_place, mass_at = torch.zeros_like(self._ordered), masses[self._order].flatten()
        small = len(by_place) < 1 << 31
        for balls, rows in pieces:
            group = max(1, PIECE_STEPS // (rows.numel() * (draws + 1)))
            for low in range(0, batches, group):
                some = slice(low, low + group)
                places = self._places[:, some]
                places = places.gather(2, rows.flatten().expand(*places.shape[:2], -1))
                at = _sort(places.unflatten(2, rows.shape).permute(1, 2, 0, 3), small).flatten(0, 1)
                flat = at.flatten()
                steps, mass = (v.gather(0, flat).view(at.shape) for v in (self._ordered, mass_at))
                value, pull = _compare(steps, mass, self._factor)
                values[some, balls] = value.view(-1, len(balls)).to(values)
                pull *= 2 * scale[some, balls].reshape(-1, 1, 1)
                by_place.index_add_(0, flat, pull.flatten())
        by_place = by_place.view(self._order.shape)
        grads = torch.empty_like(by_place).scatter_(2, self._order, by_place)[..., :n, None].to(self._like)
        return values, grads[1:], grads[0] if with_y else None


def _cut(
    hoods: Neighborhoods, draws: int, device: torch.device
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The weights (N + 1,) of all rows, 0 for padding; balls and their rows (balls, width), padded with N."""
    assert hoods.sample_weight is not None
    buckets = hoods.buckets(1.25, max(1, PIECE_STEPS // (draws + 1)))
    pieces = [(bucket.balls.to(device), bucket.rows.to(device, torch.int64)) for bucket in buckets]
    return torch.nn.functional.pad(hoods.sample_weight, (0, 1)).to(device), pieces


def _compare(steps: Tensor, mass: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """The value of every ball, (balls,), and half its slope in every step, (balls, samples, width).

    ``steps`` and ``mass`` of that shape, which are used up, are the values of y, then of the draws,
    ascending, and their weights, which are 0 for padding. With several draws the slope in y is left out,
    and is 0.
    """
    draws = steps.shape[1] - 1
    steps -= steps[:, :1, :1].clone()  # only differences matter, and these keep their digits
    levels = mass.cumsum(2)
    whole = levels[:, :, -1:].clone()
    order, area = _merge(levels.div_(whole))
    rates = steps.new_full((draws + 1, 1), (1 / draws - factor) / draws if draws > 1 else 1.0)
    rates[0] = -1 / draws
    start = (steps[:, :, 0] * rates[:, 0]).sum(1)
    # A sample jumps where its step ends, the last one at 1, after which there is nothing.
    jumps = torch.zeros_like(steps)
    torch.sub(steps[:, :, 1:], steps[:, :, :-1], out=jumps[:, :, :-1])
    along = jumps.mul_(rates).flatten(1).gather(1, order)
    along[:, 0] += start
    along.cumsum_(1)
    area[:, 0] *= start
    area[:, 1:] *= along[:, :-1]
    value = start * area[:, 0] + _dot(along[:, :-1], area[:, 1:]) if draws == 1 else None
    up_to = along.scatter_(1, order, area.cumsum_(1)).view(steps.shape)
    pull = area.view(steps.shape)
    pull[:, :, 0] = up_to[:, :, 0]
    torch.sub(up_to[:, :, 1:], up_to[:, :, :-1], out=pull[:, :, 1:])
    if value is not None:
        pull[:, 0] *= -1
        return value, pull
    # By Euler's theorem the value is the sum of the slopes times the values. The slope in y needs the mean
    # of y times the draws, ``mixed``, which h has if debiased; else the draws' own slopes do.
    own = mass.mul_(steps).mul_(factor / whole)
    square = _dot(own[:, 0], steps[:, 0]) / factor
    if factor > 0:
        mixed = -_dot(pull[:, 1:].flatten(1), steps[:, 1:].flatten(1))
    else:
        mixed = (draws - 1) * (_dot(pull[:, 0], steps[:, 0]) + square / draws)
    pull += own
    pull[:, 0] = 0.0
    return _dot(pull.flatten(1), steps.flatten(1)) + square - mixed, pull


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each row of (n, k) with the same row of the other."""
    return (a * b).sum(1)


def _merge(levels: Tensor) -> tuple[Tensor, Tensor]:
    """The order of levels (balls, samples, width) that rise to 1 in each sample, and the steps between them.

    Both are (balls, samples * width). Levels are rounded to 62 bits less those of a place, which follows
    behind them in one number: to sort numbers is faster than to find their order.
    """
    n_places = levels.shape[1] * levels.shape[2]
    bits = n_places.bit_length()
    keys = levels.mul_(2.0 ** (62 - bits)).to(torch.int64).flatten(1).bitwise_left_shift_(bits)
    keys = _sort(keys.add_(torch.arange(n_places, device=levels.device)))
    ends = keys.bitwise_right_shift(bits)
    lengths = levels.view(ends.shape)
    lengths[:, 0] = ends[:, 0]
    lengths[:, 1:] = ends.diff(dim=1)
    return keys.bitwise_and_((1 << bits) - 1), lengths.mul_(2.0 ** (bits - 62))


def _sort(values: Tensor, small: bool = False) -> Tensor:
    """Whole numbers ascending along the last axis, perhaps in place; numpy is much faster on the host.

    Numbers that are ``small`` fit into 32 bits.
    """
    if values.device.type != "cpu":
        return torch.sort(values, dim=-1).values
    numbers = values.numpy().astype(np.int32 if small else np.int64, order="C", copy=False)
    numbers.sort(axis=-1)
    return torch.from_numpy(numbers).long()
