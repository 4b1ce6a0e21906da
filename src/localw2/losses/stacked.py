"""The losses of several models at once, each with its own objective; those on the same balls as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.problem import evaluate

if TYPE_CHECKING:
    from localw2.losses.objective import Objective


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
        groups: list[list[int]] = []
        for v, goal in enumerate(goals):
            group = next((g for g in groups if _alike(goals[g[0]], goal)), None)
            if group is None:
                groups.append(group := [])
            group.append(v)
        self._shape = goals[0].y.shape
        self._groups = [
            (group, goals[group[0]] if len(group) == 1 else _Group([goals[v] for v in group]))
            for group in groups
        ]

    def __call__(self, yhat: Tensor) -> Tensor:
        """Losses (V,) of outputs (V, S, N[, T][, d]), differentiable once."""
        return evaluate(self, yhat, stacked=True)

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (V,) and gradients of outputs (V, S, N, ...)."""
        shaped = yhat.reshape(*yhat.shape[:2], *self._shape)
        if len(self._groups) == 1:
            values, grads = self._groups[0][1].solve(shaped)
            return values, grads.reshape(yhat.shape)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for members, loss in self._groups:
            parts = loss.solve(torch.stack([shaped[v] for v in members]))
            found |= dict(zip(members, zip(*parts, strict=True), strict=True))
        pairs = [found[v] for v in range(len(yhat))]
        return torch.stack([v for v, _ in pairs]), torch.stack([g for _, g in pairs]).reshape(yhat.shape)


def _alike(first: Objective, other: Objective) -> bool:
    """Whether two objectives can be solved as one problem."""
    shared = first.hoods is other.hoods and first.discrepancy == other.discrepancy
    return shared and first.y.ndim < 3 and first.y.device == other.y.device


@final
class _Group:
    """Objectives that share balls and discrepancy and differ in their outputs, solved as one problem."""

    def __init__(self, goals: list[Objective]) -> None:
        hoods, y = goals[0].hoods, torch.stack([goal.y for goal in goals])
        assert isinstance(hoods, Neighborhoods)
        zero, one = torch.zeros_like(y[0]), torch.ones_like(y[0])
        self._plain = all(goal.center is None and goal.scale is None for goal in goals)
        self._center = torch.stack([zero if goal.center is None else goal.center for goal in goals])
        self._scale = torch.stack([one if goal.scale is None else goal.scale for goal in goals])
        weights = (hoods.weights / hoods.weights.sum()).to(y)
        y = y if self._plain else (y - self._center) / self._scale
        self._problem = goals[0].discrepancy.bind(y.view(*y.shape[:2], -1), hoods, weights)

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (G,) and gradients of outputs (G, S, N[, d])."""
        if not self._plain:
            yhat = (yhat - self._center[:, None]) / self._scale[:, None]
        draws = yhat.reshape(*yhat.shape[:3], -1).transpose(0, 1)
        values, grads = self._problem.solve(draws)
        grads = grads.transpose(0, 1).reshape(yhat.shape)
        return values, grads if self._plain else grads / self._scale[:, None]
