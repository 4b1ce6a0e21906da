"""The checks of a diagnosis: exact tests of calibration, spread, skill, and inputs far from the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import betaincinv, chdtr, chdtrc, ndtr, ndtri, stdtr
from scipy.stats import kstest

from localw2._validation import Array, check_radius
from localw2.balls.neighborhoods import Neighborhoods, check_given
from localw2.balls.norms import Norm, Weighted, check_norm
from localw2.judging.inputs import MISSING
from localw2.metrics import crps, energy_score, pit

if TYPE_CHECKING:
    from localw2.judging.diagnosis.modes import Modes
    from localw2.judging.inputs import Input

LEVEL = 0.05  # probability that a calibrated sampler is called wrong, over all tests together
FEW_ROWS = 20  # fewer rows show only gross errors and are not cut into regions
SMALLEST_REGION = 5
ALL_ROWS = "all rows"
PREDICTIONS = ("predicted mean", "predicted SD")
RELEVANT = 3  # input columns along which regions are made
CHUNK = 1 << 21  # numbers processed at a time
FEW_NEAR = 5  # a ball with fewer training rows is called sparse
PLACES = 2000  # training rows from which typical distances are estimated
TREE_COLUMNS = 3  # in more columns a KD-tree is slower than all distances
REFERENCE = 10_000  # in more columns, at most this many training rows are compared with
BASE_DRAWS = 200  # draws per row of the forecast that ignores x
JOINT_DRAWS = 50  # draws in an energy score, whose cost grows with their square; it is fair at any number
ENOUGH_DRAWS = 40  # from this many on, the draws that define regions are not used for the PIT
REGION_DRAWS = 50  # at most about this many draws per row define regions
MAX_PAIRS = 45  # pairs of outputs whose dependence is tested; a random subset if there are more

Pairs = list[tuple[int, int]]


@final
@dataclass(frozen=True)
class Group:
    """Calibration of one output in a group of rows.

    ``shift`` and ``spread`` are the mean and SD of the normal scores of y among its draws, 0 and 1 if
    calibrated: y lies ``shift`` SDs above its draws and scatters ``spread`` times as widely. ``coverage`` is
    (nominal, share, low, high) for each level; ``adjusted`` holds the Holm-adjusted p-value of each test.
    ``words`` says which values of ``by`` the group has where ``low`` and ``high`` do not.
    """

    output: int
    by: str
    low: float
    high: float
    n: int
    shift: float
    spread: float
    coverage: tuple[tuple[float, float, float, float], ...]
    pvalues: dict[str, float]
    adjusted: dict[str, float]
    words: str = ""

    @property
    def overall(self) -> bool:
        """Whether these are all rows."""
        return self.by == ALL_ROWS

    @property
    def shift_pvalue_at_spread(self) -> float:
        """The p-value of the shift given that y scatters ``spread`` times as widely as its draws.

        If the draws are too narrow, the mean score varies by more than 1 / sqrt(n) even if the mean is right.
        """
        return float(2 * stdtr(self.n - 1, -abs(self.shift) * math.sqrt(self.n) / max(self.spread, 1e-300)))

    @property
    def where(self) -> str:
        """The rows in words, as in the table."""
        return self.by if self.overall else f"{self.by} {self._values}"

    @property
    def where_clause(self) -> str:
        """The rows as the end of a sentence; empty if these are all rows."""
        return "" if self.overall else describe_place(self.by, self._values)

    @property
    def _values(self) -> str:
        numbers = f"= {self.low:.3g}" if self.low == self.high else f"in [{self.low:.3g}, {self.high:.3g}]"
        return self.words or numbers

    def describe(self, test: str, whose: str = "") -> tuple[str, str]:
        """The kind of error that a failed test reveals, and a sentence; ``whose`` says of which output."""
        place = "" if self.overall else f"{self.where_clause} ({self.n} rows)"
        if test == "shift":
            kind = "above" if self.shift > 0 else "below"
            size = f"about {abs(self.shift):.2g} SD"
            return kind, f"The observed y{whose} lies {size} {kind} its draws{place}"
        if test == "shape":
            return "shape", f"The draws{whose} have the wrong shape, although their mean and spread are right"
        kind, only = ("narrow", "") if self.spread > 1 else ("wide", "only ")
        ratio = f"{only}{self.spread:.2g} times as widely"
        return kind, f"The draws{whose} are too {kind}{place}: y scatters {ratio}"


def describe_place(by: str, values: str) -> str:
    """A region as the end of a sentence."""
    return f" where {f'the {by}' if by in PREDICTIONS else by} is {values.removeprefix('= ')}"


@final
@dataclass(frozen=True)
class Dependence:
    """Whether two outputs vary together as in the draws: ``excess`` is 0 if so, above 0 if more."""

    outputs: tuple[int, int]
    excess: float
    pvalue: float
    adjusted: float


@final
@dataclass(frozen=True, eq=False)
class RowStatistics:
    """What is kept of the draws, (N, d) each: PIT, CRPS, mean and SD of the draws.

    ``centre`` and ``width`` are the mean and SD of draws that do not enter the PIT, so that the PIT stays
    exactly uniform in the regions they define: in regions of low SD of the *same* draws y would seem to
    scatter too widely, because that SD is partly low by chance. Fewer than 40 draws are too few to split;
    then centre and width are those of y and its draws pooled, which do not reveal which of the S + 1 values
    is y. ``joint`` (N, pairs) is the PIT of the product of two outputs, standardised by centre and width.
    """

    pit: Array
    crps: Array
    mean: Array
    std: Array
    centre: Array
    width: Array
    joint: Array

    @classmethod
    def of(cls, y: Array, samples: Array, pairs: Pairs, rng: np.random.Generator) -> RowStatistics:
        """From y (N, d) and samples (S, N, d), a chunk of rows at a time, to avoid copying all draws."""
        chunks = split_rows(len(y), samples[:, 0].size)
        parts = [_summarize_rows(y[rows], samples[:, rows], pairs, rng) for rows in chunks]
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def split_rows(n: int, numbers_per_row: int) -> Iterator[slice]:
    """Slices of n rows that hold a bounded number of numbers each."""
    step = max(1, CHUNK // numbers_per_row)
    return (slice(low, low + step) for low in range(0, n, step))


def _summarize_rows(y: Array, samples: Array, pairs: Pairs, rng: np.random.Generator) -> tuple[Array, ...]:
    draws = samples.astype(np.float64, copy=False)
    apart = set_apart(len(draws))
    rest = draws[~apart]
    together = np.concatenate([y[None], rest])
    centre, width = compute_moments(draws[apart] if apart.any() else together)
    scores = crps(y, draws), *compute_moments(draws), centre, width
    together = (together - centre) / np.where(width > 0, width, 1.0)
    joint = np.empty((len(y), len(pairs)))
    for i, (j, k) in enumerate(pairs):
        product = together[..., j] * together[..., k]
        joint[:, i] = pit(product[0], product[1:], rng)
    return pit(y, rest, rng), *scores, joint


def set_apart(n: int) -> Array:
    """The draws that define regions, a mask: every second, about 50 of many, none of few.

    They are evenly spaced, so that draws in ascending order are also split into two equal distributions.
    """
    step = max(2, n // REGION_DRAWS)
    apart: Array = (np.arange(n) % step == step // 2) & (n >= ENOUGH_DRAWS)
    return apart


def compute_moments(draws: Array) -> tuple[Array, Array]:
    """Mean and SD over the first axis; the SD of equal draws is exactly 0, without rounding error."""
    equal = draws.min(0) == draws.max(0)
    return np.where(equal, draws[0], draws.mean(0)), np.where(equal, 0.0, draws.std(0, ddof=1))


def choose_pairs(d: int, rng: np.random.Generator) -> Pairs:
    """All pairs of outputs, or a random subset of many."""
    pairs = list(combinations(range(d), 2))
    if len(pairs) <= MAX_PAIRS:
        return pairs
    return [pairs[i] for i in np.sort(rng.choice(len(pairs), MAX_PAIRS, replace=False))]


def check_groups(
    rows: RowStatistics, x: Array, inputs: Sequence[Input], coverages: tuple[float, ...], n_regions: int
) -> tuple[list[Group], list[int]]:
    """Test every group of every output, without adjustment, and rank the columns of x by relevance.

    Regions are quantile groups of the predicted mean, the predicted SD and the columns of x (N, p) along
    which these two change most; of a categorical column they are its most frequent categories.
    """
    n, d = rows.pit.shape
    both = np.column_stack([rows.centre, rows.width])
    cuts = [cut_input(each, column, 10) for each, column in zip(inputs, x.T, strict=True)]
    relevance = [max(_measure_relevance([r for r, _ in cut], values) for values in both.T) for cut in cuts]
    order = [int(i) for i in np.argsort(-np.array(relevance), kind="stable")]
    found = []
    for k in range(d):
        found.append(_test_group(k, ALL_ROWS, np.zeros(1), rows.pit[:, k], coverages))
        if n < FEW_ROWS:
            continue
        cut: list[tuple[str, Array, Array, str]] = []
        for name, values in zip(PREDICTIONS, (rows.centre[:, k], rows.width[:, k]), strict=True):
            cut += [(name, values, region, "") for region in cut_regions(values, n_regions)]
        for i in order[:RELEVANT]:
            regions = cut_input(inputs[i], x[:, i], n_regions)
            cut += [(inputs[i].name, x[:, i], region, words) for region, words in regions]
        for name, values, region, words in cut:
            if SMALLEST_REGION <= len(region) < n:
                found.append(_test_group(k, name, values[region], rows.pit[region, k], coverages, words))
    return found, order


def cut_input(each: Input, values: Array, n_regions: int) -> list[tuple[Array, str]]:
    """Row numbers of groups of an input (N,), and its values in words: quantile groups, or categories.

    Of many categories, those beyond the ``n_regions`` most frequent ones form one group. Missing values form
    a group of their own.
    """
    missing, seen = np.flatnonzero(np.isnan(values)), np.flatnonzero(~np.isnan(values))
    found: list[tuple[Array, str]] = []
    if each.kind == "category":
        codes, counts = np.unique(values[seen], return_counts=True)
        codes = codes[np.argsort(-counts, kind="stable")]
        frequent = np.sort(codes if len(codes) <= n_regions + 1 else codes[:n_regions])
        found += [(np.flatnonzero(values == code), f"= {each.show(code)}") for code in frequent]
        if len(frequent) < len(codes):
            rest = seen[~np.isin(values[seen], frequent)]
            found.append((rest, f"one of {len(codes) - len(frequent)} other categories"))
    elif len(seen):
        for part in cut_regions(values[seen], n_regions):
            low, high = (each.show(end, 3) for end in (values[seen[part]].min(), values[seen[part]].max()))
            found.append((seen[part], f"= {low}" if low == high else f"in [{low}, {high}]"))
    return found + ([(missing, f"= {MISSING}")] if len(missing) else [])


def cut_regions(values: Array, n_regions: int) -> list[Array]:
    """Row numbers of quantile groups of values (N,); few distinct values form one group each."""
    edges = np.unique(values)
    if len(edges) > n_regions:
        edges = np.unique(np.quantile(values, np.arange(1, n_regions) / n_regions))
    label = np.searchsorted(edges, values, side="right")
    return [np.flatnonzero(label == i) for i in np.unique(label)]


def _measure_relevance(parts: list[Array], values: Array) -> float:
    """The share of the variance of values (N,) that groups of rows explain beyond chance."""
    variance = float(values.var())
    if variance == 0 or len(values) <= len(parts):
        return 0.0
    between = sum(len(rows) * (values[rows].mean() - values.mean()) ** 2 for rows in parts)
    share = float(between) / (len(values) * variance)
    return 1 - (1 - share) * (len(values) - 1) / (len(values) - len(parts))


def _test_group(
    k: int, by: str, values: Array, u: Array, coverages: tuple[float, ...], words: str = ""
) -> Group:
    r"""Test one group of rows, given its PIT u (n,), whose normal scores are z.

    If the draws are calibrated, z are independent N(0, 1), so that :math:`\sqrt n \bar z` is N(0, 1) and
    :math:`\sum (z - \bar z)^2` is chi-square with n - 1 degrees of freedom, exactly for every n and S, and
    the two are independent. Kolmogorov-Smirnov on all rows detects any other wrong shape.
    """
    z = _score_normal(u)
    n, shift = len(z), float(z.mean())
    squares = float(((z - shift) ** 2).sum())
    pvalues = {
        "shift": float(2 * ndtr(-abs(shift) * np.sqrt(n))),
        "spread": float(min(1.0, 2 * min(chdtr(n - 1, squares), chdtrc(n - 1, squares)))),
    }
    if by == ALL_ROWS:
        pvalues["shape"] = float(kstest(u, "uniform").pvalue)
    inside = np.abs(u - 0.5)[:, None] <= np.array(coverages) / 2
    levels = [(c, *exact_share(int(hits), n)) for c, hits in zip(coverages, inside.sum(0), strict=True)]
    ends = float(values.min()), float(values.max())
    spread = float(np.sqrt(squares / (n - 1)))
    return Group(k, by, *ends, n, shift, spread, tuple(levels), pvalues, {}, words)


def _score_normal(u: Array) -> Array:
    scores: Array = ndtri(np.clip(u, 1e-16, 1 - 1e-16))
    return scores


def exact_share(hits: int, n: int) -> tuple[float, float, float]:
    """A share and its Clopper-Pearson 95 % interval.

    >>> [round(v, 4) for v in exact_share(0, 10)]
    [0.0, 0.0, 0.3085]
    """
    low = float(betaincinv(hits, n - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 0.975)) if hits < n else 1.0
    return hits / n, low, high


def check_pairs(joint: Array, pairs: Pairs) -> list[Dependence]:
    """Test the products of two outputs (N, pairs): their mean normal score is 0 if the draws are right."""
    found = []
    for u, pair in zip(joint.T, pairs, strict=True):
        excess = float(_score_normal(u).mean())
        found.append(Dependence(pair, excess, float(2 * ndtr(-abs(excess) * np.sqrt(len(u)))), 1.0))
    return found


def adjust_pvalues(
    groups: list[Group], pairs: list[Dependence], modes: list[Modes]
) -> tuple[list[Group], list[Dependence], list[Modes], int]:
    """The same groups, pairs and modes with Holm-adjusted p-values, and the number of tests."""
    raw = [p for group in groups for p in group.pvalues.values()]
    raw += [pair.pvalue for pair in pairs] + [each.pvalue for each in modes]
    holm = iter(adjust_by_holm(np.array(raw)).tolist())
    groups = [replace(group, adjusted={test: next(holm) for test in group.pvalues}) for group in groups]
    pairs = [replace(pair, adjusted=next(holm)) for pair in pairs]
    return groups, pairs, [replace(each, adjusted=next(holm)) for each in modes], len(raw)


def adjust_by_holm(pvalues: Any) -> Array:
    """Holm-adjusted p-values: rejecting those <= .05 makes any error with probability <= .05.

    >>> adjust_by_holm(np.array([0.01, 0.5, 0.02])).round(3)
    array([0.03, 0.5 , 0.04])
    """
    order = np.argsort(pvalues)
    steps = np.arange(len(order), 0, -1) * np.asarray(pvalues)[order]
    result = np.empty(len(order))
    result[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return result


def measure_spread(residual: Array, std: Array, n_samples: int) -> tuple[float, tuple[float, float]]:
    """The root mean square of residual / SD, (N,) each, over rows with spread, and its 95 % interval."""
    some = std > 1e-9 * np.abs(residual).max()
    if some.sum() < 2 or n_samples < 4 or not residual[some].any():
        return math.nan, (math.nan, math.nan)
    squares = (residual[some] / std[some]) ** 2
    # SD and mean of S Gaussian draws are noisy: the first inflates the squares, the second adds 1 / S.
    squares *= (n_samples - 3) / (n_samples - 1)
    ratio = math.sqrt(max(float(squares.mean()) - 1 / n_samples, 0.0))
    # On a log scale, with the observed scatter of the squares: valid for non-Gaussian tails as well.
    reach = 1.96 * float(squares.std(ddof=1)) / (2 * float(squares.mean()) * math.sqrt(len(squares)))
    return ratio, (ratio * math.exp(-reach), ratio * math.exp(reach))


def measure_skill(
    y: Array, samples: Array, own: Array, y_train: Array | None, rng: np.random.Generator
) -> dict[str, Any]:
    """Score, score of a forecast that ignores x, and skill 1 - score / base with its standard error.

    ``own`` (N, d) is the CRPS of the draws; several outputs are scored jointly, in SDs of y. The error is
    that of a ratio of paired means.
    """
    n, d = y.shape
    pool = y if y_train is None else y_train
    scale = np.where(pool.std(0) > 0, pool.std(0), 1.0) if d > 1 else np.ones(1)
    wanted = BASE_DRAWS if d == 1 else JOINT_DRAWS
    # Without training rows: a common shift gives every row only other rows, each equally often.
    shifts = 1 + rng.choice(n - 1, min(wanted, n - 1), replace=False)[:, None]
    score, base = own[:, 0].copy(), np.full(n, np.nan)
    for rows in split_rows(n, wanted * d):
        at, part = np.arange(n)[rows], y[rows] / scale
        others = (at + shifts) % n if y_train is None else rng.integers(len(pool), size=(wanted, len(at)))
        if d > 1:
            score[rows] = energy_score(part, samples[:JOINT_DRAWS, rows] / scale)
        if len(others) > 1:  # for one output this is the CRPS
            base[rows] = energy_score(part, pool[others] / scale)
    source = "all y" if y_train is None else "y_train"
    known = bool(base.mean() > 0)
    ratio = float(score.mean() / base.mean()) if known else math.nan
    error = float((score - ratio * base).std(ddof=1) / base.mean() / math.sqrt(n)) if known else math.nan
    return {
        "score": float(score.mean()),
        "base": f"a baseline that ignores the inputs and predicts the distribution of {source}",
        "base_score": float(base.mean()),
        "skill": 1 - ratio,
        "skill_error": error,
    }


def check_inputs(
    x: Array,
    training: Array | None,
    delta: float | Neighborhoods | None,
    norm: Norm | None,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Count the training rows near each row, and find rows with few of them or outside all of them.

    Given balls of x say how many *other* rows of x are near; their delta is NaN. Outside is beyond the range
    of a column, or farther from all training rows than those are apart.
    """
    reference = x if training is None else training
    kept = reference
    if len(reference) > REFERENCE and x.shape[1] > TREE_COLUMNS:
        kept = reference[rng.choice(len(reference), REFERENCE, replace=False)]
    in_std = Weighted.standardised(reference)
    if isinstance(delta, Neighborhoods):
        check_given(delta, "delta", len(x), norm)
        sizes = delta.average(delta.sizes.numpy() - 1.0, otherwise=0.0)
        delta = math.nan
    else:
        norm = in_std if norm is None and delta is None else check_norm(norm)
        among, at, share = norm.embed(kept), norm.embed(x), len(kept) / len(reference)
        if delta is None:
            rank = min(len(among), 1 + max(1, round(FEW_NEAR * share)))
            delta = float(np.quantile(_measure_reach(_choose_places(among, rng), among, rank), 0.99))
        delta = check_radius(delta)
        # Without training rows a row must not count itself; a random subset holds it with this probability.
        sizes = np.maximum(_count_near(at, among, delta) / share - (training is None), 0.0)
    outside = None
    if training is not None:
        outside = ((x < training.min(0)) | (x > training.max(0))).any(1)
        distinct = np.unique(in_std.embed(kept), axis=0)  # copies would make every new row an outsider
        if len(distinct) > 1:
            usual = np.quantile(_measure_reach(_choose_places(distinct, rng), distinct, 2), 0.995)
            outside |= _measure_reach(in_std.embed(x), distinct, 1) > usual
    return {"delta": delta, "ball_sizes": sizes, "sparse": sizes < FEW_NEAR, "extrapolated": outside}


def _choose_places(rows: Array, rng: np.random.Generator) -> Array:
    return rows[rng.choice(len(rows), min(len(rows), PLACES), replace=False)]


def _measure_reach(at: Array, among: Array, rank: int) -> Array:
    """The distance from each row to its rank-th nearest; the first is the row itself if it is among them."""
    if at.shape[1] <= TREE_COLUMNS:
        nearest: Array = cKDTree(among).query(at, [rank])[0][:, 0]
        return nearest
    squares = _compute_squares(at, among)
    last = rank - 1  # the minimum is much faster than a partition
    return np.concatenate([np.sqrt(np.partition(d, last)[:, last] if last else d.min(1)) for d in squares])


def _count_near(at: Array, among: Array, delta: float) -> Array:
    """The number of rows within delta of each row, in closed balls up to rounding."""
    radius = delta * (1 + 1e-9)
    if at.shape[1] <= TREE_COLUMNS:
        counts: Array = cKDTree(among).query_ball_point(at, radius, return_length=True)
        return counts
    return np.concatenate([(d <= radius**2).sum(1) for d in _compute_squares(at, among)])


def _compute_squares(at: Array, among: Array) -> Iterator[Array]:
    """All squared distances, by matrix products: in many columns a tree visits nearly all rows, slowly."""
    middle = among.mean(0)
    among, at = among - middle, at - middle
    lengths = (among**2).sum(1)
    for rows in split_rows(len(at), len(among)):
        squares = (-2 * at[rows]) @ among.T
        squares += lengths
        squares += (at[rows] ** 2).sum(1)[:, None]
        yield np.maximum(squares, 0.0, out=squares)
