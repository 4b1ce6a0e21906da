r"""Central intervals of draws, calibrated so that they cover as often as they claim, whatever the model.

The draws of a row define a family of nested sets, one for every level :math:`c \ge 0`. Up to c = 1 the set is
the central interval from quantile (1 - c) / 2 to (1 + c) / 2 of the draws; at c = 1 + t it is their whole
range, extended by t times its width at either end. The score of an outcome is the level of the smallest set
that contains it: a single number, which serves every coverage. (Up to c = 1 these are the scores of
Chernozhukov, Wuethrich and Zhu, "Distributional conformal prediction", 2021.)
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array, check_probability, check_sample_weight

KINDS = ("split", "cv", "cv+")
LARGEST_SCORE = 1e300  # of an outcome that no interval holds: finite, so that a file can hold it,
_LARGEST_LEVEL = 1e299  # and of one far outside of draws that hardly differ
_SMALLEST_STEP = 1e-280  # so that this level still reaches any y from draws that are all 0
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


def central_scores(y: Any, draws: Any) -> Array:
    r"""The level, >= 0, of the smallest central set of the draws that contains y.

    .. math:: s(y) = \min\{c \ge 0 : y \in C_c\}, \qquad C_c = [Q(\tfrac{1-c}2), Q(\tfrac{1+c}2)] \;(c \le 1)

    ``y`` is (N,) with ``draws`` (S, N), or (N, d) with (S, N, d); S >= 2. The result has the shape of y.
    If draws are equal (a distribution with atoms), the smallest level counts.

    >>> draws = np.arange(5.0)[:, None]
    >>> [float(central_scores([value], draws)[0]) for value in (2.0, 2.5, 0.0, 8.0)]
    [0.0, 0.25, 1.0, 2.0]
    """
    y, draws = as_array(y, "y").astype(np.float64), _check_draws(draws)
    if draws.shape[1:] != y.shape:
        expected = ", ".join(["S", *map(str, y.shape)])
        shapes = f"draws has shape {draws.shape} and y {y.shape}"
        raise ValueError(f"{shapes}; the sample axis comes first, so ({expected}) is expected.")
    step = _choose_step(draws.min(0), draws.max(0))
    scores: Array = np.maximum(_upper_level(y, draws, step), _upper_level(-y, -draws, step))
    return np.clip(scores, 0.0, _LARGEST_LEVEL)


def _upper_level(y: Array, draws: Array, step: Array) -> Array:
    """The smallest c whose set reaches up to y; negative if y is in the lower half."""
    low = draws < y
    n_below = low.sum(0)
    below, above = np.where(low, draws, -np.inf).max(0), np.where(low, np.inf, draws).min(0)
    between = (n_below > 0) & (n_below < len(draws))
    gap = np.where(between, above - below, 1.0)
    share = np.where(between, y - np.where(between, below, y), 0.0) / gap
    level = 2 * (n_below - 1 + share) / (len(draws) - 1) - 1
    with np.errstate(over="ignore"):  # draws without any spread
        beyond = 1 + (y - np.where(n_below > 0, below, y)) / step
    found: Array = np.where(n_below == len(draws), beyond, np.where(n_below == 0, -1.0, level))
    return found


def central_interval(draws: Any, level: Any) -> tuple[Array, Array]:
    """The lower and upper ends of the central set of a level, which contains y if the score is at most level.

    ``draws`` is (S, N) or (S, N, d) and the ends are (N,) or (N, d); ``level`` >= 0 is a number or can be
    broadcast to their shape, such as (d,). The ends are moved out by their rounding error.

    >>> lower, upper = central_interval(np.arange(5.0)[:, None], 0.5)
    >>> lower.round(9), upper.round(9)
    (array([1.]), array([3.]))
    >>> central_interval(np.arange(5.0)[:, None], 2.0)[1].round(9)
    array([8.])
    """
    draws = _check_draws(draws)
    level = np.asarray(level, dtype=np.float64)
    if not bool((level >= 0).all()):
        raise ValueError(f"level={level} has a value that is not >= 0; levels of central sets start at 0.")
    lower, upper = _find_ends(np.sort(draws, axis=0), np.broadcast_to(level, draws.shape[1:])[None])
    return lower[0], upper[0]


def _find_ends(ordered: Array, level: Array) -> tuple[Array, Array]:
    """Ends (L, N) or (L, N, d) of the central sets of levels of that shape, from draws in ascending order."""
    last = len(ordered) - 1
    position = (1 + np.minimum(level, 1.0)) / 2 * last
    index = np.minimum(np.floor(position).astype(np.int64), last - 1)
    step, share = _choose_step(ordered[0], ordered[-1]), position - index
    # A position among S draws loses digits of the gap it lies in; an end loses digits of its own size.
    rounding = 1e-12 * (ordered[-1] - ordered[0]) + _ROUNDING * np.abs(ordered[[0, -1]]).max(0)
    out = np.maximum(level - 1, 0.0) * step + rounding
    out = np.where(level < LARGEST_SCORE, out, np.inf)  # the largest score is that of any outcome

    def at(place: Array) -> Any:
        return np.take_along_axis(ordered, place, 0)

    upper = (1 - share) * at(index) + share * at(index + 1)
    lower = (1 - share) * at(last - index) + share * at(last - index - 1)
    return lower - out, upper + out


def threshold(scores: Any, coverage: float, weights: Array | None = None) -> Array:
    r"""The level whose sets have the wanted coverage: the k-th smallest of n scores.

    .. math:: k = \lceil (n + 1)\,\text{coverage} \rceil

    If the n rows and a new one are exchangeable and the model has seen none of them, the score of the new row
    is at most this level with probability k / (n + 1) >= coverage, whatever the model and the distribution
    (with ties, at least that). ``scores`` is (n,) or (n, d), with each output on its own; the result is () or
    (d,). If k > n no finite set has the guarantee: the largest score is used, with a warning.

    With ``weights`` (n,) of the rows the level is the smallest score up to which rows have ``coverage`` of
    all weight, that of the new row included. That one is not known; the largest of the n is assumed, so the
    guarantee holds for new rows that come as often as rows do by their weights and weigh no more than that
    (Tibshirani, Barber, Candes and Ramdas, 2019).

    >>> float(threshold(np.arange(1.0, 20.0), 0.9))
    18.0
    >>> float(threshold(np.arange(1.0, 20.0), 0.9, weights=np.r_[np.ones(18), 0.1]))
    18.0
    """
    if weights is not None:
        scores, wanted = _choose_weight(scores, coverage, weights)
        return _reach_weight(scores, weights, np.full(scores.shape[1:], wanted), coverage)
    scores, place = _choose_place(scores, coverage)
    if place > len(scores):
        _warn_of_few(len(scores), coverage, math.ceil(coverage / (1 - coverage) - 1e-9))
    found: Array = np.sort(scores, axis=0)[min(place, len(scores)) - 1]
    return found


def joint_threshold(scores: Any, coverage: float, weights: Array | None = None) -> Array:
    r"""Levels (d,), one per output, that cover all outputs jointly, from scores (n, d).

    The scores of each output are replaced by their ranks, so that every output takes its share of the misses
    however well its own spread is fitted. With :math:`M_i` the largest rank of row i, q the k-th smallest M
    and k as in ``threshold``, the level of an output is its (q + 1)-th smallest score. The 1 allows for
    ranking without the new row, which would change a rank by at most 1, so that P(all outputs inside) >=
    coverage holds for every n, as for one output. With ``weights`` (n,) of the rows a rank is the weight of
    all rows with smaller scores, and the largest weight stands in for that 1.

    >>> rng = np.random.default_rng(0)
    >>> same = rng.random(999)
    >>> joint_threshold(np.column_stack([same, 5 * same]), 0.9).round(2)
    array([0.9 , 4.49])
    >>> joint_threshold(rng.random((999, 2)), 0.9).round(2)
    array([0.96, 0.94])
    """
    scores, place = _choose_place(scores, coverage)
    if scores.ndim == 1 or scores.shape[1] == 1:
        return threshold(scores.reshape(len(scores), -1), coverage, weights)
    n, d = scores.shape
    if weights is not None:
        scores, wanted = _choose_weight(scores, coverage, weights)
        before = np.max([_weight_below(column, weights) for column in scores.T], axis=0)
        order = np.argsort(before)
        most = np.append(before[order], np.inf)[np.searchsorted(np.cumsum(weights[order]), wanted)]
        # The smallest score with more than that below or at it.
        return _reach_weight(
            scores, weights, np.full(d, np.nextafter(most + weights.max(), np.inf)), coverage
        )
    ordered = np.sort(scores, axis=0)
    ranks = [1 + np.searchsorted(ordered[:, k], scores[:, k], side="left") for k in range(d)]
    rank = n + 1 if place > n else int(np.sort(np.max(ranks, axis=0))[place - 1]) + 1
    if rank > n:
        # At most d rows have an output of the last rank, so this many rows always suffice.
        _warn_of_few(n, coverage, math.ceil((d + 1 + coverage) / (1 - coverage)))
    found: Array = ordered[min(rank, n) - 1]
    return found


def joint_level(draws: Any, coverage: float) -> Array:
    """For each row the level (N,) at which the box of central sets contains ``coverage`` of its draws.

    ``draws`` is (S, N, d). This calibrates nothing: the box is only as good as the draws.

    >>> draws = np.random.default_rng(0).normal(size=(4000, 1, 2))
    >>> joint_level(draws, 0.9).round(2), joint_level(draws[..., :1], 0.9).round(2)
    (array([0.95]), array([0.9]))
    """
    draws, coverage = _check_draws(draws), check_probability(coverage, "coverage")
    if draws.ndim != 3:
        raise ValueError(f"draws has shape {draws.shape}; expected (S, N, d), with the outputs last.")
    ranks = draws.argsort(axis=0).argsort(axis=0)
    levels = np.sort(np.abs(2 * ranks / (len(draws) - 1) - 1).max(-1), axis=0)
    found: Array = levels[math.ceil(coverage * len(draws) - 1e-9) - 1]
    return found


def plus_sets(scores: Any, draws: Any, joint: bool = False) -> tuple[Array, Array]:
    """The ends (n, N, d) of one part's central sets at new rows, a set for each score (n, d) of the part.

    ``draws`` (S, N, d) at the new rows come from the fit that has not seen the part. With ``joint`` a set is
    a box: the largest score of a row counts for all outputs.
    """
    scores, draws = _check_scores(scores), _check_draws(draws)
    level = np.broadcast_to(scores.max(1, keepdims=True), scores.shape) if joint else scores
    level = np.broadcast_to(level[:, None], (len(scores), *draws.shape[1:]))
    return _find_ends(np.sort(draws, axis=0), level)


def plus_interval(
    lower: Array, upper: Array, coverage: float, weights: Array | None = None
) -> tuple[Array, Array]:
    r"""The CV+ interval from the ends (n, ...) of the sets of all n scored rows.

    .. math:: [\,l_{(k)},\; u_{(n + 1 - k)}\,], \qquad k = \lfloor \alpha (n + 1) \rfloor,
        \quad \alpha = 1 - \text{coverage}

    (Barber, Candes, Ramdas and Tibshirani, 2021; for nested sets Gupta, Kuchibhotla and Ramdas, 2022.) With K
    parts, n rows, and everything learned without the scored part, it covers with probability at least
    :math:`1 - 2\alpha` minus the smaller of :math:`2 (1 - 1/K) / (n/K + 1)` and
    :math:`(1 - K/n) / (K + 1)`; in practice about :math:`1 - \alpha`. With fewer than
    coverage / (1 - coverage) rows k would be 0; it is 1 then, and nothing is guaranteed. With ``weights``
    (n,) of the rows the lower end is the largest up to which rows have at most :math:`\alpha` of all weight,
    that of the new row, assumed to be the largest of them, included; the upper end likewise.

    >>> ends = np.arange(1.0, 20.0)[:, None]
    >>> plus_interval(-ends, ends, 0.9)
    (array([-18.]), array([18.]))
    """
    n = len(lower)
    if weights is not None:
        allowed = (1 - check_probability(coverage, "coverage")) * (weights.sum() + weights.max())
        return _allow_below(lower, weights, allowed), -_allow_below(-upper, weights, allowed)
    place = max(1, math.floor((n + 1) * (1 - check_probability(coverage, "coverage")) + 1e-9))
    low, high = np.partition(lower, place - 1, axis=0), np.partition(upper, n - place, axis=0)
    return low[place - 1], high[n - place]


def guaranteed_plus(coverage: float, n: int, n_parts: int) -> float:
    """The coverage that ``plus_interval`` guarantees with n rows in so many parts.

    >>> round(guaranteed_plus(0.9, 400, 10), 3), guaranteed_plus(0.9, 400, 400)
    (0.756, 0.8)
    """
    fewer = min(2 * (1 - 1 / n_parts) / (n / n_parts + 1), (1 - n_parts / n) / (n_parts + 1))
    return float(f"{1 - 2 * (1 - coverage) - fewer:.12g}")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Scores (n, d) of rows that the scoring model has not seen, and how they were obtained.

    ``kind`` is "split" (rows held out of the whole fit: the coverage is guaranteed), "cv" (each part of the
    rows is scored by a fit to the others, and the fit to all rows gives the interval: approximate), or "cv+"
    (scored in the same way, and the fits to the others give the interval: guaranteed at a lower level, see
    ``plus_interval``). ``parts`` (n,) says which fit has scored each row, where the fits are still needed,
    and ``weights`` (n,) how much each row counts, if not all alike.

    >>> Calibration(np.linspace(0, 1, 19)[:, None], "split").levels(0.9)
    array([0.94444444])
    """

    scores: Array
    kind: str
    parts: Array | None = None
    weights: Array | None = None

    def __post_init__(self) -> None:
        scores = _check_scores(self.scores).copy()
        if scores.ndim != 2:
            raise ValueError(f"scores has shape {scores.shape}; expected (rows, outputs).")
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is unknown; it must be one of {KINDS}.")
        if (self.parts is None) != (self.kind != "cv+"):
            raise ValueError(f"kind={self.kind!r}: parts belong to 'cv+', and to it alone.")
        if self.parts is not None and self.parts.shape != (len(scores),):
            raise ValueError(
                f"parts has shape {self.parts.shape}; expected one number for each of {len(scores)}."
            )
        if self.weights is not None:
            check_sample_weight(self.weights, len(scores))
        scores.flags.writeable = False
        object.__setattr__(self, "scores", scores)

    @property
    def n_rows(self) -> int:
        """The number of rows that were scored."""
        return len(self.scores)

    def levels(self, coverage: float, joint: bool = False) -> Array:
        """The level (d,) of each output's central set, to cover it alone or, if ``joint``, all of them."""
        return (joint_threshold if joint else threshold)(self.scores, coverage, self.weights)

    def __repr__(self) -> str:
        return f"Calibration({self.n_rows} rows, kind={self.kind!r})"


def _check_draws(draws: Any) -> Array:
    array = as_array(draws, "draws").astype(np.float64, copy=False)
    if array.ndim not in (2, 3):
        raise ValueError(f"draws has shape {array.shape}; expected (S, N), or (S, N, d) with d outputs.")
    if len(array) < 2:
        raise ValueError("draws has 1 draw per row; an interval needs at least 2, along the first axis.")
    return array


def _check_scores(scores: Any) -> Array:
    array = as_array(scores, "scores").astype(np.float64, copy=False)
    if array.ndim not in (1, 2):
        raise ValueError(f"scores has shape {array.shape}; expected (n,), or (n, d) with d outputs.")
    if (array < 0).any():
        raise ValueError(f"scores has a negative value ({array.min():g}); levels of central sets are >= 0.")
    return array


def _choose_step(lowest: Array, highest: Array) -> Array:
    """What a level of 1 beyond the draws adds at either end: their range, or rounding if they are equal."""
    size = np.maximum(np.abs(lowest), np.abs(highest))
    step: Array = np.maximum(np.maximum(highest - lowest, 2 * _ROUNDING * size), _SMALLEST_STEP)
    return step


def _choose_place(scores: Any, coverage: float) -> tuple[Array, int]:
    """The checked scores, and k of ``threshold``; rounding in the last digit must not raise it by one."""
    scores = _check_scores(scores)
    return scores, math.ceil((len(scores) + 1) * check_probability(coverage, "coverage") - 1e-9)


def _choose_weight(scores: Any, coverage: float, weights: Array) -> tuple[Array, float]:
    """The checked scores, and the weight that is to be reached."""
    scores = _check_scores(scores)
    everything = weights.sum() + weights.max()
    return scores, float(everything * (check_probability(coverage, "coverage") - 1e-12))


def _weight_below(scores: Array, weights: Array) -> Array:
    """The weight of all rows whose score (n,) is smaller, for every row."""
    order = np.argsort(scores, kind="stable")
    before = np.append(0.0, np.cumsum(weights[order]))
    below: Array = before[np.searchsorted(scores[order], scores, side="left")]
    return below


def _reach_weight(scores: Array, weights: Array, wanted: Array, coverage: float) -> Array:
    """The smallest of scores (n,) or (n, d) up to which rows have this weight, or else the largest."""
    order = np.argsort(scores, axis=0, kind="stable")
    ordered, reached = np.take_along_axis(scores, order, 0), np.cumsum(weights[order], axis=0)
    place = (reached < wanted).sum(0)
    if (place == len(scores)).any():
        _warn_of_few(len(scores), coverage, math.ceil(len(scores) * float(np.max(wanted)) / weights.sum()))
    found: Array = np.take_along_axis(ordered, np.minimum(place, len(scores) - 1)[None], 0)[0]
    return found


def _allow_below(ends: Array, weights: Array, allowed: float) -> Array:
    """The largest of ends (n, ...) up to which rows have no more weight than allowed, or the smallest."""
    order = np.argsort(ends, axis=0)
    reached = np.cumsum(weights[order], axis=0)
    place = np.maximum((reached <= allowed * (1 + 1e-12)).sum(0), 1) - 1
    found: Array = np.take_along_axis(np.take_along_axis(ends, order, 0), place[None], 0)[0]
    return found


def _warn_of_few(n: int, coverage: float, enough: int) -> None:
    warnings.warn(
        f"with {n} calibration rows no finite interval is guaranteed to cover {coverage:g}. The largest "
        f"score is used, which may cover less; {enough} rows would be enough.",
        stacklevel=3,
    )
