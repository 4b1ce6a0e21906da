"""Networks whose weights are fixed and whose inputs are x and a few random numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from localw2._validation import check_count
from localw2.models.base import RandomMap, check_inputs, check_omega, in_chunks, normal, paired_normal, source
from localw2.models.network import ACTIVATIONS, check_sizes


@final
class NoiseMLP(RandomMap):
    r"""A network of x and noise: ``n_noise`` standard normal numbers join x, and as many new ones each layer.

    It has ``depth`` hidden layers of ``width`` units; with ``residual``, those after the first add to their
    input, :math:`g_i = g_{i-1} + \mathrm{act}(W_i (g_{i-1}, z_i, \mathrm{sign} z_i) + b_i)`. All units of a
    layer see the same noise. In ``RandomMLP`` every weight has noise of its own, which averages out to nearly
    a Gaussian; here a few numbers decide where an output goes, so that a law can have separate modes, skew or
    a fork. The signs are there because a continuous function of noise builds a bridge between modes.
    Parameters start uniform within one over the root of a layer's inputs.

    >>> model = NoiseMLP(1, generator=torch.Generator().manual_seed(0))
    >>> x = torch.zeros(4, 1)
    >>> model(x).shape, model(x, model.draw(4)).shape
    (torch.Size([4, 1]), torch.Size([4, 1]))
    """

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int = 1,
        width: int = 50,
        depth: int = 2,
        n_noise: int = 4,
        residual: bool = True,
        activation: str = "relu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = check_sizes(n_inputs, n_outputs, width, depth, activation)
        self.n_noise = check_count(n_noise, "n_noise", 1, why="without noise every draw is the same")
        self.n_inputs, self.n_outputs = sizes[0], sizes[-1]
        self.width, self.depth = sizes[1], len(sizes) - 2
        self.residual = residual
        self.activation = activation
        self.layers = nn.ModuleList(nn.Linear(a + 2 * self.n_noise, b) for a, b in pairwise(sizes))
        generator = source(generator, self.linear_layers()[0].weight.device)
        for layer in self.linear_layers():
            reach = layer.in_features**-0.5
            layer.weight.data.uniform_(-reach, reach, generator=generator)
            layer.bias.data.uniform_(-reach, reach, generator=generator)

    def linear_layers(self) -> list[nn.Linear]:
        """The layers, from the input to the output."""
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """The noise of all layers, (n, (depth + 1) * n_noise), standard normal."""
        weight = self.linear_layers()[0].weight
        return normal((check_count(n, "n", 0), self.n_numbers), weight, source(generator, weight.device))

    def forward(
        self, x: Tensor, omega: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Outputs (N, d), each row with its own noise."""
        check_inputs(x, self.n_inputs, self.linear_layers()[0].weight)
        if omega is None:
            omega = normal((len(x), self.n_numbers), x, generator)
        check_omega(omega, (len(x), self.n_numbers))
        return self.evaluate(x, omega)

    def evaluate(self, x: Tensor, omega: Tensor) -> Tensor:
        """Outputs (..., d) of inputs (..., p) and noise (..., K) whose leading axes can be broadcast."""
        act, noise = ACTIVATIONS[self.activation], omega.split(self.n_noise, dim=-1)
        layers = self.linear_layers()
        h: Tensor = x
        for i, (layer, z) in enumerate(zip(layers, noise, strict=True)):
            # In two products: x and z may repeat along different axes.
            z, size = torch.cat([z, z.sign()], -1), h.shape[-1]
            new = nn.functional.linear(h, layer.weight[:, :size], layer.bias) + z @ layer.weight[:, size:].T
            if i < len(layers) - 1:
                new = act(new)
            h = h + new if self.residual and 0 < i < len(layers) - 1 else new
        return h

    @torch.no_grad()
    def sample_common(
        self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws (S, N, d) with noise common to all rows, in pairs z, -z if S is even."""
        check_inputs(x, self.n_inputs, self.linear_layers()[0].weight)
        shape = (check_count(n_samples, "n_samples", 1), 1, self.n_numbers)
        noise = paired_normal(shape, x, source(generator, x.device))
        return in_chunks(lambda part, s: self.evaluate(part, noise[s]), x, n_samples)

    def extra_repr(self) -> str:
        """The settings that the layers do not show."""
        return f"n_noise={self.n_noise}, residual={self.residual}, activation={self.activation!r}"

    @property
    def n_numbers(self) -> int:
        """How many random numbers a draw takes."""
        return self.n_noise * len(self.layers)
