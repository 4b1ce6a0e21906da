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

Iterations begin in single precision. For outputs in single precision, and for a tolerance of ``ROUGH`` or
more, they stay there, unless a ball is too wide for its digits. Newton's steps are in double precision.

The value is that of the dual problem, whose error is of second order in that of the margins. By the envelope
theorem its gradient is that of the cost with the plan held fixed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from localw2.losses.pairwise import PairwiseLoss, sum_squares
from localw2.losses.problem import pairings

COOLING = 4.0  # from one epsilon to the next
EASY_COST = 40.0  # in units of epsilon, up to which a few iterations are enough
TURNS = 5  # of Sinkhorn's iterations at each, and at least four times as many at the last one
LOOK_EVERY = 3
TINY = 1e-6  # share of the error that a turn is taken to leave at least
SLOWEST = 0.98  # share of the error that a turn is taken to leave at most
STEADY = 1.0  # largest change of log u in a turn up to which turns are lengthened
ROUGH = 1e-3  # tolerance from which single precision is enough for outputs in double precision
SINGLE = 1e-6  # smallest error of margins that is looked for in single precision
WIDEST = 500.0  # squared distance from the mean, in units of epsilon, up to which single precision is enough
SMOOTHEST = 1.0  # epsilon up to which it is: what is subtracted grows with it
MOST_STEPS = 100  # of Newton's method, which takes three to twenty, and inside one sample
SHORTEST_STEP = 1e-8  # of the same, which is not halved
LONGEST = 10.0  # change of f and g together in one step, in units of epsilon
ROUNDING = 1e-12  # of a dual, by which it may seem to fall
JITTER = 1e-13  # of the diagonal, so that rounding does not make a plan's curvature negative
FEW_OUTPUTS = 4  # up to which distances are summed output by output, which loses no digits
TAME = 1e18  # largest number of a kernel, and
TAME_LOG = 20.0  # of the logarithms of u and v, up to which single precision holds their products


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

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of weight times loss, (B,), and its gradient (S, B, N, d)."""
        with torch.autocast(yhat.device.type, enabled=False):
            totals, grad = super().solve(yhat)
            return totals + self._constant, grad

    @cached_property
    def _constant(self) -> Tensor:
        """What is subtracted for transport inside y, (B,), so that equal samples have a divergence of 0."""
        problem = _ObservedSinkhorn(self.y, self.hoods, self.weights, self)
        return problem.solve(self.y[None])[0]

    def _ball_losses(
        self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        scaled = self.prepare([y, *yhat], inside)
        found = self._compare(scaled, len(yhat))
        if found is None:
            found = self._compare(self.prepare([y, *yhat], inside, torch.float64), len(yhat))
            assert found is not None
        losses, slopes = found
        return (losses * scaled.epsilon).to(y), slopes.finish(y.dtype)

    def _compare(self, scaled: _Scaled, draws: int) -> tuple[Tensor, _Slopes] | None:
        """Losses (n,) in units of epsilon and their slopes; None where single precision does not do."""
        losses = torch.zeros_like(scaled.epsilon)
        slopes = _Slopes(scaled, torch.float32 if self.tolerance >= SINGLE else torch.float64)
        terms = pairings(draws, self.debiased)
        if not self.debiased:  # otherwise it cancels
            within = [(s, s) for s in range(1, draws + 1)]
            costs, plan = self.transport_within(scaled, within)
            losses -= 0.5 * costs.mean(0)
            for k, (s, _) in enumerate(within):
                slopes.add(plan.of_pair(k), s, s, -1 / draws)
        costs, plans = self._transport(scaled, [(left, right) for left, right, _ in terms])
        if plans is None:
            return None
        losses += torch.tensor([factor for *_, factor in terms]).to(costs) @ costs
        for k, (left, right, factor) in enumerate(terms):
            slopes.add(plans.of_pair(k), left, right, factor)
            if right:  # y is given
                slopes.add(plans.of_pair(k).flip(), right, left, factor)
        return losses, slopes

    def prepare(
        self, samples: Sequence[Tensor], inside: Tensor, precision: torch.dtype = torch.float32
    ) -> _Scaled:
        """Samples (n, w, d), observed ones first, in the unit and in the precision of the iterations.

        That is at least the ``precision``, and double where numbers are too wide for single precision.
        """
        mass = inside.double()
        mass = mass / mass.sum(1, keepdim=True)
        precise = [one.double() for one in samples]
        # In single precision the middle is off by rounding, which would count as the spread of equal rows.
        middle = torch.bmm(mass[:, None], precise[0])
        precise = [one - middle for one in precise]
        lengths = torch.stack([torch.linalg.vecdot(one, one) for one in precise])
        epsilon = self.epsilon * _find_scale(lengths, mass)
        single = samples[0].dtype == torch.float32 or self.tolerance >= ROUGH
        if single and self.tolerance >= SINGLE and self.epsilon <= SMOOTHEST:
            narrow = (lengths < WIDEST * epsilon[:, None]) | (mass == 0)
            if not bool(narrow.all()):
                precision = torch.float64
        else:
            precision = torch.float64
        n, w, d = samples[0].shape
        scaled = torch.empty((len(samples), n, w, d + 1), dtype=precision, device=mass.device)
        scaled[..., d] = 1.0
        unit = epsilon.rsqrt()[:, None, None]
        for one, place in zip(precise, scaled, strict=True):
            torch.mul(one, unit, out=place[..., :d])
        lengths /= epsilon[:, None]
        return _Scaled(scaled, lengths.to(precision), mass.to(precision), epsilon)

    def transport_within(self, scaled: _Scaled, pairs: list[tuple[int, int]]) -> tuple[Tensor, _Plan]:
        """The smoothed costs (k, n) and plans of k ``pairs`` of a sample and itself.

        There u = v, and the geometric mean of two turns converges fast.
        """
        mass = scaled.mass.repeat(len(pairs), 1)
        kernel = scaled.compute_exponents(pairs).exp_()
        u = torch.ones_like(mass)
        for _ in range(MOST_STEPS):  # errors are at least halved each time: half of them reach rounding
            to_rows = _multiply(mass * u, kernel)
            if bool(((mass * (u * to_rows - 1).abs()).sum(1) < self.tolerance).all()):
                break
            u = _finite((u / to_rows).sqrt(), 1.0)
        else:
            to_rows = _multiply(mass * u, kernel)
        dual = (2 * mass * u.log()).double().sum(1) + 1 - (mass * u * to_rows).double().sum(1)
        return dual.unflatten(0, (len(pairs), -1)), _Plan(kernel, u, u, mass, len(pairs))

    def _transport(self, scaled: _Scaled, pairs: list[tuple[int, int]]) -> tuple[Tensor, _Plan | None]:
        """The smoothed costs (k, n) and plans of k ``pairs`` of samples.

        There are no plans where they need double precision and samples are in single precision.
        """
        mass = scaled.mass.repeat(len(pairs), 1)
        exponents = scaled.compute_exponents(pairs)
        heats = _list_heats(exponents)
        f, g = torch.zeros_like(mass), torch.zeros_like(mass)
        if len(heats) > 1:
            f = -_finite(exponents.amax(2))
            g = -_finite((exponents + f[:, :, None]).amax(1))
        for heat in heats:
            if len(heats) == 1:
                kernel = exponents.exp_()
            else:
                kernel = torch.add(exponents, f[:, :, None]).add_(g[:, None])
                kernel = (kernel if heat == 1 else kernel.div_(heat)).exp_()
            turns = TURNS if heat > 1 else max(4 * TURNS, mass.shape[1] // 2)
            light = kernel.float()  # the same if the iterations are in single precision
            log_u, log_v, done = self._iterate(kernel, light, mass, turns)
            f, g = f + heat * log_u, g + heat * log_v
        rest = (~done).nonzero()[:, 0]
        if len(rest):
            left, right = ((mass * log.exp())[rest] for log in (log_u, log_v))
            plan = kernel[rest] * left[:, :, None] * right[:, None]
            wanted = mass[rest].double()
            wanted /= wanted.sum(1, keepdim=True)  # single precision leaves a sum that is not quite 1
            plan, more_f, more_g = self._finish(plan.double(), wanted)
            apart = _finite(1 / wanted)
            kernel[rest] = (plan * apart[:, :, None] * apart[:, None]).to(kernel)
            light[rest] = kernel[rest].float()
            f[rest] += more_f.to(f)
            g[rest] += more_g.to(g)
            log_u[rest] = log_v[rest] = 0.0
        u, v = log_u.exp(), log_v.exp()
        total = (mass * v * _multiply(mass * u, kernel)).double().sum(1)
        dual = ((mass * (f + g)).double().sum(1) + 1 - total).unflatten(0, (len(pairs), -1))
        largest = torch.maximum(log_u.abs().amax(), log_v.abs().amax())
        # Kernels of one heat are at most 1.
        tame = bool(largest < TAME_LOG) and ((len(heats) == 1 and not len(rest)) or bool(light.amax() < TAME))
        if not tame and kernel.dtype == torch.float32:
            return dual, None
        rounded = light if tame and self.tolerance >= SINGLE else kernel
        return dual, _Plan(rounded, u, v, mass, len(pairs))

    def _iterate(
        self, kernel: Tensor, light: Tensor, mass: Tensor, turns: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logarithms of Sinkhorn's u and v (n, w) for kernels (n, w, w), and which balls are done (n,).

        Single precision, in which ``light`` is the kernel, goes nearly all of the way in half of the time,
        unless numbers are too large for it.
        """
        start = _Scaling(torch.zeros_like(mass), torch.zeros_like(mass), mass.new_ones(len(mass), 1))
        if kernel.dtype == torch.float32:
            turns *= 2  # in double precision there are as many again
        else:
            nearly = max(self.tolerance, SINGLE)
            found, _ = start.to(torch.float32).improve(light, mass.float(), turns, nearly)
            start = found.to(torch.float64).where_finite(start)
        found, done = start.improve(kernel, mass, turns, self.tolerance)
        return found.log_u, found.log_v, done

    def _finish(self, plan: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Newton's method from plans (n, w, w) that are nearly right: better ones, what is added to f and g.

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
            "for the digits of these numbers, or weights of rows are too unequal. Give a larger epsilon, a "
            "larger tolerance, or SquaredW2().",
            stacklevel=2,
        )
        return plan, f, g


@final
@dataclass(frozen=True)
class _ObservedSinkhorn(PairwiseLoss):
    """Minus half of the smoothed transport from the rows of a ball to themselves, which no draw changes."""

    like: WeightedSinkhorn

    widths: ClassVar[float] = WeightedSinkhorn.widths
    scratch: ClassVar[int] = WeightedSinkhorn.scratch

    def _ball_losses(
        self, y: Tensor, yhat: Tensor, inside: Tensor, sizes: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        scaled = self.like.prepare([y], inside)
        costs, _ = self.like.transport_within(scaled, [(0, 0)])
        # Equal rows have no unit of their own: epsilon is 1 there, and rounding would be in that unit.
        varies = (scaled.lengths[0] * scaled.mass).sum(1) > 0
        found = torch.where(varies, -0.5 * costs[0] * scaled.epsilon, 0.0)
        return found.to(y), torch.zeros_like(yhat)


@final
@dataclass(frozen=True)
class _Scaled:
    """Samples (k, n, w, d + 1) in units of the root of their ball's ``epsilon`` (n,); the last column is 1.

    ``lengths`` (k, n, w) are their squared distances from the middle, and masses (n, w) are 0 for padding.
    Epsilon is in double precision, the rest in that of the iterations.
    """

    samples: Tensor
    lengths: Tensor
    mass: Tensor
    epsilon: Tensor

    def compute_exponents(self, pairs: list[tuple[int, int]]) -> Tensor:
        """Minus squared distances between the rows of k pairs of samples, (k * n, w, w).

        They are minus infinity for padding.
        """
        samples, lengths = self.samples[..., :-1], self.lengths
        n, w, d = samples.shape[1:]
        found = samples.new_empty((len(pairs), n, w, w))
        for place, (left, right) in zip(found, pairs, strict=True):
            if d <= FEW_OUTPUTS:
                torch.neg(sum_squares(samples[left], samples[right]), out=place)
            else:
                torch.add(lengths[left][:, :, None], lengths[right][:, None], out=place)
                place.baddbmm_(samples[left], samples[right].mT, beta=-1, alpha=2)
        absent = self.mass == 0
        if bool(absent.any()):
            found.masked_fill_(absent[:, :, None] | absent[:, None], -torch.inf)
        return found.flatten(0, 1)


@final
@dataclass(frozen=True)
class _Scaling:
    """Logarithms of Sinkhorn's u and v (n, w), and the factors (n, 1) that lengthen each ball's turns."""

    log_u: Tensor
    log_v: Tensor
    factor: Tensor

    def to(self, precision: torch.dtype) -> _Scaling:
        """The same in another precision."""
        return _Scaling(self.log_u.to(precision), self.log_v.to(precision), self.factor.to(precision))

    def where_finite(self, other: _Scaling) -> _Scaling:
        """The same, and another one for balls where something is not finite."""
        finite = (self.log_u.isfinite() & self.log_v.isfinite()).all(1, keepdim=True)
        pairs = ((self.log_u, other.log_u), (self.log_v, other.log_v), (self.factor, other.factor))
        return _Scaling(*(torch.where(finite, own, its) for own, its in pairs))

    def improve(self, kernel: Tensor, mass: Tensor, turns: int, tolerance: float) -> tuple[_Scaling, Tensor]:
        r"""Sinkhorn's iterations with a kernel (n, w, w), and which balls are done (n,).

        Turns are lengthened by a factor of each ball's own, successive over-relaxation of the logarithms. If
        a plain turn leaves the share :math:`\eta` of the error, the best factor is
        :math:`2 / (1 + \sqrt{1 - \eta})`; one of :math:`\omega` leaves :math:`\rho` with
        :math:`(\rho + \omega - 1)^2 = \omega^2 \eta \rho`, which tells :math:`\eta`. That holds near the
        solution: while logarithms still change by more than ``STEADY``, and in the last turn, which nobody
        looks at, the factor is 1. A plain turn never makes the error larger.
        """
        present, log_mass, transposed, factor = mass > 0, mass.log(), kernel.mT, self.factor
        smallest = torch.finfo(mass.dtype).tiny
        # Minus the logarithms: the iterations move them towards those of products.
        minus_u, minus_v = -self.log_u, -self.log_v
        left, right = torch.sub(log_mass, minus_u).exp_(), torch.sub(log_mass, minus_v).exp_()
        error, looked = mass.new_ones(len(mass)), -1
        of_columns = _sum_gaps(right, _multiply(left, kernel), mass)
        for turn in range(turns):
            product = _multiply(right, transposed).clamp_(min=smallest)
            last = turn == turns - 1
            if turn % LOOK_EVERY == 0 or last:
                before, error = error, _sum_gaps(left, product, mass)
                done = torch.maximum(error, of_columns) < tolerance
                if bool(done.all()):
                    break
                if looked >= 0:
                    beyond = factor[:, 0] - 1
                    per_turn = (error / before.clamp(min=smallest)) ** (1 / (turn - looked))
                    left_over = torch.maximum(per_turn, beyond).clamp(TINY, 1.0)
                    share = (left_over + beyond).square() / ((beyond + 1).square() * left_over)
                    change = torch.where(present, (product.log() - minus_u).abs(), 0.0).amax(1)
                    share = torch.where(change < STEADY, share, 0.0).clamp(0.0, SLOWEST)
                    factor = (2 / (1 + (1 - share).sqrt()))[:, None]
                looked = turn
            longer = torch.ones_like(factor) if last else factor
            minus_u.lerp_(product.log_(), longer)
            left = torch.sub(log_mass, minus_u).exp_()
            product = _multiply(left, kernel).clamp_(min=smallest)
            if (turn + 1) % LOOK_EVERY == 0 or turn + 1 == turns - 1:
                # Columns are right after a plain turn, and after a lengthened one off by that much of before.
                of_columns = (longer[:, 0] - 1) * _sum_gaps(right, product, mass)
            minus_v.lerp_(product.log_(), longer)
            right = torch.sub(log_mass, minus_v).exp_()
        log_u, log_v = (minus.neg_().masked_fill_(~present, 0.0) for minus in (minus_u, minus_v))
        return _Scaling(log_u, log_v, factor), done


@final
@dataclass(frozen=True)
class _Plan:
    """Plans of ``pairs`` pairs of samples, one after the other; never made whole.

    The share of the mass of row i that goes to row j is u_i kernel_ij v_j mass_j.
    """

    kernel: Tensor
    u: Tensor
    v: Tensor
    mass: Tensor
    pairs: int = 1

    def of_pair(self, k: int) -> _Plan:
        """The plans of one pair."""
        parts = (self.kernel, self.u, self.v, self.mass)
        return _Plan(*(part.unflatten(0, (self.pairs, -1))[k] for part in parts))

    def flip(self) -> _Plan:
        """The plans of the way back."""
        return _Plan(self.kernel.mT, self.v, self.u, self.mass, self.pairs)


@final
class _Slopes:
    r"""The gradient of costs in all samples, :math:`2\sum_j P_{ij} (a_i - b_j)` of each plan P from a to b.

    Its sums, over j of :math:`P_{ij} b_j` and in the last column of :math:`P_{ij}`, have as many digits as a
    gradient needs. They are of the shares of each row's mass, which no unit and no weight makes large.
    """

    def __init__(self, scaled: _Scaled, precision: torch.dtype) -> None:
        self._samples = scaled.samples
        self._unit = 2 * scaled.mass * scaled.epsilon.sqrt()[:, None]
        self._sums = torch.zeros_like(scaled.samples, dtype=precision)

    def add(self, plan: _Plan, left: int, right: int, factor: float) -> None:
        """Add the cost of a plan from sample ``left`` to ``right``, times a factor, in the former."""
        moved = (self._samples[right] * (plan.v * plan.mass)[..., None]).to(plan.kernel)
        shares, u = torch.bmm(plan.kernel, moved), (factor * plan.u)[..., None].to(plan.kernel)
        if plan.kernel.dtype == self._sums.dtype:
            self._sums[left].addcmul_(shares, u)
        else:  # shares alone may be too large for single precision
            self._sums[left] += shares.mul_(u)

    def finish(self, precision: torch.dtype) -> Tensor:
        """The gradient in all samples but the first, in the unit and the precision of the outputs."""
        samples, sums = self._samples[1:, ..., :-1], self._sums[1:]
        gradient = (samples * sums[..., -1:] - sums[..., :-1]).to(precision)
        return gradient.mul_(self._unit[..., None].to(precision))


def _find_scale(lengths: Tensor, mass: Tensor) -> Tensor:
    """The mean squared distance between the observed rows of each ball, (n,), which yhat does not change.

    ``lengths`` (k, n, w) are the squared distances of observed and simulated rows from the mean of the
    observed ones. A ball whose observed rows are all equal takes the distance of the draws from them, which
    its gradient treats as a constant, or 1.
    """
    sizes = (lengths * mass).sum(2)
    scale, away = 2 * sizes[0], sizes[1:].sum(0) / max(len(sizes) - 1, 1)
    return torch.where(scale > 1e-12 * away, scale, torch.where(away > 0, away, 1.0))


def _list_heats(exponents: Tensor) -> list[float]:
    """Factors of epsilon, the last one 1: a smoother problem is solved quickly, and starts the next one.

    >>> _list_heats(torch.tensor([-3.0, -600.0, -torch.inf]))
    [16.0, 4.0, 1.0]
    """
    lowest = float(exponents.min())
    if not math.isfinite(lowest):
        lowest = float(_finite(exponents).min())
    steps = math.ceil(math.log(max(-lowest / EASY_COST, 1.0), COOLING))
    return [COOLING**k for k in range(steps, -1, -1)]


def _finite(values: Tensor, instead: float = 0.0) -> Tensor:
    """Values, with another number for padding, where they are infinite or undefined."""
    return torch.where(values.isfinite(), values, instead)


def _multiply(vector: Tensor, kernel: Tensor) -> Tensor:
    """Vectors (n, w) times matrices (n, w, w): from the left, four times as fast as from the right."""
    return torch.bmm(vector[:, None], kernel)[:, 0]


def _sum_gaps(factor: Tensor, product: Tensor, mass: Tensor) -> Tensor:
    """By how much the margins of a plan are off in each ball, (n,)."""
    return torch.mul(factor, product).sub_(mass).abs_().sum(1)


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """log(a / b), 0 for padding."""
    return _finite((a / b).log())
