"""Linear regression with random coefficients."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from localw2._validation import check_count
from localw2.models.base import RandomMap, check_inputs, check_omega, in_chunks, normal, paired_normal


@final
class RandomLinear(RandomMap):
    r"""Independent Gaussian coefficients, drawn afresh for every row (paper, Eq. example2).

    .. math:: \hat y_k = w_{0k} + \sum_i w_{ik} x_i, \qquad w_{ik} \sim N(b_{ik}, s_{ik}^2)

    Row 0 of ``mean`` and ``std`` (p + 1, d) is the intercept. All start at 1, as in the paper; the sign of
    ``std`` has no meaning.

    >>> model = RandomLinear(2)
    >>> model(torch.tensor([[1.0, 2.0]]), omega=torch.zeros(1, 3, 1))
    tensor([[4.]], grad_fn=<SqueezeBackward1>)
    """

    def __init__(self, n_inputs: int, n_outputs: int = 1) -> None:
        super().__init__()
        self.n_inputs = check_count(n_inputs, "n_inputs", 1)
        self.n_outputs = check_count(n_outputs, "n_outputs", 1)
        self.mean = nn.Parameter(torch.ones(self.n_inputs + 1, self.n_outputs))
        self.std = nn.Parameter(torch.ones(self.n_inputs + 1, self.n_outputs))

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise of every coefficient, (n, p + 1, d)."""
        return normal((check_count(n, "n", 0), *self.mean.shape), self.mean, generator)

    def forward(
        self, x: Tensor, omega: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Outputs (N, d); without omega, drawn from their Gaussian distribution given x, which is exact."""
        design = self._design(x)
        if omega is not None:
            check_omega(omega, (len(x), *self.mean.shape))
            return torch.matmul(design[:, None], self.mean + self.std * omega).squeeze(1)
        center, spread = self._moments(design)
        return center + spread * normal(spread.shape, spread, generator)

    @torch.no_grad()
    def sample_common(
        self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws (S, N, d) with noise common to all rows: one number per draw and output."""
        n_samples = check_count(n_samples, "n_samples", 1)
        noise = paired_normal((n_samples, 1, self.mean.shape[1]), self.mean, generator)

        def evaluate(part: Tensor, s: slice) -> Tensor:
            center, spread = self._moments(self._design(part))
            return center + spread * noise[s]

        return in_chunks(evaluate, x, n_samples)

    def extra_repr(self) -> str:
        """The sizes, as torch prints them."""
        return f"n_inputs={len(self.mean) - 1}, n_outputs={self.mean.shape[1]}"

    def _design(self, x: Tensor) -> Tensor:
        check_inputs(x, len(self.mean) - 1, self.mean)
        return torch.cat([torch.ones_like(x[:, :1]), x], 1)

    def _moments(self, design: Tensor) -> tuple[Tensor, Tensor]:
        variance = design.square() @ self.std.square()
        # The gradient at 0 must be 0, not infinite.
        return design @ self.mean, variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
