r"""Intervals that cover as often as they say, whatever the model: central intervals of draws, calibrated.

Draws of a row give a family of nested sets, one for every level :math:`c \ge 0`. Up to c = 1 it is the
central interval from quantile (1 - c) / 2 to (1 + c) / 2 of the draws; at c = 1 + t it is their whole range,
moved out by t times its width at either end. The score of an outcome is the level of the smallest set that
holds it: one number, which serves every coverage. (Up to c = 1 these are scores of Chernozhukov, Wuethrich
and Zhu, "Distributional conformal prediction", 2021.)
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array, check_probability

KINDS = ("split", "folds")
_LARGEST = 1e300  # of a score: it stays a number that a file can hold
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


def central_scores(y: Any, draws: Any) -> Array:
    r"""The level of the smallest central set of the draws that holds y, >= 0.

    .. math:: s(y) = \min\{c \ge 0 : y \in C_c\}, \qquad C_c = [Q(\tfrac{1-c}2), Q(\tfrac{1+c}2)] \;(c \le 1)

    ``y`` is (N,) with ``draws`` (S, N), or (N, d) with (S, N, d); S >= 2. The result has the shape of y.
    Where draws are equal (a law with atoms) the smallest level counts.

    >>> draws = np.arange(5.0)[:, None]
    >>> [float(central_scores([value], draws)[0]) for value in (2.0, 2.5, 0.0, 8.0)]
    [0.0, 0.25, 1.0, 2.0]
    """
    y, draws = as_array(y, "y").astype(np.float64), _draws(draws)
    if draws.shape[1:] != y.shape:
        expected = ", ".join(["S", *map(str, y.shape)])
        raise ValueError(
            f"draws has shape {draws.shape} and y {y.shape}; the sample axis comes first, "
            f"so ({expected}) is expected."
        )
    step = _step(draws.min(0), draws.max(0))
    scores: Array = np.maximum(_upper_level(y, draws, step), _upper_level(-y, -draws, step))
    return np.clip(scores, 0.0, _LARGEST)


def _upper_level(y: Array, draws: Array, step: Array) -> Array:
    """The smallest c whose set reaches up to y, negative where y is in the lower half."""
    low = draws < y
    n_below = low.sum(0)
    below, above = np.where(low, draws, -np.inf).max(0), np.where(low, np.inf, draws).min(0)
    between = (n_below > 0) & (n_below < len(draws))
    gap = np.where(between, above - below, 1.0)
    share = np.where(between, y - np.where(between, below, y), 0.0) / gap
    level = 2 * (n_below - 1 + share) / (len(draws) - 1) - 1
    with np.errstate(over="ignore"):  # of draws without any spread
        beyond = 1 + (y - np.where(n_below > 0, below, y)) / step
    found: Array = np.where(n_below == len(draws), beyond, np.where(n_below == 0, -1.0, level))
    return found


def central_interval(draws: Any, level: Any) -> tuple[Array, Array]:
    """The central set of a level, its lower and upper ends: y is inside where its score is at most that.

    ``draws`` is (S, N) or (S, N, d) and the ends (N,) or (N, d); ``level`` >= 0 is a number or has a shape
    that is broadcast to theirs, such as (d,). Ends are moved out by their rounding.

    >>> lower, upper = central_interval(np.arange(5.0)[:, None], 0.5)
    >>> lower.round(9), upper.round(9)
    (array([1.]), array([3.]))
    >>> central_interval(np.arange(5.0)[:, None], 2.0)[1].round(9)
    array([8.])
    """
    draws = _draws(draws)
    level = np.asarray(level, dtype=np.float64)
    if not bool((level >= 0).all()):
        raise ValueError(f"level={level} has a value that is not >= 0; a central set has none below 0.")
    level = np.broadcast_to(level, draws.shape[1:])
    ordered = np.sort(draws, axis=0)
    last = len(draws) - 1
    position = (1 + np.minimum(level, 1.0)) / 2 * last
    index = np.minimum(np.floor(position).astype(np.int64), last - 1)
    step, share = _step(ordered[0], ordered[-1]), position - index
    # A position among S draws loses digits of the gap it lies in, an end those of its own size.
    rounding = 1e-12 * (ordered[-1] - ordered[0]) + _ROUNDING * np.abs(ordered[[0, -1]]).max(0)
    out = np.maximum(level - 1, 0.0) * step + rounding

    def at(place: Array) -> Array:
        value: Array = np.take_along_axis(ordered, place[None], 0)[0]
        return value

    upper = (1 - share) * at(index) + share * at(index + 1)
    lower = (1 - share) * at(last - index) + share * at(last - index - 1)
    return lower - out, upper + out


def threshold(scores: Any, coverage: float) -> Array:
    r"""The level that covers: the k-th smallest of n scores.

    .. math:: k = \lceil (n + 1)\,\text{coverage} \rceil

    If the n rows and a new one are exchangeable, and the model has seen none of them, the new one's score is
    at most that with probability k / (n + 1) >= coverage, whatever the model and the law (with ties, at least
    that). ``scores`` is (n,) or (n, d), each output by itself; the result () or (d,). Where k > n no finite
    set has the guarantee: the largest score is used, with a warning.

    >>> float(threshold(np.arange(1.0, 20.0), 0.9))
    18.0
    """
    scores, coverage = _scores(scores), check_probability(coverage, "coverage")
    place = _place(len(scores), coverage)
    if place > len(scores):
        _warn_of_few(len(scores), coverage, math.ceil(coverage / (1 - coverage) - 1e-9))
    found: Array = np.sort(scores, axis=0)[min(place, len(scores)) - 1]
    return found


def joint_threshold(scores: Any, coverage: float) -> Array:
    r"""Levels (d,), one an output, that cover all outputs together; from scores (n, d).

    Each output's scores are replaced by their ranks, so that every output takes its share of the misses
    however well its own spread is fitted. With :math:`M_i` the largest rank of row i, q the k-th smallest M
    and k as in ``threshold``, the level of an output is its (q + 1)-th smallest score. The 1 pays for ranking
    without the new row, which moves a rank by at most 1: so P(all outputs inside) >= coverage holds for every
    n, as for one output.

    >>> rng = np.random.default_rng(0)
    >>> same = rng.random(999)
    >>> joint_threshold(np.column_stack([same, 5 * same]), 0.9).round(2)
    array([0.9 , 4.49])
    >>> joint_threshold(rng.random((999, 2)), 0.9).round(2)
    array([0.96, 0.94])
    """
    scores, coverage = _scores(scores), check_probability(coverage, "coverage")
    if scores.ndim == 1 or scores.shape[1] == 1:
        return threshold(scores.reshape(len(scores), -1), coverage)
    n, d = scores.shape
    ordered = np.sort(scores, axis=0)
    ranks = [1 + np.searchsorted(ordered[:, k], scores[:, k], side="left") for k in range(d)]
    largest = np.sort(np.max(ranks, axis=0))
    place = _place(n, coverage)
    rank = n + 1 if place > n else int(largest[place - 1]) + 1
    if rank > n:
        # At most d rows have an output of the last rank, so that these many rows always do.
        _warn_of_few(n, coverage, math.ceil((d + 1 + coverage) / (1 - coverage)))
    found: Array = ordered[min(rank, n) - 1]
    return found


def joint_level(draws: Any, coverage: float) -> Array:
    """For each row the level (N,) at which the box of central sets holds a share ``coverage`` of its draws.

    ``draws`` is (S, N, d). Nothing is calibrated here: the box is as right as the draws are.

    >>> draws = np.random.default_rng(0).normal(size=(4000, 1, 2))
    >>> joint_level(draws, 0.9).round(2), joint_level(draws[..., :1], 0.9).round(2)
    (array([0.95]), array([0.9]))
    """
    draws, coverage = _draws(draws), check_probability(coverage, "coverage")
    if draws.ndim != 3:
        raise ValueError(f"draws has shape {draws.shape}; expected (S, N, d), with the outputs last.")
    ranks = draws.argsort(axis=0).argsort(axis=0)
    levels = np.sort(np.abs(2 * ranks / (len(draws) - 1) - 1).max(-1), axis=0)
    found: Array = levels[math.ceil(coverage * len(draws) - 1e-9) - 1]
    return found


@final
@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Scores (n, d) of rows that the model which scored them has not seen, and how they came about.

    ``kind`` is "split" (rows held out of the whole fit: the coverage is guaranteed) or "folds" (each part of
    the rows scored by a fit to the others: approximate).

    >>> Calibration(np.linspace(0, 1, 19)[:, None], "split").levels(0.9)
    array([0.94444444])
    """

    scores: Array
    kind: str

    def __post_init__(self) -> None:
        scores = _scores(self.scores).copy()
        if scores.ndim != 2:
            raise ValueError(f"scores has shape {scores.shape}; expected (rows, outputs).")
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is not known; it is one of {KINDS}.")
        scores.flags.writeable = False
        object.__setattr__(self, "scores", scores)

    @property
    def n_rows(self) -> int:
        """How many rows were scored."""
        return len(self.scores)

    def levels(self, coverage: float, joint: bool = False) -> Array:
        """The level (d,) of each output's central set, to cover it alone or, if ``joint``, all together."""
        return joint_threshold(self.scores, coverage) if joint else threshold(self.scores, coverage)

    def __repr__(self) -> str:
        return f"Calibration({self.n_rows} rows, kind={self.kind!r})"


def _draws(draws: Any) -> Array:
    array = as_array(draws, "draws").astype(np.float64, copy=False)
    if array.ndim not in (2, 3):
        raise ValueError(f"draws has shape {array.shape}; expected (S, N), or (S, N, d) with d outputs.")
    if len(array) < 2:
        raise ValueError(
            "draws has 1 draw of each row; an interval needs at least 2. The sample axis is first."
        )
    return array


def _scores(scores: Any) -> Array:
    array = as_array(scores, "scores").astype(np.float64, copy=False)
    if array.ndim not in (1, 2):
        raise ValueError(f"scores has shape {array.shape}; expected (n,), or (n, d) with d outputs.")
    if (array < 0).any():
        raise ValueError(f"scores has a negative value ({array.min():g}); levels of central sets are >= 0.")
    return array


def _step(lowest: Array, highest: Array) -> Array:
    """What a level of 1 beyond the draws adds at either end: their range, or the rounding of equal ones."""
    size = np.maximum(np.abs(lowest), np.abs(highest))
    step: Array = np.maximum(np.maximum(highest - lowest, 2 * _ROUNDING * size), np.finfo(np.float64).tiny)
    return step


def _place(n: int, coverage: float) -> int:
    # .9 * 10 must not become 10 by its last digit.
    return math.ceil((n + 1) * coverage - 1e-9)


def _warn_of_few(n: int, coverage: float, enough: int) -> None:
    warnings.warn(
        f"{n} calibration rows cannot guarantee a coverage of {coverage:g}: no finite interval does. The "
        f"largest score is used, and may cover less; {enough} rows are enough.",
        stacklevel=3,
    )
