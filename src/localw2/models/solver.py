"""Solving many trajectories at once, to a tolerance that the worst of them meets."""

from __future__ import annotations

import math
import threading
import warnings
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from localw2.models.fields import Field
    from localw2.models.subjects import Clock

ADAPTIVE = ("dopri5", "dopri8", "bosh3", "adaptive_heun")
FIXED = ("rk4", "midpoint", "euler")
# Scipy's, for stiff equations too, and much faster where no gradient is needed: it has none.
WITHOUT_GRADIENT = "lsoda"
# The fewest steps of it, so that it sees what an input does for a short while.
FEWEST_STEPS = 25
# Its Fortran keeps its state in common blocks.
_ONE_AT_A_TIME = threading.Lock()


class SolverError(FloatingPointError):
    """An equation could not be solved: its solution explodes, or is too stiff for the method."""


class Unsolved(SolverError):
    """Where a solution stopped, and why."""

    def __init__(self, what: str, t: Tensor, y: Tensor) -> None:
        super().__init__(what)
        self.t, self.y = t, y


@final
@dataclass(frozen=True)
class Solver:
    """A method of torchdiffeq, or "lsoda", with its tolerances (``atol`` a number, or (d,)) and its limit."""

    method: str
    rtol: float
    atol: float | Tensor
    step_size: float | None
    max_evaluations: int

    def solve(self, field: Field, y0: Tensor, times: Tensor) -> Tensor:
        """States (n, T, d) at ``times`` (T,), the first of which is that of y0 (n, d)."""
        if self.method == WITHOUT_GRADIENT:
            return self._solve_without_gradient(field, y0, times)
        try:
            from torchdiffeq import odeint
        except ImportError:
            raise ImportError("differential equations need torchdiffeq: pip install 'localw2[ode]'") from None
        counting = _CountingField(field, self.max_evaluations)
        adaptive = self.method in ADAPTIVE
        options: dict[str, Any] = {"norm": worst_trajectory}
        if not adaptive:
            options = {"grid_constructor": lambda f, y0, t: _subdivide(t, self.step_size)}
            n_steps = 0 if self.step_size is None else float(times[-1] - times[0]) / self.step_size
            if n_steps > self.max_evaluations:  # before so many are made
                raise SolverError(
                    f"step_size={self.step_size:g} takes {n_steps:.2g} steps up to t = "
                    f"{float(times[-1]):.4g}, and at most {self.max_evaluations} are made. Give a "
                    "larger step_size, or an adaptive method."
                )
        try:
            path: Tensor = odeint(
                counting, y0, times, rtol=self.rtol, atol=self.atol, method=self.method, options=options
            )
        except AssertionError as error:  # torchdiffeq's error for vanishing steps or overflowing states
            reached = f"t = {float(counting.t):.4g} of {float(times[-1]):.4g}"
            raise Unsolved(f"the solver stopped at {reached} ({error})", counting.t, counting.y) from error
        if not math.isfinite(float(path.detach().sum())):
            raise Unsolved("the solution is not finite", times[-1], path[-1])
        return path.movedim(0, 1)

    def _solve_without_gradient(self, field: Field, y0: Tensor, times: Tensor) -> Tensor:
        """The same by scipy's LSODA, for which all trajectories are one system with a banded Jacobian."""
        from scipy.integrate import ODEintWarning, odeint

        (n, d), span = y0.shape, float(times[-1] - times[0])
        counting = _CountingField(field, self.max_evaluations)

        def slopes(t: float, y: Any) -> Any:
            slope = counting(y0.new_tensor(t), torch.from_numpy(y).view(n, d))
            return slope.reshape(-1).numpy()

        atol = np.broadcast_to(np.asarray(self.atol, dtype=float), (n, d)).ravel()
        with _ONE_AT_A_TIME, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore", ODEintWarning)  # it becomes an error below
            try:
                path, told = odeint(
                    slopes,
                    y0.reshape(-1).numpy(),
                    times.numpy(),
                    tfirst=True,
                    full_output=True,
                    rtol=self.rtol,
                    atol=atol,
                    ml=d - 1,
                    mu=d - 1,
                    hmax=span / FEWEST_STEPS,
                    mxstep=self.max_evaluations,
                )
                problem = "" if "successful" in told["message"] else told["message"].rstrip(".")
            except AssertionError as error:  # too many evaluations
                problem = str(error)
        if problem:
            reached = f"t = {float(counting.t):.4g} of {float(times[-1]):.4g}"
            raise Unsolved(f"the solver stopped at {reached} ({problem})", counting.t, counting.y)
        if not math.isfinite(float(path.sum())):
            raise Unsolved("the solution is not finite", times[-1], torch.from_numpy(path[-1]).view(n, d))
        return torch.from_numpy(path).view(len(times), n, d).movedim(0, 1)

    def solve_clock(self, field: Field, y0: Tensor, clock: Clock, rows: Tensor, t0: float) -> Tensor:
        """States (m, J + 1, d) at the stops of the subjects ``rows`` (m,), before what is given at each.

        ``field(t, y)`` takes a time for each trajectory. Subjects with the same stops are solved in their
        common time; otherwise every stretch is solved for all in units of its length.
        """
        states, y = [y0], y0
        for first, last in clock.runs():
            y = y + clock.jumps[rows, first]
            rate = clock.rates[rows, first]
            if last > first + 1:
                times = clock.stops[0, first : last + 1].to(y)
                path = self.solve(partial(_in_common_time, field, rate, t0), y, times)
            else:
                start, length = t0 + clock.stops[rows, first], clock.lengths[rows, first]
                own = self._within(float(clock.lengths[:, first].max()))
                path = own.solve(
                    partial(_in_own_time, field, rate, start, length), y, y.new_tensor([0.0, 1.0])
                )
            states += path[:, 1:].unbind(1)
            y = path[:, -1]
        return torch.stack(states, 1)

    def _within(self, length: float) -> Solver:
        """The solver of one stretch in units of its length."""
        if self.step_size is None or not length:
            return self
        return Solver(self.method, self.rtol, self.atol, self.step_size / length, self.max_evaluations)


@final
@dataclass(frozen=True)
class EqualSteps:
    """The classical Runge-Kutta method in ``count`` equal steps, with cubics between their ends.

    For training: an adaptive method spends most of its steps on the kinks of a few networks, and one of
    torchdiffeq's with fixed steps needs either steps that end at every time or as many evaluations again for
    its cubics.
    """

    count: int

    def solve(self, field: Field, y0: Tensor, times: Tensor) -> Tensor:
        """States (n, T, d) at ``times`` (T,), the first of which is that of y0 (n, d)."""
        start, step = float(times[0]), float(times[-1] - times[0]) / self.count
        states, slopes, y = [y0], [], y0
        for i in range(self.count):
            t, middle, end = times.new_tensor([start + (i + c) * step for c in (0, 0.5, 1)])
            k1 = field(t, y)
            k2 = field(middle, torch.add(y, k1, alpha=step / 2))
            k3 = field(middle, torch.add(y, k2, alpha=step / 2))
            k4 = field(end, torch.add(y, k3, alpha=step))
            y = torch.add(y, torch.add(k1 + k4, k2 + k3, alpha=2.0), alpha=step / 6)
            states.append(y)
            slopes.append(k1)
        slopes.append(field(times[-1], y))
        if not math.isfinite(float(y.detach().sum())):
            raise Unsolved("the solution is not finite", times[-1], y)
        of_states, of_slopes = (part.to(y0) for part in self._cubics((times - times[0]).double() / step))
        ends = of_states @ torch.stack(states).flatten(1) + of_slopes @ (step * torch.stack(slopes)).flatten(
            1
        )
        return ends.view(len(times), *y0.shape).movedim(0, 1)

    def _cubics(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (T, count + 1) of states and slopes at the ends of steps, at ``place`` (T,) in steps."""
        first = place.floor().long().clamp(0, self.count - 1)
        s, rows = place - first, torch.arange(len(place), device=place.device)
        of_states, of_slopes = place.new_zeros(2, len(place), self.count + 1)
        of_states[rows, first], of_states[rows, first + 1] = (1 + 2 * s) * (1 - s) ** 2, s**2 * (3 - 2 * s)
        of_slopes[rows, first], of_slopes[rows, first + 1] = s * (1 - s) ** 2, s**2 * (s - 1)
        return of_states, of_slopes


def _in_common_time(field: Field, rate: Tensor, t0: float, t: Tensor, y: Tensor) -> Tensor:
    return field((t + t0).expand(len(y)), y) + rate


def _in_own_time(field: Field, rate: Tensor, start: Tensor, length: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return length[:, None] * (field(start + t * length, y) + rate)


def _subdivide(times: Tensor, step: float | None) -> Tensor:
    """Add equal steps of at most ``step`` between the times, so that every time ends a step."""
    if step is None:
        return times
    parts = [
        torch.linspace(a, b, math.ceil((b - a) / step * (1 - 1e-9)) + 1, dtype=times.dtype)[:-1]
        for a, b in pairwise(times.tolist())
    ]
    return torch.cat([*parts, times[-1:].cpu()]).to(times.device)


class _CountingField:
    """A field that counts its evaluations and remembers where it was last evaluated."""

    def __init__(self, field: Field, limit: int) -> None:
        self._field, self._limit, self._calls = field, limit, 0
        self.t, self.y = torch.tensor(0.0), torch.empty(0)

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        if self.y.numel() == 0 or math.isfinite(float(t.detach())):
            self.t, self.y = t.detach(), y.detach()
        self._calls += 1
        if self._calls > self._limit:
            raise AssertionError(f"after {self._limit} evaluations of the field")  # as torchdiffeq does
        return self._field(t, y)


def worst_trajectory(error: Tensor) -> Tensor:
    """The largest root mean square error over trajectories, so that good ones do not hide a bad one."""
    return error.square().mean(-1).max().sqrt() if error.ndim > 1 else error.abs().max()
