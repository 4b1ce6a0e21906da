"""Trajectories in a long table: a line for each observation, with whose it is and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2.apps.tables.tables import Table

# A grid of all times, with gaps, is used while it is at most so many times as long as a trajectory.
_MOST_GAPS = 2.0


def trajectories(table: Table, identity: str, time: str, states: list[str]) -> tuple[Any, Any]:
    """A long table as (n, T, d) on a common grid (T,), with NaN for gaps; two lists where few share times.

    Rows may come in any order; two of one trajectory and time are an error.
    """
    moments = table.numbers([time])[:, 0]
    table.complete(states)  # or the first cell that is no number
    values = np.column_stack([table.columns[name] for name in states])
    keys = table.column(identity)
    if keys.dtype != object and np.isnan(keys).any():
        raise ValueError(f"column {identity!r} of {table.source} is empty in some rows; whose are they?")
    labels, number = np.unique(keys.astype(str), return_inverse=True)
    order = np.lexsort((moments, number))
    again = (np.diff(number[order]) == 0) & (np.diff(moments[order]) == 0)
    if again.any():
        row = order[1:][again][0]
        raise ValueError(
            f"line {table.lines[row]} of {table.source} is the second with {identity} = {keys[row]} and "
            f"{time} = {moments[row]:g}; a trajectory has one state at a time. Correct "
            "it, or name another --id."
        )
    grid, place = np.unique(moments, return_inverse=True)
    lengths = np.bincount(number)
    if len(grid) <= _MOST_GAPS * np.median(lengths):
        Y = np.full((len(labels), len(grid), len(states)), np.nan)
        Y[number, place] = values
        return Y, grid
    cuts = np.cumsum(lengths)[:-1]
    return np.split(values[order], cuts), np.split(moments[order], cuts)
