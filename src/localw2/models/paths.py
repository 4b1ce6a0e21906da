"""Observations of random trajectories, single or in pairs, as rows of an ordinary model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from localw2.models.base import RandomMap, check_rows_of, source
from localw2.models.ode import RandomODE
from localw2.models.solver import SolverError

if TYPE_CHECKING:
    from localw2.models.measurement import MeasurementNoise

# With more distinct times than this, states are interpolated from this many, or more if that is too coarse.
KNOTS = 128
MAX_KNOTS = 2048
# The accepted interpolation error, in units of the spread of the observations.
ACCEPTED = 1e-3

# Equal steps of training: the fewest, the most at the first call and later, how often they are checked (in
# calls; at first more often, since a field that has just begun to be trained is the roughest), the accepted
# error of states, in units of their spread between trajectories, and how much it grows with steps that are
# half as long again (3 was seen for networks with kinks, 5 is that of smooth fields).
FIRST_STEPS, MOST_FIRST_STEPS, MOST_STEPS = 8, 128, 1024
CHECK_STEPS, EARLY_CALLS = 20, (5, 10)
ACCEPTED_STEPS = 0.02
COARSER_ERROR = 3.0

# Maps states (..., d) to observations (..., p).
Observe = Callable[..., Tensor]


@final
class ObservedPaths(RandomMap):
    r"""Maps rows (trajectory, times, initial state) to observations; rows of one trajectory share omega.

    A row of x is ``[i, t_1 .. t_q, y0]``: the index of its trajectory, q times since that of y0, and the
    initial state (d,). With q = 1 the output is the observation (p,) at that time. With q = 2 it is
    :math:`[y(t_1),\; (y(t_2) - y(t_1)) / (t_2 - t_1)]`, (2p,): where the trajectory is and where it is going,
    which only a model with the right distribution of whole paths reproduces.

    Every trajectory is solved once for all its rows, at up to ``knots`` distinct times exactly. With more,
    it is solved at ``knots`` times, denser where observations are, and interpolated by cubics; ``refine``
    adds knots until the error is below a thousandth of the spread. ``noise`` adds errors of measurement,
    fresh at every time of every row.

    With ``equal_steps`` trajectories are solved in equal steps while the model is in training mode, which is
    several times faster than to a tolerance. Their number, kept in the state beside that of calls so far,
    follows the error: half the step must not change states by more than a fiftieth of ``spread`` (d,), that
    of the observed states between trajectories; without it, of the spread of the simulated ones.
    """

    def __init__(
        self,
        ode: RandomODE,
        n_times: int,
        observe: Observe | None = None,
        knots: int = KNOTS,
        noise: MeasurementNoise | None = None,
        equal_steps: bool = False,
        spread: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.ode, self.noise, self.equal_steps = ode, noise, equal_steps
        self.spread: Tensor | None
        self.register_buffer("spread", spread, persistent=False)
        self.steps_and_calls: Tensor
        self.register_buffer("steps_and_calls", torch.tensor([FIRST_STEPS, 0]), persistent=equal_steps)
        self.n_times = n_times
        self.observe = observe
        self.knots = knots

    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Latent variables of n trajectories (not rows)."""
        return self.ode.draw(n, generator)

    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """Outputs (rows, p) or (rows, 2p); omega is for the distinct trajectories, in increasing order."""
        return self._outputs(x, 1, omega, generator)[0]

    def simulate(self, x: Tensor, n_draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Several draws of every trajectory, (S, rows, p or 2p)."""
        return self._outputs(x, n_draws, None, generator)

    @torch.no_grad()
    def simulate_as_trained(
        self, x: Tensor, n_draws: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws (S, rows, p or 2p) in the equal steps of training, if there are any, whose number stays."""
        before = self.training, self.steps_and_calls.clone()
        # A number that no check is due at.
        self.steps_and_calls[1] = 1
        try:
            return self.train().simulate(x, n_draws, generator)
        finally:
            self.train(before[0])
            self.steps_and_calls.copy_(before[1])

    @torch.no_grad()
    def interpolation_error(self, x: Tensor, generator: torch.Generator | None = None) -> float:
        """The largest interpolation error at these rows in one draw, in units of the spread of outputs."""
        layout = _Layout.of(x, self.n_times, self.knots)
        if layout.weights is None:
            return 0.0
        omega = self.draw(len(layout.initial), source(generator, x.device))
        exact = ObservedPaths(self.ode, self.n_times, self.observe, knots=len(x) * self.n_times)
        values = exact(x, omega)
        near = ObservedPaths(self.ode, self.n_times, self.observe, self.knots)
        gap = (near(x, omega) - values).abs().amax(0)
        return float((gap / values.std(0).clamp_min(torch.finfo(x.dtype).tiny)).max())

    def refine(self, x: Tensor, generator: torch.Generator | None = None) -> float:
        """Double the knots until interpolation is accurate at these rows; return the remaining error."""
        error = self.interpolation_error(x, generator)
        while error > ACCEPTED and self.knots < MAX_KNOTS:
            self.knots *= 2
            error = self.interpolation_error(x, generator)
        return error

    def _outputs(self, x: Tensor, n_draws: int, omega: Any, generator: torch.Generator | None) -> Tensor:
        equal = self.equal_steps and self.training
        layout = _Layout.of(x, self.n_times, len(x) * self.n_times if equal else self.knots)
        n = len(layout.initial)
        if omega is None:
            omega = self.draw(n_draws * n, source(generator, x.device))
        # Times in float64: calendar years would have too few digits in float32.
        times = layout.solved.double() + self.ode.times[0].double()
        solve = self._in_equal_steps if equal else RandomODE.__call__
        states = solve(self.ode.at(times), layout.initial.repeat(n_draws, 1), omega)
        seen = states if self.observe is None else self.observe(states)
        values = layout.at_rows(seen.reshape(n_draws, n, *seen.shape[1:]))
        if self.noise is not None:
            values = self.noise.draw(values, source(generator, x.device))
        if self.n_times == 1:
            return values[:, :, 0]
        first, second = values.unbind(2)
        lag = (x[:, 2] - x[:, 1])[:, None]
        return torch.cat([first, (second - first) / lag], -1)

    def _in_equal_steps(self, ode: RandomODE, initial: Tensor, omega: Any) -> Tensor:
        count, calls = self.steps_and_calls.tolist()
        self.steps_and_calls[1] += 1
        try:
            states = ode.in_steps(initial, omega, count)
        except SolverError:
            self._step_finer_if_that_helps(ode, initial, omega)
            raise
        if calls % CHECK_STEPS == 0 or calls in EARLY_CALLS:
            error = self._step_error(ode, initial, omega, states, count)
            # Later one notch at a time: a step of training that nearly explodes must not slow all others.
            while error > ACCEPTED_STEPS and calls == 0 and count < MOST_FIRST_STEPS:
                count = _finer(count)
                states = ode.in_steps(initial, omega, count)
                error = self._step_error(ode, initial, omega, states, count)
            if error > ACCEPTED_STEPS:
                count = _finer(count)
            while COARSER_ERROR * error < ACCEPTED_STEPS and count > FIRST_STEPS:
                count, error = max(FIRST_STEPS, 2 * count // 3), COARSER_ERROR * error
            self.steps_and_calls[0] = count
        return states

    @torch.no_grad()
    def _step_finer_if_that_helps(self, ode: RandomODE, initial: Tensor, omega: Any) -> None:
        """After a failure: only a solution that does not explode by itself asks for smaller steps."""
        with suppress(SolverError):
            ode(initial, omega)
            self.steps_and_calls[0] = _finer(int(self.steps_and_calls[0]))

    @torch.no_grad()
    def _step_error(self, ode: RandomODE, initial: Tensor, omega: Any, states: Tensor, count: int) -> float:
        """The change of the states by steps of half the length, in units of the spread of trajectories."""
        gap = (ode.in_steps(initial, omega, 2 * count) - states).square().mean(1).sqrt().mean(0)
        spread = self.spread
        if spread is None:
            # What hardly varies between trajectories is not solved to its rounding errors, as in Rows.scale.
            spread = torch.maximum(states.var(0).mean(0), states.flatten(0, 1).var(0) / 400).sqrt()
        return float((gap / spread.to(gap).clamp_min(torch.finfo(gap.dtype).tiny)).max())


def _finer(count: int) -> int:
    return min(MOST_STEPS, -(-3 * count // 2))


@final
@dataclass(frozen=True)
class _Layout:
    """The distinct trajectories and solved times of some rows, and the source of each row's values."""

    initial: Tensor
    solved: Tensor
    places: Tensor  # (rows, q, points) in the flattened (trajectory, time)
    weights: Tensor | None  # (rows, q, points, 1)

    @classmethod
    def of(cls, x: Tensor, n_times: int, knots: int) -> _Layout:
        check_rows_of(x)
        numbers, trajectory = torch.unique(x[:, 0], return_inverse=True)
        first = torch.zeros(len(numbers), dtype=torch.int64, device=x.device)
        first[trajectory] = torch.arange(len(x), device=x.device)
        initial, times = x[first, 1 + n_times :], x[:, 1 : 1 + n_times]
        distinct, which = torch.unique(times, return_inverse=True)
        if float(distinct[0]) > 0:  # the initial time, at which nothing is observed
            distinct, which = torch.cat([distinct.new_zeros(1), distinct]), which + 1
        if len(distinct) <= knots + 1:
            places = (trajectory[:, None] * len(distinct) + which)[..., None]
            return cls(initial, distinct, places, None)
        solved = _thin(distinct.double(), knots)
        base = (torch.searchsorted(solved, times.double().contiguous()) - 2).clamp(0, len(solved) - 4)
        base = base[..., None] + torch.arange(4, device=x.device)
        places = trajectory[:, None, None] * len(solved) + base
        weights = _cubic(solved[base], times.double()[..., None]).to(x.dtype)
        return cls(initial, solved, places, weights[..., None])

    def at_rows(self, values: Tensor) -> Tensor:
        """Values (S, trajectories, solved times, p) at the rows, (S, rows, q, p)."""
        flat = values.flatten(1, 2).index_select(1, self.places.flatten())
        points = flat.reshape(len(values), *self.places.shape, values.shape[-1])
        return points.squeeze(3) if self.weights is None else (points * self.weights).sum(3)


def _thin(times: Tensor, count: int) -> Tensor:
    """About ``count`` of many increasing times, ends included and none closer than span / 100 count."""
    chosen = times[torch.linspace(0, len(times) - 1, count + 1, device=times.device).round().long()]
    cell = ((chosen - chosen[0]) * (100 * count / float(chosen[-1] - chosen[0]))).floor()
    apart = torch.cat([cell[:-1] < cell[1:], torch.ones(1, dtype=torch.bool, device=times.device)])
    apart[0] = True
    kept = chosen[apart]
    return kept if len(kept) >= 4 else torch.linspace(float(times[0]), float(times[-1]), 5).to(times)


def _cubic(points: Tensor, t: Tensor) -> Tensor:
    """Lagrange weights (..., 4) of the values at points (..., 4) in the cubic through them at t (..., 1)."""
    weights = []
    for i in range(4):
        others = [j for j in range(4) if j != i]
        factors = [(t[..., 0] - points[..., j]) / (points[..., i] - points[..., j]) for j in others]
        weights.append(factors[0] * factors[1] * factors[2])
    return torch.stack(weights, -1)
