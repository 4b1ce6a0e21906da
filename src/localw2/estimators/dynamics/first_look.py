"""What regressions of increments and of their squares say of a process: where training starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.estimators.dynamics.transitions import PolynomialFit, TransitionRows
from localw2.models.coefficients import ConstantCoefficient, NetworkCoefficient, NormalJumps

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods
    from localw2.models.sde import StochasticEquation, Transitions

# Robust standard deviations beyond which an increment counts as a jump when training starts.
JUMP = 4.5
# Rounds in which what is simulated over the lags of the data corrects the first look, steps of each, and rows of a step.
ROUNDS, STEPS, LATER_STEPS, BATCH = 2, 200, 60, 1024


@final
@dataclass(frozen=True)
class FirstLook:
    """Mean and variance of increments per unit of time at every row, and which rows seem to have jumped.

    ``mean`` (R, d) and ``cov`` (R, d, d) are smooth in the state; ``local`` (R, d) is the variance in wide
    balls, which is positive and rough.
    """

    mean: Array
    cov: Array
    local: Array
    jumped: Array
    degree: int

    @classmethod
    def of(cls, rows: TransitionRows, hoods: Neighborhoods, jumps: bool) -> FirstLook:
        """Two regressions of increments, the second weighted by the local variance that the first leaves."""
        rate, lag, folds = rows.increment / rows.lag[:, None], rows.lag, rows.folds()
        kept = np.ones(len(rows), bool)
        residual = (rate - np.median(rate, 0)) * np.sqrt(lag)[:, None]
        local = _robust(residual, hoods) if jumps else _local(residual, hoods, kept)
        fit = None
        for _ in range(4 if jumps else 2):
            if jumps:
                kept = (np.abs(residual) < JUMP * np.sqrt(local)).all(1)
            # One weight for all states: their variances differ by a factor that the regression ignores.
            weight = lag / (local / local.mean(0)).mean(1)
            fit = PolynomialFit.fit(rows.state[kept], rate[kept], weight[kept], folds[kept])
            residual = (rate - fit(rows.state)) * np.sqrt(lag)[:, None]
            local = _local(residual, hoods, kept)
        assert fit is not None
        d = residual.shape[1]
        products = (residual[:, :, None] * residual[:, None, :]).reshape(len(rows), -1)
        weight = (local / local.mean(0)).mean(1) ** -2.0
        cov = PolynomialFit.fit(rows.state[kept], products[kept], weight[kept], folds[kept])(rows.state)
        cov = _positive(cov.reshape(-1, d, d), local)
        return cls(fit(rows.state), cov, local, ~kept, fit.degree)

    def units(self, rows: TransitionRows) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Location and spread of the states, and the usual size of drift and diffusion, for networks."""
        location, spread = rows.state.mean(0), rows.state.std(0)
        spread = np.where(spread > 1e-12 * np.abs(location), spread, 1.0)
        std = np.sqrt((self.std**2).mean(0))
        # A drift that cannot be told from zero has the unit that could just be told.
        drift = np.maximum(np.sqrt((self.mean**2).mean(0)), 0.1 * std / np.sqrt(np.median(rows.lag)))
        a, b = torch.tensor(location), torch.tensor(spread)
        return {"drift": (a, b, torch.tensor(drift)), "diffusion": (a, b, torch.tensor(std))} | {
            name: (a, b, torch.ones(count)) for name, count in (("rate", 1), ("jump_mean", len(b)), ("jump_std", len(b)))
        }

    @property
    def std(self) -> Array:
        """The diffusion (R, d) of each state."""
        std: Array = np.sqrt(np.diagonal(self.cov, axis1=1, axis2=2))
        return std


def _local(residual: Array, hoods: Neighborhoods, kept: Array) -> Array:
    """The variance of the rows kept in wide balls, averaged over the balls of each row, (R, d)."""
    members, starts = hoods.rows.numpy(), hoods.indptr.numpy()[:-1]
    sums = np.add.reduceat((residual**2 * kept[:, None])[members], starts)
    return _of_rows(sums / np.maximum(np.add.reduceat(kept[members], starts, dtype=float), 1)[:, None], hoods)


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
    return np.maximum(found, 1e-12 * np.maximum(found.mean(0), 1e-288))


def _positive(cov: Array, local: Array) -> Array:
    """Covariances with variances within a factor of two of the local ones and correlations below .99."""
    d = cov.shape[1]
    variance = np.clip(np.diagonal(cov, axis1=1, axis2=2), 0.5 * local, 2 * local)
    std = np.sqrt(variance)
    if d == 1:
        return variance[:, :, None]
    correlation = cov / std[:, :, None] / std[:, None, :]
    correlation[:, range(d), range(d)] = 1.0
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, 0.01)
    correlation = (vectors * values[:, None]) @ vectors.transpose(0, 2, 1)
    size = np.sqrt(np.diagonal(correlation, axis1=1, axis2=2))
    correlation = correlation / size[:, :, None] / size[:, None, :]
    return correlation * std[:, :, None] * std[:, None, :]


def start_jumps(equation: StochasticEquation, rows: TransitionRows, look: FirstLook) -> None:
    """Bring Gaussian jumps to what the increments that look like jumps say of their rate and sizes."""
    jumps = equation.jumps
    if not isinstance(jumps, NormalJumps):
        return
    sizes = (rows.increment - look.mean * rows.lag[:, None])[look.jumped]
    noise = (look.local * rows.lag[:, None]).mean(0)
    if len(sizes) < 10:  # too few for a spread: rare jumps of a size that could just be seen
        rate, mean, var = 0.01 / float(np.median(rows.lag)), np.zeros_like(noise), JUMP**2 * noise
    else:
        rate, mean = len(sizes) / float(rows.lag.sum()), sizes.mean(0)
        var = np.maximum(sizes.var(0) - noise, 0.1 * sizes.var(0))
    values = {"rate": np.array([rate]), "mean": mean, "std": np.sqrt(var)}
    for name, value in values.items():
        part = getattr(jumps, name)
        tensor = torch.tensor(value).to(part.get_buffer("factor"))
        unit = torch.tensor(values["std"]).to(tensor) if name == "mean" else tensor
        if isinstance(part, ConstantCoefficient):
            part.start(tensor, unit)
        else:
            part.get_buffer("factor").copy_(unit)
            part.skip.bias.data.copy_(tensor / unit if name == "mean" else torch.zeros_like(tensor))


def start_parts(model: Transitions, x: Tensor, rows: TransitionRows, look: FirstLook, seed: int) -> None:
    """Bring drift and diffusion, networks or functions, to the first look, corrected for the length of lags.

    Over a lag the mean increment is not the drift times the lag, and so on: what the equation simulates is
    looked at in the same way as the data, and the difference is added to what its parts should be.
    """
    equation, d = model.equation, rows.state.shape[1]
    rng = np.random.default_rng([seed, 3])
    drift, diffusion = look.mean.copy(), look.cov.copy()
    folds, kept = rows.folds(), ~look.jumped
    generator = torch.Generator(x.device).manual_seed(int(rng.integers(2**62)))
    root_lag = np.sqrt(rows.lag)[:, None]
    weight = rows.lag / (look.local / look.local.mean(0)).mean(1)
    units = look.units(rows)
    for number in range(ROUNDS + 1):
        count = LATER_STEPS if number else STEPS
        _imitate(equation, x, drift, np.linalg.cholesky(diffusion), units, count, rng)
        if number == ROUNDS or equation.jumps is not None:
            return
        with torch.no_grad():
            simulated = model.simulate(x, 2, generator)[..., :d].double().cpu().numpy()
        if not np.isfinite(simulated).all():  # functions that explode from their guesses; training will say so
            return
        both = np.concatenate([s[kept] for s in simulated]) / np.tile(rows.lag[kept], 2)[:, None]
        twice = [np.tile(v[kept], 2) for v in (weight, folds)]
        mean = PolynomialFit.fit(np.tile(rows.state[kept], (2, 1)), both, *twice, (max(look.degree, 1),))
        residual = (simulated / rows.lag[:, None] - mean(rows.state)) * root_lag
        ratio = _smooth_variance(rows, residual, look, folds) / look.std**2
        drift = drift + (look.mean - mean(rows.state))
        factor = np.clip(ratio, 0.25, 4) ** -0.5
        diffusion = diffusion * factor[:, :, None] * factor[:, None, :]


def _smooth_variance(rows: TransitionRows, residual: Array, look: FirstLook, folds: Array) -> Array:
    """The variance per unit of time of simulated increments, smooth in the state, (R, d)."""
    kept = ~look.jumped
    weight = (look.local / look.local.mean(0)).mean(1) ** -2.0
    squares = (residual**2).mean(0)
    fit = PolynomialFit.fit(rows.state[kept], squares[kept], weight[kept], folds[kept])
    variance: Array = np.clip(fit(rows.state), 0.25 * look.local, 4 * look.local)
    return variance


def _imitate(
    equation: StochasticEquation,
    x: Tensor,
    drift: Array,
    factor: Array,
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
        if not loss.requires_grad or not bool(torch.isfinite(loss)):
            return
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
