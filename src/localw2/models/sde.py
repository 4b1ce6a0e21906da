r"""Stochastic differential equations :math:`dY = a\,dt + b\,dW + c\,dN`, simulated with gradients.

The solver is written here. torchsde solves one grid of times for all paths, has no jumps and no per-row
steps, and has been in maintenance for years, while the loss needs one short transition of each row's own lag
for ten thousand rows at once; a loop of a few vectorised steps does that, and its backward pass is ordinary
autograd.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from localw2.models.base import RandomMap, check_rows_of, normal
from localw2.models.coefficients import Coefficient, Jumps, count_jumps

if TYPE_CHECKING:
    from localw2.models.laws import ParameterLaw

# Steps of the solver from one time to the next beyond which something is wrong with the times.
MOST_STEPS = 1_000_000
MOST_JUMPS = 1000  # in one step


@final
class StochasticEquation(nn.Module):
    r"""Drift, diffusion and jumps, with the law of their named parameters, and one step of the solver.

    A step of length h is, with increments :math:`\sqrt{h/2}\,\xi_1` and :math:`\sqrt{h/2}\,\xi_2` of the
    Brownian path in its two halves, and :math:`\zeta = (\xi_1 + \xi_2)/\sqrt2`,

    .. math:: y + \tfrac h2\bigl(a(y) + a(y + ha + \sqrt h\,b\,\zeta)\bigr)
        + \sqrt{\tfrac h2}\,\bigl(b(y)\,\xi_1 + b(y + ha + \sqrt h\,b\,\xi_1)\,\xi_2\bigr)

    with a and b at y where no argument is given. Its mean and covariance are right to second order in h
    (Euler-Maruyama's to first), for diagonal and full b alike, and it evaluates each coefficient twice:
    at the lags of data one or two steps do what Euler-Maruyama needs sixteen for. Jumps are Poisson in
    number over the step, and come before or after it by the toss of a coin, so that a jump acts, on
    average, for half of the step. States outside of ``bounds`` evaluate the coefficients at the bound
    (full truncation), and no observed state lies outside.
    """

    def __init__(
        self,
        drift: Coefficient,
        diffusion: Coefficient,
        jumps: Jumps | None = None,
        law: ParameterLaw | None = None,
        bounds: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.drift, self.diffusion, self.jumps = drift, diffusion, jumps
        self.law = law
        # (2, d) lower and upper bounds, infinite where there are none.
        self.bounds: Tensor | None
        self.register_buffer("bounds", bounds, persistent=False)

    @property
    def n_random(self) -> int:
        """How many parameters vary between paths."""
        return 0 if self.law is None else len(self.law.random_names)

    def values(self, n: int, noise: Tensor | None) -> dict[str, Tensor]:
        """The named parameters (n,) of n paths with this noise (n, k) of the random ones."""
        if self.law is None:
            return {}
        noise = self.law.location.new_zeros(n, self.n_random) if noise is None else noise
        found: dict[str, Tensor] = self.law(noise)
        return found

    def inside(self, y: Tensor) -> Tensor:
        """States moved into the bounds."""
        return y if self.bounds is None else y.clamp(self.bounds[0], self.bounds[1])

    def step(
        self, t: Tensor, y: Tensor, h: Tensor, xi: tuple[Tensor, Tensor], values: dict[str, Tensor]
    ) -> Tensor:
        """States (n, d) after a step of length h (n, 1) without jumps, from y (n, d) at t (n,)."""
        first, second = xi
        root, at = h.sqrt(), self.inside(y)
        later = t + h[:, 0]
        a, b = self.drift(t, at, values), self.diffusion(t, at, values)
        ahead = y + a * h
        zeta = (first + second) * math.sqrt(0.5)
        a_end = self.drift(later, self.inside(ahead + root * spread(b, zeta)), values)
        b_end = self.diffusion(later, self.inside(ahead + root * spread(b, first)), values)
        noise = spread(b, first) + spread(b_end, second)
        end: Tensor = y + 0.5 * h * (a + a_end) + math.sqrt(0.5) * root * noise
        return end

    def jump(
        self, t: Tensor, y: Tensor, h: Tensor, values: dict[str, Tensor], generator: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Jumps (n, d) in a step from y, whether they come first (n, 1), and how many are expected.

        The number of jumps has no derivative: that of the loss in the rate goes through the expected number
        (n, 1), see ``losses.transitions``.
        """
        assert self.jumps is not None
        at = self.inside(y.detach())
        expected = self.jumps.rate(t, at, values) * h
        count = count_jumps(expected.detach()[:, 0], generator)
        total = torch.zeros_like(y).masked_fill(count.isnan()[:, None], math.nan)
        for k in range(_most_jumps(count, at, h)):
            z = normal(tuple(y.shape), y, generator)
            total = total + (count > k)[:, None] * self.jumps.size(t, at, values, z)
        early = normal((len(y), 1), y, generator) > 0
        return total, early, expected


def _most_jumps(count: Tensor, y: Tensor, h: Tensor) -> int:
    """The largest number of jumps in a step h (n, 1) from y (n, d), unless that cannot be meant."""
    known = count.nan_to_num(0.0, math.inf)
    if not len(known) or not (most := float(known.max())):
        return 0
    if most > MOST_JUMPS:
        worst = int(known.argmax())
        state = ", ".join(f"{v:.4g}" for v in y[worst].tolist())
        raise ValueError(
            f"{most:.3g} jumps come in one step of {float(h[worst, 0]):.3g} from the state ({state}); they "
            f"are drawn one by one, at most {MOST_JUMPS}. The rate is per unit of t: check it there, give "
            "times in the unit of the fit, or let so many small jumps be part of the diffusion."
        )
    return int(most)


def spread(b: Tensor, z: Tensor) -> Tensor:
    """b z for a diagonal b (n, d) or a full one (n, d, d)."""
    return b * z if b.ndim == 2 else (b @ z[..., None])[..., 0]


@final
class Transitions(RandomMap):
    """Increments of the state over a lag, in ``n_steps`` steps: rows are (time, lag, state).

    The output is the increment (N, d). With jumps it also has the increment with one jump more, and the
    expected number of jumps, (N, 2 d + 1), for the derivative of the loss in the rate. ``anchored`` are
    coefficients whose distance from the values in the last columns of a row is returned last, times what
    makes it an increment (the lag, or its root for the diffusion).

    >>> from localw2.models.coefficients import FunctionCoefficient
    >>> drift = FunctionCoefficient(lambda t, y: -y, (1,), "drift")
    >>> noise = FunctionCoefficient(lambda t, y: 0.5, (1,), "diffusion")
    >>> model = Transitions(StochasticEquation(drift, noise), n_steps=2)
    >>> model(torch.tensor([[0.0, 0.1, 1.0], [0.0, 0.2, 1.0]])).shape
    torch.Size([2, 1])
    """

    def __init__(
        self, equation: StochasticEquation, n_steps: int = 1, anchored: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.equation, self.n_steps, self.anchored = equation, n_steps, anchored

    def anchors(self, x: Tensor, n_states: int) -> Tensor:
        """The anchored coefficients (N, m) at the states of rows."""
        t, y = x[:, 0], x[:, 2 : 2 + n_states]
        parts = [getattr(self.equation, name)(t, y, {}).flatten(1) for name in self.anchored]
        return torch.cat(parts, 1) if parts else x[:, :0]

    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Noise of the random parameters of n rows; the noise of the path is drawn step by step."""
        law = self.equation.law
        return torch.zeros(n, 0) if law is None else law.draw(n, generator)

    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """Increments of rows x (N, 2 + d), or with anchors (N, 2 + d + m)."""
        check_rows_of(x)
        equation = self.equation
        t, lag, start = x[:, 0], x[:, 1:2], x[:, 2 : 2 + self.n_states(x.shape[1])]
        if omega is None and equation.n_random:
            omega = self.draw(len(x), generator)
        values = equation.values(len(x), omega if equation.n_random else None)
        h, y = lag / self.n_steps, start
        expected = torch.zeros_like(lag)
        for k in range(self.n_steps):
            now = t + k * h[:, 0]
            early: Any = False
            if equation.jumps is not None:
                total, early, more = equation.jump(now, y, h, values, generator)
                expected = expected + more
                y = y + total * early
            xi = normal((len(x), y.shape[1]), y, generator), normal((len(x), y.shape[1]), y, generator)
            y = equation.step(now, y, h, xi, values)
            if equation.jumps is not None:
                y = y + total * ~early
        parts = [equation.inside(y) - start]
        if equation.jumps is not None:
            with torch.no_grad():
                z = normal(tuple(y.shape), y, generator)
                one_more = equation.jumps.size(t + lag[:, 0], equation.inside(y), values, z)
                parts.append(equation.inside(y + one_more) - start)
            parts.append(expected)
        for name, value in zip(self.anchored, self._distances(x, start.shape[1]), strict=True):
            parts.append(value * (lag if name == "drift" else lag.sqrt()))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def n_states(self, n_columns: int) -> int:
        """The number of states in rows with so many columns."""
        equation, left = self.equation, n_columns - 2
        if "diffusion" in self.anchored and getattr(equation.diffusion, "matrix", False):
            # d + d^2 columns, and d more if the drift is anchored too.
            each = 1 + ("drift" in self.anchored)
            return (math.isqrt(each * each + 4 * left) - each) // 2
        return left // (1 + len(self.anchored))

    def _distances(self, x: Tensor, d: int) -> list[Tensor]:
        if not self.anchored:
            return []
        gap = self.anchors(x, d) - x[:, 2 + d :]
        sizes = [
            d if name == "drift" else gap.shape[1] - d * ("drift" in self.anchored) for name in self.anchored
        ]
        return list(gap.split(sizes, 1))

    @torch.no_grad()
    def coupled(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Increments (N, d) without jumps in ``n_steps`` steps, and in twice as many along the same noise."""
        equation, d = self.equation, self.n_states(x.shape[1])
        t, lag, start = x[:, 0], x[:, 1:2], x[:, 2 : 2 + d]
        omega = self.draw(len(x), generator) if equation.n_random else None
        values = equation.values(len(x), omega)
        noise = [normal((len(x), d), start, generator) for _ in range(4 * self.n_steps)]
        fine = list(zip(noise[::2], noise[1::2], strict=True))
        sums = [(a + b) * math.sqrt(0.5) for a, b in fine]
        found = []
        for xis in (list(zip(sums[::2], sums[1::2], strict=True)), fine):
            y, h = start, lag / len(xis)
            for k, xi in enumerate(xis):
                y = equation.step(t + k * h[:, 0], y, h, xi, values)
            found.append(equation.inside(y) - start)
        return found[0], found[1]


@torch.no_grad()
def simulate_paths(
    equation: StochasticEquation,
    y0: Tensor,
    times: Tensor,
    step: float,
    omega: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Paths (n, T, d) from states y0 (n, d) at ``times[0]``, in steps of at most ``step``."""
    return follow(equation, y0, times.expand(len(y0), -1), step, omega, generator)


def follow(
    equation: StochasticEquation,
    y0: Tensor,
    times: Tensor,
    step: float,
    omega: Tensor | None = None,
    generator: Any = None,
) -> Tensor:
    """Paths (n, T, d) at own times (n, T) of each, with gradients (but none in the rate of jumps)."""
    n = len(y0)
    values = equation.values(n, omega)
    y, found = y0, [equation.inside(y0)]
    for j in range(1, times.shape[1]):
        t, lag = times[:, j - 1].to(y0), (times[:, j] - times[:, j - 1])[:, None].to(y0)
        wanted = float(lag.max()) / step
        if not wanted < MOST_STEPS:
            raise ValueError(
                f"from one time to the next the solver would take {wanted:.3g} steps of {step:.3g}; give "
                "times in the unit of the fit, or a longer step."
            )
        n_steps = max(1, math.ceil(wanted - 1e-9))
        h = lag / n_steps
        for k in range(n_steps):
            now, early = t + k * h[:, 0], None
            if equation.jumps is not None:
                total, early, _ = equation.jump(now, y, h, values, generator)
                y = y + total * early
            xi = normal(tuple(y.shape), y, generator), normal(tuple(y.shape), y, generator)
            y = equation.step(now, y, h, xi, values)
            if early is not None:
                y = y + total * ~early
        found.append(equation.inside(y))
    return torch.stack(found, 1)
