"""What a regressor does differently with many rows, so that the defaults serve a million of them.

Up to ``MANY_ROWS`` a fit sees every ball in every step. Beyond, the mean is chosen and fitted on a sample,
balls are found when a step needs them, and an epoch is a few steps on some balls: the time of a fit then
hardly grows with the rows, and its memory in proportion to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array
from localw2.balls.lazy import MANY_ROWS, LazyNeighborhoods
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.ragged import Nearest
from localw2.estimators.regression.balls import rough_balls
from localw2.estimators.regression.mean import FoldedMean, fold_base

if TYPE_CHECKING:
    from localw2.training.config import FitConfig

BASE_ROWS = 50_000  # that base="auto" is chosen and fitted on
# Rows, ball by ball, that a step and an epoch are made of: many small steps learn more than few large ones
# (benchmarks/scale.py --batches), but below some thousand rows they take no less time.
BATCH_EDGES, EPOCH_EDGES = 1 << 11, 1 << 14
FEWEST_BALLS = 16
_PURPOSE = 7  # keeps these random numbers apart from others of the same seed


@final
@dataclass(frozen=True)
class RowPlan:
    """What a fit used of its rows: ``n_rows`` in all, ``base_rows`` for the mean (0 without one).

    ``batch_balls`` balls a step, or None for all of them; ``epoch_balls`` an epoch, or None for all.
    ``slack`` is that of the search for nearest rows (see ``LazyNeighborhoods.nearest``), 0 for an exact one.

    >>> RowPlan(1_000_000, 50_000, 32, 256, 1.0)
    RowPlan(n_rows=1000000, base_rows=50000, batch_balls=32, epoch_balls=256, slack=1.0)
    """

    n_rows: int
    base_rows: int
    batch_balls: int | None
    epoch_balls: int | None
    slack: float

    def applied(self, config: FitConfig) -> FitConfig:
        """The settings of training by this plan."""
        return replace(config, batch_balls=self.batch_balls, epoch_balls=self.epoch_balls)


def plan_rows(
    hoods: Neighborhoods | LazyNeighborhoods, balls: Nearest | float, batch_balls: int | None, base_rows: int
) -> RowPlan:
    """The plan of a fit on these balls; ``batch_balls`` is what the user asked for.

    >>> plan_rows(Neighborhoods.whole(100), Nearest(64), None, 0)
    RowPlan(n_rows=100, base_rows=0, batch_balls=None, epoch_balls=None, slack=0.0)
    """
    if isinstance(hoods, Neighborhoods):
        return RowPlan(hoods.n_rows, base_rows, batch_balls, None, 0.0)
    size = balls.k if isinstance(balls, Nearest) else float(hoods.probed_size)
    batch = max(FEWEST_BALLS, round(BATCH_EDGES / size)) if batch_balls is None else batch_balls
    n_steps = max(1, round(EPOCH_EDGES / size / batch))
    return RowPlan(hoods.n_rows, base_rows, batch, n_steps * batch, hoods.slack)


def center_rows(
    base: Any, X: Array, y: Array, n_folds: int, seed: int, chosen: str | None, shift: bool
) -> tuple[FoldedMean, int]:
    """The mean of rows X (N, p), y (N, d) out of fold, and how many rows it was fitted on.

    "auto" on many rows takes a sample; of the others each gets the mean of one fold's model, at random, none
    of which has seen it. Without a base it is the mean of y, or 0 without ``shift``.
    """
    if base is None:
        intercept = y.mean(0) if shift else np.zeros(y.shape[1])
        flat = np.broadcast_to(intercept, y.shape)
        return FoldedMean("none", (), intercept, np.zeros(y.shape[1]), flat), 0
    if len(X) <= MANY_ROWS or not isinstance(base, str):
        return fold_base(base, X, y, rough_balls(X), n_folds, seed, chosen), len(X)
    order = np.random.default_rng([seed, _PURPOSE]).permutation(len(X))
    rows, others = np.sort(order[:BASE_ROWS]), order[BASE_ROWS:]
    mean = fold_base(base, X[rows], y[rows], rough_balls(X[rows]), n_folds, seed, chosen)
    out_of_fold = np.empty_like(y)
    out_of_fold[rows] = mean.out_of_fold
    for fold, part in enumerate(np.array_split(others, len(mean.models))):
        one = replace(mean, models=mean.models[fold : fold + 1])
        out_of_fold[part] = one.predict_each(X[part])[0]
    return replace(mean, out_of_fold=out_of_fold), len(rows)
