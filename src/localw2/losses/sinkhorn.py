r"""Sinkhorn divergence inside every ball: optimal transport smoothed by entropy, all balls at once.

With cost :math:`|u - v|^2` and masses a and b, the smoothed cost of transport is

.. math:: T_\varepsilon = \min_P\; \langle P, C\rangle + \varepsilon\,\mathrm{KL}(P\,|\,a b^\top)

over plans P with these margins. The best plan is :math:`P_{ij} = a_i u_i K_{ij} v_j b_j`; Sinkhorn's
iterations find u and v by turns. Two things make them safe and short:

- the kernel is :math:`K_{ij} = \exp((f_i + g_j - C_{ij})/\varepsilon)`, where f and g come from a problem
  with a larger :math:`\varepsilon`, and at first are such that the largest entry of every row and column is
  1: no row vanishes;
- Sinkhorn's iterations come near quickly, and then may take thousands: balls that are not done after some are
  finished by Newton's method on the dual problem, in a handful of steps.

With a tolerance of ``ROUGH`` or more the iterations are in single precision, Newton's steps never.

The value is that of the dual problem, whose error is of second order in that of the margins. By the envelope
theorem its gradient is that of the cost with the plan held fixed.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from localw2.losses.pairwise import PairwiseLoss, sum_squares
from localw2.losses.problem import pairings

COOLING = 4.0  # from one epsilon to the next
EASY_COST = 40.0  # in units of epsilon, up to which a few iterations are enough
TURNS = 5  # of Sinkhorn's iterations at each, and at least four times as many at the last one
LOOK_EVERY = 5
ROUGH = 1e-3  # tolerance from which single precision is enough
MOST_STEPS = 100  # of Newton's method, which takes three to twenty, and inside one sample
SHORTEST_STEP = 1e-8  # of the same, which is not halved
LONGEST = 10.0  # change of f and g together in one step, in units of epsilon
ROUNDING = 1e-12  # of a dual, by which it may seem to fall
JITTER = 1e-13  # of the diagonal, so that rounding does not make a plan's curvature negative
FEW_OUTPUTS = 4  # up to which distances are summed output by output, which loses no digits


@final
@dataclass(frozen=True)
class WeightedSinkhorn(PairwiseLoss):
    """Smoothed transport from y to each draw, less half of that inside each of them (or between draws)."""

    epsilon: float
    debiased: bool
    tolerance: float

    # Many short operations: fewer groups of balls are worth more padding and larger arrays.
    widths: ClassVar[float] = 1.3
    scratch: ClassVar[int] = 1 << 19

    def _ball_losses(
        self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        draws = len(yhat)
        precision = torch.float32 if self.tolerance >= ROUGH else torch.float64
        mass = inside.to(precision)
        mass = mass / mass.sum(1, keepdim=True)
        samples = torch.cat([y[None], yhat]).to(precision)
        epsilon = self.epsilon * _find_scale(samples[0], samples[1:], mass)
        losses, slopes = torch.zeros_like(epsilon), torch.zeros_like(samples)
        # Inside y, a constant, it makes 0 of equal samples; inside the draws it cancels if debiased.
        alone = [0] if self.debiased else list(range(draws + 1))
        costs, plans = self._transport_within(samples[alone], mass, epsilon)
        for s, cost, plan in zip(alone, costs, plans, strict=True):
            factor = -0.5 / draws if s else -0.5
            losses += factor * cost
            if s:  # y is given
                slopes[s] += 2 * factor * _pull(samples[s], samples[s], plan)
        lefts, rights, factors = zip(*pairings(draws, self.debiased), strict=True)
        costs, plans = self._transport(samples[list(lefts)], samples[list(rights)], mass, epsilon)
        for left, right, factor, cost, plan in zip(lefts, rights, factors, costs, plans, strict=True):
            losses += factor * cost
            slopes[left] += factor * _pull(samples[left], samples[right], plan)
            if right:
                slopes[right] += factor * _pull(samples[right], samples[left], plan.mT)
        return losses.to(y), slopes[1:].to(y)

    def _transport(self, a: Tensor, b: Tensor, mass: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """The smoothed costs (k, n) and plans (k, n, w, w) from a to b, k pairs of samples (k, n, w, d)."""
        pairs, mass, epsilon = len(a), mass.repeat(len(a), 1), epsilon.repeat(len(a))
        cost = _distances(a.flatten(0, 1), b.flatten(0, 1), mass, epsilon)
        f = _finite(cost.amin(2))
        g = _finite((cost - f[:, :, None]).amin(1))
        for heat in _list_heats(cost):
            kernel = torch.add(f[:, :, None], g[:, None]).sub_(cost)
            kernel = (kernel if heat == 1 else kernel.div_(heat)).exp_()
            u, v = torch.ones_like(mass), torch.ones_like(mass)
            turns = TURNS if heat > 1 else max(4 * TURNS, mass.shape[1] // 2)
            for turn in range(turns):
                to_rows = _multiply(mass * v, kernel.mT)
                if turn % LOOK_EVERY == 0 or turn == turns - 1:
                    # The columns are right after each turn, so that the rows tell how far it is from done.
                    done = (mass * (u * to_rows - 1).abs()).sum(1) < self.tolerance
                    if bool(done.all()):
                        break
                u = _invert(to_rows)
                v = _invert(_multiply(mass * u, kernel))
            f, g = f + heat * u.log(), g + heat * v.log()
        plan = kernel.mul_((mass * u)[:, :, None]).mul_((mass * v)[:, None])
        left = (~done).nonzero()[:, 0]
        if len(left):
            found = self._finish(plan[left].double(), mass[left].double())
            plan[left], more_f, more_g = (part.to(plan) for part in found)
            f[left] += more_f
            g[left] += more_g
        dual = epsilon * ((mass * (f + g)).sum(1) + 1 - plan.sum((1, 2)))
        return dual.unflatten(0, (pairs, -1)), plan.unflatten(0, (pairs, -1))

    def _finish(self, plan: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Newton's method from plans that are nearly right: better ones, and what is added to f and g.

        The dual, the sum of mass * (f + g) less that of the plan, is concave; f is eliminated by making the
        rows right before each step, and a step is halved until the dual rises.
        """
        f, g = torch.zeros_like(mass), torch.zeros_like(mass)
        padding = torch.diag_embed((mass == 0).to(mass))
        for _ in range(MOST_STEPS):
            rows = plan.sum(2)
            f += _log_ratio(mass, rows)
            plan = plan * _finite(mass / rows)[:, :, None]
            columns = plan.sum(1)
            if bool(((mass - columns).abs().sum(1) < self.tolerance).all()):
                return plan, f, g
            shares = plan * _finite(1 / mass)[:, :, None]
            curvature = torch.diag_embed(columns * (1 + JITTER)) - plan.mT @ shares
            curvature += padding + mass[:, :, None] * mass[:, None]  # the sum of g is free
            root, _ = torch.linalg.cholesky_ex(curvature)
            in_g = torch.cholesky_solve((mass - columns)[..., None], root)[..., 0]
            in_f = -_multiply(in_g, shares.mT)
            # Where parts of a plan hardly touch, its curvature vanishes and the step would be endless.
            farthest = in_f.abs().amax(1, keepdim=True) + in_g.abs().amax(1, keepdim=True)
            step = (LONGEST / farthest).clamp(max=1.0)
            rise = (mass * (in_f + in_g)).sum(1, keepdim=True)
            while True:
                trial = plan * torch.exp(step[:, :, None] * (in_f[:, :, None] + in_g[:, None]))
                better = step * rise - (trial.sum((1, 2))[:, None] - 1) >= -ROUNDING
                if not bool((~better & (step * farthest >= SHORTEST_STEP)).any()):  # NaN ends it, too
                    break
                step = torch.where(better, step, step / 2)
            plan, f, g = trial, f + step * in_f, g + step * in_g
        warnings.warn(
            f"The plans of {len(plan)} balls have margins that are off by more than {self.tolerance:g} after "
            f"{MOST_STEPS} steps, so values and gradients are rough: epsilon={self.epsilon:g} is too small "
            "for the digits of these numbers. Give a larger one, a larger tolerance, or SquaredW2().",
            stacklevel=2,
        )
        return plan, f, g

    def _transport_within(self, a: Tensor, mass: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
        """The same from a sample to itself, where u = v: the geometric mean of two turns converges fast."""
        samples, a, mass, epsilon = len(a), a.flatten(0, 1), mass.repeat(len(a), 1), epsilon.repeat(len(a))
        kernel = _distances(a, a, mass, epsilon).neg_().exp_()
        u = torch.ones_like(mass)
        for _ in range(
            MOST_STEPS
        ):  # errors are at least halved each time: rounding is reached in half of them
            to_rows = _multiply(mass * u, kernel)
            if bool(((mass * (u * to_rows - 1).abs()).sum(1) < self.tolerance).all()):
                break
            u = _finite((u / to_rows).sqrt(), 1.0)
        plan = kernel.mul_((mass * u)[:, :, None]).mul_((mass * u)[:, None])
        dual = epsilon * ((2 * mass * u.log()).sum(1) + 1 - plan.sum((1, 2)))
        return dual.unflatten(0, (samples, -1)), plan.unflatten(0, (samples, -1))


def _find_scale(y: Tensor, yhat: Tensor, mass: Tensor) -> Tensor:
    """The mean squared distance between the observed rows of each ball, (n,), which yhat does not change.

    A ball whose observed rows are all equal takes the distance of the draws from them, which its gradient
    treats as a constant, or 1.
    """
    middle = (y * mass[..., None]).sum(1, keepdim=True)
    scale = 2 * ((y - middle).square().sum(2) * mass).sum(1)
    away = ((yhat - middle).square().sum(3) * mass).sum(2).mean(0)
    return torch.where(scale > 1e-12 * away, scale, torch.where(away > 0, away, 1.0))


def _list_heats(cost: Tensor) -> list[float]:
    """Factors of epsilon, the last one 1: a smoother problem is solved quickly, and starts the next one.

    >>> _list_heats(torch.tensor([3.0, 600.0, torch.inf]))
    [16.0, 4.0, 1.0]
    """
    largest = float(torch.where(cost.isfinite(), cost, 0.0).max())
    steps = math.ceil(math.log(max(largest / EASY_COST, 1.0), COOLING))
    return [COOLING**k for k in range(steps, -1, -1)]


def _distances(a: Tensor, b: Tensor, mass: Tensor, epsilon: Tensor) -> Tensor:
    """Squared distances over epsilon, (n, w, w), infinite for padding."""
    if a.shape[2] <= FEW_OUTPUTS:
        squares = sum_squares(a, b)
    else:
        lengths = a.square().sum(2)[:, :, None] + b.square().sum(2)[:, None]
        squares = torch.baddbmm(lengths, a, b.mT, alpha=-2).clamp_(min=0)
    squares /= epsilon[:, None, None]
    absent = mass == 0
    if bool(absent.any()):
        squares.masked_fill_(absent[:, :, None] | absent[:, None], torch.inf)
    return squares


def _finite(values: Tensor, instead: float = 0.0) -> Tensor:
    """Values, with another number for padding, where they are infinite or undefined."""
    return torch.where(values.isfinite(), values, instead)


def _multiply(vector: Tensor, kernel: Tensor) -> Tensor:
    """Vectors (n, w) times matrices (n, w, w): from the left, four times as fast as from the right."""
    return torch.bmm(vector[:, None], kernel)[:, 0]


def _invert(product: Tensor) -> Tensor:
    """Sinkhorn's next factor, 1 for padding."""
    return torch.where(product > 0, 1 / product, 1.0)


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """log(a / b), 0 for padding."""
    return _finite((a / b).log())


def _pull(a: Tensor, b: Tensor, plan: Tensor) -> Tensor:
    """The gradient in a of the cost of a plan from a to b."""
    return 2 * (a * plan.sum(2, keepdim=True) - plan @ b)
