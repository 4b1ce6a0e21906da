"""Bands around draws of a field: nested sets, one for every level, so that a level can be calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from localw2._validation import Array

_ROUNDING = 2e-14  # of numbers near 1, after some sums
_LEAST = 1e-150  # of a spread: far below that of any outcome, and a ratio to it is a number


@final
@dataclass(frozen=True, eq=False)
class Bands:
    r"""Bands about the mean of fields on the grid (G,), one for every level k >= 0, each inside the next.

    .. math:: [m - r_k(b),\; m + r_k(a)], \qquad r_k(s) = \min(k, l)\, s + \max(k - l, 0) \max(s, u)

    b and a are the root mean square distances of draws ``below`` and ``above`` the mean m, and l, ``last``,
    is the level that holds all draws. They tell nothing of what is beyond, least where they do not vary: a
    level more adds at least u, the ``usual`` spread of a point. So a field that differs where draws do not
    vary is in a wider band, not in an endless one. Older files have the SD on both sides (``even``).
    """

    mean: Array
    below: Array
    above: Array
    usual: float
    last: float

    @classmethod
    def of(cls, draws: Array, spread: float, even: bool = False) -> Bands:
        """Those of draws (S, G) at one x, ``spread`` being that of a point in all rows."""
        mean = draws.mean(0)
        off = draws - mean
        squares = off**2
        usual = max(spread, float(np.sqrt(squares.mean())), _ROUNDING * float(np.abs(mean).max()), _LEAST)

        def measure(side: Array) -> Array:
            root = np.sqrt(squares.sum(0, where=side) / np.maximum(side.sum(0), 1))
            # Distances between equal numbers are rounding, and their ratios could be anything.
            found: Array = np.maximum(root, _ROUNDING * (np.abs(mean) + usual))
            return found

        everyone = np.ones(off.shape, dtype=bool)
        below, above = (measure(everyone if even else side) for side in (off < 0, off > 0))
        last = float((np.abs(off) / np.where(off < 0, below, above)).max())
        return cls(mean, below, above, usual, last)

    def levels(self, fields: Array) -> Array:
        """The level (S,) of the narrowest band that holds each of fields (S, G)."""
        off = fields - self.mean
        unit = np.where(off < 0, self.below, self.above)
        beyond = np.maximum(np.abs(off) - self.last * unit, 0) / np.maximum(unit, self.usual)
        found: Array = (np.minimum(np.abs(off) / unit, self.last) + beyond).max(-1)
        return found

    def ends(self, level: float) -> Array:
        """The lower and the upper end of a band, (2, G)."""

        def reach(unit: Array) -> Array:
            beyond = max(level - self.last, 0.0) * np.maximum(unit, self.usual)
            return min(level, self.last) * unit + beyond

        return np.stack([self.mean - reach(self.below), self.mean + reach(self.above)])

    def widen(self, ends: Array) -> Array:
        """Ends (2, G) moved out by their rounding, so that what is on an end is inside."""
        rounding = _ROUNDING * (np.abs(ends) + np.abs(self.mean) + self.usual)
        return ends + np.array([[-1.0], [1.0]]) * rounding
