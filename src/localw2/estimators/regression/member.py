"""What draws: a member of a conditional law, which pools one or several of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from localw2._validation import Array

PREDICTION_DRAWS = 2000  # draws that means, quantiles and intervals integrate over
_INTEGRATED = 1 << 19  # draws times rows held at a time


def row_blocks(n: int) -> Iterator[slice]:
    """The rows 0 .. n - 1 in the blocks that all members make common draws in.

    >>> list(row_blocks(300))
    [slice(0, 262, None), slice(262, 524, None)]
    """
    step = max(1, _INTEGRATED // PREDICTION_DRAWS)
    return (slice(start, start + step) for start in range(0, n, step))


class Member(ABC):
    """A way to draw y at rows x (N, p), which are numbers in the units of the table."""

    title: str  # what ``weights_`` calls it

    @abstractmethod
    def sample(self, x: Array, n_samples: int, rng: np.random.Generator) -> Array:
        """Independent draws (S, N, d): draws, and rows within a draw, are independent."""

    @abstractmethod
    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, rows, d) with the same randomness at every row and call, in ``row_blocks``.

        A row's draws then do not depend on the rows that come with it. S is ``PREDICTION_DRAWS``.
        """

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and variance of y at every row, (N, d) each."""
        parts = [(draws.mean(0), draws.var(0)) for _, draws in self.common_draws(x)]
        mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        return mean, variance
