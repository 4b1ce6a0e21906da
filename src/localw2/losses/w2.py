r"""Exact squared 2-Wasserstein distance inside every ball, with gradients.

Observed outputs are (B, N, d) and simulated ones (S, B, N, d), with S draws, B batch entries (times, slices)
and N rows. Values are paired in sorted order for d = 1, and by an optimal assignment for d > 1. Both give the
value of each ball and, by the envelope theorem, its gradient with the optimal pairing held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from localw2._validation import Array
from localw2.losses.assignment import Centred, assign
from localw2.losses.cuda.assignment import DeviceAssigned, can_assign
from localw2.losses.cuda.sorting import DeviceBalls, DeviceSorted, can_sort
from localw2.losses.problem import Match, Problem, pairings
from localw2.losses.sorting import Ranking, ordering_for
from localw2.losses.weighted import WeightedSorted

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

# Edges times columns (draws, times, slices) held at a time, a few times 8 bytes each.
GROUP_EDGES = 1 << 22


def ball_values(y: Tensor, yhat: Tensor, hoods: Neighborhoods) -> Tensor:
    """Squared W2 in every ball, (B, n_balls), for y and yhat (B, N, d), differentiable once in both."""
    groups = zip(*(v.split(_group_size(hoods, 1)) for v in (y, yhat)), strict=True)
    return torch.cat([_BallValues.apply(a, b, hoods) for a, b in groups])


def _group_size(hoods: Neighborhoods, draws: int) -> int:
    """The number of batch entries whose edges are held at a time."""
    return max(1, GROUP_EDGES // (draws * hoods.n_edges))


@final
@dataclass(frozen=True)
class Target:
    """Observed outputs (B, N, d) on a graph; for d = 1 sorted once and kept, since y never changes."""

    y: Tensor
    hoods: Neighborhoods
    with_y: bool = False  # keep what the gradient in y needs
    repeated: bool = False  # a ball may hold a row several times

    @cached_property
    def ranking(self) -> Ranking:
        """d = 1: y of every batch entry, sorted."""
        return ordering_for(self.hoods, self.y.device).rank(self.y[..., 0])

    @cached_property
    def ordered(self) -> tuple[tuple[Tensor, Any], ...]:
        """d = 1: the values of every ball, ascending, piece by piece, and their positions."""
        engine = ordering_for(self.hoods, self.y.device)
        pieces = (engine.gather(i, self.ranking) for i in range(len(engine.balls)))
        return tuple((a, places if self.with_y else None) for a, places in pieces)

    @cached_property
    def ascending(self) -> Tensor:
        """d = 1 on a GPU: the values of every ball, ascending, in one piece (B, edges)."""
        return DeviceBalls.of(self.hoods, self.y.device).sort(self.y[..., 0])

    def match(self, yhat: Tensor, debiased: bool) -> Match:
        """Find the optimal pairings with simulated outputs (S, B, N, d), detached from autograd."""
        if self.hoods.sample_weight is not None:
            if self.y.shape[2] == 1:
                return WeightedSorted(self.y, yhat, self.hoods, debiased)
            repeated = self.hoods.compute_once("repeated rows", self.hoods.repeat_rows)
            return replace(self, hoods=repeated, repeated=True).match(yhat, debiased)
        if self.y.shape[2] == 1:
            if not self.with_y and can_sort(self.hoods, yhat):
                balls = DeviceBalls.of(self.hoods, yhat.device)
                return DeviceSorted(balls, self.ascending, yhat, debiased)
            return SortedMatch(self, yhat, debiased)
        if can_assign(self.hoods, yhat.device):
            return DeviceAssigned(self.y, yhat, self.hoods, debiased)
        whole = self.hoods.n_balls == 1 and self.hoods.n_edges == self.hoods.n_rows
        if whole and not self.repeated and not debiased and yhat.device.type == "cpu":
            return WholeMatch(self, yhat)
        return AssignedMatch(self, yhat, debiased)

    @cached_property
    def arrays(self) -> list[tuple[Array, Centred]]:
        """y of each batch entry, plain and prepared for pairing as one ball."""
        return [(y, Centred.of(y)) for y in self.y.numpy()]


@final
@dataclass(frozen=True)
class WeightedW2(Problem):
    """The weighted sum over balls of the squared W2, plain or debiased."""

    debiased: bool

    @cached_property
    def _targets(self) -> list[Target]:
        """y in groups of batch entries that are small enough to bound the memory of a step."""
        return [Target(part, self.hoods) for part in self.y.split(_group_size(self.hoods, 4))]

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Pair, then weight; the gradient holds the pairing fixed."""
        groups = [yhat] if len(self._targets) == 1 else yhat.split([len(t.y) for t in self._targets], 1)
        totals, grads = [], []
        for target, group in zip(self._targets, groups, strict=True):
            match = target.match(group, self.debiased)
            values, in_yhat, _ = match.weigh(self.weights.expand(len(target.y), -1))
            totals.append(values @ self.weights)
            grads.append(in_yhat)
        return (totals[0], grads[0]) if len(totals) == 1 else (torch.cat(totals), torch.cat(grads, 1))


@final
@dataclass(frozen=True)
class WeightedSlicedW2(Problem):
    """The squared W2 of one-dimensional projections, averaged over ``directions`` (d, K)."""

    directions: Tensor
    debiased: bool

    @cached_property
    def _slices(self) -> WeightedW2:
        return WeightedW2(self._project(self.y), self.hoods, self.weights, self.debiased)

    def _project(self, values: Tensor) -> Tensor:
        """Project (..., B, N, d) to (..., B * K, N, 1)."""
        return (values @ self.directions).movedim(-1, -2).flatten(-3, -2)[..., None]

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Match every projection by sorting, and map the gradients back."""
        count = self.directions.shape[1]
        totals, grad = self._slices.solve(self._project(yhat))
        by_slice = grad[..., 0].unflatten(1, (-1, count)).movedim(2, -1)
        return totals.unflatten(0, (-1, count)).mean(1), by_slice @ self.directions.T / count


@final
class SortedMatch(Match):
    r"""d = 1: the k-th smallest value is paired with the k-th smallest.

    The debiased loss does not need to sort pairs of draws: with :math:`a_{s}` the k-th value of draw s and
    :math:`\bar a` the mean over draws, the debiased term is
    :math:`(\bar a - y)^2 - \frac{1}{S(S-1)}\sum_s (a_s - \bar a)^2`, linear in S.
    """

    def __init__(self, target: Target, yhat: Tensor, debiased: bool) -> None:
        self._target = target
        self._debiased = debiased
        self._shape = yhat.shape
        draws, batches, n, _ = yhat.shape
        self._engine = ordering_for(target.hoods, yhat.device)
        self._ranking = self._engine.rank(yhat.reshape(draws * batches, n))

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add 2 * scale / size * (difference) of every edge to its row, one cache-sized piece at a time."""
        engine, target, draws = self._engine, self._target, self._shape[0]
        hoods = target.hoods
        # Kept on the device, because a copy from the host would stall the stream and break graph capture.
        sizes = hoods.compute_once(("sizes", scale.device, scale.dtype), lambda: hoods.sizes.to(scale))
        values = torch.empty_like(scale, memory_format=torch.contiguous_format)
        in_yhat = torch.zeros_like(self._ranking.ordered)
        in_y = torch.zeros_like(target.y[..., 0])
        terms = _debiased_terms if self._debiased else _plain_terms
        for piece, (y, y_places) in enumerate(target.ordered):
            balls = engine.balls[piece]
            a, places = engine.gather(piece, self._ranking)
            pull, gap, cost = terms(a, y, draws)
            values[:, balls] = engine.ball_sums(piece, cost) / sizes[balls]
            per_edge = 2 * scale[:, balls] / sizes[balls]
            in_yhat += engine.row_sums(piece, self._ranking, places, pull, per_edge.repeat(draws, 1))
            if with_y:
                in_y -= engine.row_sums(piece, target.ranking, y_places, gap, per_edge)
        return values, in_yhat.view(self._shape), in_y[..., None] if with_y else None


def _plain_terms(a: Tensor, y: Tensor, draws: int) -> tuple[Tensor, Tensor, Tensor]:
    """Half the gradient in a (S * B, edges) and in -y (B, edges), and the cost (B, edges)."""
    if draws == 1:
        pull = a - y
        return pull, pull, pull.square()
    pull = a.view(draws, *y.shape) - y
    cost = pull.square().mean(0)
    pull = pull / draws
    return pull.view(a.shape), pull.sum(0), cost


def _debiased_terms(a: Tensor, y: Tensor, draws: int) -> tuple[Tensor, Tensor, Tensor]:
    a = a.view(draws, *y.shape)
    mean = a.mean(0)
    gap, spread = mean - y, a - mean
    pairs = draws * (draws - 1)
    cost = gap.square() - spread.square().sum(0) / pairs
    return (gap / draws - spread / pairs).view(-1, y.shape[1]), gap, cost


@final
class AssignedMatch(Match):
    """d > 1: one optimal assignment per ball, batch entry and pair of samples, on the host."""

    def __init__(self, target: Target, yhat: Tensor, debiased: bool) -> None:
        draws, batches, n, d = yhat.shape
        self._like, self._hoods = yhat, target.hoods
        samples = np.concatenate([target.y[None].cpu().numpy(), yhat.cpu().numpy()])
        flat = samples.reshape(draws + 1, batches * n, d)
        # Rows are numbered consecutively over batch entries: entry b starts at row b * N.
        shift = n * np.arange(batches)[:, None]
        self._rows = (self._hoods.rows.numpy() + shift).reshape(-1)
        self._terms = pairings(draws, debiased)
        self._partners, self._differences = [], []
        for left, right, _ in self._terms:
            partner = (assign(samples[left], samples[right], self._hoods) + shift).reshape(-1)
            self._partners.append(partner)
            self._differences.append(flat[left].take(self._rows, 0) - flat[right].take(partner, 0))

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the difference of every pair to one of its rows and subtract it from the other."""
        draws, batches, n, d = self._like.shape
        starts, sizes = self._hoods.indptr[:-1].numpy(), self._hoods.sizes.numpy()
        total = np.zeros((draws + 1, batches * n, d), self._differences[0].dtype)
        values: Any = 0.0
        per_ball = (2 * scale.cpu().numpy() / sizes).astype(total.dtype)
        per_edge = np.repeat(per_ball, sizes, axis=1).reshape(-1, 1)
        for (left, right, factor), partner, difference in zip(
            self._terms, self._partners, self._differences, strict=True
        ):
            cost = np.einsum("ed,ed->e", difference, difference).reshape(batches, -1)
            values = values + factor * np.add.reduceat(cost, starts, axis=1)
            step = difference * (factor * per_edge)
            _add_rows(total[left], self._rows, step)
            if right or with_y:
                _add_rows(total[right], partner, -step)
        grads = torch.from_numpy(total).to(self._like).view(draws + 1, batches, n, d)
        values = torch.from_numpy(values / sizes).to(self._like)
        return values, grads[1:], grads[0] if with_y else None


@final
class WholeMatch(Match):
    """d > 1 and one ball with every row: a pairing is a permutation of all rows."""

    def __init__(self, target: Target, yhat: Tensor) -> None:
        self._gaps = yhat.numpy().copy()
        draws, batches, n, _ = self._gaps.shape
        self._values = np.zeros((batches, 1), self._gaps.dtype)
        self._columns = []
        for b in range(batches):
            y, centred = target.arrays[b]
            for s in range(draws):
                gap = self._gaps[s, b]
                columns = centred.pair(gap)
                gap[columns] -= y
                self._values[b] += np.vdot(gap, gap) / (draws * n)
                self._columns.append(columns)

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weight the difference between each row of yhat and the row of y that it is paired with."""
        draws, batches, n, _ = self._gaps.shape
        steps = self._gaps * (scale.numpy() * (2 / (draws * n)))[:, :, None]
        in_y = None
        if with_y:
            order = np.array(self._columns).reshape(batches, draws, n, 1).swapaxes(0, 1)
            in_y = torch.from_numpy(-np.take_along_axis(steps, order, axis=2).sum(0))
        return torch.from_numpy(self._values), torch.from_numpy(steps), in_y


def _add_rows(total: Array, rows: Array, steps: Array) -> None:
    """Add steps (edges, d) to the rows of total that they belong to, which may repeat."""
    torch.from_numpy(total).index_add_(0, torch.from_numpy(rows), torch.from_numpy(steps))


class _BallValues(torch.autograd.Function):
    """One value per ball, (B, n_balls), for y and yhat (B, N, d); keeps the pairing for the backward pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, yhat: Tensor, hoods: Neighborhoods) -> Tensor:
        ctx.match = Target(y.detach(), hoods, with_y=True).match(yhat.detach()[None], debiased=False)
        values: Tensor = ctx.match.weigh(y.new_zeros(len(y), hoods.n_balls))[0]
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        _, in_yhat, in_y = ctx.match.weigh(grad.contiguous(), ctx.needs_input_grad[0])
        return in_y, in_yhat[0], None
