"""Where training of a stochastic equation starts: regressions, corrected by what they would simulate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from localw2._validation import Array
from localw2.estimators.dynamics.first_look import FirstLook, JumpLook, average_moments
from localw2.estimators.dynamics.polynomials import PolynomialFit, powers_of, rich_degree
from localw2.models.base import normal
from localw2.models.coefficients import (
    Coefficient,
    ConstantCoefficient,
    FunctionJumps,
    NetworkCoefficient,
    NormalJumps,
)
from localw2.models.laws import LOCATION_STEP, Law, ParameterLaw, Shared
from localw2.models.sde import StochasticEquation, Transitions

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods
    from localw2.estimators.dynamics.moment_regression import CurveErrors
    from localw2.estimators.dynamics.transitions import TransitionRows

# Rounds in which what is simulated over the lags of the data corrects the first look, and fewer where they
# only start parameters of functions, or where jumps make them slow.
ROUNDS, FEW_ROUNDS = 5, 3
# Rounds in which the degrees of polynomials are chosen.
CHOOSING = 2
# Rows at which functions are brought to what they should be, steps of that, and what is far from anything.
IMITATED_ROWS, FEWEST_STEPS, EXPLODED = 2000, 30, 1e6
# How much the numbers by which parameters are learned change drift, diffusion or jumps, relatively, if the
# guesses are right. Beyond FAR times more or less a parameter gets another unit, unless its effect is UNSEEN.
USUAL_MOVE, FAR, UNSEEN, UNIT_ROUNDS = 0.2 * LOCATION_STEP, 30.0, 1e-7, 3
# The norm of these numbers below which they are zero.
ZERO = 1e-4
# Simulated copies of the data that a round looks at, so that their noise is less than that of the data: at
# least so many, and more of few rows.
SIMULATED, SIMULATED_ROWS = 4, 50_000


def start_parts(
    model: Transitions,
    x: Tensor,
    rows: TransitionRows,
    look: FirstLook,
    hoods: Neighborhoods,
    seed: int,
    corrected: bool = True,
) -> CurveErrors | None:
    """Bring all parts, networks or functions, to the first look, corrected for the length of lags.

    Over a lag the mean increment is not the drift times the lag, and so on: what the equation simulates is
    looked at in the same way as the data, and the difference is added to what its parts should be. Networks
    learn the result at the end; until then the polynomials themselves are simulated. The noise of
    simulations is the same in all rounds, so that these converge. If not ``corrected`` there are none.
    Returns how sure the curves of networks are, without jumps.
    """
    equation = model.equation
    now, jumps = look.coefficients, look.jumps
    units, noise_seed = look.units(rows), int(np.random.default_rng([seed, 3]).integers(2**62))
    parts = (equation.drift, equation.diffusion)
    smooth = all(isinstance(part, NetworkCoefficient) and not part.matrix for part in parts)
    rounds = (ROUNDS if smooth and jumps is None else FEW_ROUNDS) if corrected else 0
    looks: list[FirstLook] = []
    for number in range(rounds + 1):
        _set_jumps(equation, jumps)
        if number == rounds or not smooth:
            targets = now.drift(rows.state), np.linalg.cholesky(now.cov)
            _imitate(equation, x, targets, jumps, units, rows.weight)
        if number == rounds:
            break
        simulator = _follow_curves(model, now.drift, now.variance, now.cov).to(x) if smooth else model
        made = _simulate(simulator, x, rows, noise_seed)
        if not np.isfinite(made).all():  # functions that explode from their guesses; training says so
            return None
        degree = rich_degree(len(rows), rows.state.shape[1])
        looks = [FirstLook.of(replace(rows, increment=own), hoods, jumps is not None, degree) for own in made]
        # Degrees that change from round to round would keep these from converging.
        now = look.correct(rows, now, looks, keep_degrees=number >= CHOOSING)
        if jumps is not None:
            jumps = _corrected(jumps, look.jumps, [own.jumps for own in looks])
    if not smooth or jumps is not None or now.moments is None:
        return None

    def simulate(drift: PolynomialFit, variance: PolynomialFit) -> Array:
        # Curves that are moved a little must not be held back.
        curves = _follow_curves(model, drift, variance, now.cov, slack=4.0)
        return _simulate(curves.to(x), x, rows, noise_seed)

    mean, variance = (part * rows.lag[:, None] for part in average_moments(looks))
    return look.regression(rows).errors(now.moments, mean, variance, simulate)


def _follow_curves(
    model: Transitions, drift: PolynomialFit, variance: PolynomialFit, cov: Array, slack: float = 1.0
) -> Transitions:
    """The same model with polynomials in place of networks; variances stay between those of ``cov``."""
    equation, own = model.equation, np.diagonal(cov, axis1=1, axis2=2)
    curves = _Curve(drift), _Curve(variance, np.stack([own.min(0) / slack, own.max(0) * slack]))
    return Transitions(StochasticEquation(*curves, equation.jumps, None, equation.bounds), model.n_steps)


@torch.no_grad()
def _simulate(model: Transitions, x: Tensor, rows: TransitionRows, seed: int) -> Array:
    """Increments (S, R, d) of several simulated copies of the data."""
    generator = torch.Generator(x.device).manual_seed(seed)
    d, found, mirror = rows.state.shape[1], [], _Mirror(generator)
    for _ in range(max(SIMULATED, min(10, SIMULATED_ROWS // len(rows)))):
        noise: Any = mirror if model.equation.jumps is None else generator
        found.append(model(x, None, noise)[:, :d].double().cpu().numpy())
        mirror.turn()
    return np.stack(found)


@final
class _Curve(Coefficient):
    """A polynomial of the state, or, within bounds (2, m) of the values, the root of one."""

    def __init__(self, fit: PolynomialFit, bounds: Array | None = None) -> None:
        super().__init__()
        fit = fit.trim()
        self.degree, self.powers = fit.degree, powers_of(len(fit.location), fit.degree)
        values = {"location": fit.location, "spread": fit.spread, "weights": fit.coefficients}
        for name, value in (values if bounds is None else values | {"bounds": bounds}).items():
            self.register_buffer(name, torch.tensor(value))

    def forward(self, t: Tensor, y: Tensor, values: dict[str, Tensor], *extra: Tensor) -> Tensor:
        """Values (n, m)."""
        u = ((y - self.get_buffer("location")) / self.get_buffer("spread")).clamp(-4, 4) / 2
        legendre = [torch.ones_like(u), u]
        for k in range(1, self.degree):
            legendre.append(((2 * k + 1) * u * legendre[k] - k * legendre[k - 1]) / (k + 1))
        columns = []
        for powers in self.powers:
            column = legendre[0][:, 0]
            for j, k in enumerate(powers):
                column = column * legendre[k][:, j] if k else column
            columns.append(column)
        found = torch.stack(columns, 1) @ self.get_buffer("weights")
        if "bounds" not in self._buffers:
            return found
        low, high = self.get_buffer("bounds")
        return found.clamp(low, high).sqrt()


@final
class _Mirror:
    """Random numbers of which every second pass is the negative of the one before.

    What is linear in the noise, most of the error of a regression of simulated increments, cancels in pairs.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._kept: list[Tensor] = []
        self._place: int | None = None

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal numbers, fresh or mirrored."""
        if self._place is None:
            self._kept.append(normal(shape, like, self._generator))
            return self._kept[-1]
        self._place += 1
        return -self._kept[self._place - 1]

    def turn(self) -> None:
        """Begin the next pass."""
        if self._place is None:
            self._place = 0
        else:
            self._kept, self._place = [], None


def _corrected(now: JumpLook, wanted: JumpLook | None, looks: list[JumpLook | None]) -> JumpLook:
    """Jumps such that what is simulated looks as the data do, if looks move as the jumps do."""
    seen = [own for own in looks if own is not None]
    assert wanted is not None
    rate = now.rate * np.clip(wanted.rate / np.mean([own.rate for own in seen]), 0.5, 2)
    std = now.std * np.clip(wanted.std / np.mean([own.std for own in seen], axis=0), 0.5, 2)
    mean = now.mean + wanted.mean - np.mean([own.mean for own in seen], axis=0)
    return JumpLook(float(rate), mean, std, now.quiet)


def _set_jumps(equation: StochasticEquation, look: JumpLook | None) -> None:
    """Give Gaussian jumps this rate and these sizes; those of a known form are fitted to them instead."""
    if look is None or not isinstance(equation.jumps, NormalJumps):
        return
    values = {"rate": np.array([look.rate]), "mean": look.mean, "std": look.std}
    for name, value in values.items():
        part = getattr(equation.jumps, name)
        tensor = torch.tensor(value).to(part.get_buffer("factor"))
        unit = torch.tensor(values["std"]).to(tensor) if name == "mean" else tensor
        if isinstance(part, ConstantCoefficient):
            part.start(tensor, unit)
        else:
            part.get_buffer("factor").copy_(unit)
            part.skip.bias.data.copy_(tensor / unit if name == "mean" else torch.zeros_like(tensor))


def _imitate(
    equation: StochasticEquation,
    x: Tensor,
    targets: tuple[Array, Array],
    jumps: JumpLook | None,
    units: dict[str, tuple[Tensor, Tensor, Tensor]],
    weight: Array | None,
) -> None:
    """Least squares of drift and diffusion on the values (R, d) and (R, d, d) that they should have."""
    wanted = torch.tensor(targets[0]).to(x), torch.tensor(targets[1]).to(x)
    inside = equation.inside(x[:, 2 : 2 + targets[0].shape[1]])
    share = x.new_ones(len(x)) if weight is None else torch.tensor(weight).to(x)
    _start_networks(equation, inside, wanted, share)
    law = equation.law
    if law is None:
        return
    chosen = torch.linspace(0, len(x) - 1, min(len(x), IMITATED_ROWS), device=x.device).long()
    t, states, root = x[chosen, 0], inside[chosen], share[chosen].sqrt()[:, None]
    scales = [units[name][2].to(x) for name in ("drift", "diffusion")]
    parameters = [law.location, law.shared]
    sizes = [p.numel() for p in parameters]

    @torch.no_grad()
    def residuals(flat: Array) -> Array:
        for parameter, part in zip(parameters, torch.tensor(flat).to(x).split(sizes), strict=True):
            parameter.copy_(part)
        values, found = equation.values(len(chosen), None), []
        if not isinstance(equation.drift, NetworkCoefficient):
            a = equation.drift(t, states, values)
            found.append(root * (a - wanted[0][chosen]) / scales[0])
        if not isinstance(equation.diffusion, NetworkCoefficient):
            b, target, unit = equation.diffusion(t, states, values), wanted[1][chosen], scales[1]
            # The sign of a diffusion means nothing, nor do rotations of its noise.
            if b.ndim == 2:
                b, target = b.abs(), target.square().sum(2).sqrt()
            else:
                b, target, unit = b @ b.mT, target @ target.mT, unit[:, None]
            found.append(root * ((b - target) / unit).flatten(1))
        gaps = [part.flatten() / len(chosen) ** 0.5 for part in found]
        if jumps is not None and isinstance(equation.jumps, FunctionJumps):
            gaps.append(_unlike(equation.jumps, jumps, t, states, values))
        joined: Array = torch.cat(gaps).double().cpu().numpy()
        return np.where(np.isfinite(joined), joined, EXPLODED)

    for _ in range(UNIT_ROUNDS):
        start = torch.cat([p.detach().flatten() for p in parameters]).double().cpu().numpy()
        # The first step of least squares is as long as the start, or 1 from zero: a tiny one ends it.
        start = start * (np.linalg.norm(start) > ZERO)
        if (residuals(start) == EXPLODED).any():  # the guesses explode, and training says so
            return
        found = optimize.least_squares(residuals, start, max_nfev=FEWEST_STEPS * (1 + len(start)))
        residuals(found.x)
        if not _find_units(law, found.jac[:, sizes[0] :]):
            return


@torch.no_grad()
def _find_units(law: ParameterLaw, slopes: Array) -> bool:
    """Give shared parameters far from their guess a unit of their own, from the slopes (m, k) of the parts.

    Training takes steps in units of the guess, which may be a million times the true value where times are
    in another unit. The result is whether a unit was changed.
    """
    found: dict[str, Law] = {}
    values = law(law.location.new_zeros(1, len(law.random_names)))
    for name, moved in zip(law.shared_names, np.linalg.norm(slopes, axis=0) / USUAL_MOVE, strict=True):
        if moved > FAR or UNSEEN < moved < 1 / FAR:
            found[name] = Shared(float(values[name]), law.laws[name].scale / float(moved))
    law.restate(found)
    return bool(found)


def _start_networks(
    equation: StochasticEquation, states: Tensor, wanted: tuple[Tensor, Tensor], weight: Tensor | None
) -> None:
    """Let those parts that are networks begin at a drift and at the factor of a covariance."""
    if isinstance(equation.drift, NetworkCoefficient):
        equation.drift.start(states, wanted[0], weight)
    if isinstance(equation.diffusion, NetworkCoefficient):
        factor = wanted[1]
        own = factor if equation.diffusion.matrix else factor.square().sum(2).sqrt()
        equation.diffusion.start(states, own, weight)


def _unlike(jumps: FunctionJumps, look: JumpLook, t: Tensor, y: Tensor, values: dict[str, Tensor]) -> Tensor:
    """How far rate, mean and SD (2 d + 1,) of jumps of a known form are from what was seen, relatively."""
    half = np.random.default_rng(0).normal(size=(-(-len(y) // 2), y.shape[1]))
    size = jumps.size(t, y, values, torch.tensor(np.concatenate([half, -half])[: len(y)]).to(y))
    mean, std = (torch.tensor(v).to(y) for v in (look.mean, look.std))
    unit = torch.maximum(std, mean.abs())
    rate = jumps.signed_rate(t, y, values)
    # Where no state has jumps the largest rate says how far the parameters are from any.
    gaps = [(rate.clamp_min(0).mean() + rate.max().clamp_max(0)) / look.rate - 1]
    gaps += [((size.mean(0) - mean) / unit), ((size.std(0, correction=0) - std) / unit)]
    return torch.cat([gap.reshape(-1) for gap in gaps])
