"""What regressions of increments and of their squares say of a process: where training starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.estimators.dynamics.transitions import PolynomialFit, TransitionRows
from localw2.models.base import normal
from localw2.models.coefficients import ConstantCoefficient, FunctionJumps, NetworkCoefficient, NormalJumps

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods
    from localw2.models.sde import StochasticEquation, Transitions

# Standard deviations of jumps where none are seen at first.
JUMP = 4.5
EM_ROUNDS, MOST_JUMPS = 30, 4
# Rounds in which what is simulated over the lags of the data corrects the first look, and steps of each.
ROUNDS, STEPS, LATER_STEPS, BATCH = 3, 200, 60, 1024
# Simulated copies of the data that a round looks at, so that their noise is less than that of the data: at
# least so many, and more of few rows.
SIMULATED, SIMULATED_ROWS = 4, 50_000


@final
@dataclass(frozen=True)
class JumpLook:
    """Jumps per unit of time, mean and SD (d,) of their sizes, and the probability (R,) of none in a row."""

    rate: float
    mean: Array
    std: Array
    quiet: Array

    @classmethod
    def of(cls, rest: Array, variance: Array, lag: Array, start: JumpLook | None = None) -> JumpLook:
        """A Poisson mixture of Gaussians for increments without their mean, (R, d), by the EM algorithm.

        Without jumps a row has the given variance (R, d), up to a factor; each of K jumps adds the same mean
        and variance. A threshold would count jumps of two or three SDs as noise, and the rest as too large.
        """
        size = (rest**2 / variance).mean(1)
        large = size > max(float(np.quantile(size, 0.9)), 6.0)
        factor = np.ones(rest.shape[1])
        if start is not None:
            rate, mean, std = start.rate, start.mean, start.std
        elif large.sum() < 10:  # none to be seen: rare ones, of a size that would just be
            rate, mean = 0.01 / float(lag.mean()), np.zeros(rest.shape[1])
            std = JUMP * np.sqrt(variance.mean(0))
        else:
            rate, mean = large.mean() / lag.mean(), rest[large].mean(0)
            std = np.maximum(rest[large].std(0), np.sqrt(variance.mean(0)))
        shift = np.zeros(rest.shape[1])
        posterior = np.ones((MOST_JUMPS + 1, len(rest)))
        for _ in range(EM_ROUNDS):
            for k in range(MOST_JUMPS + 1):
                wide = factor * variance + k * std**2
                gap = rest - shift - k * mean
                posterior[k] = -0.5 * (np.log(wide) + gap**2 / wide).sum(1)
                posterior[k] += k * np.log(rate * lag) - math.lgamma(k + 1)
            posterior = np.exp(posterior - posterior.max(0))
            posterior /= posterior.sum(0)
            none, one = posterior[0], posterior[1]
            rate = float((np.arange(MOST_JUMPS + 1) @ posterior).sum() / lag.sum())
            shift = none @ (rest / variance) / (none @ (1 / variance))
            factor = none @ ((rest - shift) ** 2 / variance) / none.sum()
            mean = one @ (rest - shift) / one.sum()
            spread = one @ ((rest - shift - mean) ** 2 - factor * variance) / one.sum()
            std = np.sqrt(np.maximum(spread, 0.01 * variance.mean(0)))
        return cls(rate, mean, std, posterior[0])


@final
@dataclass(frozen=True)
class FirstLook:
    """Mean and variance of increments per unit of time at every row, without the jumps that it seems to have.

    ``mean`` (R, d) and ``cov`` (R, d, d) are smooth in the state; ``local`` (R, d) is the variance in wide
    balls, which is positive and rough.
    """

    mean: Array
    cov: Array
    local: Array
    degrees: tuple[int, int]
    jumps: JumpLook | None = None

    @classmethod
    def of(
        cls, rows: TransitionRows, hoods: Neighborhoods, jumps: bool, degrees: tuple[int, int] | None = None
    ) -> FirstLook:
        """Two regressions of increments, the second weighted by the local variance that the first leaves.

        ``degrees`` of the polynomials of mean and variance are chosen by cross-validation unless given.
        """
        rate, lag, folds = rows.increment / rows.lag[:, None], rows.lag, rows.folds()
        quiet, found = np.ones(len(rows)), None
        residual = (rate - np.median(rate, 0)) * np.sqrt(lag)[:, None]
        local = _robust(residual, hoods) if jumps else _local(residual, hoods, quiet)
        choices = (None, None) if degrees is None else ((degrees[0],), (degrees[1],))
        fit = None
        for _ in range(4 if jumps else 2):
            if jumps:
                found = JumpLook.of(residual * np.sqrt(lag)[:, None], local * lag[:, None], lag, found)
                quiet = found.quiet
            # One weight for all states: their variances differ by a factor that the regression ignores.
            weight = quiet * lag / (local / local.mean(0)).mean(1)
            fit = PolynomialFit.fit(rows.state, rate, weight, folds, choices[0])
            residual = (rate - fit(rows.state)) * np.sqrt(lag)[:, None]
            local = _local(residual, hoods, quiet)
        assert fit is not None
        d = residual.shape[1]
        products = (residual[:, :, None] * residual[:, None, :]).reshape(len(rows), -1)
        weight = quiet * (local / local.mean(0)).mean(1) ** -2.0
        variance = PolynomialFit.fit(rows.state, products, weight, folds, choices[1])
        cov = _positive(variance(rows.state).reshape(-1, d, d), local)
        return cls(fit(rows.state), cov, local, (fit.degree, variance.degree), found)

    @property
    def std(self) -> Array:
        """The diffusion (R, d) of each state."""
        std: Array = np.sqrt(np.diagonal(self.cov, axis1=1, axis2=2))
        return std

    def units(self, rows: TransitionRows) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Location and spread of the states, and the usual size of drift and diffusion, for networks."""
        location, spread = rows.state.mean(0), rows.state.std(0)
        spread = np.where(spread > 1e-12 * np.abs(location), spread, 1.0)
        std = np.sqrt((self.std**2).mean(0))
        # A drift that cannot be told from zero has the unit that could just be told.
        drift = np.maximum(np.sqrt((self.mean**2).mean(0)), 0.1 * std / np.sqrt(np.median(rows.lag)))
        a, b = torch.tensor(location), torch.tensor(spread)
        return {"drift": (a, b, torch.tensor(drift)), "diffusion": (a, b, torch.tensor(std))} | {
            name: (a, b, torch.ones(count))
            for name, count in (("rate", 1), ("jump_mean", len(b)), ("jump_std", len(b)))
        }


def _local(residual: Array, hoods: Neighborhoods, weight: Array) -> Array:
    """The weighted variance in wide balls, averaged over the balls of each row, (R, d)."""
    members, starts = hoods.rows.numpy(), hoods.indptr.numpy()[:-1]
    sums = np.add.reduceat((residual**2 * weight[:, None])[members], starts)
    return _of_rows(sums / np.maximum(np.add.reduceat(weight[members], starts), 1e-3)[:, None], hoods)


def _robust(residual: Array, hoods: Neighborhoods) -> Array:
    """The same from medians, which jumps of fewer than half of the rows move little."""
    parts = np.split(residual[hoods.rows.numpy()], hoods.indptr.numpy()[1:-1])
    # The median of a squared standard normal is .455.
    return _of_rows(np.stack([np.median((p - np.median(p, 0)) ** 2, 0) / 0.45494 for p in parts]), hoods)


def _of_rows(per_ball: Array, hoods: Neighborhoods) -> Array:
    """The mean over the balls of each row, (R, d), of values per ball; positive."""
    members, sizes = hoods.rows.numpy(), hoods.sizes.numpy()
    sums, counts = np.zeros((hoods.n_rows, per_ball.shape[1])), np.bincount(members, minlength=hoods.n_rows)
    np.add.at(sums, members, np.repeat(per_ball, sizes, axis=0))
    found: Array = sums / np.maximum(counts, 1)[:, None]
    positive: Array = np.maximum(found, 1e-12 * np.maximum(found.mean(0), 1e-288))
    return positive


def _positive(cov: Array, local: Array) -> Array:
    """Covariances with variances within a factor of two of the local ones and correlations below .99."""
    d = cov.shape[1]
    variance: Array = np.clip(np.diagonal(cov, axis1=1, axis2=2), 0.5 * local, 2 * local)
    std = np.sqrt(variance)
    if d == 1:
        return variance[:, :, None]
    correlation = cov / std[:, :, None] / std[:, None, :]
    correlation[:, range(d), range(d)] = 1.0
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, 0.01)
    correlation = (vectors * values[:, None]) @ vectors.transpose(0, 2, 1)
    size = np.sqrt(np.diagonal(correlation, axis1=1, axis2=2))
    rescale = std / size
    found: Array = correlation * rescale[:, :, None] * rescale[:, None, :]
    return found


def start_parts(
    model: Transitions,
    x: Tensor,
    rows: TransitionRows,
    look: FirstLook,
    hoods: Neighborhoods,
    seed: int,
    rounds: int = ROUNDS,
) -> None:
    """Bring all parts, networks or functions, to the first look, corrected for the length of lags.

    Over a lag the mean increment is not the drift times the lag, and so on: what the equation simulates is
    looked at in the same way as the data, and the difference is added to what its parts should be.
    """
    equation, d = model.equation, rows.state.shape[1]
    rng = np.random.default_rng([seed, 3])
    drift, diffusion = look.mean.copy(), look.cov.copy()
    jumps = look.jumps
    generator = torch.Generator(x.device).manual_seed(int(rng.integers(2**62)))
    units = look.units(rows)
    for number in range(rounds + 1):
        _set_jumps(equation, jumps)
        count = LATER_STEPS if number else STEPS
        _imitate(equation, x, drift, np.linalg.cholesky(diffusion), jumps, units, count, rng)
        if number == rounds:
            return
        looks = []
        mirror = _Mirror(generator)
        for _ in range(max(SIMULATED, min(10, SIMULATED_ROWS // len(rows)))):
            noise: Any = generator if equation.jumps is not None else mirror
            with torch.no_grad():
                simulated = model(x, None, noise)[:, :d].double().cpu().numpy()
            mirror.turn()
            if not np.isfinite(
                simulated
            ).all():  # functions that explode from their guesses; training says so
                return
            own = replace(rows, increment=simulated)
            looks.append(FirstLook.of(own, hoods, jumps is not None, look.degrees))
        drift = drift + look.mean - np.mean([own.mean for own in looks], axis=0)
        ratio = look.std**2 / np.mean([own.std**2 for own in looks], axis=0)
        factor = np.sqrt(np.clip(ratio, 0.25, 4))
        diffusion = diffusion * factor[:, :, None] * factor[:, None, :]
        if jumps is not None:
            jumps = _corrected(jumps, look.jumps, [own.jumps for own in looks])


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
    drift: Array,
    factor: Array,
    jumps: JumpLook | None,
    units: dict[str, tuple[Tensor, Tensor, Tensor]],
    count: int,
    rng: np.random.Generator,
) -> None:
    """Least squares of drift and diffusion on the values (R, d) and (R, d, d) that they should have."""
    n, d = drift.shape
    wanted = torch.tensor(drift).to(x), torch.tensor(factor).to(x)
    scales = [units[name][2].to(x) for name in ("drift", "diffusion")]
    parts = equation.drift, equation.diffusion
    networks = [p for part in parts for p in part.parameters()]
    groups = [{"params": networks, "lr": 0.01}] if networks else []
    if equation.law is not None:
        groups.append({"params": list(equation.law.parameters()), "lr": 0.05})
    if not groups:
        return
    optimizer = torch.optim.Adam(groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(count):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / count)
        chosen = torch.from_numpy(rng.choice(n, min(n, BATCH), replace=False)).to(x.device)
        rows, values = x[chosen], equation.values(min(n, BATCH), None)
        states = equation.inside(rows[:, 2 : 2 + d])
        a, b = (part(rows[:, 0], states, values) for part in parts)
        target = wanted[1][chosen]
        if b.ndim == 2:
            # The sign of a diffusion means nothing.
            b, target = b.abs(), target.square().sum(2).sqrt()
        elif not isinstance(equation.diffusion, NetworkCoefficient):
            b, target = b @ b.transpose(1, 2), target @ target.transpose(1, 2)
        loss = ((a - wanted[0][chosen]) / scales[0]).square().mean()
        loss = loss + ((b - target) / (scales[1][:, None] if b.ndim == 3 else scales[1])).square().mean()
        if jumps is not None and isinstance(equation.jumps, FunctionJumps):
            loss = loss + _unlike(equation.jumps, jumps, rows[:, 0], states, values, rng)
        if not loss.requires_grad or not bool(torch.isfinite(loss)):
            return
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def _unlike(
    jumps: FunctionJumps,
    look: JumpLook,
    t: Tensor,
    y: Tensor,
    values: dict[str, Tensor],
    rng: np.random.Generator,
) -> Tensor:
    """How far rate, mean and SD of jumps of a known form are from what was seen, in relative units."""
    half = rng.normal(size=(-(-len(y) // 2), y.shape[1]))
    size = jumps.size(t, y, values, torch.tensor(np.concatenate([half, -half])[: len(y)]).to(y))
    mean, std = (torch.tensor(v).to(y) for v in (look.mean, look.std))
    unit = torch.maximum(std, mean.abs())
    gaps = [jumps.rate(t, y, values).mean() / look.rate - 1]
    gaps += [((size.mean(0) - mean) / unit), ((size.std(0, correction=0) - std) / unit)]
    total: Tensor = torch.cat([gap.reshape(-1) for gap in gaps]).square().sum()
    return total
