r"""The loss on transitions of a stochastic process: their law in wide balls, and their means row by row.

Wide balls identify the spread, single rows the mean: the debiased loss of balls of one row is mean
regression. Both are minimised by the truth, so that their sum is.

With jumps the model also returns what a transition would be with one jump more, and how many jumps it
expects. For a Poisson number K with mean m the derivative of :math:`E\,g(K)` in m is
:math:`E[g(K + 1) - g(K)]`. Here g is the loss, and moving one simulated value from v to v' changes it by the
difference of a Kantorovich potential, :math:`\phi(v') - \phi(v)`, which in one dimension is the integral of
the gap between the quantiles of two samples. Given a draw, observations and the other draw are exchangeable
if the model is right, so that the expected potential is constant and the true rate is a minimiser, as for
everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from localw2._validation import check_count, check_flag, check_number
from localw2.losses.discrepancies import Discrepancy, SlicedW2
from localw2.losses.moments import WeightedMSE
from localw2.losses.problem import Problem
from localw2.losses.w2 import WeightedSlicedW2

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods


@final
@dataclass(frozen=True)
class TransitionW2(Discrepancy):
    """Sliced squared W2 of transitions in a ball, and ``narrow`` times the debiased squared error of rows.

    With ``jumps`` outputs have 2 d + 1 columns: the transition, the same with one jump more, and the expected
    number of jumps. ``squashed`` compares 2 asinh(v / 2) instead of the standardised v (and single rows too):
    any function that both sides share keeps the truth optimal, and this one keeps rare jumps from outweighing
    everything else. The last ``n_anchors`` columns are compared with y by ``anchor`` times the mean square:
    they say how far coefficients are from what a regression found, so that noise does not bend networks.

    >>> from localw2 import Neighborhoods, Objective
    >>> y, hoods = torch.zeros(2, 1), Neighborhoods.whole(2)
    >>> Objective(y, hoods, TransitionW2())(torch.tensor([[[0.0], [1.0]], [[1.0], [0.0]]]))
    tensor(0.5000)
    """

    takes_weights = True

    n_directions: int = 8
    debiased: bool = True
    narrow: float = 1.0
    jumps: bool = False
    squashed: bool = False
    n_anchors: int = 0
    anchor: float = 4.0

    def __post_init__(self) -> None:
        check_count(self.n_directions, "n_directions", 1)
        check_count(self.n_anchors, "n_anchors", 0)
        for name in ("narrow", "anchor"):
            check_number(getattr(self, name), name, lambda v: v >= 0, "a number >= 0")
        for name in ("debiased", "jumps", "squashed"):
            check_flag(getattr(self, name), name)

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare projections by sorting, and rows one by one."""
        own = y.shape[2] - self.n_anchors
        d = (own - 1) // 2 if self.jumps else own
        directions = SlicedW2(self.n_directions).directions(d).to(y)
        return WeightedTransitions(y, hoods, weights, directions, self)


@final
@dataclass(frozen=True)
class WeightedTransitions(Problem):
    """The weighted sum over balls of what ``TransitionW2`` says."""

    directions: Tensor
    settings: TransitionW2

    @property
    def _d(self) -> int:
        return len(self.directions)

    @cached_property
    def _target(self) -> Tensor:
        target = self.y[..., : self._d]
        return _squash(target)[0] if self.settings.squashed else target

    @cached_property
    def _wide(self) -> WeightedSlicedW2:
        return WeightedSlicedW2(
            self._target, self.hoods, self.weights, self.directions, self.settings.debiased
        )

    @cached_property
    def _per_row(self) -> Tensor:
        return WeightedMSE(self.y, self.hoods, self.weights)._per_row[:, None]

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients; that in the expected number of jumps is by potentials."""
        count = self.settings.n_anchors
        if not count:
            return self._solve(yhat)
        values, grad = self._solve(yhat[..., :-count])
        gap = yhat[..., -count:] - self.y[..., -count:]
        pull = self.settings.anchor / len(yhat) * self._per_row * gap
        values = values + (pull * gap).double().sum((0, 2, 3)).to(values)
        return values, torch.cat([grad, 2 * pull], -1)

    def _solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        d, narrow, draws = self._d, self.settings.narrow, len(yhat)
        seen, slope = yhat[..., :d], None
        if self.settings.squashed:
            seen, slope = _squash(seen)
        values, grad = self._wide.solve(seen)
        if narrow:
            mean = seen.mean(0)
            gap, rest = mean - self._target, seen - mean
            pairs = draws * (draws - 1) if self.settings.debiased else torch.inf
            cost = (gap.square() - rest.square().sum(0) / pairs) * self._per_row
            if not self.settings.debiased:
                cost = cost + rest.square().mean(0) * self._per_row
            values = values + narrow * cost.double().sum((1, 2)).to(values)
            pull = gap / draws - (rest / pairs if self.settings.debiased else -rest / draws)
            grad = grad + 2 * narrow * self._per_row * pull
        if slope is not None:
            grad = grad * slope
        if not self.settings.jumps:
            return values, grad
        ghost = yhat[..., d : 2 * d]
        ghost = _squash(ghost)[0] if self.settings.squashed else ghost
        rate = self._potential_differences(seen, ghost)
        if narrow and self.settings.debiased:
            others = (seen.sum(0) - seen) / (draws - 1)
            change = (2 / draws) * (ghost - seen) * (others - self._target)
            rate = rate + narrow * self._per_row * change.sum(-1, keepdim=True)
        return values, torch.cat([grad, torch.zeros_like(ghost), rate], -1)

    def _potential_differences(self, seen: Tensor, ghost: Tensor) -> Tensor:
        """How the loss changes if a draw is moved to its ghost, (S, B, N, 1)."""
        found = torch.zeros_like(seen[..., :1])
        y, a, moved = ((v @ self.directions).movedim(-1, 0) for v in (self._target, seen, ghost))
        for bucket in self.hoods.buckets(1.0):  # balls of one size each, so that nothing is padded
            rows = bucket.rows.to(seen.device)
            share = self._shares(rows)
            scale = self.weights[bucket.balls.to(seen.device)][:, None]
            inside, order = a[..., rows].sort(-1)
            gap = self._gaps(inside, y[..., rows], None if share is None else (share, order))
            ends = 0.5 * (gap[..., 1:] + gap[..., :-1]) * inside.diff()
            phi = torch.nn.functional.pad(ends.cumsum(-1), (1, 0))
            target = moved[..., rows].gather(-1, order)
            change = _interpolate(inside, phi, gap, target) - phi
            back = torch.empty_like(change).scatter_(-1, order, change).mean(0)
            back = back * (scale / rows.shape[1] if share is None else scale * share)
            found[..., 0].index_add_(2, rows.flatten(), back.flatten(2))
        return found

    def _shares(self, rows: Tensor) -> Tensor | None:
        """The share (balls, k) of every row in its ball; None where all are equal."""
        if self.hoods.sample_weight is None:
            return None
        weights = self.hoods.sample_weight.to(self.y)[rows]
        return weights / weights.sum(-1, keepdim=True)

    def _gaps(self, inside: Tensor, y: Tensor, weighted: tuple[Tensor, Tensor] | None) -> Tensor:
        """The slope of the potential at every sorted draw (K, S, B, balls, k).

        With weights, shares of the rows and the order of the draws, it is the mean over the levels that the
        value covers: quantile functions have steps that differ in length.
        """
        draws = inside.shape[1]
        if weighted is None:
            quantiles = y.sort(-1).values[:, None]
            others = (inside.sum(1, keepdim=True) - inside) / max(draws - 1, 1)
        else:
            share, order = weighted
            own = share.expand(order.shape).gather(-1, order)
            ours, place = y.sort(-1)
            steps = share.expand(place.shape).gather(-1, place)
            quantiles = torch.stack([_means_over(own[:, s], steps, ours) for s in range(draws)], 1)
            # The mean over the others of what each has on the levels of a draw's own values.
            others = torch.zeros_like(inside)
            for s, r in permutations(range(draws), 2):
                others[:, s] += _means_over(own[:, s], own[:, r], inside[:, r]) / (draws - 1)
        if not self.settings.debiased:
            return (2 / draws) * (inside - quantiles)
        return (2 / draws) * (others - quantiles)


def _means_over(own: Tensor, steps: Tensor, values: Tensor) -> Tensor:
    """Means of a quantile function over consecutive parts ``own`` (..., k) of the levels from 0 to 1.

    The function has sorted ``values`` (..., k) over ``steps`` of the levels.
    """
    pad = torch.nn.functional.pad
    at, total = pad(steps.cumsum(-1), (1, 0)), pad((steps * values).cumsum(-1), (1, 0))
    ends = own.cumsum(-1)
    right = torch.searchsorted(at.contiguous(), ends.contiguous()).clamp(1, values.shape[-1])
    passed = (ends - at.gather(-1, right - 1)).minimum(steps.gather(-1, right - 1))
    reached = total.gather(-1, right - 1) + passed * values.gather(-1, right - 1)
    return pad(reached, (1, 0)).diff() / own


def _squash(values: Tensor) -> tuple[Tensor, Tensor]:
    """2 asinh(v / 2), and its slope."""
    return 2 * torch.asinh(values / 2), (1 + values.square() / 4).rsqrt()


def _interpolate(at: Tensor, phi: Tensor, slope: Tensor, v: Tensor) -> Tensor:
    """Values at v of the function that is phi at the sorted points ``at``, linear in between and beyond."""
    k = at.shape[-1]
    right = torch.searchsorted(at.contiguous(), v.contiguous()).clamp(1, k - 1)
    left = right - 1
    low, high = at.gather(-1, left), at.gather(-1, right)
    part = ((v - low) / (high - low).clamp_min(1e-30)).clamp(0, 1)
    inside = torch.lerp(phi.gather(-1, left), phi.gather(-1, right), part)
    below, above = (v - at[..., :1]).clamp_max(0), (v - at[..., -1:]).clamp_min(0)
    return inside + below * slope[..., :1] + above * slope[..., -1:]
