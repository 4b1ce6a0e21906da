"""How estimators are judged: a diagnosis on new rows, and a memory of the rows that are not new."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np

from localw2._validation import Array, as_array, as_rows, check_count
from localw2.estimators.settings import draw_seed
from localw2.estimators.tables import read_rows
from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
from localw2.judging.inputs import Input, describe_inputs
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning, judge_seen


class Sampler(Protocol):
    """A fitted estimator that draws: what a diagnosis needs of it."""

    def sample(self, X: Any, /, *args: Any, random_state: Any = None) -> Array:
        """Draws with a leading sample axis."""
        ...


class Judged:
    """A regressor that can be diagnosed."""

    def diagnose(
        self, X: Any, y: Any, n_samples: int = 200, random_state: Any = None, **settings: Any
    ) -> Diagnosis:
        """Check on rows X, y that were not trained on whether the draws can be trusted.

        ``settings`` are those of ``localw2.diagnose``, such as ``x_train`` and ``y_train``, with which
        extrapolated rows are flagged. Rows of the fit itself give a ``SeenRowsWarning``: on them any overfit
        looks calibrated.
        """
        return diagnose(X, y, self, n_samples=n_samples, random_state=random_state, **settings)

    def list_inputs(self, X: Any, names: Any = None) -> tuple[Array, list[Input]]:
        """The used columns of a table as numbers (N, p), and what they mean to people.

        ``names`` are other names for all columns of the table.
        """
        columns = getattr(self, "columns_", None)
        if columns is None:
            raise ValueError("the estimator was fitted to plain numbers; its inputs are the columns of X.")
        return read_rows(self, X, columns), describe_inputs(columns, names)


def warn_of_seen(estimator: Any, x: Any, y: Any) -> None:
    """Warn if more rows were trained on than chance explains; estimators from older files cannot know."""
    seen = getattr(estimator, "seen_rows_", None)
    share, beyond_chance = judge_seen(seen, x, y) if seen is not None else (0.0, False)
    if beyond_chance:
        n = len(as_rows(x))
        warnings.warn(
            f"{share * n:.0f} of these {n} rows are equal to training rows, on which any overfit looks "
            "calibrated. Judge the fit by rows that it has not seen.",
            SeenRowsWarning,
            stacklevel=3,
        )


class JudgedPaths:
    """An estimator of trajectories that can be diagnosed."""

    def diagnose(
        self: Sampler,
        Y: Any,
        t: Any,
        y0: Any = None,
        n_times: int = 2,
        n_samples: int = 200,
        random_state: Any = None,
        **settings: Any,
    ) -> Diagnosis:
        """Check on new trajectories Y (n, n_times, d) at times t whether simulated ones can be trusted.

        Each starts from its first observation, or from the state ``y0`` (n, d) at ``t[0]``. The observations
        at ``n_times`` times, evenly spaced up to the last, are diagnosed as that many outputs; ``settings``
        are those of ``localw2.diagnose``.
        """
        paths, times = as_array(Y, "Y"), as_rows(t, "t")[:, 0]
        if paths.ndim == 2:
            paths = paths[..., None]
        if paths.ndim != 3 or paths.shape[1] != len(times) or len(times) < 2:
            raise ValueError(
                f"Y has shape {paths.shape} and t {len(times)} times; give complete trajectories "
                "(n, n_times, d), with at least two times."
            )
        if y0 is None and getattr(self, "observe", None) is not None:
            raise ValueError("observe sees only a part of the states; give y0, the full states at t[0].")
        start = paths[:, 0] if y0 is None else as_rows(y0, "y0")
        count = check_count(n_times, "n_times", 1, len(times) - 1, "the first state is given")
        n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
        rng = np.random.default_rng(draw_seed(random_state))
        chosen = np.linspace(0, len(times) - 1, count + 1).round().astype(int)[1:]
        drawn = self.sample(start, times, n_samples, random_state=int(rng.integers(2**31)))
        warn_of_seen(self, paths[:, 0], paths)
        y, samples = (v[..., chosen, :].reshape(*v.shape[:-2], -1) for v in (paths, drawn))
        return diagnose(start, y, samples, random_state=int(rng.integers(2**31)), **settings)


def sketch_paths(Y: Any, kept: Array | None = None) -> SeenRows | None:
    """The sketch of trajectories, of all or of those ``kept``, with the same times.

    It is None for ragged ones, which no test could repeat.
    """
    try:
        paths = as_array(Y, "Y", missing=True)
    except ValueError:  # a list of unequal lengths
        return None
    paths = paths[..., None] if paths.ndim == 2 else paths
    paths = paths if kept is None else paths[kept]
    return SeenRows.of(np.nan_to_num(paths[:, 0]), paths)
