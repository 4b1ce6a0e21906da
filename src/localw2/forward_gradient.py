"""Losses whose gradient is computed in the forward pass, as one autograd function for all of them.

The pairing or the kernel matrix is at hand in the forward pass and is the costly part; keeping only the
gradient (one number per simulated value) is faster and smaller than keeping what led to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from localw2._validation import check_finite
from localw2.neighborhoods import Neighborhoods


@dataclass(frozen=True)
class Problem(ABC):
    """Observed outputs (B, N, d) on a graph, and one number for simulated ones: a weighted sum over balls."""

    y: Tensor
    hoods: Neighborhoods
    weights: Tensor

    @abstractmethod
    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """The values (B,) for simulated outputs (S, B, N, d), and the gradient of their sum in those."""

    def repeated(self, times: int) -> Problem:
        """The same problem with its batch entries repeated, for ``torch.vmap``."""
        return replace(self, y=self.y.repeat(times, 1, 1))


def evaluate(problem: Problem, yhat: Tensor) -> Tensor:
    """The values (B,) of a problem, differentiable once in yhat (S, B, N, d)."""
    values: Tensor = _ForwardGradient.apply(yhat, problem)[0]
    return values


class _ForwardGradient(torch.autograd.Function):
    """Values, and their gradient as a second output that is a constant to autograd."""

    @staticmethod
    def forward(yhat: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        # On a GPU the look would stall the stream; a NaN shows in the loss there.
        if yhat.device.type == "cpu":
            check_finite(yhat, "yhat")
        return problem.solve(yhat.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (in_yhat,) = ctx.saved_tensors
        return in_yhat * grad[:, None, None], None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, yhat: Tensor, problem: Problem
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        copies = info.batch_size
        stacked = yhat.movedim(in_dims[0], 1)
        shape = stacked.shape[1:3]
        values, grad = _ForwardGradient.apply(stacked.flatten(1, 2), problem.repeated(copies))
        return (values.unflatten(0, shape), grad.unflatten(1, shape)), (0, 1)
