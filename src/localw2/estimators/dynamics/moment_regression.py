"""Drift and diffusion as polynomials of the state, from increments beyond simulated ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from localw2._validation import Array
from localw2.estimators.dynamics.polynomials import (
    PolynomialFit,
    design_of,
    is_gain,
    powers_of,
    rich_degree,
    slope_of,
    solve,
    standardise,
)
from localw2.estimators.dynamics.transitions import FOLDS

# Exponents of the linearised flow over a lag beyond which its derivatives are not looked at.
LEAST_EXPONENT, MOST_EXPONENT = -4.0, 2.0


@final
@dataclass(frozen=True)
class CurveErrors:
    """How sure drift and variance of each state are, as polynomials with K terms.

    ``curves`` (2, K, d) are the coefficients; ``drift`` and ``variance`` (d, K, K) are their covariances.
    """

    location: Array
    spread: Array
    degree: int
    curves: Array
    drift: Array
    variance: Array

    def of(self, state: Array, drift: Array, diffusion: Array) -> tuple[Array, Array]:
        """Standard errors (n, d) of drift and diffusion (n, d) at states (n, d).

        By how much they depart from the polynomials is part of the error: that is what training moved.
        """
        terms = design_of(standardise(state, self.location, self.spread), self.degree)
        of_drift, of_variance = (
            np.einsum("nk,dkl,nl->nd", terms, part, terms) for part in (self.drift, self.variance)
        )
        polynomial = terms @ self.curves[0], np.sqrt(np.maximum(terms @ self.curves[1], 0.0))
        of_diffusion = of_variance / np.maximum(2 * diffusion, 1e-150) ** 2
        found = [
            np.sqrt(np.maximum(known, 0.0) + (value - curve) ** 2)
            for known, value, curve in zip(
                (of_drift, of_diffusion), (drift, diffusion), polynomial, strict=True
            )
        ]
        return found[0], found[1]


@final
@dataclass(frozen=True)
class RegressedMoments:
    """Drift and variance of the noise, of d values each, and their degrees for each state."""

    drift: PolynomialFit
    variance: PolynomialFit
    degrees: list[tuple[int, int]]


@final
@dataclass(frozen=True)
class MomentRegression:
    r"""Drift a and variance v of the noise per unit of time, from increments beyond simulated ones.

    Over a lag h the increment of a state has mean m and variance s, which are simulated. If the flow is taken
    for linear, with slope A of the drift, :math:`m = a\,g(A)` and :math:`s = v\,k(A)` with

    .. math:: g = (e^{Ah} - 1)/A, \qquad k = (e^{2Ah} - 1)/(2A),

    so that standardised residuals :math:`(y - m)/\sqrt s` and :math:`((y - m)^2 - s)/(\sqrt2\,s)` are, to
    first order, linear in what the coefficients of both polynomials lack: one regression of both, since a
    drift that pulls states together also makes increments smaller. Its form only decides how efficient the
    estimate is. That residuals have mean 0 at the truth does not depend on it, as m and s are simulated.

    ``state``, ``lag`` and ``increment`` are those of rows, ``weight`` (R,) says how much they count,
    ``folds`` (R,) and ``clusters`` (R,) say which rows are left out together and which may depend on each
    other, and ``units`` are location and spread of the states.
    """

    state: Array
    lag: Array
    increment: Array
    weight: Array
    folds: Array
    clusters: Array
    units: tuple[Array, Array]

    def solve(
        self,
        drift: PolynomialFit,
        variance: Array,
        mean: Array,
        spread: Array,
        simulated: Array | None,
        degrees: list[tuple[int, int]] | None = None,
    ) -> RegressedMoments:
        """New drift and variance from the present drift and the present variance (R, d).

        ``mean`` and ``spread`` (R, d) are smooth estimates of mean and variance of simulated increments. The
        residuals of the simulated increments themselves, (S, R, d), are subtracted from those observed if
        they are given: then it does not matter that the estimates are not exact. ``degrees`` are chosen by
        cross-validation unless given.
        """
        d = self.state.shape[1]
        basis = _Basis.of(self.state, rich_degree(len(self.state), d), self.units)
        count, used = len(basis.order), []
        coefficients = np.zeros((2, count, d))
        for j in range(d):
            made = None if simulated is None else simulated[:, :, j] - mean[:, j]
            residual = _excess(self.increment[:, j] - mean[:, j], made, spread[:, j])
            blocks = self._linearise(basis, j, drift, variance, spread[:, j], residual)
            folds = _Folds.of(blocks, self.weight, self.folds)
            if degrees is None:
                used.append(_choose(folds, _Folds.of(blocks[:1], self.weight, self.folds), basis.order))
            else:
                used.append(degrees[j])
            terms, flat = basis.terms(*used[-1]), np.zeros(2 * count)
            flat[terms] = folds.solve(terms)
            coefficients[:, :, j] = flat.reshape(2, count)
        highest = max(max(pair) for pair in used)
        kept = basis.order <= highest
        fits = [PolynomialFit(basis.location, basis.spread, highest, part[kept]) for part in coefficients]
        return RegressedMoments(fits[0], fits[1], used)

    def errors(
        self,
        found: RegressedMoments,
        mean: Array,
        spread: Array,
        simulate: Callable[[PolynomialFit, PolynomialFit], Array],
    ) -> CurveErrors | None:
        """How sure the coefficients are, given their degrees; None if one of them changes no increment.

        ``simulate`` gives increments (S, R, d) of other coefficients with the same noise. Their moments say
        how residuals really respond, and residuals of clusters of rows how much they vary: the sandwich
        estimate of the covariance of what solves estimating equations.
        """
        d, basis = self.state.shape[1], _Basis.of(self.state, found.drift.degree, self.units)
        count = len(basis.order)
        covariances = np.zeros((d, 2 * count, 2 * count))
        fits = found.drift, found.variance
        now, base = found.variance(self.state), simulate(*fits)
        for j in range(d):
            made, root, wide = base[:, :, j] - mean[:, j], np.sqrt(spread[:, j]), np.sqrt(2) * spread[:, j]
            residual = _excess(self.increment[:, j] - mean[:, j], made, spread[:, j])
            blocks = self._linearise(basis, j, found.drift, now, spread[:, j], residual)
            terms = basis.terms(*found.degrees[j])
            designs = [block[0][:, terms] * self.weight[:, None] for block in blocks]
            scores = designs[0] * (residual[0] / root)[:, None] + designs[1] * (residual[1] / wide)[:, None]
            sums = np.zeros((int(self.clusters.max()) + 1, len(terms)))
            np.add.at(sums, self.clusters, scores)
            gram = np.sum([a.T @ b[0][:, terms] for a, b in zip(designs, blocks, strict=True)], axis=0)
            steps = np.sqrt(np.diag(solve(gram, np.eye(len(terms)))))
            response = np.empty_like(gram)
            for k, (term, step) in enumerate(zip(terms, steps, strict=True)):
                part, row = divmod(int(term), count)
                moved = list(fits)
                changed = moved[part].coefficients.copy()
                changed[row, j] += step
                moved[part] = replace(moved[part], coefficients=changed)
                other = simulate(*moved)[:, :, j] - mean[:, j]
                first, second = (other - made).mean(0) / root, (other**2 - made**2).mean(0) / wide
                response[:, k] = (first @ designs[0] + second @ designs[1]) / step
            try:
                half = np.linalg.solve(response, sums.T)
            except np.linalg.LinAlgError:  # bounds on the variance hold it back everywhere
                return None
            covariances[j][np.ix_(terms, terms)] = half @ half.T * (len(sums) / (len(sums) - 1))
        parts = covariances[:, :count, :count], covariances[:, count:, count:]
        curves = np.stack([fit.coefficients for fit in fits])
        return CurveErrors(basis.location, basis.spread, found.drift.degree, curves, *parts)

    def _linearise(
        self,
        basis: _Basis,
        j: int,
        drift: PolynomialFit,
        variance: Array,
        s: Array,
        residual: tuple[Array, Array],
    ) -> list[tuple[Array, Array]]:
        """Designs (R, 2 K) of means and of variances, and targets (R,): what is there now, plus residuals."""
        design, steep = basis.design, basis.steep(j)
        a, slope, v = drift(self.state)[:, j], drift.slopes(self.state)[:, j], variance[:, j]
        (g, g_slope), (k, k_slope) = _gains(slope, self.lag)
        root, wide = np.sqrt(s), np.sqrt(2) * s
        by_mean = design * (g / root)[:, None] + steep * (a * g_slope / root)[:, None]
        by_drift, by_noise = steep * (v * k_slope / wide)[:, None], design * (k / wide)[:, None]
        first = (residual[0] + a * g + a * g_slope * slope) / root
        second = (residual[1] + v * k_slope * slope + v * k) / wide
        return [
            (np.hstack([by_mean, np.zeros_like(by_mean)]), first),
            (np.hstack([by_drift, by_noise]), second),
        ]


@final
@dataclass(frozen=True)
class _Basis:
    """The terms (R, K) of a polynomial of given degree at states, and the degree (K,) of each."""

    location: Array
    spread: Array
    degree: int
    x: Array
    design: Array
    order: Array

    @classmethod
    def of(cls, state: Array, degree: int, units: tuple[Array, Array]) -> _Basis:
        """Those of states (R, d) in these units."""
        location, spread = units[0], np.maximum(units[1], 1e-300)
        x = standardise(state, location, spread)
        order = np.array([sum(p) for p in powers_of(state.shape[1], degree)])
        return cls(location, spread, degree, x, design_of(x, degree), order)

    def steep(self, j: int) -> Array:
        """Their derivatives in the j-th state."""
        found: Array = slope_of(self.x, self.degree, j) / self.spread[j]
        return found

    def terms(self, p: int, q: int) -> Array:
        """Those up to degree p of the drift and up to q of the variance, counted one after the other."""
        return _terms(self.order, p, q)


def _excess(rest: Array, made: Array | None, s: Array) -> tuple[Array, Array]:
    """Residuals and their squares, less what simulated ones ``made`` have, or should have."""
    if made is None:
        return rest, rest**2 - s
    return rest - made.mean(0), rest**2 - (made**2).mean(0)


def _terms(order: Array, p: int, q: int) -> Array:
    """Terms up to degree p of the drift and up to q of the variance."""
    return np.flatnonzero(np.concatenate([order <= p, order <= q]))


def _choose(both: _Folds, means: _Folds, order: Array) -> tuple[int, int]:
    """The degrees of drift, at least 1, and variance that predict left-out folds best.

    The drift comes from means alone at first; then each is chosen given the other.
    """
    degrees = range(int(order.max()) + 1)
    least = degrees[min(1, len(degrees) - 1) :]
    p = means.best({k: np.flatnonzero(order <= k) for k in least})
    q = both.best({k: _terms(order, p, k) for k in degrees})
    p = both.best({k: _terms(order, k, q) for k in least})
    return p, both.best({k: _terms(order, p, k) for k in degrees})


@final
@dataclass(frozen=True)
class _Folds:
    """Normal equations of every fold: leaving one out is a subtraction."""

    grams: Array
    rights: Array
    squares: Array

    @classmethod
    def of(cls, blocks: list[tuple[Array, Array]], weight: Array, folds: Array) -> _Folds:
        """Those of all blocks of rows together."""
        grams, rights, squares = [], [], []
        for f in range(FOLDS):
            inside = folds == f
            w = weight[inside]
            parts = [(a[inside], b[inside]) for a, b in blocks]
            grams.append(sum((a * w[:, None]).T @ a for a, _ in parts))
            rights.append(sum(a.T @ (w * b) for a, b in parts))
            squares.append(sum(float(w @ b**2) for _, b in parts))
        return cls(np.array(grams), np.array(rights), np.array(squares))

    def solve(self, terms: Array, left_out: int | None = None) -> Array:
        """Coefficients of these terms from all folds, or all but one."""
        gram, right = self.grams.sum(0), self.rights.sum(0)
        if left_out is not None:
            gram, right = gram - self.grams[left_out], right - self.rights[left_out]
        return solve(gram[np.ix_(terms, terms)], right[terms])

    def best(self, choices: dict[int, Array]) -> int:
        """The degree whose terms predict best: a higher one must be better beyond chance."""
        best, errors = -1, np.zeros(FOLDS)
        for degree, terms in choices.items():
            now = self._errors(terms)
            if best < 0 or is_gain(errors - now):
                best, errors = degree, now
        return best

    def _errors(self, terms: Array) -> Array:
        """The squared error of each fold, predicted from the others."""
        found = []
        for f in range(FOLDS):
            c = self.solve(terms, f)
            gram, right = self.grams[f][np.ix_(terms, terms)], self.rights[f][terms]
            found.append(self.squares[f] - 2 * c @ right + c @ gram @ c)
        return np.array(found)


def _gains(slope: Array, lag: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """g and k of a linear flow, and their derivatives in the slope."""

    def gain(exponent: Array) -> Array:
        """(e^u - 1) / u."""
        small = np.abs(exponent) < 1e-4
        safe = np.where(small, 1.0, exponent)
        return np.where(small, 1 + exponent / 2, np.expm1(safe) / safe)

    u, e = np.clip(slope * lag, LEAST_EXPONENT, MOST_EXPONENT), 1e-3
    found = []
    for factor in (1.0, 2.0):
        derivative = (gain(factor * (u + e)) - gain(factor * (u - e))) / (2 * e)
        found.append((lag * gain(factor * u), lag**2 * derivative))
    return found[0], found[1]
