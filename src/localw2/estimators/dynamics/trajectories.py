"""From trajectories as people have them to the rows, balls and targets of the local loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.spatial import cKDTree

from localw2._validation import Array, as_array, check_radius
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.ragged import Balls
from localw2.estimators.strays import FARTHER, find_strays

if TYPE_CHECKING:
    from localw2.balls.norms import Norm

# Observations per time window where trajectories have their own times.
WINDOW_ROWS = 100
# Trajectories per ball where they start from different states.
NEAR = 150
# The lag of a pair of observations, as a fraction of the observed span of time.
LAG = 0.05
# How much more than the direction in which rows vary most another may count, in squares.
LARGEST_GAIN = 20.0


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
    def of(
        cls,
        Y: Any,
        t: Any,
        y0: Any = None,
        t0: Any = None,
        all_seen: bool = True,
        kept: Array | None = None,
        partly: bool = False,
        fewest: int = 2,
    ) -> Trajectories:
        """Check and flatten; see ``LocalW2ODE.fit`` for the forms of Y and t.

        ``all_seen`` means that Y holds the states themselves, so that y0 must have as many. Only trajectories
        ``kept`` are looked at, unless it is None. With ``partly`` an observation counts if any of its values
        is there, and y0 may be unknown.
        """
        paths, times = _paths_and_times(Y, t, fewest)
        numbers = range(len(paths)) if kept is None else kept.tolist()  # for messages
        if kept is not None:
            if len(kept) < fewest:
                raise ValueError("sample_weight leaves one trajectory, which shows no spread between them.")
            if y0 is not None and _has_one_each(y0, paths, all_seen):
                y0 = np.asarray(y0)[kept]
            paths, times = [paths[i] for i in kept], [times[i] for i in kept]
        for i, path, own in zip(numbers, paths, times, strict=True):
            _check_path(i, path, own)
        there = np.any if partly else np.all
        seen: list[Array] = [np.asarray(there(np.isfinite(path), axis=1)) for path in paths]
        for i, mask in zip(numbers, seen, strict=True):
            if not mask.any():
                raise ValueError(f"trajectory {i} has no complete observation (a NaN in every row); drop it.")
        start = _start(times, t0, given=partly or y0 is not None)
        if partly and y0 is None:
            y0 = np.zeros(paths[0].shape[1])
        initial = _initial(y0, paths, times, seen, start, all_seen, numbers)
        number = np.concatenate([np.full(int(mask.sum()), i) for i, mask in enumerate(seen)])
        time = np.concatenate([own[mask] for own, mask in zip(times, seen, strict=True)]) - start
        values = np.concatenate([path[mask] for path, mask in zip(paths, seen, strict=True)])
        if time.min() < 0:
            raise ValueError(
                f"t0={start} is later than the first observation, at t = {start + time.min():.6g}."
            )
        if not time.max() > 0:
            raise ValueError(f"every observation is at the initial time t = {start:.6g}, so nothing moves.")
        return cls(initial, start, number, time, values)

    @property
    def n(self) -> int:
        """Number of trajectories."""
        return len(self.initial)

    def padded(self) -> tuple[Array, Array, Array]:
        """Times (n, T), which of them are there, and values (n, T, p), NaN where there are none."""
        counts = np.bincount(self.number, minlength=self.n)
        there = np.arange(counts.max()) < counts[:, None]
        times, values = np.zeros(there.shape), np.full((*there.shape, self.values.shape[1]), np.nan)
        order = np.lexsort((self.time, self.number))
        times[there], values[there] = self.time[order], self.values[order]
        return times, there, values

    def units(self, slopes: Array | None) -> tuple[Array, Array, Array]:
        """Location and size (d,) of the states, and the size of their slopes: the units of a network.

        Only states that are far from 0 relative to their spread (temperatures in kelvin) are shifted.
        """
        mean, std = self.values.mean(0), self.values.std(0)
        location = np.where(np.abs(mean) > 10 * std, mean, 0.0)
        size = np.sqrt(((self.values - location) ** 2).mean(0))
        size = np.where(size > 1e-12 * np.abs(self.values).max(0), size, 1.0)
        usual = size / float(np.ptp(self.time))
        slope = np.sqrt((slopes**2).mean(0)) if slopes is not None else usual
        return location, size, np.where(slope > 1e-6 * usual, slope, usual)

    def state_size(self) -> Array:
        """The largest size (d,) of each state, the unit of the solver's absolute tolerance.

        Only the initial values of unobserved states are known; a state that starts at 0 takes the size of the
        largest.
        """
        size = np.abs(self.initial).max(0)
        if self.values.shape[1] == len(size):
            size = np.maximum(np.abs(self.values).max(0), size)
        sizes: Array = np.where(size > 0, size, size.max() or 1.0)
        return sizes

    def singles(self) -> Rows:
        """One row per observation."""
        return Rows(self.number, self.time[:, None], self.values)

    def pairs(self) -> Rows:
        """Every observation with a later one of its trajectory, about ``LAG`` of the time span apart."""
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
        # A slope over almost no time is only rounding error.
        wide = self.time[b] - self.time[a] >= 0.1 * lag
        a, b = (a[wide], b[wide]) if wide.any() else (a, b)
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

    def windows(self, n_trajectories: int, most: int | None, part: float = 1.0) -> list[Array]:
        """The rows in groups of one time, or of a run of neighbouring times where few share one.

        ``part`` of the trajectories are compared at a time, so that runs are longer by its inverse. At most
        ``most`` times of a common grid are used, evenly spaced: neighbours carry nearly the same information.
        """
        order = np.lexsort((self.number, self.times[:, 0]))
        sorted_times = self.times[order, 0]
        same = np.flatnonzero(np.diff(sorted_times) > 1e-9 * max(sorted_times[-1], 1e-300)) + 1
        groups: list[Array] = np.split(order, same)
        if len(order) / len(groups) < max(2, 0.25 * n_trajectories):
            count = max(1, round(part * len(order) / min(WINDOW_ROWS, max(n_trajectories, 2))))
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

        A missing row is in no ball of its time, so it is absent from the observed and the simulated sample
        alike. The weight of a ball is the number of rows at its centres, as in the published mean over rows.
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
        divided by it. With few rows the error of the fit itself would still bias the spread (by 5 % at 6
        rows a coefficient), so windows with fewer than 15 rows for each are left as they are.
        """
        center = np.zeros_like(self.target)
        for window in windows:
            design = np.column_stack([np.ones(len(window)), initial[self.number[window]], self.times[window]])
            left, values, _ = np.linalg.svd(design - np.r_[0, design[:, 1:].mean(0)], full_matrices=False)
            basis = left[:, values > 1e-8 * values[0]]
            if basis.shape[1] == 1 or len(window) < 15 * basis.shape[1]:
                continue
            target = self.target[window]
            residual = target - basis @ (basis.T @ target)
            leverage = np.minimum((basis**2).sum(1), 0.9)
            center[window] = target - residual / np.sqrt(1 - leverage)[:, None]
        return center

    def scale(self, windows: list[Array]) -> Array:
        """The spread of each column between trajectories, so that all matter whatever their units.

        It is the root of the mean variance within a window, but at least a twentieth of that over all rows:
        what hardly varies between trajectories must not dominate the loss by its rounding errors.
        """
        inside = np.mean([self.target[window].var(0) for window in windows], axis=0)
        spread = np.sqrt(np.maximum(inside, self.target.var(0) / 400))
        scale: Array = np.where(spread > 1e-12 * np.abs(self.target).max(0), spread, 1.0)
        return scale

    def whitening(self, windows: list[Array], center: Array, scale: Array, weights: Array | None) -> Array:
        """The matrix (q, q) that gives centred and scaled targets the mean covariance 1 within windows.

        Positions, speeds and slopes vary together, and what tells a wrong field from a right one is often
        what is left: how far a slope is from the speed. No direction counts more than 20 times as much as
        the one that varies most: if a single number varies between trajectories, all others are curvature,
        and with 400 the spread of the paper's ODE came out a quarter too small.
        """
        share = np.ones(len(self.number)) if weights is None else weights[self.number]
        apart = (self.target - center) / scale
        total, count = np.zeros((apart.shape[1],) * 2), 0.0
        for window in windows:
            own = share[window][:, None]
            rest = apart[window] - (own * apart[window]).sum(0) / own.sum()
            total, count = total + (own * rest).T @ rest, count + float(own.sum())
        values, vectors = np.linalg.eigh(total / count)
        if not values[-1] > 0:  # nothing varies
            return np.eye(len(values))
        found: Array = vectors / np.sqrt(np.maximum(values, values[-1] / LARGEST_GAIN)) @ vectors.T
        return found


@final
@dataclass(frozen=True)
class Near:
    """Trajectories with similar initial states: the ``members`` (n,) of a ball, and those at its centre."""

    members: Array
    centres: Array


def near_initial(initial: Array, delta: Any, norm: Norm | None) -> list[Near]:
    """Balls of trajectories by initial state: of radius delta, or by a rule for "auto".

    The rule is one ball if all start from the same state. Otherwise balls hold the nearest 150 trajectories
    (all, if there are fewer) of centres that are spread out, so many that each trajectory is in about three
    balls: what is linear in the initial state is subtracted in a ball, so it may be wide. But if initial
    states lie around 0 (a state's mean is below two standard deviations), a model that turns or stretches too
    much has the right mean in a wide ball, and only its spread looks larger: there a ball has a fifth of the
    trajectories, 20 to 150.
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
    varies = spread > 1e-9 * np.abs(initial).max(0)
    around_zero = (np.abs(initial.mean(0)) < 2 * initial.std(0))[varies].any()
    k = min(n, max(20, n // 5) if around_zero else NEAR, NEAR)
    if n <= k or not varies.any():
        return [Near(everyone, everyone)]
    x = initial / np.where(spread > 0, spread, 1.0) if norm is None else norm.embed(initial)
    tree = cKDTree(x)
    _, found = tree.query(x[_spread_out(x, math.ceil(3 * n / k))], k=k)
    members = {tuple(ball) for ball in np.sort(found, axis=1)}
    left = set(range(n)) - set(found.ravel().tolist())
    while left:  # whoever is in no ball so far is the centre of one more
        ball = np.sort(tree.query(x[min(left)], k=k)[1])
        members.add(tuple(ball))
        left -= set(ball.tolist())
    return [Near(mask, mask) for mask in (_mask(np.array(ball), n) for ball in sorted(members))]


def _mask(chosen: Array, n: int) -> Array:
    mask = np.zeros(n, bool)
    mask[chosen] = True
    return mask


def _spread_out(x: Array, count: int) -> list[int]:
    """Rows far from each other: each is the farthest from those before it."""
    chosen = [int(((x - x.mean(0)) ** 2).sum(1).argmin())]
    nearest = ((x - x[chosen[0]]) ** 2).sum(1)
    while len(chosen) < min(count, len(x)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((x - x[chosen[-1]]) ** 2).sum(1))
    return chosen


def leave_out_strays(
    Y: Any, t: Any, kept: Array | None, weights: Array | None, starts: bool
) -> tuple[Any, Any, Array | None, Array | None]:
    """The arguments without single observations that would set every scale by themselves, with a warning.

    Such an observation counts as missing. Neighbours in time that are both far out are a trajectory that
    grows, and stay. A trajectory is left out if nothing else is known of it, or, where ``starts`` says that
    the first observation is the initial state, if that one is wrong.
    """
    paths, times = _paths_and_times(Y, t, 2)
    chosen = np.arange(len(paths)) if kept is None else kept
    number = np.concatenate([np.full(len(paths[i]), i) for i in chosen])
    place = np.concatenate([np.arange(len(paths[i])) for i in chosen])
    values = np.concatenate([paths[i] for i in chosen])
    strays = np.zeros(values.shape, bool)
    for column, stray in zip(values.T, strays.T, strict=True):
        known = np.flatnonzero(np.isfinite(column))
        stray[known[find_strays(column[known, None])]] = True
        grown = stray[1:] & stray[:-1] & (number[1:] == number[:-1])
        stray[1:] &= ~grown
        stray[:-1] &= ~grown
    if not strays.any():
        return Y, t, kept, weights
    paths = [path.copy() for path in paths]
    found = [(int(number[r]), int(place[r]), int(c)) for r, c in np.argwhere(strays)]
    for i, j, c in found:
        paths[i][j, c] = np.nan
    lost = {i for i, j, _ in found if (starts and j == 0) or not np.isfinite(paths[i]).any()}
    i, j, _ = found[0]
    where = f"trajectory {i} (counted from 0) at t = {times[i][j]:g}, with y = {values[strays][0]:g}"
    which = f"the observation of {where}, is"
    if len(found) > 1:
        which = f"{len(found)} observations, such as that of {where}, are"
    also = f" with all else of trajectory {', '.join(map(str, sorted(lost)))}" if lost else ""
    warnings.warn(
        f"{which} left out of the fit{also}: more than {FARTHER:g} times as far from the median of Y as all "
        "others, it would set every scale by itself. If it is an error, correct it; if it is real, fit a "
        "transformed Y, such as its logarithm.",
        stacklevel=3,
    )
    if lost:
        stays = np.array([i not in lost for i in chosen])
        kept = chosen[stays]
        weights = None if weights is None else weights[stays] / weights[stays].mean()
    return paths, times, kept, weights


def _paths_and_times(Y: Any, t: Any, fewest: int) -> tuple[list[Array], list[Array]]:
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
    if len(paths) < fewest:
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
    """An array of float64 in which NaN means missing."""
    if isinstance(values, str) or np.ndim(values) == 0:
        raise ValueError(f"{name} is {type(values).__name__}, not an array of numbers.")
    if hasattr(values, "to_numpy"):
        plain = values.to_numpy()
        try:  # pandas' own types have a sign of their own for what is missing
            dates = plain.dtype.kind in "mM"  # which would become numbers of an unknown unit
            values = plain if dates else values.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            values = plain
    return as_array(values, name, missing=True).astype(np.float64)


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
    span = max(float(np.nanmax(own)) for own in times) - firsts.min()
    if not given and np.ptp(firsts) > 1e-9 * span:
        raise ValueError(
            f"trajectories begin at different times ({firsts.min():.6g} to {firsts.max():.6g}), so their "
            "first observations are not states of one time; give y0 (and t0, the time at which it holds)."
        )
    return float(firsts.min())


def _has_one_each(y0: Any, paths: list[Array], all_seen: bool) -> bool:
    """Whether y0 has a state for each trajectory, and not one for all."""
    one_state = all_seen and paths[0].shape[1] == 1
    return np.ndim(y0) in ((1, 2) if one_state else (2,)) and len(y0) == len(paths)


def _initial(
    y0: Any,
    paths: list[Array],
    times: list[Array],
    seen: list[Array],
    start: float,
    all_seen: bool,
    numbers: Sequence[int],
) -> Array:
    if y0 is None:
        for i, own, mask in zip(numbers, times, seen, strict=True):
            if not mask[0] or own[0] - start > 1e-9 * (own[-1] - own[0]):
                raise ValueError(
                    f"trajectory {i} has no complete observation at the initial time {start:.6g}, so its "
                    "initial state is unknown; give y0 (one row for each trajectory, or one for all)."
                )
        return np.stack([path[0] for path in paths])
    initial = as_array(y0 if np.ndim(y0) else [y0], "y0").astype(np.float64)
    n = len(paths)
    if initial.ndim == 1:
        each = _has_one_each(initial, paths, all_seen)
        initial = initial[:, None] if each else np.broadcast_to(initial, (n, len(initial)))
    if initial.ndim != 2 or len(initial) != n:
        raise ValueError(
            f"y0 has shape {initial.shape}; expected ({n}, states), a row for each trajectory, or (states,)."
        )
    return np.ascontiguousarray(initial)
