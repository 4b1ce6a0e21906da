"""The single checks of a diagnosis: exact tests of calibration, spread, skill, inputs far from the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import betaincinv, chdtr, chdtrc, ndtr, ndtri, stdtr
from scipy.stats import kstest

from localw2._validation import Array, check_radius
from localw2.balls.norms import Norm, Weighted, check_norm
from localw2.metrics import crps, energy_score, pit

LEVEL = 0.05  # chance that a calibrated sampler is called wrong, over all tests together
FEW_ROWS = 20  # fewer can show gross errors only, and have no regions
SMALLEST_REGION = 5
ALL_ROWS = "all rows"
PREDICTIONS = ("predicted mean", "predicted SD")
RELEVANT = 3  # input columns that are cut into regions
CHUNK = 1 << 21  # numbers worked on at a time
FEW_NEAR = 5  # a ball with fewer training rows is called sparse
PLACES = 2000  # training rows from which the usual distances are read
TREE_COLUMNS = 3  # in more columns a KD-tree is slower than all distances
REFERENCE = 10_000  # training rows compared with where there are more than that and more columns
BASE_DRAWS = 200  # draws of the base rate for each row
JOINT_DRAWS = 50  # draws in an energy score, whose time grows with their square; it is fair at any number
ENOUGH_DRAWS = 40  # from so many on regions are made of draws that are not used for the PIT
REGION_DRAWS = 50  # draws of each row, at most about so many, that regions are made of
MAX_PAIRS = 45  # pairs of outputs whose dependence is tested, a random part of more


@final
@dataclass(frozen=True)
class Group:
    """Calibration of one output in a group of rows.

    ``shift`` and ``spread`` are mean and SD of the normal scores of y among its draws, 0 and 1 if calibrated:
    y lies ``shift`` SDs too high and scatters ``spread`` times as widely. ``coverage`` is (nominal, share,
    low, high) for each level; ``adjusted`` are the p-values of each test after Holm.
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

    @property
    def overall(self) -> bool:
        """Whether these are all rows."""
        return self.by == ALL_ROWS

    @property
    def shift_pvalue_at_spread(self) -> float:
        """The p-value of the shift if y scatters ``spread`` times as widely, whether that is right or not.

        Draws that are too narrow move the mean score more than 1 / sqrt(n), with a mean that is right.
        """
        return float(2 * stdtr(self.n - 1, -abs(self.shift) * math.sqrt(self.n) / max(self.spread, 1e-300)))

    @property
    def where(self) -> str:
        """The rows in words."""
        return self.by if self.overall else f"{self.by} in [{self.low:.3g}, {self.high:.3g}]"

    def finding(self, test: str) -> tuple[str, str]:
        """The kind of error that a failed test means, and a sentence that says so."""
        if test == "shift":
            kind = "above" if self.shift > 0 else "below"
            return kind, f"y lies {kind} its draws by about {abs(self.shift):.2g} SD"
        if test == "shape":
            return "shape", "the law has the wrong shape, though mean and spread agree"
        kind = "narrow" if self.spread > 1 else "wide"
        return kind, f"the draws are too {kind}, y scatters {self.spread:.2g} times as widely as they do"


@final
@dataclass(frozen=True)
class Dependence:
    """Whether two outputs go together as in the draws: ``excess`` is 0 if so, above 0 if they do so more."""

    outputs: tuple[int, int]
    excess: float
    pvalue: float
    adjusted: float


@final
@dataclass(frozen=True, eq=False)
class RowStatistics:
    """What is kept of the draws, (N, d) each: PIT, CRPS, mean and SD of the draws.

    ``centre`` and ``width`` are mean and SD of draws that are kept out of the PIT, so that PIT stays exactly
    uniform in regions made of these: in regions of low SD of the *same* draws y would look too scattered,
    since that SD is partly low by chance. Fewer than 40 draws are too few to part; then they are those of y
    and its draws taken together, which do not know which of the S + 1 values is y. ``joint`` (N, pairs) is
    the PIT of the product of two outputs, standardised by centre and width.
    """

    pit: Array
    crps: Array
    mean: Array
    std: Array
    centre: Array
    width: Array
    joint: Array

    @classmethod
    def of(
        cls, y: Array, samples: Array, pairs: list[tuple[int, int]], rng: np.random.Generator
    ) -> RowStatistics:
        """From y (N, d) and samples (S, N, d), some rows at a time, so that not all draws are copied."""
        parts = [
            _of_chunk(y[rows], samples[:, rows], pairs, rng) for rows in chunks(len(y), samples[:, 0].size)
        ]
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def chunks(n: int, numbers_a_row: int) -> Iterator[slice]:
    """Slices of n rows that hold a bounded number of numbers each."""
    step = max(1, CHUNK // numbers_a_row)
    return (slice(low, low + step) for low in range(0, n, step))


def _of_chunk(
    y: Array, samples: Array, pairs: list[tuple[int, int]], rng: np.random.Generator
) -> tuple[Array, ...]:
    draws = samples.astype(np.float64, copy=False)
    apart = _kept_apart(len(draws))
    rest = draws[~apart]
    together = np.concatenate([y[None], rest])
    centre, width = _moments(draws[apart] if apart.any() else together)
    scores = crps(y, draws), *_moments(draws), centre, width
    together = (together - centre) / np.where(width > 0, width, 1.0)
    joint = np.empty((len(y), len(pairs)))
    for i, (j, k) in enumerate(pairs):
        product = together[..., j] * together[..., k]
        joint[:, i] = pit(product[0], product[1:], rng)
    return pit(y, rest, rng), *scores, joint


def _moments(draws: Array) -> tuple[Array, Array]:
    """Mean and SD over the first axis; equal draws have no spread, whatever the rounding of the mean says."""
    equal = draws.min(0) == draws.max(0)
    return np.where(equal, draws[0], draws.mean(0)), np.where(equal, 0.0, draws.std(0, ddof=1))


def _kept_apart(n_samples: int) -> Array:
    """Which draws regions are made of, (S,): every second, or of many about 50, or of few none.

    Evenly spaced, so that draws in ascending order are parted into equal laws, too.
    """
    step = max(2, n_samples // REGION_DRAWS)
    apart: Array = (np.arange(n_samples) % step == step // 2) & (n_samples >= ENOUGH_DRAWS)
    return apart


def output_pairs(d: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """The pairs of outputs, or a random part of many."""
    pairs = list(combinations(range(d), 2))
    if len(pairs) <= MAX_PAIRS:
        return pairs
    return [pairs[i] for i in np.sort(rng.choice(len(pairs), MAX_PAIRS, replace=False))]


def check_groups(
    rows: RowStatistics, x: Array, names: list[str], coverages: tuple[float, ...], n_regions: int
) -> tuple[list[Group], list[int]]:
    """Every group of every output, not yet adjusted, and the columns of x by falling relevance.

    Regions are quantile groups of the predicted mean, of the predicted SD and of the columns of x along which
    these two change most.
    """
    n, d = rows.pit.shape
    both = np.column_stack([rows.centre, rows.width])
    relevance = [max(_explained(column, values) for values in both.T) for column in x.T]
    order = [int(i) for i in np.argsort(-np.array(relevance), kind="stable")]
    scores = ndtri(np.clip(rows.pit, 1e-16, 1 - 1e-16))
    found = []
    for k in range(d):
        cut = list(zip(PREDICTIONS, (rows.centre[:, k], rows.width[:, k]), strict=True))
        cut += [(names[i], x[:, i]) for i in order[:RELEVANT]]
        found.append(_check(k, ALL_ROWS, np.zeros(1), rows.pit[:, k], scores[:, k], coverages))
        for name, values in cut if n >= FEW_ROWS and n_regions > 1 else []:
            for region in regions(values, n_regions):
                if SMALLEST_REGION <= len(region) < n:
                    columns = values[region], rows.pit[region, k], scores[region, k]
                    found.append(_check(k, name, *columns, coverages))
    return found, order


def regions(values: Array, n_regions: int) -> list[Array]:
    """Row numbers of quantile groups of values (N,); few distinct values are a group each."""
    edges = np.unique(values)
    if len(edges) > n_regions:
        edges = np.unique(np.quantile(values, np.arange(1, n_regions) / n_regions))
    label = np.searchsorted(edges, values, side="right")
    return [np.flatnonzero(label == i) for i in np.unique(label)]


def _explained(column: Array, values: Array) -> float:
    """The share of the variance of values (N,) that groups of the column explain, beyond chance."""
    variance = float(values.var())
    parts = regions(column, 10)
    if variance == 0 or len(values) <= len(parts):
        return 0.0
    between = sum(len(rows) * (values[rows].mean() - values.mean()) ** 2 for rows in parts)
    share = float(between) / (len(values) * variance)
    return 1 - (1 - share) * (len(values) - 1) / (len(values) - len(parts))


def _check(k: int, by: str, values: Array, u: Array, z: Array, coverages: tuple[float, ...]) -> Group:
    r"""The tests of one group: PIT u (n,) and its normal scores z.

    If calibrated, z are independent N(0, 1), so that :math:`\sqrt n \bar z` is N(0, 1) and
    :math:`\sum (z - \bar z)^2` is chi-square with n - 1 degrees of freedom, exactly at every n and S, and
    each is blind to what the other sees. Kolmogorov-Smirnov on all rows sees any other shape.
    """
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
    return Group(k, by, *ends, n, shift, spread, tuple(levels), pvalues, {})


def exact_share(hits: int, n: int) -> tuple[float, float, float]:
    """A share and its Clopper-Pearson 95 % interval.

    >>> [round(v, 4) for v in exact_share(0, 10)]
    [0.0, 0.0, 0.3085]
    """
    low = float(betaincinv(hits, n - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 0.975)) if hits < n else 1.0
    return hits / n, low, high


def check_pairs(joint: Array, pairs: list[tuple[int, int]]) -> list[Dependence]:
    """Tests of the products of two outputs (N, pairs): a mean normal score of 0 if the draws are right."""
    found = []
    for u, pair in zip(joint.T, pairs, strict=True):
        excess = float(ndtri(np.clip(u, 1e-16, 1 - 1e-16)).mean())
        found.append(Dependence(pair, excess, float(2 * ndtr(-abs(excess) * np.sqrt(len(u)))), 1.0))
    return found


def adjusted(groups: list[Group], pairs: list[Dependence]) -> tuple[list[Group], list[Dependence], int]:
    """The same with p-values adjusted for the number of all tests, which comes with them."""
    raw = [p for group in groups for p in group.pvalues.values()] + [pair.pvalue for pair in pairs]
    holm = iter(holm_adjusted(np.array(raw)).tolist())
    groups = [replace(group, adjusted={test: next(holm) for test in group.pvalues}) for group in groups]
    return groups, [replace(pair, adjusted=next(holm)) for pair in pairs], len(raw)


def holm_adjusted(pvalues: Any) -> Array:
    """Holm's adjusted p-values: rejecting those <= .05 errs anywhere with chance .05, however they depend.

    >>> holm_adjusted(np.array([0.01, 0.5, 0.02])).round(3)
    array([0.03, 0.5 , 0.04])
    """
    order = np.argsort(pvalues)
    steps = np.arange(len(order), 0, -1) * np.asarray(pvalues)[order]
    result = np.empty(len(order))
    result[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return result


def spread_ratio(residual: Array, std: Array, n_samples: int) -> tuple[float, tuple[float, float]]:
    """The root mean square of residual / SD, (N,) each, over rows with a spread, and its 95 % interval."""
    some = std > 1e-9 * np.abs(residual).max()
    if some.sum() < 2 or n_samples < 4 or not residual[some].any():
        return math.nan, (math.nan, math.nan)
    squares = (residual[some] / std[some]) ** 2
    # SD and mean of S Gaussian draws err themselves: the first inflates the squares, the second adds 1 / S.
    squares *= (n_samples - 3) / (n_samples - 1)
    ratio = math.sqrt(max(float(squares.mean()) - 1 / n_samples, 0.0))
    # On a log scale with the observed scatter of the squares: right for tails that are not Gaussian, too.
    reach = 1.96 * float(squares.std(ddof=1)) / (2 * float(squares.mean()) * math.sqrt(len(squares)))
    return ratio, (ratio * math.exp(-reach), ratio * math.exp(reach))


def skill(
    y: Array, samples: Array, own: Array, y_train: Array | None, rng: np.random.Generator
) -> dict[str, Any]:
    """Score, base rate, and skill 1 - score / base with the standard error of a ratio of paired means.

    ``own`` (N, d) is the CRPS of the draws; several outputs are scored together, in SDs of y.
    """
    n, d = y.shape
    pool = y if y_train is None else y_train
    scale = np.where(pool.std(0) > 0, pool.std(0), 1.0) if d > 1 else np.ones(1)
    wanted = BASE_DRAWS if d == 1 else JOINT_DRAWS
    # Without training rows, shifting all rows by as many gives each row other rows only, each as often.
    shifts = 1 + rng.choice(n - 1, min(wanted, n - 1), replace=False)[:, None]
    scores, bases = [], []
    for rows in chunks(n, wanted * d):
        at, part = np.arange(n)[rows], y[rows] / scale
        others = (at + shifts) % n if y_train is None else rng.integers(len(pool), size=(wanted, len(at)))
        score = own[rows] if d == 1 else energy_score(part, samples[:JOINT_DRAWS, rows] / scale)
        base = np.full(len(at), np.nan)
        if len(others) > 1:
            base = crps(part, pool[others]) if d == 1 else energy_score(part, pool[others] / scale)
        scores.append(score.ravel())
        bases.append(base.ravel())
    score, base = np.concatenate(scores), np.concatenate(bases)
    known = bool(base.mean() > 0)
    ratio = float(score.mean() / base.mean()) if known else math.nan
    error = float((score - ratio * base).std(ddof=1) / base.mean() / math.sqrt(n)) if known else math.nan
    return {
        "score": float(score.mean()),
        "base": "y_train without inputs" if y_train is not None else "the other rows of y without inputs",
        "base_score": float(base.mean()),
        "skill": 1 - ratio,
        "skill_error": error,
    }


def check_inputs(
    x: Array, training: Array | None, delta: float | None, norm: Norm | None, rng: np.random.Generator
) -> dict[str, Any]:
    """Training rows near each row, and which rows have few of them or lie outside."""
    reference = x if training is None else training
    kept = reference
    if len(reference) > REFERENCE and x.shape[1] > TREE_COLUMNS:
        kept = reference[rng.choice(len(reference), REFERENCE, replace=False)]
    std = reference.std(0)
    in_std = Weighted(1 / np.where(std > 0, std, 1.0))
    norm = in_std if norm is None and delta is None else check_norm(norm)
    among, at, share = norm.embed(kept), norm.embed(x), len(kept) / len(reference)
    if delta is None:
        places = among[rng.choice(len(among), min(len(among), PLACES), replace=False)]
        rank = min(len(among), 1 + max(1, round(FEW_NEAR * share)))
        delta = float(np.quantile(_reach(places, among, rank), 0.99))
    delta = check_radius(delta)
    # Without training rows a row must not count itself; in a random part it is there with that chance.
    sizes = np.maximum(_counts(at, among, delta) / share - (training is None), 0.0)
    outside = None if training is None else _outside(x, training, in_std.embed(kept), in_std.embed(x), rng)
    return {"delta": delta, "ball_sizes": sizes, "sparse": sizes < FEW_NEAR, "extrapolated": outside}


def _outside(x: Array, training: Array, among: Array, at: Array, rng: np.random.Generator) -> Array:
    """Rows beyond the range of a training column, or farther from all training rows than these are apart."""
    beyond: Array = ((x < training.min(0)) | (x > training.max(0))).any(1)
    distinct = np.unique(
        among, axis=0
    )  # copies are at distance 0, which would make every new row an outsider
    if len(distinct) > 1:
        places = distinct[rng.choice(len(distinct), min(len(distinct), PLACES), replace=False)]
        beyond |= _reach(at, distinct, 1) > np.quantile(_reach(places, distinct, 2), 0.995)
    return beyond


def _reach(at: Array, among: Array, rank: int) -> Array:
    """The distance from each row to its rank-th nearest; the first is the row itself, where it is there."""
    if at.shape[1] <= TREE_COLUMNS:
        nearest: Array = cKDTree(among).query(at, [rank])[0][:, 0]
        return nearest
    if rank == 1:  # many times faster than a partition
        return np.concatenate([np.sqrt(d.min(1)) for d in _squares(at, among)])
    return np.concatenate([np.sqrt(np.partition(d, rank - 1)[:, rank - 1]) for d in _squares(at, among)])


def _counts(at: Array, among: Array, delta: float) -> Array:
    """The rows within delta of each row, closed balls up to rounding."""
    radius = delta * (1 + 1e-9)
    if at.shape[1] <= TREE_COLUMNS:
        counts: Array = cKDTree(among).query_ball_point(at, radius, return_length=True)
        return counts
    return np.concatenate([(d <= radius**2).sum(1) for d in _squares(at, among)])


def _squares(at: Array, among: Array) -> Iterator[Array]:
    """All squared distances, by matrix products: in many columns a tree looks at nearly all rows, slowly."""
    middle = among.mean(0)
    among, at = among - middle, at - middle
    lengths = (among**2).sum(1)
    for rows in chunks(len(at), len(among)):
        squares = (-2 * at[rows]) @ among.T
        squares += lengths
        squares += (at[rows] ** 2).sum(1)[:, None]
        yield np.maximum(squares, 0.0, out=squares)
