"""Losses whose gradient is computed in the forward pass, as one autograd function for all of them.

The pairing or kernel matrix, which is the costly part, is available in the forward pass. Keeping only the
gradient (one number per simulated value) is faster and takes less memory than keeping that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods


@dataclass(frozen=True)
class Problem(ABC):
    """A weighted sum over balls that compares simulated outputs with observed ones (B, N, d) on a graph."""

    y: Tensor
    hoods: Neighborhoods
    weights: Tensor

    @abstractmethod
    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """The values (B,) for simulated outputs yhat (S, B, N, d), and the gradient of their sum in yhat."""

    def repeat(self, times: int) -> Problem:
        """The same problem with its batch entries repeated, for stacked models."""
        return replace(self, y=self.y.repeat(times, 1, 1))


class Solvable(Protocol):
    """A scalar loss of one argument, evaluated for several values of it at once."""

    def solve(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """The losses (V,) of V stacked arguments (V, ...), and their gradients (V, ...)."""
        ...


def evaluate(loss: Solvable, yhat: Tensor, stacked: bool = False) -> Tensor:
    """The loss of yhat, a scalar, or the losses (V,) of ``stacked`` arguments, differentiable once.

    A scalar can also be mapped over by ``torch.vmap``.
    """
    if not stacked and torch._C._are_functorch_transforms_active():
        mapped: Tensor = _ForwardGradient.apply(yhat, loss)[0]
        return mapped
    value: Tensor = _EagerForwardGradient.apply(yhat, loss, stacked)
    return value


class _EagerForwardGradient(torch.autograd.Function):
    """The value with its gradient kept: 20 microseconds faster than the form that can be mapped."""

    @staticmethod
    def forward(ctx: Any, yhat: Tensor, loss: Solvable, stacked: bool) -> Tensor:
        values, grads = loss.solve(yhat.detach() if stacked else yhat.detach()[None])
        ctx.save_for_backward(grads if stacked else grads[0])
        return values if stacked else values[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (grads,) = ctx.saved_tensors
        return grads * (grad.view(-1, *[1] * (grads.ndim - 1)) if grad.ndim else grad), None, None


class _ForwardGradient(torch.autograd.Function):
    """The value, and its gradient as a second output that autograd treats as a constant."""

    @staticmethod
    def forward(yhat: Tensor, loss: Solvable) -> tuple[Tensor, Tensor]:
        values, grads = loss.solve(yhat.detach()[None])
        return values[0], grads[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * grad, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, yhat: Tensor, loss: Solvable
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return loss.solve(yhat.detach().movedim(in_dims[0], 0)), (0, 0)


class Match(ABC):
    """Optimal pairings, ready to be weighted: values per ball, and gradients of their weighted sum.

    With S draws the plain value is the mean over draws. The debiased one subtracts half the mean distance
    between pairs of draws, which makes it an unbiased estimate (see ``SquaredW2``).
    """

    @abstractmethod
    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values (B, n_balls); gradients of sum(scale * values) in yhat (S, B, N, d) and in y (B, N, d)."""


def pairings(draws: int, debiased: bool) -> list[tuple[int, int, float]]:
    """The terms (left, right, factor) of the value, where y is sample 0 and the draws are 1 to S.

    >>> pairings(2, debiased=True)
    [(1, 0, 0.5), (2, 0, 0.5), (1, 2, -0.5)]
    """
    terms = [(s, 0, 1 / draws) for s in range(1, draws + 1)]
    if debiased:
        pairs = [(r, s) for r in range(1, draws + 1) for s in range(r + 1, draws + 1)]
        terms += [(r, s, -1 / (draws * (draws - 1))) for r, s in pairs]
    return terms
