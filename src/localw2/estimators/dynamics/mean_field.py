"""Where learning a network begins: its mean field, fitted to the slopes that were observed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from localw2.models.fields import UNITS, NetworkField
from localw2.models.network import RandomMLP

if TYPE_CHECKING:
    from localw2.estimators.dynamics.trajectories import Rows

# What trajectories have in common is fitted in a few hundred steps, how the field differs between them, if
# they start near each other, only in thousands: with 400 the slope of a trajectory in its initial state was
# wrong by more than its size where initial states differ by a tenth, and went into the spread.
STEPS, RATE, BATCH_ROWS = 3000, 0.01, 512


def fit_mean_field(field: NetworkField, rows: Rows, generator: torch.Generator) -> None:
    """Fit the means of the weights, by least squares, to the slopes of pairs at the states half-way.

    No equation is solved for it. The expected slope at a state is not the mean field there (who comes by
    depends on omega), but near enough to begin with: from weights near 0 hundreds of steps pass before
    trajectories have the right shape, and the spread is first learned to make up for their wrong means.
    """
    net = field.net
    assert isinstance(net, RandomMLP)
    layers = net.random_layers()
    like, p = layers[0].mean, rows.target.shape[1] // 2
    location, spread, slope = (field.get_buffer(name) for name in UNITS)
    first, slopes = (torch.tensor(part).to(like) for part in (rows.target[:, :p], rows.target[:, p:]))
    half = torch.tensor(rows.times[:, 1:] - rows.times[:, :1]).to(like) / 2
    x, y = (first + half * slopes - location) / spread, slopes / slope

    def mean_layer(i: int, h: Tensor) -> Tensor:
        return torch.addmm(layers[i].bias, h, layers[i].mean)

    means = [parameter for layer in layers for parameter in (layer.mean, layer.bias)]
    optimizer = torch.optim.Adam(means, lr=RATE, fused=True)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        chosen = torch.randint(len(x), (BATCH_ROWS,), generator=generator).to(x.device)
        loss = (net._through(x[chosen], mean_layer) - y[chosen]).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
