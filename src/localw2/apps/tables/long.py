"""Trajectories in long tables: a row for each observation, with the trajectory and the time it belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2.apps.tables.tables import Table

# A common grid of times, with missing observations, is used while it has at most this many times as many
# entries as the median trajectory.
_LARGEST_GRID = 2.0


def gather_trajectories(table: Table, identity: str, time: str, states: list[str]) -> tuple[Any, Any]:
    """Arrange a long table as (n, T, d) on a common grid (T,), NaN where nothing was observed.

    Where few times are shared, two lists are returned instead. Rows may come in any order, but each
    trajectory has at most one row per time.
    """
    moments = table.numbers([time])[:, 0]
    values = table.numbers(states, missing=True)
    keys = table.column(identity)
    if (missing := keys.isna()).any():
        raise ValueError(
            f"column {identity!r} of {table.source} is empty in {missing.sum()} rows, the first of them row "
            f"{keys.index[missing.argmax()] + 1}; it must say which trajectory each row belongs to."
        )
    labels, number = np.unique(keys.astype(str).to_numpy(), return_inverse=True)
    order = np.lexsort((moments, number))
    again = (np.diff(number[order]) == 0) & (np.diff(moments[order]) == 0)
    if again.any():
        row = order[1:][again][0]
        raise ValueError(
            f"row {keys.index[row] + 1} of {table.source} is the second with {identity} = {keys.iloc[row]} "
            f"and {time} = {moments[row]:g}, but a trajectory has one state at a time. Correct the row, or "
            "use another column as --id."
        )
    grid, place = np.unique(moments, return_inverse=True)
    lengths = np.bincount(number)
    if len(grid) <= _LARGEST_GRID * np.median(lengths):
        Y = np.full((len(labels), len(grid), len(states)), np.nan)
        Y[number, place] = values
        return Y, grid
    cuts = np.cumsum(lengths)[:-1]
    return np.split(values[order], cuts), np.split(moments[order], cuts)
