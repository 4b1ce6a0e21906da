r"""Modes that the draws merge, or split: valleys that only one of y and its draws has.

Values are standardised by the sampler's own mean and SD at each row and counted in bins, over groups of rows.
An interval J is a valley if it holds at most half as many values as the fullest intervals of its width on
either side. Whether y avoids J more than the draws do is tested exactly: if the sampler is right, y_i is
equally likely to be any of the S + 1 values of row i (its draws and itself), so it lies in J with the
probability p_i that is their share in J, independently between rows. The tails of such a sum are bounded by
those of a binomial law with the mean of the p_i (Hoeffding 1956, On the distribution of the number of
successes in independent trials, Theorem 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from scipy.stats import binom

from localw2._validation import Array

BIN = 0.25  # SDs
REACH = 3.5  # values farther than this from the mean, in SDs, are in no bin
N_BINS = round(2 * REACH / BIN)
WIDTHS = (2, 3, 4, 6)  # of the intervals J, in bins
MIDDLE = 2.0  # J lies within this many SDs of the mean, so that a mode has room on either side
DEEP = 0.5  # a valley holds at most this share of what lies on either side of it
CHANCE = 1e-3  # a valley that chance would make this often is none
ANY = 0.1  # where y may have a valley, even by chance, draws that have one do not split a mode
PLAIN = 0.1  # share of the rows by which y and draws must differ inside J to be described
GRAIN = 4  # J is at least so many times as wide as the gaps between values: atoms are not modes


@final
@dataclass(frozen=True)
class Valley:
    """An interval [low, high), in SDs around the mean, where y or its draws have a valley but not both.

    ``kind`` is "merged" if y has two modes that the draws merge, and "split" in the reverse case. ``share``
    of y and ``drawn`` of the draws lie between. ``group`` is the number of the group of rows, and
    ``densities`` are those of y and of its draws in that group, (2, bins).
    """

    kind: Literal["merged", "split"]
    group: int
    low: float
    high: float
    share: float
    drawn: float
    densities: tuple[tuple[float, ...], tuple[float, ...]]

    def describe_modes(self, whose: str = "of the data") -> str:
        """What happens to the modes, in words."""
        one, two = ("One mode", "is two") if self.kind == "split" else ("Two modes", "are one")
        return f"{one} {whose} {two} in the draws"

    def describe_interval(self, mean: str) -> str:
        """The interval in words, around a mean.

        >>> from dataclasses import replace
        >>> merged = Valley("merged", 0, -0.25, 0.5, 0.0, 0.3, ((), ()))
        >>> merged.describe_interval("the mean")
        'between 0.25 SD below and 0.5 SD above the mean'
        >>> replace(merged, low=-1.0, high=0.0).describe_interval("the mean")
        'between the mean and 1 SD below'
        >>> replace(merged, low=0.5, high=1.5).describe_interval("the mean")
        'between 0.5 and 1.5 SD above the mean'
        """
        near, far = sorted((abs(self.low), abs(self.high)))
        side = "below" if self.high <= 0 else "above"
        if self.low < 0 < self.high:
            return f"between {-self.low:g} SD below and {self.high:g} SD above {mean}"
        if near == 0:
            return f"between {mean} and {far:g} SD {side}"
        return f"between {near:g} and {far:g} SD {side} {mean}"

    @property
    def shares(self) -> str:
        """How many values lie in it, as in "3 % of y but 38 % of the draws"."""
        return f"{_show_share(self.share)} of y but {_show_share(self.drawn)} of the draws"


def _show_share(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def bin_values(z: Array) -> Array:
    """The bin of each standardised value; one beyond the last for values that are too far out.

    >>> bin_values(np.array([-3.5, 0.0, 0.2, 9.0]))
    array([ 0, 14, 14, 28])
    """
    place = np.floor(np.clip((z + REACH) / BIN, -1, N_BINS))
    found: Array = np.where(place < 0, N_BINS, place).astype(np.intp)
    return found


def measure_grain(values: Array, width: Array) -> float:
    """The typical distance of a value (N,) from the nearest different one, in units of ``width`` (N,).

    Of counts and rounded values this is the step between neighbours; of continuous ones it is nearly 0.

    >>> measure_grain(np.array([3.0, 5.0, 5.0, 4.0]), np.full(4, 2.0))
    0.5
    """
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) < 2:
        return float("inf")
    gaps = np.concatenate([[np.inf], np.diff(distinct), [np.inf]])
    return float(np.median(np.minimum(gaps[:-1], gaps[1:])[place] / width))


def find_valley(
    counts: Array,
    pooled: Array,
    aligned: Array,
    n_draws: int,
    sizes: Array,
    grain: float,
    preference: Array | float = 1.0,
) -> tuple[float, Valley | None]:
    """The p-value of the clearest valley, over groups of rows, that only y or only the draws have.

    ``counts`` (groups, bins) are the numbers of y in each bin, ``pooled`` those of all values of the same
    rows, y and its ``n_draws`` draws, and ``sizes`` (groups,) the numbers of rows. ``aligned`` are the counts
    of y after its mean and spread were made those of the draws, so that modes in the wrong place are not
    taken for merged ones. ``grain`` is the gap between neighbouring values in SDs. The clearest valley has
    the smallest log p-value times the ``preference`` (groups,) for its group.

    Intervals where the pooled values have a valley are tested for too many y, and those that overlap none for
    too few. The pooled values do not reveal which of them is y, so this choice is no look at the data, and
    Bonferroni adjusts for the tests that are left. An interval that does not show merged or split modes
    counts as not significant, which can only increase the p-value; it is 1 if there is no other.

    >>> y, draws = np.zeros((2, 28))
    >>> y[8:11], y[17:20], draws[8:20] = 20, 20, 10  # two modes, and none
    >>> p, valley = find_valley(y[None], (y + 50 * draws)[None], y[None], 50, np.array([120]), 0.0)
    >>> p < 1e-6, valley.kind, valley.low, valley.high, valley.share, valley.drawn
    (True, 'merged', -0.75, 0.75, 0.0, 0.5)
    """
    if len(sizes) == 0:  # nothing varies, such as the difference of outputs that are equal
        return 1.0, None
    drawn = (pooled - counts) / n_draws
    edges = np.arange(N_BINS + 1) * BIN - REACH
    best, log, valley, n_tests, n = 0.0, 0.0, None, 0, sizes[:, None]
    kind: Literal["merged", "split"]
    maybe, of_y, of_all = mark_valleys(aligned, ANY), mark_valleys(counts), mark_valleys(pooled)
    fewer = (_count_runs(maybe) < _count_runs(of_all))[:, None]
    for width in WIDTHS:
        middle = (edges[:-width] >= -MIDDLE) & (edges[width:] <= MIDDLE)
        deep = is_valley(pooled, width)
        free = _slide(of_all, width) == 0
        n_tests += int(((deep | free) & middle).sum())
        if width * BIN < GRAIN * grain:
            continue
        found, expected = _slide(counts, width), _slide(pooled, width) / (n_draws + 1)
        p = np.clip(expected / n, 0.0, 1.0)
        merged = middle & free & is_valley(counts, width) & is_valley(aligned, width)
        merged &= found <= expected - 1
        split = middle & deep & fewer & (_slide(of_y + maybe, width) == 0) & (found >= expected + 1)
        logs = np.where(merged, binom.logcdf(found, n, p), 0.0)
        logs += np.where(split, binom.logsf(found - 1, n, p), 0.0)
        preferred = logs * np.broadcast_to(preference, sizes.shape)[:, None]
        group, low = np.unravel_index(np.argmin(preferred), logs.shape)
        if preferred[group, low] < best:
            best, log, size = float(preferred[group, low]), float(logs[group, low]), sizes[group]
            kind = "merged" if merged[group, low] else "split"
            share, of_draws = (float(each[group, low : low + width].sum() / size) for each in (counts, drawn))
            density = [tuple((each[group] / size / BIN).tolist()) for each in (counts, drawn)]
            ends = float(edges[low]), float(edges[low + width])
            valley = Valley(kind, int(group), *ends, share, of_draws, (density[0], density[1]))
    return 1.0 if valley is None else float(min(1.0, n_tests * np.exp(log))), valley


def describe_valley(y: Array, yhat: Array, grain: float) -> Valley | None:
    """A valley that only y or only yhat has, (n,) each and standardised, without a test; None if none shows.

    >>> rng = np.random.default_rng(0)
    >>> y, yhat = rng.choice([-1.0, 1.0], 200) + 0.2 * rng.normal(size=200), rng.normal(size=200)
    >>> valley = describe_valley(y, yhat, 0.0)
    >>> valley.kind, valley.low, valley.high, valley.share, valley.drawn
    ('merged', -0.75, 0.75, 0.12, 0.52)
    """
    if min(y.std(), yhat.std()) == 0:
        return None
    aligned = (y - y.mean()) / y.std() * yhat.std() + yhat.mean()
    of_y, of_yhat, of_aligned = (
        np.bincount(bin_values(each), minlength=N_BINS + 1)[None, :N_BINS] for each in (y, yhat, aligned)
    )
    free_y = mark_valleys(of_y, ANY) + mark_valleys(of_aligned, ANY)
    free_yhat = mark_valleys(of_yhat, ANY)
    edges, n = np.arange(N_BINS + 1) * BIN - REACH, len(y)
    best, valley = PLAIN * n, None
    for width in WIDTHS:
        if width * BIN < GRAIN * grain:
            continue
        middle = (edges[:-width] >= -MIDDLE) & (edges[width:] <= MIDDLE)
        inside, drawn = _slide(of_y, width), _slide(of_yhat, width)
        merged = is_valley(of_y, width) & is_valley(of_aligned, width) & (_slide(free_yhat, width) == 0)
        split = is_valley(of_yhat, width) & (_slide(free_y, width) == 0)
        excess = np.where(middle & merged, drawn - inside, np.where(middle & split, inside - drawn, 0))[0]
        low = int(np.argmax(excess))
        if excess[low] > best:
            ends = float(edges[low]), float(edges[low + width])
            shares = float(inside[0, low] / n), float(drawn[0, low] / n)
            density = [tuple((each[0] / n / BIN).tolist()) for each in (of_y, of_yhat)]
            kind: Literal["merged", "split"] = "merged" if merged[0, low] else "split"
            best, valley = excess[low], Valley(kind, 0, *ends, *shares, (density[0], density[1]))
    return valley


def _slide(counts: Array, width: int) -> Array:
    """Sums over windows of some bins, (groups, bins - width + 1)."""
    total = np.cumsum(np.pad(counts, ((0, 0), (1, 0))), axis=1)
    found: Array = total[:, width:] - total[:, :-width]
    return found


def is_valley(counts: Array, width: int, chance: float = CHANCE) -> Array:
    """Whether each window holds much less than the fullest on either side, and not by chance."""
    inside = _slide(counts, width)
    beside = np.zeros_like(inside)
    left = np.maximum.accumulate(inside, axis=1)[:, : -2 * width]
    right = np.maximum.accumulate(inside[:, ::-1], axis=1)[:, ::-1][:, 2 * width :]
    beside[:, width:-width] = np.minimum(left, right)
    deep: Array = (inside <= DEEP * beside) & (binom.cdf(inside, inside + beside, 0.5) <= chance)
    return deep


def mark_valleys(counts: Array, chance: float = CHANCE) -> Array:
    """1 for every bin of a valley of any width, otherwise 0."""
    marked = np.zeros(counts.shape)
    for width in WIDTHS:
        deep = is_valley(counts, width, chance)
        for shift in range(width):
            marked[:, shift : shift + deep.shape[1]] += deep
    return np.minimum(marked, 1.0)


def _count_runs(marked: Array) -> Array:
    """The number of runs of marked bins in each group, which is that of valleys."""
    runs: Array = (np.diff(np.pad(marked, ((0, 0), (1, 0))), axis=1) > 0).sum(1)
    return runs
