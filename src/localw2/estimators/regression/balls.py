"""Which balls a regressor trains on: those given, or chosen from what its base leaves of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, check_count, check_radius
from localw2.balls.lazy import MANY_ROWS, SLACK, LazyNeighborhoods
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.norms import Euclidean, Norm, Weighted
from localw2.balls.ragged import Nearest
from localw2.balls.selection import DeltaSelection, select_delta
from localw2.estimators.regression.mean import FoldedMean
from localw2.estimators.settings import moments

_CELL = 200  # rows at most of a cell, half of it at least
_FEWEST = 8  # rows below which nothing can be chosen: a ball then holds them all
_RELEVANCE_ROWS, _RELEVANCE_MODELS = 500, 3  # enough to tell which columns move a mean


@final
@dataclass(frozen=True)
class ChosenBalls:
    """Balls, their norm and what it is called, and how they were chosen, if they were."""

    balls: Nearest | float
    norm: Norm
    norm_name: str
    selection: DeltaSelection | None = None

    def neighborhoods(self, X: Array) -> Neighborhoods | LazyNeighborhoods:
        """The balls of these rows; those of many are found when they are asked for, the nearest roughly."""
        # Far from the origin distances lose digits; a radius allows for the rounding of x as it is.
        rows = X - X.mean(0) if isinstance(self.balls, Nearest) else X
        if len(X) > MANY_ROWS:
            return LazyNeighborhoods.of(rows, self.balls, self.norm, slack=SLACK)
        return Neighborhoods.of(rows, self.balls, self.norm)


def check_delta(delta: Any) -> None:
    """Raise unless delta is "auto", a radius, ``Nearest(k)``, or a list of them."""
    if isinstance(delta, list | tuple):
        if len(delta) < 2:
            raise ValueError(f"delta={delta!r} leaves no choice; give two or more, or one without a list.")
        for one in delta:
            if isinstance(one, list | tuple):
                raise ValueError(f"delta={delta!r} has a list in a list; give radii and Nearest(k).")
            check_delta(one)
    elif isinstance(delta, Nearest):
        check_count(delta.k, "k of Nearest", 2, why="a ball of one row shows no spread")
    elif isinstance(delta, str) and delta != "auto":
        raise ValueError(f"delta={delta!r} is not known; give 'auto', a radius such as 0.1, or Nearest(50).")
    elif not isinstance(delta, str):
        check_radius(delta)


def rough_balls(X: Array) -> Neighborhoods:
    """What "local" means before anything is known of y: a fifth of the rows, 150 at most.

    Of many rows disjoint cells of so many: to search for the nearest of all would take longer than the fit.
    """
    if len(X) > MANY_ROWS:
        return Neighborhoods.cells(X - X.mean(0), _CELL, standardised(X))
    nearest = Nearest(min(150, max(2, len(X) // 5)))
    return Neighborhoods.of(X - X.mean(0), nearest, standardised(X))


def near_rows(hoods: Neighborhoods | LazyNeighborhoods, balls: Nearest | float, X: Array) -> Neighborhoods:
    """Balls that show the spread around every row: those of the loss, or rough ones.

    Those of a given radius may be too small for that, and lazy ones are never all at hand.
    """
    return hoods if isinstance(hoods, Neighborhoods) and isinstance(balls, Nearest) else rough_balls(X)


def choose_balls(X: Array, y: Array, mean: FoldedMean, delta: Any, norm: Any, debiased: bool) -> ChosenBalls:
    """The balls of the loss: as given, or by ``select_delta`` on what the mean leaves out of fold."""
    if not isinstance(delta, str):
        plain = (standardised(X), "standardised") if isinstance(delta, Nearest) else (Euclidean(), "plain")
        return ChosenBalls(delta, *((norm, "given") if isinstance(norm, Norm) else plain))
    if len(X) < _FEWEST:
        few = (norm, "given") if isinstance(norm, Norm) else (standardised(X), "standardised")
        return ChosenBalls(Nearest(len(X)), *few)
    relevant = relevance(mean, X) if len(mean.models) and not isinstance(norm, Norm) else None
    # Balls of one radius may hold one row, which the loss cannot use: where rows are sparse none would count.
    selection = select_delta(
        X, y, norm, center=mean.out_of_fold, relevance=relevant, debiased=debiased, adaptive=True
    )
    return ChosenBalls(selection.balls, selection.norm, selection.chosen.norm_name, selection)


def standardised(X: Array) -> Norm:
    """Distance in standard deviations of each column; constant columns count as they are."""
    return Weighted(1 / moments(X, True)[1])


def relevance(mean: FoldedMean, X: Array) -> Array | None:
    r"""How much each column moves the mean, (p,): the root mean square change of m when it is shuffled.

    None where no column moves it at all. Outputs are put on one scale.
    """
    rng = np.random.default_rng(0)
    rows = X[np.sort(rng.permutation(len(X))[:_RELEVANCE_ROWS])]
    few = FoldedMean(mean.name, mean.models[:_RELEVANCE_MODELS], mean.intercept, mean.slope, mean.out_of_fold)
    before = few.predict_each(rows)
    scale = before.std(1).mean(0)
    moved = np.zeros(X.shape[1])
    for column in range(X.shape[1]):
        shuffled = rows.copy()
        shuffled[:, column] = rng.permutation(rows[:, column])
        change = (few.predict_each(shuffled) - before) / np.where(scale > 0, scale, 1.0)
        moved[column] = np.sqrt((change**2).mean())
    return moved if moved.any() else None
