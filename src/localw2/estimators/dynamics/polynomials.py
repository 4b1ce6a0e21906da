"""Drift and diffusion as polynomials of the state, from increments beyond simulated ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array
from localw2.estimators.dynamics.transitions import FOLDS

# Degrees from which a regression chooses, for one state and for several, and rows that each term needs.
DEGREES = {1: (0, 1, 2, 3, 4, 5, 6, 7), 2: (0, 1, 2, 3, 4)}
ROWS_PER_TERM = 10
# Standard errors by which a higher degree must predict better.
SURE = 2.0
# Exponents of the linearised flow over a lag beyond which its derivatives are not looked at.
LEAST_EXPONENT, MOST_EXPONENT = -4.0, 2.0


@final
@dataclass(frozen=True)
class PolynomialFit:
    """A polynomial of standardised states, whose degree was chosen by cross-validation."""

    location: Array
    spread: Array
    degree: int
    coefficients: Array

    @classmethod
    def fit(
        cls,
        state: Array,
        y: Array,
        weight: Array,
        folds: Array,
        degrees: Any = None,
        units: tuple[Array, Array] | None = None,
    ) -> PolynomialFit:
        """Weighted least squares of y (R, m) on states (R, d), minimising the error on left-out folds.

        ``units`` are location and spread of the states, their mean and SD by default.
        """
        location, spread = (state.mean(0), state.std(0)) if units is None else units
        spread = np.maximum(spread, 1e-300)
        x = _clip((state - location) / spread)
        degrees = choices_of_degree(state.shape[1]) if degrees is None else degrees
        w = np.sqrt(weight)[:, None]
        scale = np.maximum(((w * y) ** 2).mean(0), 1e-300)
        best: tuple[Array, int, Array] | None = None
        for degree in degrees:
            if len(powers_of(x.shape[1], degree)) * ROWS_PER_TERM > len(x):
                break
            design = _design(x, degree) * w
            # Normal equations fold by fold: leaving one out is a subtraction.
            parts = [(design[folds == f], (w * y)[folds == f]) for f in range(FOLDS)]
            gram, right = sum(a.T @ a for a, _ in parts), sum(a.T @ b for a, b in parts)
            errors = np.array(
                [((b - a @ _solve(gram - a.T @ a, right - a.T @ b)) ** 2).sum(0) / scale for a, b in parts]
            ).sum(1)
            if best is None or is_gain(best[0] - errors):
                best = errors, degree, _solve(gram, right)
        if best is None:
            mean = (w * w * y).sum(0) / (w * w).sum()
            return cls(location, spread, 0, mean[None])
        return cls(location, spread, best[1], best[2])

    def __call__(self, state: Array) -> Array:
        """Values (n, m) at states (n, d)."""
        x = _clip((state - self.location) / self.spread)
        values: Array = _design(x, self.degree) @ self.coefficients
        return values

    def trim(self) -> PolynomialFit:
        """The same without the highest degrees if these have no terms."""
        order = np.array([sum(p) for p in powers_of(len(self.location), self.degree)])
        degree = int(order[(self.coefficients != 0).any(1)].max(initial=0))
        return PolynomialFit(self.location, self.spread, degree, self.coefficients[order <= degree])

    def slopes(self, state: Array) -> Array:
        """Derivatives (n, d) of the j-th of d values in the j-th of d states."""
        x = _clip((state - self.location) / self.spread)
        each = [_slope(x, self.degree, j) @ self.coefficients[:, j] for j in range(x.shape[1])]
        return np.column_stack(each) / self.spread


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

    ``state``, ``lag`` and ``increment`` are those of rows, ``weight`` (R,) says how much they count, and
    ``units`` are location and spread of the states.
    """

    state: Array
    lag: Array
    increment: Array
    weight: Array
    folds: Array
    units: tuple[Array, Array]

    def solve(
        self,
        drift: PolynomialFit,
        variance: Array,
        mean: Array,
        spread: Array,
        simulated: Array | None,
        degrees: Any = None,
    ) -> tuple[PolynomialFit, PolynomialFit, list[tuple[int, int]]]:
        """New drift and variance (of d values) from the present drift and the present variance (R, d).

        ``mean`` and ``spread`` (R, d) are smooth estimates of mean and variance of simulated increments. The
        residuals of the simulated increments themselves, (S, R, d), are subtracted from those observed if
        they are given: then it does not matter that the estimates are not exact. ``degrees`` of both
        polynomials of each state, which are also returned, are chosen by cross-validation unless given.
        """
        d = self.state.shape[1]
        degree = rich_degree(len(self.state), d)
        location, unit = self.units[0], np.maximum(self.units[1], 1e-300)
        x = _clip((self.state - location) / unit)
        design = _design(x, degree)
        order = np.array([sum(p) for p in powers_of(d, degree)])
        values, slopes = drift(self.state), drift.slopes(self.state)
        found, chosen = [], []
        for j in range(d):
            steep = _slope(x, degree, j) / unit[j]
            a, v, m, s = values[:, j], variance[:, j], mean[:, j], spread[:, j]
            (g, g_slope), (k, k_slope) = _gains(slopes[:, j], self.lag)
            root, wide = np.sqrt(s), np.sqrt(2) * s
            rest = self.increment[:, j] - m
            excess, square = rest, rest**2 - s
            if simulated is not None:
                made = simulated[:, :, j] - m
                excess, square = rest - made.mean(0), rest**2 - (made**2).mean(0)
            by_mean = design * (g / root)[:, None] + steep * (a * g_slope / root)[:, None]
            in_drift, in_variance = steep * (v * k_slope / wide)[:, None], design * (k / wide)[:, None]
            first = excess / root + (a * g + a * g_slope * slopes[:, j]) / root
            second = square / wide + (v * k_slope * slopes[:, j] + v * k) / wide
            zero = np.zeros_like(by_mean)
            blocks = [
                (np.hstack([by_mean, zero]), first),
                (np.hstack([in_drift, in_variance]), second),
            ]
            own = None if degrees is None else degrees[j]
            part, used = self._choose(blocks, order, degree, own)
            found.append(part)
            chosen.append(used)
        coefficients = np.stack(found, 2)
        fits = [PolynomialFit(location, unit, degree, part) for part in coefficients]
        return fits[0], fits[1], chosen

    def _choose(
        self, blocks: list[tuple[Array, Array]], order: Array, degree: int, given: tuple[int, int] | None
    ) -> tuple[Array, tuple[int, int]]:
        """Coefficients (2, K) of both polynomials, with degrees that predict left-out folds best."""
        parts = [_Fold.of(blocks[:1], self.weight, self.folds), _Fold.of(blocks, self.weight, self.folds)]
        both = np.tile(order, 2), np.repeat([0, 1], len(order))
        own = 1 if degree else 0

        def terms(p: int, q: int) -> Array:
            return np.flatnonzero(both[0] <= np.where(both[1] == 0, p, q))

        if given is None:
            # The drift from means alone; then each given the other.
            p = _Fold.best(parts[0], {k: np.flatnonzero(order <= k) for k in range(own, degree + 1)})
            q = _Fold.best(parts[1], {k: terms(p, k) for k in range(degree + 1)})
            p = _Fold.best(parts[1], {k: terms(k, q) for k in range(own, degree + 1)})
            given = p, _Fold.best(parts[1], {k: terms(p, k) for k in range(degree + 1)})
        chosen = terms(*given)
        found = np.zeros(2 * len(order))
        found[chosen] = parts[1].solve(chosen, None)
        return found.reshape(2, -1), given


@final
@dataclass(frozen=True)
class _Fold:
    """Normal equations of every fold: leaving one out is a subtraction."""

    grams: Array
    rights: Array
    squares: Array

    @classmethod
    def of(cls, blocks: list[tuple[Array, Array]], weight: Array, folds: Array) -> _Fold:
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

    def solve(self, terms: Array, left_out: int | None) -> Array:
        """Coefficients of these terms from all folds but one."""
        gram, right = self.grams.sum(0), self.rights.sum(0)
        if left_out is not None:
            gram, right = gram - self.grams[left_out], right - self.rights[left_out]
        return _solve(gram[np.ix_(terms, terms)], right[terms])

    def errors(self, terms: Array) -> Array:
        """The squared error of each fold, predicted from the others."""
        found = []
        for f in range(FOLDS):
            c = self.solve(terms, f)
            gram, right = self.grams[f][np.ix_(terms, terms)], self.rights[f][terms]
            found.append(self.squares[f] - 2 * c @ right + c @ gram @ c)
        return np.array(found)

    def best(self, choices: dict[int, Array]) -> int:
        """The degree whose terms predict best: a higher one must be better beyond chance."""
        best, errors = -1, np.zeros(FOLDS)
        for degree, terms in choices.items():
            now = self.errors(terms)
            if best < 0 or is_gain(errors - now):
                best, errors = degree, now
        return best


def is_gain(gains: Array) -> bool:
    """Whether the errors of folds fell by more than chance, or noise would bend the curve."""
    return bool(gains.sum() > SURE * gains.std(ddof=1) * np.sqrt(FOLDS))


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


def choices_of_degree(d: int, lowest: int = 0) -> tuple[int, ...]:
    """The degrees from which polynomials of d states are chosen."""
    return DEGREES[min(d, 2)][lowest:]


def rich_degree(n: int, d: int) -> int:
    """The highest degree of a polynomial of d states that n rows allow."""
    fits = [k for k in choices_of_degree(d) if len(powers_of(d, k)) * ROWS_PER_TERM <= n]
    return max(fits, default=0)


def _clip(x: Array) -> Array:
    """Standardised states, of which outliers must not bend a polynomial."""
    clipped: Array = np.clip(x, -4, 4)
    return clipped


def powers_of(d: int, degree: int) -> list[tuple[int, ...]]:
    """The powers of d states in every term of a polynomial of a total degree."""
    found: list[tuple[int, ...]] = [()]
    for _ in range(d):
        found = [(*p, k) for p in found for k in range(degree + 1) if sum(p) + k <= degree]
    return found


def _design(x: Array, degree: int) -> Array:
    """Products of Legendre polynomials of x / 2 up to a total degree."""
    return _terms([np.polynomial.legendre.legvander(column / 2, degree) for column in x.T], degree)


def _slope(x: Array, degree: int, j: int) -> Array:
    """The derivatives of all columns of the design in the j-th state."""
    single = [np.polynomial.legendre.legvander(column / 2, degree) for column in x.T]
    unit = np.eye(degree + 1)
    slopes = [np.polynomial.legendre.legval(x[:, j] / 2, np.polynomial.legendre.legder(row)) for row in unit]
    single[j] = np.column_stack(slopes) / 2
    return _terms(single, degree)


def _terms(single: list[Array], degree: int) -> Array:
    """Products of functions of single states, up to a total degree."""
    columns = []
    for powers in powers_of(len(single), degree):
        column = np.ones(len(single[0]))
        for own, k in zip(single, powers, strict=True):
            column = column * own[:, k]
        columns.append(column)
    return np.column_stack(columns)


def _solve(gram: Array, right: Array) -> Array:
    """Least squares with a trace of ridge, against columns that do not vary."""
    ridge = 1e-8 * np.trace(gram) / len(gram)
    solution: Array = np.linalg.solve(gram + ridge * np.eye(len(gram)), right)
    return solution
