"""How estimators of trajectories are judged: a diagnosis on new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from localw2._validation import Array, as_array, as_rows, check_count
from localw2.estimators.dynamics.long_tables import read_table
from localw2.estimators.dynamics.started_paths import read_paths, simulate_paths
from localw2.estimators.settings import draw_seed
from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
from localw2.judging.seen_rows import SeenRows, as_paths, warn_of_seen_paths

if TYPE_CHECKING:
    from localw2.estimators.dynamics.population.observed import Observed


class JudgedPaths:
    """An estimator of trajectories that can be diagnosed."""

    n_observed_: int
    t0_: float
    sample: Callable[..., Array]
    read_subjects: Callable[..., Observed]
    _repeat: Callable[..., Array]
    _limited: Callable[[Array], Array]

    def diagnose(
        self,
        Y: Any,
        t: Any = None,
        y0: Any = None,
        n_times: int = 2,
        n_samples: int = 200,
        random_state: Any = None,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        **settings: Any,
    ) -> Diagnosis:
        """Check on new trajectories Y at times t, in the forms of ``fit``, whether draws can be trusted.

        Each starts from its first complete observation, or from the state ``y0`` (n, d): at ``t[0]``, or at
        ``t0_`` if trajectories have their own times. ``n_times`` of its later observations, evenly spaced up
        to the last, are diagnosed as that many outputs; ``settings`` are those of ``localw2.diagnose``.
        A fit with noise, doses or covariates is judged by new subjects from ``t0_`` on, with their own times
        and missing values; Y may then be a table, as in ``individual_parameters``.
        """
        n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
        rng = np.random.default_rng(draw_seed(random_state))
        if getattr(self, "population_", None) is not None:
            Y = read_table(Y, t, getattr(self, "table_columns_", None)) or Y
            seen = self.read_subjects(Y, t, y0, doses, covariates, inputs)
            x, names, y, samples = self._judge_subjects(seen, n_times, n_samples, rng)
            settings = {"names": names} | settings
        else:
            start = None if y0 is None else as_rows(y0, "y0")
            if start is None and getattr(self, "observe", None) is not None:
                raise ValueError("observe sees only a part of the states; give y0, the full states at t[0].")
            common = _as_common(Y, t)
            if common is None:
                x, y, samples = self._judge_apart(Y, t, start, n_times, n_samples, rng)
            else:
                x, y, samples = self._judge_together(*common, start, n_times, n_samples, rng)
        warn_of_seen_paths(getattr(self, "seen_rows_", None), as_paths(getattr(Y, "Y", Y)))
        return diagnose(x, y, samples, random_state=int(rng.integers(2**31)), **settings)

    def _judge_together(
        self,
        paths: Array,
        times: Array,
        start: Array | None,
        n_times: int,
        n_samples: int,
        rng: np.random.Generator,
    ) -> tuple[Array, Array, Array]:
        """Complete trajectories at common times, solved together."""
        start = paths[:, 0] if start is None else start
        count = check_count(n_times, "n_times", 1, len(times) - 1, "the first state is given")
        chosen = np.linspace(0, len(times) - 1, count + 1).round().astype(int)[1:]
        drawn = self.sample(start, times, n_samples, random_state=int(rng.integers(2**31)))
        y, samples = (v[..., chosen, :].reshape(*v.shape[:-2], -1) for v in (paths, drawn))
        return start, y, samples

    def _judge_apart(
        self,
        Y: Any,
        t: Any,
        start: Array | None,
        n_times: int,
        n_samples: int,
        rng: np.random.Generator,
    ) -> tuple[Array, Array, Array]:
        """Trajectories with missing values or times of their own; the times are columns of x too."""
        if start is not None:
            start = np.broadcast_to(start, (len(Y), start.shape[1])) if len(start) == 1 else start
        paths = list(read_paths(Y, t, self.n_observed_, start, self.t0_))
        if len(paths) < 2:
            raise ValueError(f"only {len(paths)} trajectories have a complete observation after their start.")
        fewest = min(len(path.time) for path in paths)
        count = check_count(n_times, "n_times", 1, fewest, "a trajectory has so few later observations")
        draws = simulate_paths(self, paths, n_samples, rng)
        places = [_spread(len(path.time), count) for path in paths]
        y = np.stack([path.values[at].ravel() for path, at in zip(paths, places, strict=True)])
        samples = np.stack([d[:, at].reshape(n_samples, -1) for d, at in zip(draws, places, strict=True)], 1)
        when = np.stack([path.time[at] for path, at in zip(paths, places, strict=True)])
        x = np.column_stack([np.stack([path.start for path in paths]), when])
        return _drop_constant(x)[0], y, samples

    def _judge_subjects(
        self, seen: Observed, n_times: int, n_samples: int, rng: np.random.Generator
    ) -> tuple[Array, list[str], Array, Array]:
        """Subjects of a population: some observations of each quantity, and what may explain them."""
        there = np.isfinite(seen.values)
        fewest = int(there.sum(1).min())
        if fewest == 0:
            raise ValueError("a subject has no observation of one of the quantities; leave it out.")
        count = check_count(n_times, "n_times", 1, fewest, "a subject has so few observations")
        draws = self._repeat(seen, n_samples, int(rng.integers(2**31)))
        values, n, p = self._limited(seen.values), len(seen.values), seen.values.shape[2]
        y, samples = np.empty((n, count, p)), np.empty((n_samples, n, count, p))
        when = np.empty((n, count, p))
        for i in range(n):
            for c in range(p):
                at = np.flatnonzero(there[i, :, c])[_spread(int(there[i, :, c].sum()), count)]
                y[i, :, c], samples[:, i, :, c] = values[i, at, c], draws[:, i, at, c]
                when[i, :, c] = seen.times[i, at] + seen.t0
        columns = {f"time {k + 1}": when[:, k, 0] for k in range(count)}
        if seen.design["doses"] is not None:
            columns["dose"] = seen.amounts()
        columns |= {name: tensor.numpy() for name, tensor in seen.cohort().covariates.items()}
        columns |= {f"initial state {k + 1}": seen.initial[:, k] for k in range(seen.initial.shape[1])}
        x, kept = _drop_constant(np.column_stack(list(columns.values())))
        names = [name for name, there in zip(columns, kept, strict=True) if there]
        return x, names, y.reshape(n, -1), samples.reshape(n_samples, n, -1)


def _as_common(Y: Any, t: Any) -> tuple[Array, Array] | None:
    """Complete trajectories (n, T, d) with their common times (T,); None if they are something else."""
    if isinstance(Y, list | tuple) and len({np.shape(path) for path in Y}) > 1:
        return None
    if np.ndim(t) == 2 and np.shape(t)[1] > 1:
        return None
    paths = as_array(Y, "Y", missing=True)
    if np.isnan(paths).any():
        return None
    times = as_rows(t, "t")[:, 0]
    paths = paths[..., None] if paths.ndim == 2 else paths
    if paths.ndim != 3 or paths.shape[1] != len(times) or len(times) < 2:
        raise ValueError(
            f"Y has shape {paths.shape} and t {len(times)} times; give trajectories (n, n_times, d), with at "
            "least two times."
        )
    return paths, times


def sketch_paths(Y: Any, kept: Array | None = None) -> SeenRows | None:
    """The sketch of trajectories, of all or of those ``kept``, with the same times.

    It is None for ragged ones, which no test could repeat.
    """
    paths = as_paths(Y)
    if paths is None:
        return None
    paths = paths if kept is None else paths[kept]
    return SeenRows.of(np.nan_to_num(paths[:, 0]), paths)


def _spread(length: int, count: int) -> Array:
    """Places of ``count`` of so many observations, evenly spaced up to the last."""
    found: Array = np.ceil(np.arange(1, count + 1) * length / count).astype(int) - 1
    return found


def _drop_constant(x: Array) -> tuple[Array, Array]:
    """The columns that vary, or the first if none does, and which these are."""
    kept = np.ptp(x, axis=0) > 0
    kept[0] |= not kept.any()
    return x[:, kept], kept
