"""Which balls a network is trained on, and how much of them at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array
from localw2.balls.lazy import MANY_ROWS, SLACK, LazyNeighborhoods
from localw2.balls.neighborhoods import Nearest, Neighborhoods
from localw2.balls.norms import Euclidean, Norm, Weighted
from localw2.balls.selection import DeltaSelection, select_delta

if TYPE_CHECKING:
    from localw2.training.config import FitConfig

# Rows, ball by ball, in a step and in an epoch of many rows: many small steps learn more than few large ones
# (benchmarks/scale.py --batches), but below some thousand rows they take no less time.
BATCH_EDGES, EPOCH_EDGES = 1 << 11, 1 << 14
WHOLE_ROWS = 2000  # up to which a step sees every ball; beyond, its rows grow as the root of all rows
FEWEST_BALLS = 16
FEW_EDGES, FEWEST_OF_FEW = 1 << 10, 8  # rows, ball by ball, and balls of a step that takes few of them
_FEWEST = 8  # rows below which nothing can be chosen: a ball then holds them all


@final
@dataclass(frozen=True)
class ChosenBalls:
    """Balls, their norm and what it is called, and how they were chosen, if they were."""

    balls: Nearest | float
    norm: Norm
    norm_name: str
    selection: DeltaSelection | None = None

    def neighborhoods(self, x: Array) -> Neighborhoods | LazyNeighborhoods:
        """The balls of these rows; those of many rows are found when needed, the nearest ones roughly."""
        # Far from the origin distances lose digits; a radius allows for the rounding of x as it is.
        rows = x - x.mean(0) if isinstance(self.balls, Nearest) else x
        if len(x) > MANY_ROWS:
            return LazyNeighborhoods.of(rows, self.balls, self.norm, slack=SLACK)
        return Neighborhoods.of(rows, self.balls, self.norm)


def choose_balls(
    x: Array,
    y: Array,
    center: Array,
    delta: Any,
    norm: Any,
    debiased: bool,
    relevance: Array | None,
    weights: Array | None = None,
) -> ChosenBalls:
    """The balls of the loss: as given, or by ``select_delta`` on the residuals from a mean ``center`` (N, d).

    ``relevance`` (p,) says how much each column moves the mean, if that is known, and ``weights`` (N,) how
    much each row counts.
    """
    if not isinstance(delta, str):
        plain = (
            (Weighted.standardised(x), "standardised")
            if isinstance(delta, Nearest)
            else (Euclidean(), "plain")
        )
        return ChosenBalls(delta, *((norm, "given") if isinstance(norm, Norm) else plain))
    if len(x) < _FEWEST:
        few = (norm, "given") if isinstance(norm, Norm) else (Weighted.standardised(x), "standardised")
        return ChosenBalls(Nearest(len(x)), *few)
    # Balls of one radius may hold a single row, which the loss cannot use: where rows are sparse none counts.
    selection = select_delta(
        x,
        y,
        norm,
        center=center,
        relevance=relevance,
        debiased=debiased,
        adaptive=True,
        sample_weight=weights,
    )
    balls, its_norm = selection.balls, selection.norm
    assert its_norm is not None
    assert not isinstance(balls, Neighborhoods)
    return ChosenBalls(balls, its_norm, selection.chosen.norm_name, selection)


@final
@dataclass(frozen=True)
class RowPlan:
    """What a fit used of its rows: ``n_rows`` in all, ``base_rows`` for the mean (0 without one).

    A step takes ``batch_balls`` balls and an epoch ``epoch_balls``; None means all of them. ``slack`` is that
    of the search for nearest rows (see ``LazyNeighborhoods.nearest``), 0 for an exact one. Up to 2000 rows
    every step sees every ball; beyond, an epoch is a step on some balls, whose rows grow as the root of all
    rows, and beyond 50 000 rows a few steps on a fixed number of them: the time of a fit grows slower than
    the rows, and its memory in proportion to them.

    >>> RowPlan(1_000_000, 50_000, 32, 256, 1.0)
    RowPlan(n_rows=1000000, base_rows=50000, batch_balls=32, epoch_balls=256, slack=1.0)
    """

    n_rows: int
    base_rows: int
    batch_balls: int | None
    epoch_balls: int | None
    slack: float

    def apply(self, config: FitConfig) -> FitConfig:
        """The settings of training under this plan."""
        return replace(config, batch_balls=self.batch_balls, epoch_balls=self.epoch_balls)


def plan_rows(
    hoods: Neighborhoods | LazyNeighborhoods,
    balls: Nearest | float,
    batch_balls: int | None,
    base_rows: int,
    few: bool = False,
) -> RowPlan:
    """The plan of a fit on these balls; ``batch_balls`` is what the user asked for.

    With ``few`` an epoch is one step on a few balls, however many rows there are.

    >>> plan_rows(Neighborhoods.whole(100), Nearest(64), None, 0)
    RowPlan(n_rows=100, base_rows=0, batch_balls=None, epoch_balls=None, slack=0.0)
    """
    if isinstance(hoods, Neighborhoods):
        n = hoods.n_rows
        if batch_balls is not None or (n <= WHOLE_ROWS and not few):
            return RowPlan(n, base_rows, batch_balls, None, 0.0)
        wanted = (FEW_EDGES if few else np.sqrt(WHOLE_ROWS * n)) * hoods.n_balls / hoods.n_edges
        batch = min(hoods.n_balls, max(FEWEST_OF_FEW if few else FEWEST_BALLS, round(wanted)))
        return RowPlan(n, base_rows, batch, batch, 0.0)
    size = balls.k if isinstance(balls, Nearest) else float(hoods.probed_size)
    edges, fewest = (FEW_EDGES, FEWEST_OF_FEW) if few else (BATCH_EDGES, FEWEST_BALLS)
    batch = max(fewest, round(edges / size)) if batch_balls is None else batch_balls
    n_steps = 1 if few else max(1, round(EPOCH_EDGES / size / batch))
    return RowPlan(hoods.n_rows, base_rows, batch, n_steps * batch, hoods.slack)
