"""From paths to transitions, (state now, lag, increment), and what a first look at them says."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree

from localw2._validation import Array
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.ragged import Balls, index_type

# Transitions over a gap of more than so many usual lags say little, and cost as many more steps.
LONGEST_LAG = 3.0
# If more than this part of the transitions is left out for it, the fit says so.
LEFT_OUT = 0.2
# Each transition is in about so many balls.
OVERLAP = 3
# Degrees of polynomials that a regression of increments chooses from, for one state and for several.
DEGREES = {1: (1, 2, 3, 4, 5, 6, 7), 2: (1, 2, 3, 4)}
FOLDS = 5


@final
@dataclass(frozen=True)
class TransitionRows:
    """Number of the path (R,), time (R,), lag (R,), state now (R, d) and increment (R, d)."""

    number: Array
    time: Array
    lag: Array
    state: Array
    increment: Array

    @classmethod
    def of(cls, number: Array, time: Array, values: Array) -> TransitionRows:
        """All transitions between consecutive complete observations, in the order of paths and times."""
        order = np.lexsort((time, number))
        number, time, values = number[order], time[order], values[order]
        same = number[1:] == number[:-1]
        lag, increment = np.diff(time)[same], np.diff(values, axis=0)[same]
        rows = cls(number[:-1][same], time[:-1][same], lag, values[:-1][same], increment)
        usual = float(np.median(lag)) if len(lag) else 0.0
        near = np.flatnonzero(lag <= LONGEST_LAG * usual * (1 + 1e-9))
        if len(near) < (1 - LEFT_OUT) * len(lag):
            warnings.warn(
                f"{len(lag) - len(near)} of {len(lag)} transitions go over more than {LONGEST_LAG:g} times "
                f"the median lag, {usual:.4g}, and are left out. If their lags are what matters, fit them on "
                "their own.",
                stacklevel=4,
            )
        return rows.take(near)

    def take(self, rows: Array) -> TransitionRows:
        """Some of the rows."""
        return TransitionRows(
            self.number[rows], self.time[rows], self.lag[rows], self.state[rows], self.increment[rows]
        )

    def __len__(self) -> int:
        return len(self.lag)

    @property
    def inputs(self) -> Array:
        """Rows (R, 2 + d) of the model: time, lag and state."""
        return np.column_stack([self.time, self.lag, self.state])

    def paths(self, longest: int | None) -> tuple[Array, Array, Array]:
        """Times (n, T), which are there (n, T), and states (n, T, d) of paths, or of pieces of ``longest``.

        A new path begins where a transition does not start where the one before it ended. The last time and
        state are repeated where a path is shorter than others.
        """
        end = self.time + self.lag
        follows = (self.number[1:] == self.number[:-1]) & (
            np.abs(self.time[1:] - end[:-1]) < 1e-6 * self.lag[1:]
        )
        starts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
        pieces: list[Array] = np.split(np.arange(len(self)), starts[1:])
        if longest is not None:
            pieces = [part for rows in pieces for part in np.array_split(rows, -(-len(rows) // longest))]
        count = max(len(rows) for rows in pieces) + 1
        times, there = np.empty((len(pieces), count)), np.zeros((len(pieces), count), bool)
        values = np.empty((len(pieces), count, self.state.shape[1]))
        for i, rows in enumerate(pieces):
            n = len(rows) + 1
            own = np.append(self.time[rows], end[rows[-1]])
            states = np.vstack([self.state[rows], self.state[rows[-1]] + self.increment[rows[-1]]])
            times[i], values[i], there[i, :n] = own[-1], states[-1], True
            times[i, :n], values[i, :n] = own, states
        return times, there, values

    def roughness(self) -> Array:
        """A guess of the SD (d,) of errors of measurement: these make neighbouring increments opposed."""
        same = self.number[1:] == self.number[:-1]
        centred = self.increment - self.increment.mean(0)
        opposed = -(centred[1:] * centred[:-1])[same].mean(0)
        guess: Array = np.sqrt(np.maximum(opposed, 0.05 * centred.var(0)))
        return guess

    def folds(self) -> Array:
        """A fold (R,) for each row: whole paths together, or stretches of one if there are few."""
        paths = np.unique(self.number, return_inverse=True)[1]
        if paths.max() + 1 >= 2 * FOLDS:
            return paths % FOLDS
        return (np.arange(len(self)) * (4 * FOLDS) // len(self)) % FOLDS

    def balls(self, k: int, rng: np.random.Generator) -> Neighborhoods:
        """Balls of the k nearest states, around random rows; every row is in at least one ball."""
        n = len(self)
        k = min(k, n)
        if k == n:
            return Neighborhoods.whole(n)
        x = self.state / np.maximum(self.state.std(0), 1e-300)
        tree = cKDTree(x)
        centres = rng.choice(n, min(n, -(-OVERLAP * n // k)), replace=False)
        found = [np.sort(tree.query(x[centres], k=k)[1], axis=1)]
        left = np.ones(n, bool)
        left[found[0].ravel()] = False
        while left.any():  # whoever is in no ball so far is in that of one of them
            more = rng.choice(np.flatnonzero(left), min(int(left.sum()), 64), replace=False)
            found.append(np.sort(tree.query(x[more], k=k)[1], axis=1))
            left[found[-1].ravel()] = False
        balls = np.unique(np.concatenate(found), axis=0)
        rows = balls.astype(index_type(n))
        return Neighborhoods(Balls(np.full(len(balls), k), rows.ravel()), n, np.ones(len(balls)))


@final
@dataclass(frozen=True)
class PolynomialFit:
    """A polynomial of standardised states, whose degree was chosen by cross-validation."""

    location: Array
    spread: Array
    degree: int
    coefficients: Array

    @classmethod
    def fit(cls, state: Array, y: Array, weight: Array, folds: Array, degrees: Any = None) -> PolynomialFit:
        """Weighted least squares of y (R, m) on states (R, d), minimising the error on left-out folds."""
        location, spread = state.mean(0), np.maximum(state.std(0), 1e-300)
        x = _clip((state - location) / spread)
        degrees = DEGREES[min(state.shape[1], 2)] if degrees is None else degrees
        w = np.sqrt(weight)[:, None]
        scale = np.maximum(((w * y) ** 2).mean(0), 1e-300)
        best: tuple[Array, int, Array] | None = None
        for degree in degrees:
            design = _design(x, degree) * w
            if design.shape[1] * 10 > len(design):
                break
            # Normal equations fold by fold: leaving one out is a subtraction.
            parts = [(design[folds == f], (w * y)[folds == f]) for f in range(FOLDS)]
            gram, right = sum(a.T @ a for a, _ in parts), sum(a.T @ b for a, b in parts)
            errors = np.array(
                [((b - a @ _solve(gram - a.T @ a, right - a.T @ b)) ** 2).sum(0) / scale for a, b in parts]
            ).sum(1)
            # A higher degree must be better beyond chance, or noise would bend the curve.
            gain = None if best is None else best[0] - errors
            if gain is None or gain.sum() > gain.std(ddof=1) * np.sqrt(FOLDS):
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


def _clip(x: Array) -> Array:
    """Standardised states, of which outliers must not bend a polynomial."""
    clipped: Array = np.clip(x, -4, 4)
    return clipped


def _powers(d: int, degree: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for _ in range(d):
        found = [(*p, k) for p in found for k in range(degree + 1) if sum(p) + k <= degree]
    return found


def _design(x: Array, degree: int) -> Array:
    """Products of Legendre polynomials of x / 2 up to a total degree."""
    d = x.shape[1]
    single = [np.polynomial.legendre.legvander(x[:, j] / 2, degree) for j in range(d)]
    columns = []
    for powers in _powers(d, degree):
        column = np.ones(len(x))
        for j, k in enumerate(powers):
            column = column * single[j][:, k]
        columns.append(column)
    return np.column_stack(columns)


def _solve(gram: Array, right: Array) -> Array:
    """Least squares with a trace of ridge, against columns that do not vary."""
    ridge = 1e-8 * np.trace(gram) / len(gram)
    solution: Array = np.linalg.solve(gram + ridge * np.eye(len(gram)), right)
    return solution
