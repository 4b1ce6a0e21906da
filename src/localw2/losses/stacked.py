"""The losses of several models at once, each with its own objective; those on the same balls as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from localw2.balls.neighborhoods import Neighborhoods

if TYPE_CHECKING:
    from localw2.losses.objective import Objective
    from localw2.losses.problem import Problem


@final
class StackedLosses:
    """The losses of V models, each with its own objective, whose outputs have the same shape.

    >>> hoods, y = Neighborhoods.whole(3), torch.tensor([0.0, 1.0, 2.0])
    >>> from localw2 import Objective
    >>> losses = StackedLosses([Objective(y, hoods), Objective(y + 1, hoods)])
    >>> losses(torch.stack([y, y])[:, None])
    tensor([0., 1.])
    """

    def __init__(self, goals: list[Objective]) -> None:
        self._goals = goals
        self._groups: list[_Group] = []
        for v, goal in enumerate(goals):
            group = next((g for g in self._groups if g.takes(goal)), None)
            if group is None:
                self._groups.append(group := _Group(goal))
            group.members.append(v)

    def __call__(self, yhat: Tensor) -> Tensor:
        """Losses (V,) of outputs (V, S, N[, T][, d]), differentiable once."""
        values: Tensor = _StackedLoss.apply(yhat, self)  # type: ignore[no-untyped-call]  # torch has no type for apply
        return values

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (V,) and gradients of outputs (V, S, N, ...)."""
        shaped = yhat.reshape(*yhat.shape[:2], *self._goals[0].y.shape)
        if len(self._groups) == 1:
            values, grads = self._groups[0].solve(shaped, self._goals)
            return values, grads.reshape(yhat.shape)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for group in self._groups:
            part = torch.stack([shaped[v] for v in group.members])
            values, grads = group.solve(part, [self._goals[v] for v in group.members])
            found |= {v: (values[i], grads[i]) for i, v in enumerate(group.members)}
        pairs = [found[v] for v in range(len(yhat))]
        return torch.stack([v for v, _ in pairs]), torch.stack([g for _, g in pairs]).reshape(yhat.shape)


@final
class _Group:
    """Objectives that share balls and discrepancy and differ in their outputs, solved as one problem."""

    def __init__(self, first: Objective) -> None:
        self._first = first
        self.members: list[int] = []
        self._problem: Problem | None = None
        self._center: Tensor | None = None
        self._scale: Tensor | None = None

    def takes(self, goal: Objective) -> bool:
        """Whether an objective belongs to the group."""
        first = self._first
        alike = goal.hoods is first.hoods and goal.discrepancy == first.discrepancy
        return alike and first.y.ndim < 3 and goal.y.device == first.y.device

    def solve(self, yhat: Tensor, goals: list[Objective]) -> tuple[Tensor, Tensor]:
        """Losses (G,) and gradients of outputs (G, S, N[, d])."""
        if len(goals) == 1:
            return goals[0].solve(yhat)
        if self._problem is None:
            self._bind(goals)
        assert self._problem is not None
        if self._center is not None and self._scale is not None:
            yhat = (yhat - self._center[:, None]) / self._scale[:, None]
        draws = yhat.reshape(*yhat.shape[:3], -1).transpose(0, 1)
        values, grads = self._problem.solve(draws)
        grads = grads.transpose(0, 1).reshape(yhat.shape)
        return values, grads if self._scale is None else grads / self._scale[:, None]

    def _bind(self, goals: list[Objective]) -> None:
        hoods, y = self._first.hoods, torch.stack([goal.y for goal in goals])
        assert isinstance(hoods, Neighborhoods)
        if any(goal.center is not None or goal.scale is not None for goal in goals):
            zero, one = torch.zeros_like(y[0]), torch.ones_like(y[0])
            self._center = torch.stack([zero if goal.center is None else goal.center for goal in goals])
            self._scale = torch.stack([one if goal.scale is None else goal.scale for goal in goals])
            y = (y - self._center) / self._scale
        weights = (hoods.weights / hoods.weights.sum()).to(y)
        self._problem = self._first.discrepancy.bind(y.view(*y.shape[:2], -1), hoods, weights)


class _StackedLoss(torch.autograd.Function):
    """The losses of stacked outputs, with the gradient computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, yhat: Tensor, losses: StackedLosses) -> Tensor:
        values, grads = losses.solve(yhat.detach())
        ctx.save_for_backward(grads)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (grads,) = ctx.saved_tensors
        return grads * grad.view(-1, *[1] * (grads.ndim - 1)), None
