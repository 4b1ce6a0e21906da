"""The usual implementation: a Python loop over balls. The slow side of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from localw2 import Neighborhoods

# From the observed and simulated outputs of one ball, (m, d) each, to a scalar.
BallLoss = Callable[[Tensor, Tensor], Tensor]


def emd2_ball(y: Tensor, yhat: Tensor) -> Tensor:
    """Squared W2 of one ball through POT's network simplex."""
    import ot

    uniform = torch.full((len(y),), 1 / len(y), dtype=y.dtype)
    cost = (y[:, None] - yhat[None]).square().sum(-1)
    value: Tensor = ot.emd2(uniform, uniform, cost)
    return value


def sorted_ball(y: Tensor, yhat: Tensor) -> Tensor:
    """Squared W2 of one ball with one output, by sorting, through POT."""
    import ot

    value: Tensor = ot.wasserstein_1d(y[:, 0], yhat[:, 0], p=2)
    return value


def mmd_ball(y: Tensor, yhat: Tensor) -> Tensor:
    """MMD of one ball with five Gaussian kernels over the pooled sample, in its usual form."""
    pooled = torch.cat([y, yhat])
    n, m = len(pooled), len(y)
    distances = (pooled[:, None] - pooled[None]).square().sum(-1)
    bandwidth = distances.detach().sum() / (n**2 - n)
    kernel = torch.stack([torch.exp(-distances / (bandwidth * 2.0**k)) for k in range(-2, 3)]).sum(0)
    return kernel[:m, :m].mean() + kernel[m:, m:].mean() - 2 * kernel[:m, m:].mean()


def loop_over_balls(
    y: Tensor, yhat: Tensor, hoods: Neighborhoods, balls: Tensor, loss: BallLoss
) -> tuple[float, Tensor]:
    """The mean loss over the listed balls and its gradient, by one backward pass."""
    yhat = yhat.detach().requires_grad_()
    total = torch.zeros((), dtype=y.dtype)
    for ball in balls.tolist():
        rows = hoods.ball(ball)
        total = total + loss(y[rows], yhat[rows])
    total = total / len(balls)
    (gradient,) = torch.autograd.grad(total, yhat)
    return float(total.detach()), gradient
