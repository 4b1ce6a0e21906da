"""What regressions of increments and of their squares say of a process: where training starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, average
from localw2.estimators.dynamics.moment_regression import MomentRegression, RegressedMoments
from localw2.estimators.dynamics.polynomials import PolynomialFit, choices_of_degree

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods
    from localw2.estimators.dynamics.transitions import TransitionRows

# Standard deviations of jumps where none are seen at first.
JUMP = 4.5
EM_ROUNDS, MOST_JUMPS = 30, 4


@final
@dataclass(frozen=True)
class JumpLook:
    """Jumps per unit of time, mean and SD (d,) of their sizes, and the probability (R,) of none in a row."""

    rate: float
    mean: Array
    std: Array
    quiet: Array

    @classmethod
    def of(
        cls,
        rest: Array,
        variance: Array,
        lag: Array,
        start: JumpLook | None = None,
        weight: Array | None = None,
    ) -> JumpLook:
        """A Poisson mixture of Gaussians for increments without their mean, (R, d), by the EM algorithm.

        Without jumps a row has the given variance (R, d), up to a factor; each of K jumps adds the same mean
        and variance. A threshold would count jumps of two or three SDs as noise, and the rest as too large.
        Rows count by their ``weight`` (R,).
        """
        size = (rest**2 / variance).mean(1)
        large = size > max(float(quantile(size[:, None], 0.9, weight)[0]), 6.0)
        each = np.ones(len(rest)) if weight is None else weight
        of_large = None if weight is None else weight[large]
        factor = np.ones(rest.shape[1])
        if start is not None:
            rate, mean, std = start.rate, start.mean, start.std
        elif large.sum() < 10:  # none to be seen: rare ones, of a size that would just be
            rate, mean = 0.01 / float(average(lag, weight)), np.zeros(rest.shape[1])
            std = JUMP * np.sqrt(average(variance, weight))
        else:
            rate = average(large.astype(float), weight) / average(lag, weight)
            mean = average(rest[large], of_large)
            seen = np.sqrt(average((rest[large] - mean) ** 2, of_large))
            std = np.maximum(seen, np.sqrt(average(variance, weight)))
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
            none, one = each * posterior[0], each * posterior[1]
            rate = float((np.arange(MOST_JUMPS + 1) @ posterior) @ each / (lag @ each))
            shift = none @ (rest / variance) / (none @ (1 / variance))
            factor = none @ ((rest - shift) ** 2 / variance) / none.sum()
            mean = one @ (rest - shift) / one.sum()
            spread = one @ ((rest - shift - mean) ** 2 - factor * variance) / one.sum()
            std = np.sqrt(np.maximum(spread, 0.01 * average(variance, weight)))
        return cls(rate, mean, std, posterior[0])


@final
@dataclass(frozen=True)
class Coefficients:
    """Drift and variance of the noise as polynomials, with the covariances (R, d, d) at every row.

    ``moments`` are the same with their degrees, once both were regressed together.
    """

    drift: PolynomialFit
    variance: PolynomialFit
    cov: Array
    moments: RegressedMoments | None = None


@final
@dataclass(frozen=True)
class FirstLook:
    """Mean and variance of increments per unit of time at every row, without the jumps that it seems to have.

    ``fit`` is the regression that gave the mean, and ``variance`` that of each state. ``mean`` (R, d) and
    ``cov`` (R, d, d) are their values; ``local`` (R, d) is the variance in wide balls, which is positive and
    rough. ``residual`` (R, d) is what the mean leaves of the increments, per root of time, and ``quiet`` (R,)
    says how much each row counts: its weight, times the probability that it has no jump.
    """

    increment: Array
    fit: PolynomialFit
    variance: PolynomialFit
    mean: Array
    cov: Array
    local: Array
    residual: Array
    quiet: Array
    jumps: JumpLook | None = None

    @classmethod
    def of(
        cls, rows: TransitionRows, hoods: Neighborhoods, jumps: bool, degree: int | None = None
    ) -> FirstLook:
        """Two regressions of increments, the second weighted by the local variance that the first leaves.

        The degrees of the polynomials of mean and variance are chosen by cross-validation unless given.
        """
        rate, lag, folds = rows.increment / rows.lag[:, None], rows.lag, rows.folds()
        each, found = np.ones(len(rows)) if rows.weight is None else rows.weight, None
        quiet, units = each, rows.standard_units()
        residual = (rate - quantile(rate, 0.5, rows.weight)) * np.sqrt(lag)[:, None]
        local = _robust(residual, hoods, rows.weight) if jumps else _local(residual, hoods, quiet)
        d = residual.shape[1]
        of_mean = choices_of_degree(d, 1) if degree is None else (degree,)
        fit, weight = None, each
        for _ in range(4 if jumps else 2):
            if jumps:
                rest, spread = residual * np.sqrt(lag)[:, None], local * lag[:, None]
                found = JumpLook.of(rest, spread, lag, found, rows.weight)
                quiet = each * found.quiet
            # One weight for all states: their variances differ by a factor that the regression ignores.
            weight = quiet * lag / (local / average(local, rows.weight)).mean(1)
            fit = PolynomialFit.fit(rows.state, rate, weight, folds, of_mean, units)
            residual = (rate - fit(rows.state)) * np.sqrt(lag)[:, None]
            local = _local(residual, hoods, quiet)
        assert fit is not None
        weight = quiet * (local / average(local, rows.weight)).mean(1) ** -2.0
        of_variance = None if degree is None else (degree,)
        variance = PolynomialFit.fit(rows.state, _products(residual), weight, folds, of_variance, units)
        cov = _positive(variance(rows.state).reshape(-1, d, d), local)
        own = replace(variance, coefficients=variance.coefficients[:, :: d + 1])
        return cls(rows.increment, fit, own, fit(rows.state), cov, local, residual, quiet, found)

    def regression(self, rows: TransitionRows) -> MomentRegression:
        """The regression of both moments of these increments."""
        groups = rows.folds(), rows.clusters()
        return MomentRegression(
            rows.state, rows.lag, rows.increment, self.quiet, *groups, rows.standard_units()
        )

    def correct(
        self, rows: TransitionRows, now: Coefficients, looks: list[FirstLook], keep_degrees: bool
    ) -> Coefficients:
        """Drift and diffusion from looks at what the present ones simulate.

        Both have degrees of their own: if the drift pushes states together or apart, the variance of
        increments depends on the state, while the diffusion itself may be constant.
        """
        mean, variance = average_moments(looks)
        lag, present = rows.lag[:, None], np.diagonal(now.cov, axis1=1, axis2=2)
        made = None if self.jumps is not None else np.stack([look.increment for look in looks])
        degrees = now.moments.degrees if keep_degrees and now.moments is not None else None
        given = now.drift, present, mean * lag, variance * lag, made
        found = self.regression(rows).solve(*given, degrees)
        ratio = np.clip(present / variance, 0.25, 4)
        cov, d = np.zeros_like(now.cov), present.shape[1]
        if d > 1:
            weight = self.quiet * (self.local / average(self.local, rows.weight)).mean(1) ** -2.0
            products = _products(self.residual * np.sqrt(ratio))
            groups = rows.folds(), None, rows.standard_units()
            cov = PolynomialFit.fit(rows.state, products, weight, *groups)(rows.state)
            cov = cov.reshape(now.cov.shape)
        cov[:, range(d), range(d)] = found.variance(rows.state)
        cov = _positive(cov, self.local * ratio)
        return Coefficients(found.drift, found.variance, cov, found)

    @property
    def coefficients(self) -> Coefficients:
        """Mean and variance of increments, as if lags were short."""
        return Coefficients(self.fit, self.variance, self.cov)

    @property
    def std(self) -> Array:
        """The diffusion (R, d) of each state."""
        std: Array = np.sqrt(np.diagonal(self.cov, axis1=1, axis2=2))
        return std

    def units(self, rows: TransitionRows) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Location and spread of the states, and the usual size of drift and diffusion, for networks."""
        location, spread = rows.standard_units()
        spread = np.where(spread > 1e-12 * np.abs(location), spread, 1.0)
        std = np.sqrt(average(self.std**2, rows.weight))
        # A drift that cannot be told from zero has the unit that could just be told.
        usual = np.sqrt(average(self.mean**2, rows.weight))
        drift = np.maximum(usual, 0.1 * std / np.sqrt(np.median(rows.lag)))
        a, b = torch.tensor(location), torch.tensor(spread)
        return {"drift": (a, b, torch.tensor(drift)), "diffusion": (a, b, torch.tensor(std))} | {
            name: (a, b, torch.ones(count))
            for name, count in (("rate", 1), ("jump_mean", len(b)), ("jump_std", len(b)))
        }


def average_moments(looks: list[FirstLook]) -> tuple[Array, Array]:
    """Mean and variance (R, d) of increments per unit of time, on average over looks."""
    found = [np.mean(part, axis=0) for part in ([k.mean for k in looks], [k.std**2 for k in looks])]
    return found[0], found[1]


def _products(residual: Array) -> Array:
    """The products (R, d * d) of all pairs of columns."""
    found: Array = (residual[:, :, None] * residual[:, None, :]).reshape(len(residual), -1)
    return found


def _local(residual: Array, hoods: Neighborhoods, weight: Array) -> Array:
    """The weighted variance in wide balls, averaged over the balls of each row, (R, d)."""
    members, starts = hoods.rows.numpy(), hoods.indptr.numpy()[:-1]
    sums = np.add.reduceat((residual**2 * weight[:, None])[members], starts)
    return _of_rows(sums / np.maximum(np.add.reduceat(weight[members], starts), 1e-3)[:, None], hoods)


def _robust(residual: Array, hoods: Neighborhoods, weight: Array | None) -> Array:
    """The same from medians, which jumps of fewer than half of the rows move little."""
    found = []
    for rows in np.split(hoods.rows.numpy(), hoods.indptr.numpy()[1:-1]):
        part, own = residual[rows], None if weight is None else weight[rows]
        # The median of a squared standard normal is .455.
        found.append(quantile((part - quantile(part, 0.5, own)) ** 2, 0.5, own) / 0.45494)
    return _of_rows(np.stack(found), hoods)


def quantile(values: Array, level: float, weight: Array | None) -> Array:
    """The quantile (m,) of every column of values (R, m), whose rows count by their weights.

    With weights it is the mean of the values between which the level lies, as in the median of a sample.

    >>> quantile(np.array([[1.0], [2.0], [9.0]]), 0.5, np.array([1.0, 1.0, 2.0]))
    array([5.5])
    """
    if weight is None:
        found: Array = np.quantile(values, level, axis=0)
        return found
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weight[order], axis=0)
    wanted = level * reached[-1]
    ends = [
        (reached < wanted * (1 - 1e-12)).sum(0).clip(max=len(values) - 1),
        (reached <= wanted * (1 + 1e-12)).sum(0).clip(max=len(values) - 1),
    ]
    ordered = np.take_along_axis(values, order, axis=0)
    middle: Array = np.mean([ordered[end, np.arange(values.shape[1])] for end in ends], axis=0)
    return middle


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
