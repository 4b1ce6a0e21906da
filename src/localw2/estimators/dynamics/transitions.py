"""From paths to transitions, (state now, lag, increment), and what a first look at them says."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree

from localw2._validation import Array, average
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.ragged import Balls, index_type

# Transitions over a gap of more than so many usual lags say little, and cost as many more steps.
LONGEST_LAG = 3.0
# If more than this part of the transitions is left out for it, the fit says so.
LEFT_OUT = 0.2
# Each transition is in about so many balls.
OVERLAP = 3
# Parts into which paths are divided for cross-validation.
FOLDS = 10
# Fewest groups of dependent rows from which standard errors can be told.
FEWEST_CLUSTERS = 40


@final
@dataclass(frozen=True)
class TransitionRows:
    """Number of the path (R,), time (R,), lag (R,), state now (R, d) and increment (R, d).

    ``weight`` (R,) is that of the path, or None if all count alike.
    """

    number: Array
    time: Array
    lag: Array
    state: Array
    increment: Array
    weight: Array | None = None

    @classmethod
    def of(cls, number: Array, time: Array, values: Array, weights: Array | None = None) -> TransitionRows:
        """All transitions between consecutive complete observations, in the order of paths and times.

        ``weights`` are those of the paths, by their numbers.
        """
        order = np.lexsort((time, number))
        number, time, values = number[order], time[order], values[order]
        same = number[1:] == number[:-1]
        lag, increment = np.diff(time)[same], np.diff(values, axis=0)[same]
        number = number[:-1][same]
        weight = None if weights is None else weights[number]
        rows = cls(number, time[:-1][same], lag, values[:-1][same], increment, weight)
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
        weight = None if self.weight is None else self.weight[rows]
        number, time, lag = self.number[rows], self.time[rows], self.lag[rows]
        return TransitionRows(number, time, lag, self.state[rows], self.increment[rows], weight)

    def __len__(self) -> int:
        return len(self.lag)

    @property
    def inputs(self) -> Array:
        """Rows (R, 2 + d) of the model: time, lag and state."""
        return np.column_stack([self.time, self.lag, self.state])

    def standard_units(self) -> tuple[Array, Array]:
        """Mean and SD (d,) of the states now."""
        location = average(self.state, self.weight)
        return location, np.sqrt(average((self.state - location) ** 2, self.weight))

    def spaced(self, count: int) -> Array:
        """At most so many rows, evenly spaced, or as often as their weights say."""
        count = min(len(self), count)
        if self.weight is None:
            return np.linspace(0, len(self) - 1, count).astype(int)
        reached = np.cumsum(self.weight)
        found: Array = np.searchsorted(reached, (np.arange(count) + 0.5) / count * reached[-1])
        return found

    def paths(self, longest: int | None) -> tuple[Array, Array, Array, Array | None]:
        """Times (n, T), which are there (n, T), and states (n, T, d) of paths, or of pieces of ``longest``.

        A new path begins where a transition does not start where the one before it ended. The last time and
        state are repeated where a path is shorter than others. Last come the weights (n,), if there are any.
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
        first = [rows[0] for rows in pieces]
        return times, there, values, None if self.weight is None else self.weight[first]

    def roughness(self) -> Array:
        """A guess of the SD (d,) of errors of measurement: these make neighbouring increments opposed."""
        same = self.number[1:] == self.number[:-1]
        centred = self.increment - average(self.increment, self.weight)
        of_pairs = None if self.weight is None else self.weight[1:][same]
        opposed = -average((centred[1:] * centred[:-1])[same], of_pairs)
        guess: Array = np.sqrt(np.maximum(opposed, 0.05 * average(centred**2, self.weight)))
        return guess

    def folds(self) -> Array:
        """A fold (R,) for each row: whole paths together, or stretches of one if there are few."""
        paths = np.unique(self.number, return_inverse=True)[1]
        if paths.max() + 1 >= 2 * FOLDS:
            return paths % FOLDS
        return (np.arange(len(self)) * (4 * FOLDS) // len(self)) % FOLDS

    def clusters(self) -> Array:
        """Rows (R,) that may depend on each other: those of a path, or stretches of one if there are few."""
        paths: Array = np.unique(self.number, return_inverse=True)[1]
        if paths.max() + 1 >= FEWEST_CLUSTERS:
            return paths
        return np.arange(len(self)) * FEWEST_CLUSTERS // len(self)

    def balls(self, k: int, rng: np.random.Generator) -> Neighborhoods:
        """Balls of the k nearest states, around random rows; every row is in at least one ball."""
        n = len(self)
        k = min(k, n)
        if k == n:
            return Neighborhoods.whole(n)
        x = self.state / np.maximum(self.standard_units()[1], 1e-300)
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


def one_among_paths(Y: Any, t: Any) -> tuple[Any, Any]:
    """One path (T,) of one state as a path among others."""
    if not isinstance(Y, list | tuple) and np.ndim(Y) == 1 and np.ndim(t) == 1:
        return np.asarray(Y)[None], np.asarray(t)[None]
    return Y, t
