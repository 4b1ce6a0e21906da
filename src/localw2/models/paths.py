"""What is seen of random trajectories, single observations or pairs, as rows of an ordinary model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from localw2.models.base import RandomMap, check_rows_of, source
from localw2.models.dynamics import RandomODE

# With more distinct times than this, states are interpolated from a grid of so many steps.
GRID_STEPS = 128

# States (..., d) to what is observed of them (..., p).
Observe = Callable[[Tensor], Tensor]


@final
class ObservedPaths(RandomMap):
    r"""Rows (trajectory, times, initial state) to what is observed there; rows of one trajectory share omega.

    A row of x is ``[i, t_1 .. t_q, y0]``: the number of its trajectory, q times after that of y0, and the
    initial state (d,). With q = 1 the output is the observation (p,) at that time. With q = 2 it is
    :math:`[y(t_1),\; (y(t_2) - y(t_1)) / (t_2 - t_1)]`, (2p,): where the trajectory is and how it goes on,
    which only a model with the right law of whole paths gets right.

    Every trajectory is solved once for all its rows. Up to 128 distinct times are solved for as they are;
    of more, states come from a grid of 128 steps by cubic interpolation (an error of order 1/128^4).
    """

    def __init__(self, ode: RandomODE, n_times: int, observe: Observe | None = None) -> None:
        super().__init__()
        self.ode = ode
        self.n_times = n_times
        self.observe = observe

    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Latent variables of n trajectories (not rows)."""
        return self.ode.draw(n, generator)

    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """Outputs (rows, p) or (rows, 2p); omega is that of the distinct trajectories, by rising number."""
        return self._outputs(x, 1, omega, generator)[0]

    def simulate(self, x: Tensor, n_draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Several draws of every trajectory, (S, rows, p or 2p)."""
        return self._outputs(x, n_draws, None, generator)

    def _outputs(self, x: Tensor, n_draws: int, omega: Any, generator: torch.Generator | None) -> Tensor:
        layout = _Layout.of(x, self.n_times)
        n = len(layout.initial)
        if omega is None:
            omega = self.draw(n_draws * n, source(generator, x.device))
        # Times in float64: those of years have too few digits left in float32.
        times = layout.solved.double() + self.ode.times[0].double()
        states = self.ode.at(times)(layout.initial.repeat(n_draws, 1), omega)
        seen = states if self.observe is None else self.observe(states)
        values = layout.at_rows(seen.reshape(n_draws, n, *seen.shape[1:]))
        if self.n_times == 1:
            return values[:, :, 0]
        first, second = values.unbind(2)
        lag = (x[:, 2] - x[:, 1])[:, None]
        return torch.cat([first, (second - first) / lag], -1)


@final
@dataclass(frozen=True)
class _Layout:
    """The distinct trajectories and solved times of some rows, and where each row's values come from."""

    initial: Tensor
    solved: Tensor
    places: Tensor  # (rows, q, points) in the flattened (trajectory, time)
    weights: Tensor | None  # (rows, q, points, 1)

    @classmethod
    def of(cls, x: Tensor, n_times: int) -> _Layout:
        check_rows_of(x)
        numbers, trajectory = torch.unique(x[:, 0], return_inverse=True)
        first = torch.zeros(len(numbers), dtype=torch.int64, device=x.device)
        first[trajectory] = torch.arange(len(x), device=x.device)
        initial, times = x[first, 1 + n_times :], x[:, 1 : 1 + n_times]
        distinct, which = torch.unique(times, return_inverse=True)
        if len(distinct) <= GRID_STEPS:
            solved, shift = distinct, 0
            if float(distinct[0]) > 0:
                solved, shift = torch.cat([distinct.new_zeros(1), distinct]), 1
            places = (trajectory[:, None] * len(solved) + which + shift)[..., None]
            return cls(initial, solved, places, None)
        solved = torch.linspace(0, float(distinct[-1]), GRID_STEPS + 1, dtype=x.dtype, device=x.device)
        at = times * (GRID_STEPS / float(distinct[-1]))
        base = at.floor().long().sub(1).clamp(0, GRID_STEPS - 3)
        offset = at - base
        places = trajectory[:, None, None] * len(solved) + base[..., None] + torch.arange(4, device=x.device)
        return cls(initial, solved, places, _cubic(offset)[..., None])

    def at_rows(self, values: Tensor) -> Tensor:
        """(S, trajectories, solved times, p) to (S, rows, q, p)."""
        flat = values.flatten(1, 2).index_select(1, self.places.flatten())
        points = flat.reshape(len(values), *self.places.shape, values.shape[-1])
        return points.squeeze(3) if self.weights is None else (points * self.weights).sum(3)


def _cubic(u: Tensor) -> Tensor:
    """Weights (..., 4) of the points 0, 1, 2, 3 in the cubic through them at u (Lagrange)."""
    a, b, c, d = u, u - 1, u - 2, u - 3
    return torch.stack([-b * c * d / 6, a * c * d / 2, -a * b * d / 2, a * b * c / 6], -1)
