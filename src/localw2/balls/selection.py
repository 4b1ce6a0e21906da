r"""The choice of ball size and norm, by the score of each row held out of its own ball.

A local loss treats the rows of a ball as draws from one distribution. How well that holds shows in the data
alone: forecast each row from the other rows of its ball and score the forecast by the CRPS, a proper score.
Small balls make noisy forecasts, large ones mix distributions; the best ball size and norm balance the two.
No model is trained, so the choice takes a second and does not depend on the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import ndtr
from scipy.stats import binom
from sklearn.utils.parallel import Parallel, delayed

from localw2._validation import (
    Array,
    as_array,
    as_rows,
    average,
    check_count,
    check_flag,
    check_sample_weight,
    seed_from,
)
from localw2.balls.lazy import MANY_ROWS, SLACK
from localw2.balls.neighborhoods import Nearest, Neighborhoods, check_given
from localw2.balls.norms import Norm, candidate_norms, check_norm
from localw2.balls.ragged import runs, steps

PROBES = 1000  # rows that are forecast; more would hardly sharpen the scores
SIZES = (12, 17, 24, 34, 48, 68, 96, 136, 192, 272, 384)  # of balls; a step of sqrt(2)
MARGIN = 0.005  # of the score: a smaller gain does not justify larger balls, which cost more, or another norm
_EVEN = 0.4  # smallest over median ball size, at one radius, above which the density counts as even
_CLIMATE_ROWS = 2000  # rows that stand for the whole sample in the forecast of a row without neighbours
_BALL_ROWS = 2000  # rows, at evenly spaced places, that stand for a larger ball that is given
_CHUNK = 1 << 20  # rows of all forecasts by given balls that are in memory at a time


@final
@dataclass(frozen=True)
class Candidate:
    """One candidate: ``balls`` is ``Nearest(k)``, or a radius in the units of ``norm``.

    They may also be one of the ``hoods`` given, which have their name in ``norm_name`` and no norm.

    ``sizes`` are the 5 %, 50 % and 95 % quantiles of the number of rows per ball, the row itself included;
    ``score`` is the mean held-out CRPS relative to that of the whole sample as forecast, ``behind`` is how
    much worse it is than the best candidate's and ``behind_se`` the standard error of that difference.
    """

    norm_name: str
    norm: Norm | None
    balls: Nearest | float | Neighborhoods
    sizes: tuple[float, float, float]
    score: float
    behind: float
    behind_se: float


@final
@dataclass(frozen=True)
class DeltaSelection:
    """The candidates and the choice of ``select_delta``.

    ``balls`` is the choice: ``Nearest(k)`` or a radius, in the norm ``norm``, or one of the ``hoods`` given,
    which have no norm (None). ``delta`` is a radius: for ``Nearest(k)``, the median distance to the k-th row,
    and NaN for given balls. ``why`` explains the choice.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    delta: float
    why: str
    n_rows: int

    @property
    def norm(self) -> Norm | None:
        """The norm of the chosen balls."""
        return self.chosen.norm

    @property
    def balls(self) -> Nearest | float | Neighborhoods:
        """The chosen balls; ``LocalW2Regressor(delta=...)`` accepts them unless they were given."""
        return self.chosen.balls

    def neighborhoods(self, x: Any) -> Neighborhoods:
        """The chosen balls of these rows; balls that were given hold the rows of the selection only."""
        if not isinstance(self.balls, Neighborhoods):
            return Neighborhoods.of(x, self.balls, self.norm)
        if len(x) != self.n_rows:
            raise ValueError(
                f"x has {len(x)} rows, but the chosen balls ({self.chosen.norm_name}) are those of the "
                f"{self.n_rows} rows of the selection. Make the balls of other rows as those were made."
            )
        return self.balls

    def table(self) -> str:
        """All candidates with their sizes and scores, the best first."""
        lines = [f"{'norm':<16}{'balls':<18}{'rows per ball':>16}{'score':>9}{'behind':>17}"]
        for c in sorted(self.candidates, key=lambda c: c.score):
            sizes = " ".join(f"{size:.0f}" for size in c.sizes)
            mark = "  <- chosen" if c is self.chosen else ""
            lines.append(
                f"{c.norm_name:<16}{describe(c.balls):<18}{sizes:>16}{c.score:>9.4f}"
                f"{c.behind:>9.4f} ±{c.behind_se:.4f}{mark}"
            )
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """Plot score against ball size, with one line per norm; returns the Axes."""
        from localw2.plots import ball_scores

        lines: dict[str, list[tuple[float, float, float]]] = {}
        for c in self.candidates:
            kind = "" if isinstance(c.balls, Nearest | Neighborhoods) else ", one radius"
            lines.setdefault(c.norm_name + kind, []).append((c.sizes[1], c.score, c.behind_se))
        return ball_scores(lines, (self.chosen.sizes[1], self.chosen.score), ax)

    def __repr__(self) -> str:
        kind = "norm " if self.norm is not None else ""
        return f"DeltaSelection({describe(self.balls)}, {kind}{self.chosen.norm_name}: {self.why})"


def select_delta(
    x: Any,
    y: Any,
    norm: Any = "auto",
    *,
    center: Any = None,
    relevance: Any = None,
    debiased: bool = True,
    adaptive: bool | str = "auto",
    sizes: Sequence[int] | None = None,
    hoods: Mapping[str, Neighborhoods] | None = None,
    random_state: Any = 0,
    sample_weight: Any = None,
) -> DeltaSelection:
    r"""Choose the balls of a local loss from the data: their size, norm and kind (one radius or k rows).

    Every candidate is scored by the mean CRPS of rows forecast by the *other* rows of their balls,

    .. math:: \frac1k \sum_{j} |y_j - y_i| - \frac1{2k^2} \sum_{j, l} |y_j - y_l|, \quad j, l \in B_i, \ne i.

    x is (N, p); y is (N,), or (N, d), whose outputs are put on one scale and their scores averaged.
    ``center``, of the shape of y, is a mean that is subtracted from y first: for a centred loss, the
    out-of-fold predictions. ``relevance`` (p,) says how strongly each standardised column affects the mean,
    for example according to a base regressor; it adds a norm to the candidates. ``debiased=False`` shrinks
    the forecast of each ball as the published loss does (by :math:`r_k`, see ``shrinkage``), which favours
    larger balls.

    ``norm="auto"`` tries standardised columns, columns weighted by their slopes, the Mahalanobis norm and, if
    given, relevance. A simpler candidate within a standard error (or half a percent) of the best is taken:
    standardised columns before other norms, smaller balls before larger. ``adaptive=True`` uses k nearest
    rows, False one radius, and "auto" one radius only where the density is even, so that few of its balls
    are much smaller than the others. With more than 1000 rows a random thousand is forecast.

    ``hoods`` are further balls of these rows to compare, by name, such as
    ``{"leaves": Neighborhoods.leaves(forest, x)}``. In several leaves a row is forecast by their pooled law:
    one of its leaves, then one of the other rows there. Such balls are taken if they are better than the
    simpler choice by more than a standard error and half a percent. The comparison is fair only if they were
    made without the y of these rows, for example by trees grown on others. With ``sample_weight`` (N,) rows
    have weights in every forecast and in the mean of the scores; the size of a ball still counts rows.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-1, 1, (1000, 2))
    >>> y = np.where(x[:, 0] > 0, 3.0, 1.0) * rng.normal(size=1000)
    >>> choice = select_delta(x, y, adaptive=True)
    >>> choice.balls, choice.chosen.norm_name
    (Nearest(k=96), 'standardised')
    """
    check_flag(debiased, "debiased")
    if not (isinstance(adaptive, bool) or adaptive == "auto"):
        raise ValueError(f"adaptive={adaptive!r} must be True, False or 'auto'.")
    rows, outputs = _check_data(x, y, center)
    weights = None if sample_weight is None else check_sample_weight(sample_weight, len(rows))
    if weights is not None and weights.min() == 0:
        raise ValueError("sample_weight has zeros; leave such rows out, they would take up room in balls.")
    seed = seed_from(random_state)
    auto = isinstance(norm, str) and norm == "auto"
    norms = candidate_norms(x, y, relevance) if auto else {"given": check_norm(norm)}
    usable = _sizes(sizes, len(rows))
    forecasts = _Forecasts(rows, outputs, usable, debiased, np.random.default_rng(seed), weights)
    # Sequential, unless the caller has set a joblib.parallel_config.
    tasks = (delayed(forecasts.trials)(name, n) for name, n in norms.items())
    nearest = [t for found in Parallel()(tasks) for t in found]
    kept = _simplest(nearest, next(iter(norms)))
    # One radius is tried in the norm that won.
    radii = forecasts.trials(kept.name, norms[kept.name], one_radius=True)
    if adaptive is False and not radii:
        raise ValueError(
            "most rows share their x with others, so no radius gives moderate balls; use adaptive=True."
        )
    if adaptive is not True and radii:
        rival = _simplest(radii, kept.name)
        if adaptive is False or (rival.even and _close(rival, kept)):
            kept = rival
    given = [forecasts.given(name, balls) for name, balls in _check_hoods(hoods, len(rows)).items()]
    if given:
        rival = min(given, key=lambda t: t.mean)
        if rival.mean < kept.mean and not _close(kept, rival):
            kept = rival
    tried = nearest + radii + given
    best = min(tried, key=lambda t: t.mean)
    found = {id(t): t.candidate(best, forecasts.climate) for t in tried}
    chosen = found[id(kept)]
    return DeltaSelection(tuple(found.values()), chosen, kept.delta, _why(chosen, kept, best), len(rows))


def describe(balls: Nearest | float | Neighborhoods) -> str:
    """Describe balls in words.

    >>> describe(Nearest(12)), describe(0.25), describe(Neighborhoods.whole(9))
    ('12 nearest rows', 'radius 0.25', '1 given ball')
    """
    if isinstance(balls, Neighborhoods):
        return f"{balls.n_balls} given ball{'s' * (balls.n_balls > 1)}"
    return f"{balls.k} nearest rows" if isinstance(balls, Nearest) else f"radius {balls:.4g}"


def shrinkage(k: int) -> float:
    r"""The factor by which the published loss shrinks the spread of a Gaussian in balls of k rows.

    .. math:: r_k = \frac1k \sum_{i \le k} (E z_{(i)})^2

    r_1 = 0. The error of the numerical integration is below 1e-9.

    >>> [round(shrinkage(k), 2) for k in (1, 2, 5, 10, 50)]
    [0.0, 0.32, 0.64, 0.79, 0.95]
    """
    z = np.linspace(-10, 10, 801)
    # The i-th of k values is near z if i - 1 of the k - 1 others are below z.
    place = binom.pmf(np.arange(k)[:, None], k - 1, ndtr(z)) * k * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    means = (place * z).sum(1) * (z[1] - z[0])
    return float((means**2).mean())


@cache
def _shrinkages(most: int) -> Array:
    """``shrinkage`` of 1 to ``most`` rows, interpolated between some sizes to three digits."""
    known = np.unique(np.round(np.geomspace(1, most, 24)).astype(int))
    lost = np.log([1 - shrinkage(int(k)) for k in known])
    shrunk: Array = 1 - np.exp(np.interp(np.log(np.arange(1, most + 1)), np.log(known), lost))
    return shrunk


@final
@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate's balls: the number of other rows in each, and the score of every forecast row.

    ``weights`` are those of the forecast rows, if rows have any.
    """

    name: str
    norm: Norm | None
    balls: Nearest | float | Neighborhoods
    delta: float
    counts: Array
    scores: Array
    weights: Array | None = None

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(average(self.scores, self.weights))

    @property
    def even(self) -> bool:
        """Whether few balls are much smaller than the others."""
        low, middle = np.quantile(self.counts + 1, [0.05, 0.5])
        return bool(low >= _EVEN * middle)

    def candidate(self, best: Trial, climate: float) -> Candidate:
        """The result, compared with the best, in units of the score of the whole sample."""
        low, middle, high = np.quantile(self.counts + 1, [0.05, 0.5, 0.95]).tolist()
        behind, error = _behind(self, best)
        return Candidate(
            self.name, self.norm, self.balls, (low, middle, high),
            self.mean / climate, behind / climate, error / climate,
        )  # fmt: skip


class _Forecasts:
    """The rows that are forecast, and the scores of candidate balls on them."""

    def __init__(
        self,
        rows: Array,
        outputs: Array,
        sizes: list[int],
        debiased: bool,
        rng: np.random.Generator,
        weights: Array | None = None,
    ) -> None:
        self.rows, self.outputs, self.sizes, self.weights = rows, outputs, sizes, weights
        n = len(rows)
        self.probes = np.sort(rng.permutation(n)[:PROBES])
        self.jitter = rng.random((n, 1))
        self.reach = min(n, 2 * sizes[-1])  # so that all but the largest balls of one radius are seen whole
        self.shrink = None if debiased else _shrinkages(self.reach)
        some = np.sort(rng.permutation(n)[:_CLIMATE_ROWS])
        self.of_probes = None if weights is None else weights[self.probes]
        everyone = np.broadcast_to(some, (len(self.probes), len(some)))
        self.climates = self._scores(everyone, np.full(len(self.probes), len(some)), shrunk=False)
        self.climate = float(average(self.climates, self.of_probes)) or 1.0

    def trials(self, name: str, norm: Norm, one_radius: bool = False) -> list[Trial]:
        """Candidates with the k nearest rows for every size k, or with the median radius of these balls.

        Where rows coincide, that radius is 0 and no candidate.
        """
        distances, others = self._neighbors(norm)
        found: list[Trial] = []
        for k in self.sizes:
            radius = float(np.median(distances[:, k - 2]))
            if one_radius and (radius <= 0 or any(t.delta == radius for t in found)):
                continue
            counts = (distances <= radius).sum(1) if one_radius else np.full(len(self.probes), k - 1)
            scores = self._scores(others[:, : counts.max()], counts)
            balls = radius if one_radius else Nearest(k)
            found.append(Trial(name, norm, balls, radius, counts, scores, self.of_probes))
        return found

    def given(self, name: str, hoods: Neighborhoods) -> Trial:
        r"""A candidate whose balls are at hand: row i is forecast by the pooled law of its balls,

        .. math:: p_j = \frac1{T_i} \sum_{b \ni j} \frac1{m_b - 1}, \quad j \ne i,

        where b runs over the :math:`T_i` balls of row i that hold :math:`m_b > 1` rows.
        """
        place, ball = hoods.balls_of(self.probes)
        counts = hoods.sizes.numpy()[ball] - 1
        alone = len(self.probes) - len(np.unique(place))
        place, ball = place[counts > 0], ball[counts > 0]
        scores, taken = self.climates.copy(), np.minimum(hoods.sizes.numpy()[ball], _BALL_ROWS)
        ends = np.searchsorted(place, np.arange(len(self.probes) + 1))
        for run in runs(np.bincount(place, taken, len(self.probes)), _CHUNK):
            part = slice(ends[run.start], ends[run.stop])
            known = np.unique(place[part])
            scores[known] = self._pooled_scores(hoods, place[part], ball[part])[known]
        sizes = np.append(counts, np.zeros(alone, np.int64))
        return Trial(name, None, hoods, float("nan"), sizes, scores, self.of_probes)

    def _pooled_scores(self, hoods: Neighborhoods, place: Array, ball: Array) -> Array:
        """The score of each probe, (probes,), from pairs (place among the probes, ball of 2 rows or more)."""
        sizes, starts = hoods.sizes.numpy()[ball], hoods.balls.starts[ball]
        taken = np.minimum(sizes, _BALL_ROWS)
        pair = np.repeat(np.arange(len(ball)), taken)
        # Half a step in, so that a thinned ball is not always represented by its first row.
        inside = ((steps(taken) + 0.5) * (sizes / taken)[pair]).astype(np.int64)
        rows = hoods.balls.rows[starts[pair] + inside]
        other = rows != self.probes[place][pair]
        pair, rows = pair[other], rows[other]
        held = np.bincount(pair, minlength=len(ball))
        probe = place[pair]
        share = 1 / (held[pair] * np.bincount(place, minlength=len(self.probes))[probe])
        if self.weights is not None:  # of a row relative to the mean of those in its ball
            own = self.weights[rows]
            share = share * own * (held / np.bincount(pair, own))[pair]
        total = np.zeros(len(self.probes))
        for output in self.outputs.T:
            values = output[rows]
            if self.shrink is not None:
                mean = (np.bincount(pair, values) / held)[pair]
                if self.weights is not None:
                    mean = (np.bincount(pair, values * own) / np.bincount(pair, own))[pair]
                values = mean + _shrinkages(_BALL_ROWS)[held - 1][pair] * (values - mean)
            gaps = values - output[self.probes][probe]
            order = np.lexsort((gaps, probe))
            gap, weight, of = gaps[order], share[order], probe[order]
            # The weights of a probe add up to 1, so whole numbers of probes lie before it.
            below = np.cumsum(weight) - np.searchsorted(np.unique(of), of)
            total += np.bincount(of, weight * (np.abs(gap) - gap * (2 * below - weight - 1)), len(total))
        scores: Array = total / self.outputs.shape[1]
        return scores

    def _neighbors(self, norm: Norm) -> tuple[Array, Array]:
        """The distances from each probe to its nearest other rows, and these rows, the nearest first."""
        embedded = norm.embed(self.rows)
        # Copies of one x are ordered at random, anew for each probe, as in the balls of a fit.
        tiny = 1e-7 * (embedded.std(0).max() or 1.0)
        apart = np.column_stack([embedded, tiny * self.jitter])
        # With many rows the search is approximate, as it will be for the balls of the fit.
        slack = SLACK if len(apart) > MANY_ROWS else 0.0
        distances, rows = cKDTree(apart).query(apart[self.probes], self.reach, eps=slack)
        own = rows == self.probes[:, None]
        # The row itself goes last and is dropped.
        order = np.argsort(own, axis=1, kind="stable")[:, :-1]
        distances, rows = np.take_along_axis(distances, order, 1), np.take_along_axis(rows, order, 1)
        return np.where(distances <= tiny, 0.0, distances), rows

    def _scores(self, others: Array, counts: Array, shrunk: bool = True) -> Array:
        """Mean CRPS over outputs at every probe, by the first ``counts`` of the other rows (probes, k)."""
        inside = np.arange(others.shape[1]) < counts[:, None]
        held = np.maximum(counts, 1)
        ranks = np.where(inside, 2.0 * np.arange(others.shape[1]) - held[:, None] + 1, 0.0)
        shares = None
        if self.weights is not None:
            shares = np.where(inside, self.weights[others], 0.0)
            total_of = shares.sum(1, keepdims=True)
            shares = shares / np.where(total_of > 0, total_of, 1.0)
        total = np.zeros(len(self.probes))
        for output in self.outputs.T:
            values = output[others]
            if self.shrink is not None and shrunk:
                mean = np.where(inside, values, 0.0).sum(1, keepdims=True) / held[:, None]
                mean = mean if shares is None else (values * shares).sum(1, keepdims=True)
                values = mean + self.shrink[held - 1][:, None] * (values - mean)
            gaps = np.where(inside, values - output[self.probes, None], np.inf)
            if shares is not None:
                total += _weighted_crps(gaps, shares)
                continue
            gaps.sort(axis=1)
            gaps = np.where(inside, gaps, 0.0)
            total += np.abs(gaps).sum(1) / held - (ranks * gaps).sum(1) / held**2
        scores: Array = total / self.outputs.shape[1]
        # A row alone in its ball is forecast by the whole sample.
        return scores if (counts > 0).all() else np.where(counts > 0, scores, self.climates)


def _weighted_crps(gaps: Array, shares: Array) -> Array:
    """The CRPS (n,) of forecasts that are ``gaps`` (n, k) away, with shares that add up to 1, or 0."""
    order = np.argsort(gaps, axis=1)
    share = np.take_along_axis(shares, order, 1)
    gap = np.where(share > 0, np.take_along_axis(gaps, order, 1), 0.0)
    below = np.cumsum(share, axis=1)
    scores: Array = (share * (np.abs(gap) - gap * (2 * below - share - 1))).sum(1)
    return scores


def _check_data(x: Any, y: Any, center: Any) -> tuple[Array, Array]:
    rows = as_rows(x).astype(np.float64)
    rows = rows - rows.mean(0)  # because distances far from the origin lose digits
    outputs = as_array(y, "y").astype(np.float64)
    if outputs.ndim not in (1, 2) or len(outputs) != len(rows):
        raise ValueError(
            f"x has {len(rows)} rows and y has shape {outputs.shape}; they must match row by row."
        )
    if len(rows) < 4:
        raise ValueError(f"x has {len(rows)} rows, which is too few to hold out any; give at least 4.")
    size = np.abs(outputs).reshape(len(rows), -1).max(0)
    if center is not None:
        middle = as_array(center, "center").astype(np.float64)
        if middle.shape != outputs.shape:
            raise ValueError(f"center has shape {middle.shape} and y has {outputs.shape}; they must agree.")
        outputs = outputs - middle
    outputs = outputs.reshape(len(rows), -1)
    spread = outputs.std(0)
    # Where the mean predicts an output exactly, the rest is rounding, not spread.
    seen = spread > 1e-12 * size
    return rows, outputs[:, seen] / spread[seen] if seen.any() else np.zeros((len(rows), 1))


def _sizes(sizes: Sequence[int] | None, n: int) -> list[int]:
    """The ball sizes to try: at least one, none above half the rows."""
    if sizes is None:
        found = [k for k in SIZES if k <= n // 2]
        return found or [max(3, n // 2)]
    checked = [
        check_count(k, "sizes", 2, n, f"there are {n} rows, and a ball of 1 row has no others") for k in sizes
    ]
    if not checked:
        raise ValueError("sizes is empty; give ball sizes to try, such as (10, 30, 100).")
    return sorted(set(checked))


def _check_hoods(hoods: Any, n: int) -> dict[str, Neighborhoods]:
    """Balls of all n rows, by name."""
    if isinstance(hoods, Neighborhoods):
        raise ValueError('hoods are balls by name; pass for example {"leaves": hoods}.')
    found = dict(hoods or {})
    for name, balls in found.items():
        if not isinstance(balls, Neighborhoods):
            raise ValueError(
                f"hoods[{name!r}] is {type(balls).__name__}; pass Neighborhoods, such as "
                "Neighborhoods.leaves(forest, x)."
            )
        check_given(balls, f"hoods[{name!r}]", n)
    return found


def _behind(tried: Trial, best: Trial) -> tuple[float, float]:
    """How much worse a candidate is than the best on average, with the standard error over paired rows."""
    gaps = tried.scores - best.scores
    if tried.weights is None:
        return float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    share, mean = tried.weights / tried.weights.sum(), float(average(gaps, tried.weights))
    return mean, float(np.sqrt((share**2 * (gaps - mean) ** 2).sum()))


def _close(tried: Trial, best: Trial) -> bool:
    """Whether a candidate is behind the best by no more than a standard error, or negligibly."""
    behind, error = _behind(tried, best)
    return behind <= max(error, MARGIN * best.mean)


def _simplest(tried: list[Trial], simple: str) -> Trial:
    """The smallest balls that are close to the best, in the simple norm if it has any."""
    best = min(tried, key=lambda t: t.mean)
    close = [t for t in tried if _close(t, best)]
    plain = [t for t in close if t.name == simple] or [t for t in close if t.name == best.name]
    return min(plain, key=lambda t: float(np.median(t.counts)))


def _why(chosen: Candidate, kept: Trial, best: Trial) -> str:
    if chosen.score == 0:
        return "y has no spread, so any balls will do"
    gain = f"rows {100 * (1 - chosen.score):.1f} % better" if chosen.score < 1 else "y no better"
    gained = f"balls predict {gain} than the whole sample does"
    if kept is best:
        return f"{gained}; no other candidate is better"
    return (
        f"{gained}; {describe(best.balls)} ({best.name}) is better by only "
        f"{chosen.behind:.4f} ± {chosen.behind_se:.4f}, and this is simpler"
    )
