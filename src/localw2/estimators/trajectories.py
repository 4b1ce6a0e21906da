"""From trajectories as people have them to rows, balls and targets of the local loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.spatial.distance import cdist

from localw2._validation import Array, as_array, check_radius
from localw2.balls import Balls
from localw2.neighborhoods import Neighborhoods
from localw2.norms import Norm

# Observations of one time window where trajectories have times of their own.
WINDOW_ROWS = 100
# The lag of a pair of observations, as a fraction of the observed span of time.
LAG = 0.05


@final
@dataclass(frozen=True)
class Trajectories:
    """Observations, one after the other: number of the trajectory, time after t0, values (R, p)."""

    initial: Array
    t0: float
    number: Array
    time: Array
    values: Array

    @classmethod
    def of(cls, Y: Any, t: Any, y0: Any = None, t0: Any = None) -> Trajectories:
        """Check and flatten; see ``LocalW2ODE.fit`` for the forms of Y and t."""
        paths, times = _paths_and_times(Y, t)
        for i, (path, own) in enumerate(zip(paths, times, strict=True)):
            _check_path(i, path, own)
        seen: list[Array] = [np.asarray(np.isfinite(path).all(1)) for path in paths]
        for i, mask in enumerate(seen):
            if not mask.any():
                raise ValueError(f"trajectory {i} has no complete observation (a NaN in every row); drop it.")
        start = _start(times, t0, given=y0 is not None)
        initial = _initial(y0, paths, times, seen, start)
        number = np.concatenate([np.full(int(mask.sum()), i) for i, mask in enumerate(seen)])
        time = np.concatenate([own[mask] for own, mask in zip(times, seen, strict=True)]) - start
        values = np.concatenate([path[mask] for path, mask in zip(paths, seen, strict=True)])
        if time.min() < 0:
            raise ValueError(
                f"t0={start} is later than the first observation, at t = {start + time.min():.6g}."
            )
        if not time.max() > 0:
            raise ValueError(f"every observation is at the initial time t = {start:.6g}; nothing moves.")
        return cls(initial, start, number, time, values)

    @property
    def n(self) -> int:
        """Number of trajectories."""
        return len(self.initial)

    def units(self) -> tuple[Array, Array, Array]:
        """Mean and spread (d,) of the states, and the size of their slopes: the units of a network."""
        spread = self.values.std(0)
        spread = np.where(spread > 1e-12 * np.abs(self.values).max(0), spread, 1.0)
        order = np.lexsort((self.time, self.number))
        same = np.diff(self.number[order]) == 0
        steps = np.diff(self.time[order])[same, None]
        slopes = (
            np.diff(self.values[order], axis=0)[same] / steps if same.any() else np.zeros((1, len(spread)))
        )
        size = np.sqrt((slopes**2).mean(0))
        usual = spread / float(np.ptp(self.time))
        return self.values.mean(0), spread, np.where(size > 1e-6 * usual, size, usual)

    def state_size(self) -> Array:
        """The largest size (d,) of each state, the unit of the solver's absolute tolerance."""
        size = np.maximum(np.abs(self.values).max(0), np.abs(self.initial).max(0))
        return np.where(size > 0, size, 1.0)

    def singles(self) -> Rows:
        """Every observation a row."""
        return Rows(self.number, self.time[:, None], self.values)

    def pairs(self) -> Rows:
        """Every observation with a later one of its trajectory, about LAG of the span of time apart."""
        lag = LAG * float(np.ptp(self.time))
        order = np.lexsort((self.time, self.number))
        first, second = [], []
        for rows in np.split(order, np.flatnonzero(np.diff(self.number[order])) + 1):
            own = self.time[rows]
            right = np.clip(np.searchsorted(own, own[:-1] + lag), 1, len(own) - 1)
            # The nearer of the two neighbours of t + lag, but always a later one.
            left = np.maximum(right - 1, np.arange(1, len(own)))
            nearer = np.abs(own[left] - own[:-1] - lag) <= np.abs(own[right] - own[:-1] - lag)
            first.append(rows[:-1])
            second.append(rows[np.where(nearer, left, right)])
        a, b = np.concatenate(first), np.concatenate(second)
        if len(a) == 0:
            raise ValueError("no trajectory has two observations; fit such snapshots with linked=False.")
        times = np.column_stack([self.time[a], self.time[b]])
        slopes = (self.values[b] - self.values[a]) / np.diff(times)
        return Rows(self.number[a], times, np.hstack([self.values[a], slopes]))


@final
@dataclass(frozen=True)
class Rows:
    """What the loss compares: trajectory number (R,), times (R, q) and target (R, p or 2p)."""

    number: Array
    times: Array
    target: Array

    def windows(self, n_trajectories: int, most: int | None) -> list[Array]:
        """The rows in groups of one time, or of a run of neighbouring times where few share one.

        Of the times of a common grid at most ``most`` are taken, evenly: neighbours tell nearly the same.
        """
        order = np.lexsort((self.number, self.times[:, 0]))
        sorted_times = self.times[order, 0]
        same = np.flatnonzero(np.diff(sorted_times) > 1e-9 * max(sorted_times[-1], 1e-300)) + 1
        groups: list[Array] = np.split(order, same)
        if len(order) / len(groups) < 0.25 * n_trajectories:
            count = max(1, round(len(order) / min(WINDOW_ROWS, max(n_trajectories, 2))))
            return list(np.array_split(order, count))
        if most is None or len(groups) <= most:
            return groups
        return [groups[i] for i in np.linspace(0, len(groups) - 1, most).round().astype(int)]

    def take(self, windows: list[Array]) -> tuple[Rows, list[Array]]:
        """Only the rows of these windows, and the windows renumbered to them."""
        kept = np.sort(np.concatenate(windows))
        part = Rows(self.number[kept], self.times[kept], self.target[kept])
        return part, [np.searchsorted(kept, window) for window in windows]

    def balls(self, near: list[Near], windows: list[Array]) -> Neighborhoods:
        """Balls of rows: in one window, and of trajectories whose initial states are in one ball.

        A row that is missing is in no ball of its time, so it leaves the observed and the simulated sample
        alike. The weight of a ball is the number of rows at its centres, as in the printed mean over rows.
        """
        found: list[Array] = []
        weights: list[int] = []
        own = np.full(len(self.number), -1)
        for window in windows:
            number = self.number[window]
            for ball in near:
                members, centres = window[ball.members[number]], window[ball.centres[number]]
                if len(centres) == 0:
                    continue
                own[centres] = len(found)
                found.append(np.sort(members))
                weights.append(len(centres))
        index = np.int32 if len(self.number) < 2**31 else np.int64
        balls = Balls(np.array([len(rows) for rows in found]), np.concatenate(found).astype(index))
        return Neighborhoods(balls, len(self.number), np.array(weights), own)

    def center(self, initial: Array, windows: list[Array]) -> Array:
        r"""The part of the target that is linear in initial state and time, window by window.

        Subtracting any fixed function from both samples keeps the truth optimal for the debiased loss; this
        one takes out what different initial states and times add to a ball's spread. It is fitted to the
        same rows, which makes residuals too small by :math:`\sqrt{1 - h}` with h the leverage: they are
        divided by it. Windows with fewer than three rows for each coefficient are left as they are.
        """
        center = np.zeros_like(self.target)
        for window in windows:
            design = np.column_stack([np.ones(len(window)), initial[self.number[window]], self.times[window]])
            left, values, _ = np.linalg.svd(design - np.r_[0, design[:, 1:].mean(0)], full_matrices=False)
            basis = left[:, values > 1e-8 * values[0]]
            if basis.shape[1] == 1 or len(window) < 3 * basis.shape[1]:
                continue
            target = self.target[window]
            residual = target - basis @ (basis.T @ target)
            leverage = np.minimum((basis**2).sum(1), 0.9)
            center[window] = target - residual / np.sqrt(1 - leverage)[:, None]
        return center

    def scale(self, windows: list[Array]) -> Array:
        """One number a column, its spread between trajectories, so that all have a say whatever their units.

        It is the root of the mean variance in a window, but at least a twentieth of that over all rows: what
        hardly varies between trajectories must not rule the loss by its rounding errors.
        """
        inside = np.mean([self.target[window].var(0) for window in windows], axis=0)
        spread = np.sqrt(np.maximum(inside, self.target.var(0) / 400))
        scale: Array = np.where(spread > 1e-12 * np.abs(self.target).max(0), spread, 1.0)
        return scale


@final
@dataclass(frozen=True)
class Near:
    """Trajectories with like initial states: the ``members`` (n,) of a ball and those it is the ball of."""

    members: Array
    centres: Array


def near_initial(initial: Array, delta: Any, norm: Norm | None) -> list[Near]:
    """Balls of trajectories by initial state: of radius delta, or by a rule for "auto".

    The rule: one ball if all start alike. Else a fifth of the trajectories a ball (20 to 150), around
    as many centres, spread out, as put each trajectory in about three balls.
    """
    n = len(initial)
    everyone = np.ones(n, bool)
    if not isinstance(delta, str):
        hoods = Neighborhoods.within(initial, check_radius(delta), norm)
        return [
            Near(_mask(hoods.ball(b).numpy(), n), hoods.ball_of_row.numpy() == b)
            for b in range(hoods.n_balls)
        ]
    spread = np.ptp(initial, axis=0)
    if spread.max() <= 1e-9 * max(1.0, float(np.abs(initial).max())) or n <= 20:
        return [Near(everyone, everyone)]
    x = initial / np.where(spread > 0, spread, 1.0) if norm is None else norm.embed(initial)
    k = min(n, 150, max(20, n // 5))
    distances = cdist(x, x)
    members = {
        tuple(np.sort(np.argsort(distances[c])[:k])) for c in _spread_out(distances, math.ceil(3 * n / k))
    }
    # Whoever is in no ball so far is the centre of one more.
    for c in sorted(set(range(n)) - {i for ball in members for i in ball}):
        members.add(tuple(np.sort(np.argsort(distances[c])[:k])))
    return [Near(mask, mask) for mask in (_mask(np.array(ball), n) for ball in sorted(members))]


def _mask(chosen: Array, n: int) -> Array:
    mask = np.zeros(n, bool)
    mask[chosen] = True
    return mask


def _spread_out(distances: Array, count: int) -> list[int]:
    """Rows far from each other: each is the farthest from those before it."""
    chosen = [int(distances.sum(1).argmin())]
    nearest = distances[chosen[0]]
    while len(chosen) < min(count, len(distances)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, distances[chosen[-1]])
    return chosen


def _paths_and_times(Y: Any, t: Any) -> tuple[list[Array], list[Array]]:
    """One array (T_i, p) and one (T_i,) for each trajectory."""
    ragged = isinstance(Y, list | tuple) and len({np.shape(part) for part in Y}) > 1
    if ragged:
        paths = [_numbers(part, f"Y[{i}]") for i, part in enumerate(Y)]
        if not isinstance(t, list | tuple) or len(t) != len(paths):
            raise ValueError(
                f"Y is a list of {len(paths)} trajectories of different length; give t as a list of as many "
                "arrays of times."
            )
        times = [_numbers(own, f"t[{i}]") for i, own in enumerate(t)]
    else:
        array = _numbers(Y, "Y")
        if array.ndim not in (2, 3):
            raise ValueError(
                f"Y has shape {array.shape}; expected (trajectories, times, states), or "
                "(trajectories, times) for one state."
            )
        paths = list(array)
        grid = _numbers(t, "t")
        if grid.ndim == 1 and len(grid) == array.shape[1]:
            times = [grid] * len(array)
        elif grid.shape == array.shape[:2]:
            times = list(grid)
        else:
            raise ValueError(
                f"t has shape {grid.shape} and Y {array.shape}; expected one time for each column of Y, "
                f"({array.shape[1]},), or for each of its observations, {array.shape[:2]}."
            )
    paths = [path[:, None] if path.ndim == 1 else path for path in paths]
    if len(paths) < 2:
        raise ValueError(
            "Y has one trajectory, which shows no spread between trajectories; give at least two, each with "
            "its own omega."
        )
    if len({path.shape[1:] for path in paths}) > 1 or paths[0].ndim != 2:
        raise ValueError(
            f"trajectories have states of shapes {sorted({p.shape[1:] for p in paths})}; expected one."
        )
    return paths, times


def _numbers(values: Any, name: str) -> Array:
    """An array of floats in which NaN means missing; infinities are refused."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        array = values.astype(np.float64)
    else:
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} is not an array of numbers; NaN stands for what is missing.") from None
    if array.size == 0 or array.ndim == 0:
        raise ValueError(f"{name} has shape {array.shape}; there is nothing to learn from.")
    if np.isinf(array).any():
        raise ValueError(f"{name} has infinite values; write NaN where an observation is missing.")
    return array


def _check_path(i: int, path: Array, times: Array) -> None:
    if times.shape != (len(path),):
        raise ValueError(f"trajectory {i} has {len(path)} observations and times of shape {times.shape}.")
    if np.isnan(times[~np.isnan(path).any(1)]).any():
        raise ValueError(
            f"t has NaN where trajectory {i} has an observation; give its time, or NaN in Y too."
        )
    own = times[~np.isnan(times)]
    steps = np.diff(own)
    if (steps == 0).any():
        at = float(own[1:][steps == 0][0])
        raise ValueError(f"t has the time {at:.6g} twice in trajectory {i}; average or drop repeated rows.")
    if (steps < 0).any():
        at = float(own[1:][steps < 0][0])
        raise ValueError(
            f"t falls at {at:.6g} in trajectory {i}; times must rise: sort each trajectory by time."
        )


def _start(times: list[Array], t0: Any, given: bool) -> float:
    if t0 is not None:
        array = as_array([t0], "t0")
        return float(array[0])
    firsts = np.array([np.nanmin(own) for own in times])
    if not given and np.ptp(firsts) > 1e-9 * max(1.0, float(np.abs(firsts).max())):
        raise ValueError(
            f"trajectories begin at different times ({firsts.min():.6g} to {firsts.max():.6g}), so their "
            "first observations are not states of one time; give y0 (and t0, the time at which it holds)."
        )
    return float(firsts.min())


def _initial(y0: Any, paths: list[Array], times: list[Array], seen: list[Array], start: float) -> Array:
    if y0 is None:
        for i, (own, mask) in enumerate(zip(times, seen, strict=True)):
            if not mask[0] or own[0] != start:
                raise ValueError(
                    f"trajectory {i} has no complete observation at the initial time {start:.6g}, so its "
                    "initial state is unknown; give y0 (one row for each trajectory, or one for all)."
                )
        return np.stack([path[0] for path in paths])
    initial = as_array(y0 if np.ndim(y0) else [y0], "y0").astype(np.float64)
    n = len(paths)
    if initial.ndim == 1:
        one_state_each = len(initial) == n and paths[0].shape[1] == 1
        initial = initial[:, None] if one_state_each else np.broadcast_to(initial, (n, len(initial)))
    if initial.ndim != 2 or len(initial) != n:
        raise ValueError(
            f"y0 has shape {initial.shape}; expected ({n}, states), a row for each trajectory, or (states,)."
        )
    return np.ascontiguousarray(initial)
