"""Differential equations with random right-hand sides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from localw2._validation import check_count, check_number
from localw2.models.base import RandomMap, check_rows_of, source
from localw2.models.solver import ADAPTIVE, FIXED, EqualSteps, Solver, SolverError, Unsolved

if TYPE_CHECKING:
    from localw2.models.fields import RandomField


@final
class RandomODE(RandomMap):
    r"""Solutions of :math:`\dot y = \hat g(t, y, \hat\omega)`, with one omega held fixed per trajectory.

    ``model(y0, omega)`` gives the states (n, T, d) at ``times`` (T,), the first of which is that of y0.
    torchdiffeq solves all trajectories in one batch. The adaptive methods, such as "dopri5", meet the
    tolerances in the worst trajectory, not on average (``atol`` in units of ``state_size`` (d,), if given);
    "rk4", "midpoint" and "euler" take equal steps of at most ``step_size`` between consecutive times (one
    step by default). If a solution needs more than ``max_evaluations`` of the field, a ``SolverError`` is
    raised.

    >>> from localw2.models.fields import FunctionField
    >>> from localw2.models.laws import Shared
    >>> decay = FunctionField(lambda t, y, k: -k * y, {"k": Shared(2.0)})
    >>> model = RandomODE(decay, torch.tensor([0.0, 0.5, 1.0]))
    >>> [round(v, 3) for v in model(torch.ones(1, 1)).flatten().tolist()]
    [1.0, 0.368, 0.135]
    """

    def __init__(
        self,
        field: RandomField,
        times: Tensor,
        method: str = "dopri5",
        rtol: float = 1e-4,
        atol: float = 1e-6,
        step_size: float | None = None,
        max_evaluations: int = 10_000,
        state_size: Tensor | None = None,
    ) -> None:
        super().__init__()
        if method not in (*ADAPTIVE, *FIXED):
            raise ValueError(f"method={method!r} is unknown; choose one of {', '.join((*ADAPTIVE, *FIXED))}.")
        for name, value in (("rtol", rtol), ("atol", atol), ("step_size", step_size)):
            if value is not None or name != "step_size":
                check_number(value, name, lambda v: 0 < v < math.inf, "a positive number")
        self.field = field
        self.method, self.rtol, self.atol, self.step_size = method, rtol, atol, step_size
        self.max_evaluations = check_count(max_evaluations, "max_evaluations", 1)
        self.times: Tensor
        self.register_buffer("times", check_times(times), persistent=False)
        self.state_size: Tensor | None
        self.register_buffer("state_size", state_size, persistent=False)

    def at(self, times: Tensor) -> RandomODE:
        """The same equation at other times, with shared parameters."""
        settings = self.method, self.rtol, self.atol, self.step_size, self.max_evaluations, self.state_size
        return RandomODE(self.field, times.to(self.times.device), *settings)

    @property
    def solver(self) -> Solver:
        """How the equation is solved."""
        atol = self.atol if self.state_size is None else self.atol * self.state_size
        return Solver(self.method, self.rtol, atol, self.step_size, self.max_evaluations)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Latent variables of n trajectories."""
        return self.field.draw(n, generator)

    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """States (n, T, d) from initial states x (n, d) at the first time."""
        check_rows_of(x)
        omega = self.draw(len(x), source(generator, x.device)) if omega is None else omega
        return x[:, None] if len(self.times) == 1 else self._solve(x, omega, self.solver)

    def slopes(self, t: Tensor, y: Tensor, omega: Any) -> Tensor:
        """The field (n, d) at states y (n, d), each with its own omega."""
        return self.field.bind(omega)(t, y)

    def in_steps(self, x: Tensor, omega: Any, count: int) -> Tensor:
        """States (n, T, d) from initial states x (n, d), in ``count`` equal steps and to no tolerance."""
        return self._solve(x, omega, EqualSteps(count))

    def _solve(self, y0: Tensor, omega: Any, solver: Solver | EqualSteps) -> Tensor:
        most = self.field.together
        if most is not None and len(y0) > most and y0.device.type == "cpu":
            parts = [slice(low, low + most) for low in range(0, len(y0), most)]
            return torch.cat([self._solve(y0[part], _select(omega, part), solver) for part in parts])
        try:
            return solver.solve(self.field.bind(omega), y0, self.times)
        except Unsolved as stop:
            raise self._failure(stop, omega) from stop.__cause__

    @torch.no_grad()
    def _failure(self, stop: Unsolved, omega: Any) -> SolverError:
        what, t, y = str(stop), stop.t, stop.y
        size = y.detach().abs().amax(1).nan_to_num(nan=math.inf)
        worst = int(size.argmax())
        if bool(torch.isfinite(y).all()) and not bool(torch.isfinite(self.field.bind(omega)(t, y)).all()):
            what += ", where the field returns values that are not finite"
        parameters = self.field.parameters_of(omega)
        named = ", ".join(f"{name} = {float(value[worst]):.4g}" for name, value in parameters.items())
        state = ", ".join(f"{v:.3g}" for v in y[worst].tolist())
        return SolverError(
            f"{what}. The largest state is ({state})"
            + (f", in the trajectory with {named}. " if named else ". ")
            + "The equation explodes or is stiff there: give better initial guesses (means and stds of the "
            "parameters), use a smaller learning rate, or LogNormal for parameters that must be positive."
        )


def _select(omega: Any, rows: slice) -> Any:
    """The latent variables of some trajectories."""
    return omega[rows] if isinstance(omega, Tensor) else [part[rows] for part in omega]


def check_times(times: Any) -> Tensor:
    """Return increasing finite times (T,)."""
    times = times if isinstance(times, Tensor) else torch.as_tensor(times)
    if times.ndim != 1 or len(times) == 0 or not bool(torch.isfinite(times).all()):
        raise ValueError(f"times has shape {tuple(times.shape)}; expected finite times (T,).")
    if not bool((times[1:] > times[:-1]).all()):
        raise ValueError("times must be strictly increasing; sort them and drop duplicates.")
    checked: Tensor = times.detach().clone() if times.is_floating_point() else times.double()
    return checked
