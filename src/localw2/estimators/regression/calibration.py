"""Calibrated intervals of a regressor: which rows are held out, who scores them, and what comes of it.

From ``SPLIT_FROM`` rows on, a part of them is held out of the whole fit and scored by it: coverage is then
guaranteed. Of fewer rows none can be spared: the whole fit (base, scales, network) is repeated, each time
without one of 5 or 10 parts of the rows, which it scores. The whole of it, but for what was chosen on all
rows (the kind of base, the balls of a list, the values that y can have), because only so is a score made as
an interval will be, from a mixture of fold models and a network that none of the scored rows has touched. A
score is a level, not a length: fits to fewer rows are less sure, and know it, so that their scores serve.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from localw2._validation import Array
from localw2.estimators.settings import part_of_checkpoint
from localw2.judging.conformal import Calibration, central_interval, central_scores, joint_level

SPLIT_FROM = 2000  # rows: a fifth of them says what 90 % is to within 1.5 %, and the fit can spare them
HELD_OUT = 0.2
MOST_HELD_OUT = 5000  # coverage of 90 % is then good to .4 %; more rows serve the fit better
MANY = 500  # rows from which on a part is a fifth of them: of fewer, a fit would miss so many
N_GROUPS = (10, 5)  # below MANY rows, and from there on
FEWEST_ROWS = 10
_PURPOSE = 6  # keeps these random numbers apart from others of the same seed


def fitted_rows(calibrate: bool, n: int, seed: int) -> Any:
    """An index of the rows to fit: all of them, or those that ``held_out`` leaves.

    >>> fitted_rows(True, 2500, 0).shape, fitted_rows(True, 100, 0), fitted_rows(False, 2500, 0)
    ((2000,), slice(None, None, None), slice(None, None, None))
    """
    if calibrate and n < FEWEST_ROWS:
        raise ValueError(
            f"calibrate=True with {n} rows (samples): fewer than {FEWEST_ROWS} cannot show how often an "
            "interval misses. Give more rows, or calibrate=False."
        )
    if not calibrate or n < SPLIT_FROM:
        return slice(None)
    return np.setdiff1d(np.arange(n), held_out(n, seed))


def held_out(n: int, seed: int) -> Array:
    """The rows that calibrate a split fit, at random, ascending."""
    size = min(round(HELD_OUT * n), MOST_HELD_OUT)
    rows: Array = np.sort(np.random.default_rng([seed, _PURPOSE]).permutation(n)[:size])
    return rows


def calibrated(estimator: Any, X: Array, y: Array, seed: int) -> Calibration | None:
    """Scores of rows X (N, p), y (N, d) for an estimator that ``fitted_rows`` of them were fitted to.

    None if Ctrl-C came before there were any.
    """
    if len(X) >= SPLIT_FROM:
        rows = held_out(len(X), seed)
        return Calibration(scores(estimator, X[rows], y[rows]), "split")
    found: list[Array] = []
    parts = groups(len(X), seed)
    if not estimator.fit_.stopped.startswith("interrupted"):
        try:
            # One after the other, unless a joblib.parallel_config says where else; each one as it is done.
            fits = Parallel(return_as="generator")(
                delayed(_group_scores)(estimator, X, y, rows, group, seed) for group, rows in enumerate(parts)
            )
            for part in fits:
                found.append(part)
        except KeyboardInterrupt:
            # The fit itself is whole: only what would follow is given up.
            estimator.fit_.stopped = "interrupted in the calibration"
    if len(found) < len(parts):
        _warn_of_interruption(sum(map(len, found)), len(X))
    return Calibration(np.concatenate(found), "folds") if found else None


def groups(n: int, seed: int) -> list[Array]:
    """The rows in parts of like size, at random.

    >>> [len(rows) for rows in groups(23, seed=0)], len(groups(1000, seed=0))
    ([3, 3, 3, 2, 2, 2, 2, 2, 2, 2], 5)
    """
    order = np.random.default_rng([seed, _PURPOSE]).permutation(n)
    return np.array_split(order, N_GROUPS[int(n >= MANY)])


def scores(estimator: Any, X: Array, y: Array) -> Array:
    """The level (N, d) of the smallest central interval of a fitted estimator that holds each y (N, d)."""
    parts = [central_scores(y[rows], draws) for rows, draws in estimator._outcome_draws(X)]
    return np.concatenate(parts)


def intervals(estimator: Any, X: Any, coverage: float, joint: bool) -> tuple[Array, Array]:
    """Lower and upper ends, (N,) or (N, d): calibrated where the fit was, else as the draws have them."""
    calibration = estimator.calibration_
    if calibration is None and estimator.calibrate:
        warnings.warn(
            "calibrate=True, but this fit is not calibrated: it was interrupted, or made without. These "
            "intervals are as the draws have them; fit again to calibrate them.",
            stacklevel=3,
        )
    if calibration is None and not (joint and estimator.n_outputs_ > 1):
        lower, upper = estimator.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])
        return lower, upper
    rows_of_x = estimator._validated(X)
    levels = None if calibration is None else calibration.levels(coverage, joint)
    lower, upper = np.empty((2, len(rows_of_x), estimator.n_outputs_))
    for rows, draws in estimator._outcome_draws(rows_of_x):
        level = joint_level(draws, coverage)[:, None] if levels is None else levels
        lower[rows], upper[rows] = estimator.outcomes_.within(*central_interval(draws, level))
    return estimator._shaped(lower), estimator._shaped(upper)


def clear_checkpoints(estimator: Any) -> None:
    """Remove the files that a finished fit could have been resumed from."""
    if estimator.checkpoint is None or estimator.fit_.stopped != "all epochs done":
        return
    names = [estimator.checkpoint]
    if estimator.calibrate:
        names += [part_of_checkpoint(estimator.checkpoint, "calibration", k) for k in range(max(N_GROUPS))]
    if isinstance(estimator.delta, list | tuple):
        names += [part_of_checkpoint(estimator.checkpoint, "choice", k) for k in range(len(estimator.delta))]
    for name in names:
        with suppress(OSError):  # one that stays would only be found finished
            Path(name).unlink()


def _group_scores(estimator: Any, X: Array, y: Array, rows: Array, group: int, seed: int) -> Array:
    """Scores of some rows by a fit to all others."""
    settings = estimator.get_params(deep=False) | {
        "calibrate": False,
        "checkpoint": part_of_checkpoint(estimator.checkpoint, "calibration", group),
        "history": None,  # the file is of the whole fit, which is done
        "random_state": seed % 2**32,
    }
    if isinstance(
        estimator.delta, list | tuple
    ):  # which of them is best was seen on all rows, as of the base
        settings |= {"delta": estimator.delta_, "norm": estimator.norm_}
    others = np.setdiff1d(np.arange(len(X)), rows)
    # Not fit(), which would remove the checkpoint: a killed calibration finds its finished parts by them.
    with warnings.catch_warnings():
        # It would say that the model is half trained; of a part given up our own warning tells.
        warnings.filterwarnings("ignore", message="interrupted after epoch")
        part = type(estimator)(**settings)
        # Which of five kinds of base is best was seen on all rows; to ask each part again doubles the time.
        part._chosen_base = estimator.base_name_ if isinstance(estimator.base, str) else None
        part._known_outcomes = estimator.outcomes_  # a part with fewer rows might find others
        part._fit(X[others], y[others])
    if part.fit_.stopped.startswith("interrupted"):
        raise KeyboardInterrupt
    return scores(part, X[rows], y[rows])


def _warn_of_interruption(n_scored: int, n: int) -> None:
    then = (
        f"they rest on {n_scored} of {n} rows"
        if n_scored
        else "predict_interval takes them as the fit has them"
    )
    warnings.warn(
        f"interrupted before the intervals were calibrated: {then}. With a checkpoint, the same call goes on "
        "from here.",
        stacklevel=5,
    )
