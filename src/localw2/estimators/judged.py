"""What estimators say of themselves: a diagnosis on new rows, and a memory of the rows that are not new."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from localw2._validation import as_array, as_rows, check_count
from localw2.estimators.settings import fresh_seed
from localw2.estimators.tables import encoded_names
from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning, judge_seen, rows_of


class Judged:
    """A regressor that can be diagnosed: it has ``sample`` and remembers what it was fitted to."""

    seen_rows_: SeenRows

    def diagnose(
        self, X: Any, y: Any, n_samples: int = 200, random_state: Any = None, **settings: Any
    ) -> Diagnosis:
        """Whether the draws can be trusted, on rows X, y that were not trained on: see ``localw2.diagnose``.

        ``settings`` go there, such as ``x_train`` and ``y_train``, to have extrapolated rows flagged. Rows of
        the fit itself give a ``SeenRowsWarning``: on them any overfit looks calibrated.
        """
        n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
        rng = np.random.default_rng(fresh_seed(random_state))
        samples = self.sample(X, n_samples, random_state=int(rng.integers(2**31)))  # type: ignore[attr-defined]  # every estimator has it
        if getattr(self, "columns_", None) is not None:  # names and gaps, as the numbers that they became
            settings["names"] = encoded_names(self, settings.get("names"))
        if settings.get("x_train") is not None:
            settings["x_train"] = rows_of(self, settings["x_train"])
        X = rows_of(self, X)
        warn_of_seen(self, X, y)
        return diagnose(y, samples, X, random_state=int(rng.integers(2**31)), **settings)


def warn_of_seen(estimator: Any, x: Any, y: Any) -> None:
    """Tell if more rows than by chance were trained on; estimators from older files cannot know."""
    seen = getattr(estimator, "seen_rows_", None)
    share, beyond_chance = judge_seen(seen, x, y) if seen is not None else (0.0, False)
    if beyond_chance:
        n = len(as_rows(x))
        warnings.warn(
            f"{share * n:.0f} of these {n} rows are equal to rows that were trained on, where every overfit "
            "looks calibrated. Judge the fit by rows that it has not seen.",
            SeenRowsWarning,
            stacklevel=3,
        )


class JudgedPaths:
    """The same for an estimator of trajectories."""

    def diagnose(
        self,
        Y: Any,
        t: Any,
        y0: Any = None,
        n_times: int = 2,
        n_samples: int = 200,
        random_state: Any = None,
        **settings: Any,
    ) -> Diagnosis:
        """Whether simulated trajectories can be trusted, on new ones: Y (n, n_times, d) at times t.

        Each starts in its first observation, or in the state ``y0`` (n, d), which holds at ``t[0]``. What is
        diagnosed are the observations at ``n_times`` times, evenly spaced up to the last, as so many outputs:
        see ``localw2.diagnose``, to which ``settings`` go.
        """
        paths, times = as_array(Y, "Y"), as_rows(t, "t")[:, 0]
        if paths.ndim == 2:
            paths = paths[..., None]
        if paths.ndim != 3 or paths.shape[1] != len(times) or len(times) < 2:
            raise ValueError(
                f"Y has shape {paths.shape} and t {len(times)} times; give complete trajectories "
                "(n, n_times, d), two times at least."
            )
        if y0 is None and getattr(self, "observe", None) is not None:
            raise ValueError("observe sees a part of the states only; give y0, the states at t[0] in full.")
        start = paths[:, 0] if y0 is None else as_rows(y0, "y0")
        count = check_count(n_times, "n_times", 1, len(times) - 1, "the first state is given")
        n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
        rng = np.random.default_rng(fresh_seed(random_state))
        chosen = np.linspace(0, len(times) - 1, count + 1).round().astype(int)[1:]
        drawn = self.sample(start, times, n_samples, random_state=int(rng.integers(2**31)))  # type: ignore[attr-defined]  # every estimator has it
        warn_of_seen(self, paths[:, 0], paths)
        y, samples = (v[..., chosen, :].reshape(*v.shape[:-2], -1) for v in (paths, drawn))
        return diagnose(y, samples, start, random_state=int(rng.integers(2**31)), **settings)


def seen_paths(Y: Any) -> SeenRows | None:
    """The memory of trajectories with the same times; None of ragged ones, which no test could repeat."""
    try:
        paths = as_array(Y, "Y", missing=True)
    except ValueError:  # a list of unequal lengths
        return None
    paths = paths[..., None] if paths.ndim == 2 else paths
    return SeenRows.of(np.nan_to_num(paths[:, 0]), paths)
