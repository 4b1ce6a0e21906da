"""Trajectories from where they start: what is observed later, and simulations from the same start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array

# A common grid may be at most this many times as long as the longest trajectory.
MOST_GAPS = 2.0


@final
@dataclass(frozen=True, eq=False)
class StartedPath:
    """One observed trajectory: where and when it starts, and later times (T,) with their values (T, p)."""

    start_time: float
    start: Array
    time: Array
    values: Array


def read_paths(
    Y: Any, t: Any, n_observed: int, y0: Any = None, t0: float | None = None
) -> Iterator[StartedPath]:
    """Trajectories in the forms of ``fit``, in order of time, if there is a complete observation later.

    Each starts from its first complete observation, or from its row of ``y0`` (n, d) at ``t0``.
    """
    lists = isinstance(Y, list | tuple) and len({np.shape(path) for path in Y}) > 1
    arrays = [np.asarray(path, dtype=np.float64) for path in Y] if lists else as_array(Y, "Y", missing=True)
    times = list(t) if lists or np.ndim(t) == 2 else [t] * len(arrays)
    if len(times) != len(arrays):
        raise ValueError(
            f"Y has {len(arrays)} trajectories but t has {len(times)} lists of times; give one for each."
        )
    for i, (path, own) in enumerate(zip(arrays, times, strict=True)):
        values = path[:, None] if path.ndim == 1 else path
        moments = np.asarray(own, dtype=np.float64)
        if values.ndim != 2 or values.shape != (len(moments), n_observed):
            raise ValueError(
                f"a trajectory has shape {path.shape} with {len(moments)} times; the model has {n_observed} "
                "state(s), and every time needs one value of each."
            )
        whole = np.flatnonzero(np.isfinite(values).all(1) & np.isfinite(moments))
        order = whole[np.argsort(moments[whole], kind="stable")]
        if y0 is not None:
            assert t0 is not None
            rest = order[moments[order] > t0]
            if len(rest):
                yield StartedPath(t0, y0[i], moments[rest], values[rest])
        elif len(order) > 1:
            rest = order[1:]
            yield StartedPath(float(moments[order[0]]), values[order[0]], moments[rest], values[rest])


def simulate_paths(
    model: Any, paths: list[StartedPath], n_samples: int, rng: np.random.Generator
) -> list[Array]:
    """Draws (S, T_i, p) of every trajectory from its start; those that start together are solved together."""
    groups: dict[Any, list[int]] = {}
    shared = _shared_grids(paths)
    for i, path in enumerate(paths):
        groups.setdefault(path.start_time if path.start_time in shared else (i,), []).append(i)
    draws: list[Array] = [np.empty(0)] * len(paths)
    for key, members in groups.items():
        grid = shared[key] if key in shared else paths[members[0]].time
        start = np.stack([paths[i].start for i in members])
        times = np.append(paths[members[0]].start_time, grid)
        found = model.sample(start, times, n_samples, random_state=int(rng.integers(2**31)))[:, :, 1:]
        for place, i in enumerate(members):
            draws[i] = found[:, place, np.searchsorted(grid, paths[i].time)]
    return draws


def _shared_grids(paths: list[StartedPath]) -> dict[float, Array]:
    """All later times of the trajectories with an initial time, unless they share too few of them."""
    found = {}
    for begin in {path.start_time for path in paths}:
        own = [path.time for path in paths if path.start_time == begin]
        union = np.unique(np.concatenate(own))
        if len(union) <= MOST_GAPS * max(map(len, own)):
            found[begin] = union
    return found
