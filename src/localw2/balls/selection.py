r"""How large a ball, in which norm: the choice by the score of a row that is held out of its own ball.

A local loss treats the rows of a ball as draws of one law. Whether they are can be seen from the data alone:
forecast each row by the other rows of its ball and score the forecast by the CRPS, a proper score. Small
balls make noisy forecasts, large ones mix laws; the best ball size, and the best norm, balance the two. No
model is trained, so the choice takes a second and does not depend on the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import ndtr
from scipy.stats import binom
from sklearn.utils.parallel import Parallel, delayed

from localw2._validation import Array, as_array, as_rows, check_count, check_flag, seed_of
from localw2.balls.lazy import MANY_ROWS, SLACK
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.norms import Norm, candidate_norms, check_norm
from localw2.balls.ragged import Nearest

PROBES = 1000  # rows that are forecast; more would sharpen the scores little
SIZES = (12, 17, 24, 34, 48, 68, 96, 136, 192, 272, 384)  # of balls; a step of sqrt(2)
MARGIN = 0.005  # of the score: less is no reason for larger balls, which cost more, or for another norm
_EVEN = 0.4  # of the median ball's rows that the smallest balls of one radius have where density is even
_CLIMATE_ROWS = 2000  # rows that stand for all in the forecast of a row without neighbours


@final
@dataclass(frozen=True)
class Candidate:
    """Balls that were tried: ``balls`` is ``Nearest(k)`` or a radius, in the units of ``norm``.

    ``sizes`` are the 5 %, 50 % and 95 % quantiles of the number of rows in a ball, the row itself included;
    ``score`` is the mean held-out CRPS relative to that of the whole sample as forecast, ``behind`` how much
    worse it is than the best candidate's and ``behind_se`` the standard error of that difference.
    """

    norm_name: str
    norm: Norm
    balls: Nearest | float
    sizes: tuple[float, float, float]
    score: float
    behind: float
    behind_se: float


@final
@dataclass(frozen=True)
class DeltaSelection:
    """What ``select_delta`` tried and chose.

    ``balls`` is the choice, ``Nearest(k)`` or a radius; ``norm`` belongs to it. ``delta`` is a radius in any
    case: for ``Nearest(k)`` the median distance to the k-th row. ``why`` says it in words.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    delta: float
    why: str
    n_rows: int

    @property
    def norm(self) -> Norm:
        """The norm of the chosen balls."""
        return self.chosen.norm

    @property
    def balls(self) -> Nearest | float:
        """The chosen balls: what ``LocalW2Regressor(delta=...)`` takes."""
        return self.chosen.balls

    def neighborhoods(self, x: Any) -> Neighborhoods:
        """The chosen balls of these rows."""
        return Neighborhoods.of(x, self.balls, self.norm)

    def table(self) -> str:
        """All candidates, the best first: what they are, their sizes and scores."""
        lines = [f"{'norm':<16}{'balls':<18}{'rows a ball':>16}{'score':>9}{'behind':>17}"]
        for c in sorted(self.candidates, key=lambda c: c.score):
            sizes = " ".join(f"{size:.0f}" for size in c.sizes)
            mark = "  <- chosen" if c is self.chosen else ""
            lines.append(
                f"{c.norm_name:<16}{describe(c.balls):<18}{sizes:>16}{c.score:>9.4f}"
                f"{c.behind:>9.4f} ±{c.behind_se:.4f}{mark}"
            )
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """Score against ball size, a line for each norm; returns the Axes."""
        from localw2.plots import ball_scores

        lines: dict[str, list[tuple[float, float, float]]] = {}
        for c in self.candidates:
            kind = "" if isinstance(c.balls, Nearest) else ", one radius"
            lines.setdefault(c.norm_name + kind, []).append((c.sizes[1], c.score, c.behind_se))
        return ball_scores(lines, (self.chosen.sizes[1], self.chosen.score), ax)

    def __repr__(self) -> str:
        return f"DeltaSelection({describe(self.balls)}, norm {self.chosen.norm_name}: {self.why})"


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
    random_state: Any = 0,
) -> DeltaSelection:
    r"""Choose the balls of a local loss from the data: their size, the norm, one radius or k nearest rows.

    Every candidate is scored by the mean CRPS of rows forecast by the *other* rows of their balls,

    .. math:: \frac1k \sum_{j} |y_j - y_i| - \frac1{2k^2} \sum_{j, l} |y_j - y_l|, \quad j, l \in B_i, \ne i.

    x is (N, p), y (N,) or (N, d), where outputs are put on one scale and their scores averaged. ``center``,
    of the shape of y, is a mean to be taken off y first: out-of-fold predictions, for a centred loss.
    ``relevance`` (p,) says by how much each standardised column moves the mean, such as a base regressor
    knows it; it adds a norm to the candidates. ``debiased=False`` shrinks each ball's law as the printed loss
    does (by :math:`r_k`, see ``shrinkage``), which asks for larger balls.

    ``norm="auto"`` tries standardised columns, columns weighted by their slopes, the Mahalanobis norm and, if
    given, relevance. A simpler candidate wins if it is less than a standard error, or half a percent, behind:
    standardised columns before others, smaller balls before larger. ``adaptive=True`` takes k nearest rows,
    False one radius, "auto" one radius only where density is even: where few of its balls are much smaller
    than the others. With more than 1000 rows a random thousand is forecast.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-1, 1, (1000, 2))
    >>> y = np.where(x[:, 0] > 0, 3.0, 1.0) * rng.normal(size=1000)
    >>> choice = select_delta(x, y, adaptive=True)
    >>> choice.balls, choice.chosen.norm_name
    (Nearest(k=96), 'standardised')
    """
    check_flag(debiased, "debiased")
    if not (isinstance(adaptive, bool) or adaptive == "auto"):
        raise ValueError(f"adaptive={adaptive!r} is not known; give True, False or 'auto'.")
    rows, outputs = _checked(x, y, center)
    seed = seed_of(random_state)
    auto = isinstance(norm, str) and norm == "auto"
    norms = candidate_norms(x, y, relevance) if auto else {"given": check_norm(norm)}
    usable = _sizes(sizes, len(rows))
    trial = _Trial(rows, outputs, usable, debiased, np.random.default_rng(seed))
    # One after the other, unless a joblib.parallel_config says where else.
    tasks = (delayed(trial.nearest)(name, n) for name, n in norms.items())
    nearest = [t for found in Parallel()(tasks) for t in found]
    kept = _simplest(nearest, next(iter(norms)))
    # One radius is tried in the norm that won.
    radii = trial.radii(kept.name, kept.norm)
    if adaptive is False and not radii:
        raise ValueError(
            "most rows share their x with others, so no radius has balls of some; give adaptive=True."
        )
    if adaptive is not True and radii:
        rival = _simplest(radii, kept.name)
        if adaptive is False or (rival.even and _close(rival, kept)):
            kept = rival
    tried = nearest + radii
    best = min(tried, key=lambda t: t.mean)
    found = {id(t): t.candidate(best, trial.climate) for t in tried}
    chosen = found[id(kept)]
    return DeltaSelection(tuple(found.values()), chosen, kept.delta, _why(chosen, kept, best), len(rows))


def describe(balls: Nearest | float) -> str:
    """Balls in words.

    >>> describe(Nearest(12)), describe(0.25)
    ('12 nearest rows', 'radius 0.25')
    """
    return f"{balls.k} nearest rows" if isinstance(balls, Nearest) else f"radius {balls:.4g}"


def shrinkage(k: int) -> float:
    r"""By what factor the printed loss shrinks the spread of a Gaussian in balls of k rows.

    .. math:: r_k = \frac1k \sum_{i \le k} (E z_{(i)})^2

    With r_1 = 0; the error of the numerical integration is below 1e-9.

    >>> [round(shrinkage(k), 2) for k in (1, 2, 5, 10, 50)]
    [0.0, 0.32, 0.64, 0.79, 0.95]
    """
    z = np.linspace(-10, 10, 801)
    # The i-th of k is near z if i - 1 of the k - 1 others are below it.
    place = binom.pmf(np.arange(k)[:, None], k - 1, ndtr(z)) * k * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    means = (place * z).sum(1) * (z[1] - z[0])
    return float((means**2).mean())


@cache
def _shrinkages(most: int) -> Array:
    """Those of 1 to ``most`` rows, between some sizes by interpolation, which is good to three digits."""
    known = np.unique(np.round(np.geomspace(1, most, 24)).astype(int))
    lost = np.log([1 - shrinkage(int(k)) for k in known])
    shrunk: Array = 1 - np.exp(np.interp(np.log(np.arange(1, most + 1)), np.log(known), lost))
    return shrunk


@final
@dataclass(frozen=True, eq=False)
class Tried:
    """Balls with the number of other rows in each and their score, at every row that was forecast."""

    name: str
    norm: Norm
    balls: Nearest | float
    delta: float
    counts: Array
    scores: Array

    @property
    def mean(self) -> float:
        """The mean score."""
        return float(self.scores.mean())

    @property
    def even(self) -> bool:
        """Whether few balls are much smaller than the others."""
        low, middle = np.quantile(self.counts + 1, [0.05, 0.5])
        return bool(low >= _EVEN * middle)

    def candidate(self, best: Tried, climate: float) -> Candidate:
        """What was found, beside the best of all, in units of the score of the whole sample."""
        low, middle, high = (float(v) for v in np.quantile(self.counts + 1, [0.05, 0.5, 0.95]))
        behind, error = _behind(self, best)
        return Candidate(
            self.name, self.norm, self.balls, (low, middle, high),
            self.mean / climate, behind / climate, error / climate,
        )  # fmt: skip


class _Trial:
    """The rows that are forecast, and how any balls do at it."""

    def __init__(
        self, rows: Array, outputs: Array, sizes: list[int], debiased: bool, rng: np.random.Generator
    ) -> None:
        self.rows, self.outputs, self.sizes = rows, outputs, sizes
        n = len(rows)
        self.probes = np.sort(rng.permutation(n)[:PROBES])
        self.jitter = rng.random((n, 1))
        self.reach = min(n, 2 * sizes[-1])  # so that balls of one radius are seen whole, but for the largest
        self.shrink = None if debiased else _shrinkages(self.reach)
        some = np.sort(rng.permutation(n)[:_CLIMATE_ROWS])
        everyone = np.broadcast_to(outputs[some], (len(self.probes), len(some), outputs.shape[1]))
        self.climates = self._scores(everyone, np.full(len(self.probes), len(some)), shrunk=False)
        self.climate = float(self.climates.mean()) or 1.0

    def nearest(self, name: str, norm: Norm) -> list[Tried]:
        """Balls of the k nearest rows, for every size."""
        distances, others = self._neighbors(norm)
        found = []
        for k in self.sizes:
            counts = np.full(len(self.probes), k - 1)
            scores = self._scores(self.outputs[others[:, : k - 1]], counts)
            radius = float(np.median(distances[:, k - 2]))
            found.append(Tried(name, norm, Nearest(k), radius, counts, scores))
        return found

    def radii(self, name: str, norm: Norm) -> list[Tried]:
        """Balls of one radius, whose median size is each of the sizes; none where rows coincide."""
        distances, others = self._neighbors(norm)
        found: list[Tried] = []
        for k in self.sizes:
            radius = float(np.median(distances[:, k - 2]))
            if radius <= 0 or any(t.delta == radius for t in found):
                continue
            counts = (distances <= radius).sum(1)
            scores = self._scores(self.outputs[others[:, : counts.max()]], counts)
            found.append(Tried(name, norm, radius, radius, counts, scores))
        return found

    def _neighbors(self, norm: Norm) -> tuple[Array, Array]:
        """Distances to the nearest other rows of each probe, and these rows, the nearest first."""
        embedded = norm.embed(self.rows)
        # Among copies of one x chance decides, anew for each probe, as in the balls that a fit is made on.
        tiny = 1e-7 * (embedded.std(0).max() or 1.0)
        apart = np.column_stack([embedded, tiny * self.jitter])
        # Of many rows the nearest are found roughly, as they will be in the balls of the fit.
        slack = SLACK if len(apart) > MANY_ROWS else 0.0
        distances, rows = cKDTree(apart).query(apart[self.probes], self.reach, eps=slack)
        own = rows == self.probes[:, None]
        # The row itself goes last and is dropped.
        order = np.argsort(own, axis=1, kind="stable")[:, :-1]
        distances, rows = np.take_along_axis(distances, order, 1), np.take_along_axis(rows, order, 1)
        return np.where(distances <= tiny, 0.0, distances), rows

    def _scores(self, forecasts: Array, counts: Array, shrunk: bool = True) -> Array:
        """CRPS at every probe of the first ``counts`` of its forecasts (probes, k, d), mean over outputs."""
        inside = np.arange(forecasts.shape[1]) < counts[:, None]
        held = np.maximum(counts, 1)
        weights = np.where(inside, 2.0 * np.arange(forecasts.shape[1]) - held[:, None] + 1, 0.0)
        total = np.zeros(len(self.probes))
        for output in range(forecasts.shape[2]):
            values = forecasts[..., output]
            if self.shrink is not None and shrunk:
                mean = np.where(inside, values, 0.0).sum(1, keepdims=True) / held[:, None]
                values = mean + self.shrink[held - 1][:, None] * (values - mean)
            gaps = np.where(inside, values - self.outputs[self.probes, None, output], np.inf)
            gaps.sort(axis=1)
            gaps = np.where(inside, gaps, 0.0)
            total += np.abs(gaps).sum(1) / held - (weights * gaps).sum(1) / held**2
        scores: Array = total / forecasts.shape[2]
        # A row without others in its ball has only the whole sample to go by.
        return scores if (counts > 0).all() else np.where(counts > 0, scores, self.climates)


def _checked(x: Any, y: Any, center: Any) -> tuple[Array, Array]:
    rows = as_rows(x).astype(np.float64)
    rows = rows - rows.mean(0)  # far from the origin distances would lose digits
    outputs = as_array(y, "y").astype(np.float64)
    if outputs.ndim not in (1, 2) or len(outputs) != len(rows):
        raise ValueError(
            f"x has {len(rows)} rows and y has shape {outputs.shape}; they must be pairs, row by row."
        )
    if len(rows) < 4:
        raise ValueError(f"{len(rows)} rows are too few to hold one out of its neighbours; give at least 4.")
    if center is not None:
        middle = as_array(center, "center").astype(np.float64)
        if middle.shape != outputs.shape:
            raise ValueError(f"center has shape {middle.shape} and y {outputs.shape}; they must agree.")
        outputs = outputs - middle
    size = np.abs(as_array(y, "y")).reshape(len(rows), -1).max(0)
    outputs = outputs.reshape(len(rows), -1)
    spread = outputs.std(0)
    seen = spread > 1e-12 * size  # what a mean leaves of an output that it knows is rounding, not a law
    return rows, outputs[:, seen] / spread[seen] if seen.any() else np.zeros((len(rows), 1))


def _sizes(sizes: Sequence[int] | None, n: int) -> list[int]:
    """Ball sizes to try: up to half of the rows, and at least one."""
    if sizes is None:
        found = [k for k in SIZES if k <= n // 2]
        return found or [max(3, n // 2)]
    checked = [
        check_count(k, "sizes", 2, n, f"there are {n} rows, and a ball of 1 has no others") for k in sizes
    ]
    if not checked:
        raise ValueError("sizes is empty; give ball sizes to try, such as (10, 30, 100).")
    return sorted(set(checked))


def _behind(tried: Tried, best: Tried) -> tuple[float, float]:
    """How much worse on average, and the standard error of that, from paired rows."""
    gaps = tried.scores - best.scores
    return float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))


def _close(tried: Tried, best: Tried) -> bool:
    """Whether it is behind by no more than chance, or by so little that it does not matter."""
    behind, error = _behind(tried, best)
    return behind <= max(error, MARGIN * best.mean)


def _simplest(tried: list[Tried], simple: str) -> Tried:
    """The smallest balls that are close to the best, in the simple norm if that has any."""
    best = min(tried, key=lambda t: t.mean)
    close = [t for t in tried if _close(t, best)]
    plain = [t for t in close if t.name == simple] or [t for t in close if t.name == best.name]
    return min(plain, key=lambda t: float(np.median(t.counts)))


def _why(chosen: Candidate, kept: Tried, best: Tried) -> str:
    gain = 100 * (1 - chosen.score)
    if chosen.score == 0:
        return "y has no spread, so that any balls will do"
    if chosen.score >= 1:
        told = "balls tell no more about y than the whole sample does"
    else:
        told = f"rows are forecast {gain:.1f} % better by their balls than by the whole sample"
    if kept is best:
        return f"{told}; no other candidate is better"
    return (
        f"{told}; {describe(best.balls)} ({best.name}) is better by "
        f"{chosen.behind:.4f} ± {chosen.behind_se:.4f} only, and this is simpler"
    )
