r"""Squared 2-Wasserstein distance inside every ball, exact, with gradients.

Internally outputs are (B, N, d) and simulated ones (S, B, N, d): S draws, B batch entries (times, slices),
N rows. For d = 1 values are matched in sorted order, for d > 1 by an optimal assignment. Both give the
value of each ball and, by the envelope theorem, the gradient through the optimal pairing held fixed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from localw2._validation import as_tensor
from localw2.assignment import assign
from localw2.forward_gradient import Problem
from localw2.neighborhoods import LazyNeighborhoods, Neighborhoods
from localw2.ordering import Ranking, ordering_for


def w2_squared(y: Tensor, yhat: Tensor, hoods: Neighborhoods) -> Tensor:
    r"""Squared 2-Wasserstein distance inside each ball (paper, Eq. localw2).

    .. math:: \min_\sigma \tfrac1m \sum_s \|y_s - \hat y_{\sigma(s)}\|^2

    ``y`` and ``yhat`` are (N, d), or (N, T, d) with T times (or other batch entries) compared one by
    one. The result has one value per ball, (n_balls,) or (n_balls, T), and can be differentiated once
    in both arguments.

    >>> y = torch.tensor([[0.0], [1.0]])
    >>> w2_squared(y, y.flip(0) + 2, Neighborhoods.whole(2))
    tensor([4.])
    """
    y, yhat = as_tensor(y, "y"), as_tensor(yhat, "yhat")
    if y.shape != yhat.shape or y.ndim not in (2, 3):
        raise ValueError(
            f"y has shape {tuple(y.shape)} and yhat {tuple(yhat.shape)}; both must be (N, d), or (N, T, d)."
        )
    check_rows(y, hoods)
    check_same_kind(y, yhat)
    values: Tensor = _BallValues.apply(to_batches(y), to_batches(yhat)[None], hoods)
    return values[0] if y.ndim == 2 else values.T


def check_rows(y: Tensor, hoods: Neighborhoods | LazyNeighborhoods) -> None:
    """Raise unless the outputs and the graph have the same rows."""
    if len(y) != hoods.n_rows:
        raise ValueError(
            f"y has {len(y)} rows and the neighbourhoods {hoods.n_rows}; they must be the same rows."
        )


def check_same_kind(y: Tensor, yhat: Tensor) -> None:
    """Raise unless both tensors have one dtype and one device."""
    if y.dtype != yhat.dtype or y.device != yhat.device:
        raise ValueError(
            f"y is {y.dtype} on {y.device}, yhat is {yhat.dtype} on {yhat.device}; convert one with .to(...)."
        )


def to_batches(y: Tensor) -> Tensor:
    """(N, d) or (N, T, d) to (B, N, d)."""
    return y[None] if y.ndim == 2 else y.movedim(1, 0)


@final
@dataclass(frozen=True)
class Target:
    """Observed outputs (B, N, d) on a graph; for d = 1 sorted once and kept, since y never changes."""

    y: Tensor
    hoods: Neighborhoods
    ranking: Ranking | None
    ordered: tuple[tuple[Tensor, Any], ...]

    @classmethod
    def of(cls, y: Tensor, hoods: Neighborhoods) -> Target:
        """Prepare outputs for repeated comparison."""
        if y.shape[2] > 1:
            return cls(y, hoods, None, ())
        engine = ordering_for(hoods, y.device)
        ranking = engine.rank(y[..., 0])
        return cls(y, hoods, ranking, tuple(engine.gather(i, ranking) for i in range(engine.n_pieces)))

    def match(self, yhat: Tensor, debiased: bool) -> Match:
        """Find the optimal pairings with simulated outputs (S, B, N, d)."""
        yhat = yhat.detach()
        return (SortedMatch if self.ranking else AssignedMatch)(self, yhat, debiased)


@final
@dataclass(frozen=True)
class WeightedW2(Problem):
    """The weighted sum over balls of their squared W2, plain or debiased."""

    debiased: bool

    @cached_property
    def _target(self) -> Target:
        return Target.of(self.y, self.hoods)

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Match, then weigh: the gradient holds the pairing fixed."""
        match = self._target.match(yhat, self.debiased)
        scale = self.weights.expand(yhat.shape[1], -1)
        return match.values() @ self.weights, match.gradients(scale, with_y=False)[0]


@final
@dataclass(frozen=True)
class WeightedSlicedW2(Problem):
    """The same of one-dimensional projections, averaged over ``directions`` (d, K)."""

    directions: Tensor
    debiased: bool

    @cached_property
    def _slices(self) -> WeightedW2:
        return WeightedW2(self._project(self.y), self.hoods, self.weights, self.debiased)

    def _project(self, values: Tensor) -> Tensor:
        """(..., B, N, d) to (..., B * K, N, 1)."""
        return (values @ self.directions).movedim(-1, -2).flatten(-3, -2)[..., None]

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Match every projection by sorting, and map the gradients back."""
        count = self.directions.shape[1]
        totals, grad = self._slices.solve(self._project(yhat))
        by_slice = grad[..., 0].unflatten(1, (-1, count)).movedim(2, -1)
        return totals.unflatten(0, (-1, count)).mean(1), by_slice @ self.directions.T / count


class Match(ABC):
    """Optimal pairings, ready to be weighed: values per ball, and gradients of their weighted sum.

    With S draws the plain value is the mean over draws. The debiased one subtracts half the mean over
    pairs of draws of their own distance, which makes it an unbiased estimate (see ``SquaredW2``).
    """

    @abstractmethod
    def values(self) -> Tensor:
        """One value per ball, (B, n_balls)."""

    @abstractmethod
    def gradients(self, scale: Tensor, with_y: bool) -> tuple[Tensor, Tensor | None]:
        """Gradients of sum(scale * values) in yhat (S, B, N, d) and, if asked, in y (B, N, d)."""


@final
class SortedMatch(Match):
    r"""d = 1: the k-th smallest goes to the k-th smallest.

    Pairs of draws need no pairs of sorts: with :math:`a_{s}` the k-th value of draw s and
    :math:`\bar a` the mean over draws, the debiased term is
    :math:`(\bar a - y)^2 - \frac{1}{S(S-1)}\sum_s (a_s - \bar a)^2`, linear in S.
    """

    def __init__(self, target: Target, yhat: Tensor, debiased: bool) -> None:
        self._target = target
        self._shape = yhat.shape
        draws, batches, n, _ = yhat.shape
        self._engine = ordering_for(target.hoods, yhat.device)
        self._sizes = target.hoods.sizes.to(yhat)
        self._ranking = self._engine.rank(yhat.reshape(draws * batches, n))
        self._values = yhat.new_empty((batches, target.hoods.n_balls))
        self._pieces: list[tuple[Any, Tensor, Tensor]] = []
        for piece, (y, _) in enumerate(target.ordered):
            a, places = self._engine.gather(piece, self._ranking)
            pull, gap, cost = _debiased_terms(a, y, draws) if debiased else _plain_terms(a, y, draws)
            balls = self._engine.balls(piece)
            self._values[:, balls] = self._engine.ball_sums(piece, cost) / self._sizes[balls]
            self._pieces.append((places, pull, gap))

    def values(self) -> Tensor:
        """One value per ball, (B, n_balls)."""
        return self._values

    def gradients(self, scale: Tensor, with_y: bool) -> tuple[Tensor, Tensor | None]:
        """Add 2 * scale / size * (difference) of every edge to its row."""
        draws = self._shape[0]
        per_edge = 2 * scale / self._sizes
        in_yhat: Tensor | None = None
        in_y: Tensor | None = None
        for piece, (places, pull, gap) in enumerate(self._pieces):
            part = per_edge[:, self._engine.balls(piece)]
            added = self._engine.row_sums(piece, self._ranking, places, pull, part.repeat(draws, 1))
            in_yhat = added if in_yhat is None else in_yhat + added
            if with_y:
                ranking, y_places = self._target.ranking, self._target.ordered[piece][1]
                assert ranking is not None
                removed = self._engine.row_sums(piece, ranking, y_places, gap, part)
                in_y = -removed if in_y is None else in_y - removed
        assert in_yhat is not None
        return in_yhat.view(self._shape), None if in_y is None else in_y[..., None]


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
    """d > 1: one optimal assignment per ball, batch entry and pair of samples."""

    def __init__(self, target: Target, yhat: Tensor, debiased: bool) -> None:
        draws, batches, _, _ = yhat.shape
        device = yhat.device
        self._samples = torch.cat([target.y[None], yhat])
        self._sizes = target.hoods.sizes.to(yhat)
        self._rows = target.hoods.cached(("rows", device), lambda: target.hoods.rows.to(device).long())
        self._ball = target.hoods.cached(
            ("ball of edge", device),
            lambda: torch.repeat_interleave(target.hoods.sizes).to(device),
        )
        # Samples are numbered with y as 0; (left, right, factor) are the terms of the value.
        self._terms = [(0, s, 1 / draws) for s in range(1, draws + 1)]
        if debiased:
            pairs = [(r, s) for r in range(1, draws + 1) for s in range(r + 1, draws + 1)]
            self._terms += [(r, s, -1 / (draws * (draws - 1))) for r, s in pairs]
        self._partner = [
            [
                self._rows[assign(self._samples[r, b], self._samples[s, b], target.hoods).to(device)]
                for b in range(batches)
            ]
            for r, s, _ in self._terms
        ]

    def _differences(self, term: int, batch: int) -> Tensor:
        left, right, _ = self._terms[term]
        partner = self._partner[term][batch]
        return self._samples[left, batch, self._rows] - self._samples[right, batch, partner]

    def values(self) -> Tensor:
        """One value per ball, (B, n_balls)."""
        n_balls, batches = len(self._sizes), self._samples.shape[1]
        totals = self._samples.new_zeros((batches, n_balls))
        for term, (_, _, factor) in enumerate(self._terms):
            for batch in range(batches):
                cost = self._differences(term, batch).square().sum(1)
                totals[batch].index_add_(0, self._ball, cost, alpha=factor)
        return totals / self._sizes

    def gradients(self, scale: Tensor, with_y: bool) -> tuple[Tensor, Tensor | None]:
        """Add the difference of every pair to one of its rows and take it from the other."""
        total = torch.zeros_like(self._samples)
        for term, (left, right, factor) in enumerate(self._terms):
            for batch in range(total.shape[1]):
                per_edge = (2 * factor * scale[batch] / self._sizes)[self._ball, None]
                step = self._differences(term, batch) * per_edge
                total[left, batch].index_add_(0, self._rows, step)
                total[right, batch].index_add_(0, self._partner[term][batch], step, alpha=-1)
        return total[1:], total[0] if with_y else None


class _BallValues(torch.autograd.Function):
    """One value per ball, (B, n_balls); keeps the pairing for the backward pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, yhat: Tensor, hoods: Neighborhoods) -> Tensor:
        ctx.match = Target.of(y.detach(), hoods).match(yhat, debiased=False)
        values: Tensor = ctx.match.values()
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        in_yhat, in_y = ctx.match.gradients(grad.contiguous(), ctx.needs_input_grad[0])
        return in_y, in_yhat, None
