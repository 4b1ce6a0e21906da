"""What every way of pairing y with yhat gives: values of balls, and gradients of their weighted sum."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Match(ABC):
    """Optimal pairings, ready to be weighed: values per ball, and gradients of their weighted sum.

    With S draws the plain value is the mean over draws. The debiased one subtracts half the mean over
    pairs of draws of their own distance, which makes it an unbiased estimate (see ``SquaredW2``).
    """

    @abstractmethod
    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values (B, n_balls); gradients of sum(scale * values) in yhat (S, B, N, d) and in y (B, N, d)."""


def pairings(draws: int, debiased: bool) -> list[tuple[int, int, float]]:
    """The terms (left, right, factor) of the value, with samples numbered 1 to S and y as 0.

    >>> pairings(2, debiased=True)
    [(1, 0, 0.5), (2, 0, 0.5), (1, 2, -0.5)]
    """
    terms = [(s, 0, 1 / draws) for s in range(1, draws + 1)]
    if debiased:
        pairs = [(r, s) for r in range(1, draws + 1) for s in range(r + 1, draws + 1)]
        terms += [(r, s, -1 / (draws * (draws - 1))) for r, s in pairs]
    return terms
