"""Does a sampler's law of y given x agree with the data's? An exact test, and a map of where it does not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from localw2._validation import (
    Array,
    as_array,
    as_rows,
    check_count,
    check_flag,
    check_probability,
    check_radius,
    seed_of,
)
from localw2.balls.norms import Norm, check_norm
from localw2.balls.ragged import Balls, Nearest, compact, merge
from localw2.balls.search import BallSearch, nearest_search, radius_search
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning, judge_seen, rows_of, trained_on
from localw2.judging.swap_test.draws import DependentDrawsWarning, SamplerDraws, owner_of
from localw2.judging.swap_test.pairs import SwapPairs
from localw2.judging.swap_test.plots import draw_test
from localw2.judging.swap_test.statistics import PooledBalls, max_t, permutation_pvalue, random_swaps

# Balls, and edges (ball, row) times columns (directions, times), that are compared unless n_centers is given:
# 999 swaps then take some seconds. Overlapping balls say the same: 30 had the power of 500 (one input).
MOST_CENTERS, LEAST_CENTERS, MOST_EDGES = 500, 50, 1 << 18
# Noise shared by more rows than this, as sampler_draws measures it, is told of.
SHARED_NOISE = 5.0


@final
@dataclass(frozen=True, repr=False, eq=False)
class ConditionalTest:
    """What ``conditional_test`` found: the p-value, and where the laws differ.

    ``null`` (B,) holds the statistic after each swap. The map has an entry for each of the n ball centres:
    ``centers`` are their rows, ``center_x`` (n, p) their x, ``ball_sizes`` the rows in each ball,
    ``ball_statistics`` the z of each ball and ``ball_pvalues`` its p-value, adjusted for looking at all of
    them: the chance that any is <= level under the null is at most level. ``ball_limit`` is the z that must
    be exceeded for that. ``seen_share`` is the share of the ``n_rows`` rows that are equal to training rows,
    NaN where that cannot be told, and ``seen`` whether that is more than chance; ``shared_noise`` is about
    how many rows share the noise of a draw, 1 if they are independent.
    """

    pvalue: float
    statistic: float
    null: Array = field(repr=False)
    level: float
    centers: Array
    center_x: Array
    ball_sizes: Array
    ball_statistics: Array
    ball_pvalues: Array
    ball_limit: float
    n_rows: int
    seen_share: float
    seen: bool
    shared_noise: float
    notes: tuple[str, ...]

    @property
    def reject(self) -> bool:
        """Whether the p-value is at most the level."""
        return self.pvalue <= self.level

    @property
    def rejected_balls(self) -> Array:
        """The balls whose adjusted p-value is at most the level, a mask (n,)."""
        return self.ball_pvalues <= self.level

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.seen:
            share = f"{100 * self.seen_share:.3g} %"
            return f"not valid: {share} of these rows are equal to training rows. Test it on new rows."
        if self.shared_noise > SHARED_NOISE:
            return "not valid: the draws share noise from row to row. Draw anew for every row."
        if not self.reject and _too_few(self.n_rows, self.level):
            return "too few rows to tell"
        if not self.reject:
            return "no difference between the sampler's law of y given x and the data's was found"
        return "the sampler's law of y given x differs from the data's" + self._where()

    def _where(self) -> str:
        failing = self.rejected_balls
        if len(failing) == 1:
            return ""
        if not failing.any():
            return ", in no single place clearly"
        text = f", clearly in {failing.sum()} of {len(failing)} balls"
        if self.center_x.shape[1] == 1:
            # The worst place, not the range: that would hang on a single ball rejected by chance.
            text += f", most of all around x = {self.center_x[np.argmax(self.ball_statistics), 0]:.3g}"
        return text

    def summary(self) -> str:
        """The verdict, the figures behind it and what was noted on the way, a line each."""
        sizes = self.ball_sizes
        figures = f"p = {self.pvalue:.4g} from {len(self.null)} swaps (level {self.level:g})"
        balls = f"balls: {len(sizes)}, of {sizes.min()} to {sizes.max()} rows (median {np.median(sizes):.0f})"
        lines = [self.verdict, figures, balls, *self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"ConditionalTest(p = {self.pvalue:.4g}: {self.verdict})"

    def plot(self, axes: Any = None) -> Any:
        """The null sample with the observed statistic, and the map of the balls (if there are several).

        The map shows z against the input, over two inputs, or against the one of more inputs along which it
        varies most. Returns the array of one or two Axes; ``axes`` are used instead where given.
        """
        return draw_test(self.null, self.statistic, self.pvalue, self._map(), axes)

    def _map(self) -> tuple[Array, Array, Array, float]:
        return self.center_x, self.ball_statistics, self.rejected_balls, self.ball_limit


def conditional_test(
    x: Any,
    y: Any,
    sampler: Any,
    delta: float | Nearest | None,
    *,
    norm: Norm | None = None,
    n_permutations: int = 999,
    standardize: bool = True,
    n_moment_draws: int = 100,
    n_centers: int | None = None,
    max_size: int = 2000,
    n_directions: int = 8,
    level: float = 0.05,
    fitted_on: tuple[Any, Any] | None = None,
    random_state: Any = None,
) -> ConditionalTest:
    r"""Test whether a sampler's law of y given x is that of the data; the p-value is exact for any sampler.

    One draw yhat is taken at every row. If the laws agree, y_i and yhat_i can be swapped in any rows without
    changing anything, so B random swaps (each row with probability 1/2) tell how large the statistic

    .. math:: T = \frac{\sum_b m_b W_2^2(y, \hat y;\ \text{ball } b)}{\sum_b m_b}
        \quad\text{gets by chance:}\quad p = \frac{1 + \#\{T^* \ge T\}}{B + 1},

    where ball b has m_b rows, at most delta from its centre under ``norm``; ``delta=Nearest(k)`` takes the k
    nearest rows, None one ball with all rows.

    x is (N, p); y is (N,), (N, d), or (N, T, d) for trajectories, which are swapped as wholes. ``sampler`` is
    a function of x that gives one draw for every row, of the shape of y, or has (or is) a method
    ``sample(X, n_samples=..., random_state=...)`` as the estimators have.

    **When the p-value is exact**: (1) the sampler has not seen these rows: trained on them it is hardly ever
    rejected; (2) its draws are independent from row to row; (3) the rows are independent given x (whole
    trajectories, not a time series cut into rows; no row entered twice). Nothing else matters: not delta, not
    N, not the form of the law. (1) is checked where the sampler has ``seen_rows_`` or ``fitted_on=(X, y)`` is
    given, (2) roughly, from the draws that standardise (or ten more); both warn.

    ``standardize`` subtracts the sampler's own mean from each row and divides by its SD, both from
    ``n_moment_draws`` separate draws, and cuts off at 3 SDs: the same map for both members of a pair. It
    lifts the power much where mean or spread varies within a ball. Draws that repeat yhat (a fixed seed) are
    left out with a warning; a sampler without spread (a point forecast) is compared as it is. Several outputs
    are compared along ``n_directions`` random directions, trajectories at no more than 16 times.

    ``n_centers`` balls are looked at, around rows chosen at random (None: 500, or fewer where the work would
    exceed seconds), each thinned to ``max_size`` rows, except the one ball of ``delta=None``, which keeps all
    rows. In balls of one row a swap changes nothing.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=(500, 1))
    >>> y = x[:, 0] * rng.normal(size=500)
    >>> conditional_test(x, y, lambda x: x[:, 0] * rng.normal(size=len(x)), delta=0.1, random_state=0)
    ConditionalTest(p = 0.087: no difference between the sampler's law of y given x and the data's was found)
    >>> conditional_test(x, y, lambda x: 0.5 * rng.normal(size=len(x)), delta=0.1, random_state=0).pvalue
    0.001
    """
    owner = owner_of(sampler)
    rows, outputs = _checked(rows_of(owner, x), y)
    level = check_probability(level, "level")
    n_permutations = _check_permutations(n_permutations, level)
    _check_enough(len(rows), level)
    n_draws = (
        check_count(n_moment_draws, "n_moment_draws", 2) if check_flag(standardize, "standardize") else 0
    )
    n_directions = check_count(n_directions, "n_directions", 1)
    rng = np.random.default_rng(seed_of(random_state))
    table = getattr(owner, "columns_", None) is not None  # with names or gaps: the sampler encodes it itself
    draws = SamplerDraws.of(sampler, x if table else _inputs(x, rows), outputs.shape)
    share, seen = _check_unseen(draws.owner, fitted_on, rows, as_array(y, "y"))
    pairs = SwapPairs.of(outputs, draws, n_draws, n_directions, rng)
    _check_independent(pairs)
    centers, balls = _balls(rows, delta, norm, max_size, n_centers, pairs.n_columns, rng)
    distinct, ball_of_center, copies = merge(balls, np.ones(len(centers)))
    distances = _distances(pairs, distinct, n_permutations, rng)
    # Weighted by its size a ball's noise (1/m under the null) counts the same everywhere. Where density
    # varies that had more power than a plain mean (.62 against .55 at an SD 20 % too small, 40 runs); where
    # it is even neither was better for certain (.70 against .75 at N = 400).
    weights = copies * distinct.sizes
    values = distances @ (weights / weights.sum())
    z, pvalues, limit = max_t(distances, level)
    return ConditionalTest(
        pvalue=permutation_pvalue(float(values[0]), values[1:]),
        statistic=float(values[0]),
        null=values[1:],
        level=level,
        centers=centers,
        center_x=rows[centers],
        ball_sizes=balls.sizes,
        ball_statistics=z[ball_of_center],
        ball_pvalues=pvalues[ball_of_center],
        ball_limit=limit,
        n_rows=len(rows),
        seen_share=share,
        seen=seen,
        shared_noise=pairs.shared_noise,
        notes=pairs.notes + _seen_notes(share, seen),
    )


def _distances(pairs: SwapPairs, balls: Balls, n: int, rng: np.random.Generator) -> Array:
    """Squared W2 of every ball as observed, then after each of n random swaps: (n + 1, balls)."""
    used, local = compact(balls)
    swaps = random_swaps(n + 1, len(used), rng)
    swaps[0] = False
    return PooledBalls.of(pairs.y[used], pairs.yhat[used], local).distances(swaps)


def _checked(x: Any, y: Any) -> tuple[Array, Array]:
    rows, outputs = as_rows(x), as_array(y, "y").astype(np.float64)
    if outputs.ndim not in (1, 2, 3) or len(outputs) != len(rows):
        raise ValueError(
            f"x has {len(rows)} rows and y has shape {outputs.shape}; y must be (N,), (N, d) or (N, T, d), "
            "with a row for each row of x."
        )
    if len(rows) < 2:
        raise ValueError("one row cannot be tested: swapping its y and yhat changes nothing. Give more rows.")
    return rows, outputs


def _inputs(x: Any, rows: Array) -> Any:
    """What the sampler is given: x as it came if it has columns, else one column of its own kind."""
    if getattr(x, "ndim", 0) == 2:
        return x
    return x.reshape(-1, 1) if hasattr(x, "reshape") else rows


def _too_few(n_rows: int, level: float) -> bool:
    """Whether even the largest statistic is tied too often: a swap of all rows leaves every one as it is."""
    return 2.0 ** (1 - n_rows) > level


def _check_enough(n_rows: int, level: float) -> None:
    if _too_few(n_rows, level):
        warnings.warn(
            f"{n_rows} rows can be swapped in {2 ** (n_rows - 1)} ways that differ: the exact p-value is "
            f"at least {2.0 ** (1 - n_rows):.3g}, too much for level {level:g}. Give more rows.",
            stacklevel=3,
        )


def _check_permutations(value: Any, level: float) -> int:
    n = check_count(value, "n_permutations", 1)
    if 1 / (n + 1) > level * (1 + 1e-9):
        warnings.warn(
            f"n_permutations={n} gives no p-value below {1 / (n + 1):.3g}, so nothing can be rejected at "
            f"level {level:g}. Take at least {int(np.ceil(1 / level - 1e-9)) - 1}, better 999.",
            stacklevel=3,
        )
    return n


def _check_unseen(owner: Any, fitted_on: Any, x: Array, y: Array) -> tuple[float, bool]:
    """The share of rows that are equal to training rows (NaN: nothing tells); whether it is beyond chance."""
    seen = getattr(owner, "seen_rows_", None)
    if fitted_on is not None:
        if isinstance(fitted_on, tuple | list) and len(fitted_on) == 2:
            fitted_on = rows_of(owner, fitted_on[0]), fitted_on[1]
        seen, x, y = trained_on(fitted_on, x, y)
    if not isinstance(seen, SeenRows):
        return float("nan"), False
    share, beyond_chance = judge_seen(seen, x, y)
    if beyond_chance:
        about = "" if seen.is_complete else "about "
        warnings.warn(
            f"{about}{share * len(x):.0f} of these {len(x)} rows are equal to rows that the sampler was "
            "trained on. The p-value is not valid: a model that has learned these very rows agrees with "
            "them. Test it on rows that were held back.",
            SeenRowsWarning,
            stacklevel=3,
        )
    return share, beyond_chance


def _seen_notes(share: float, beyond_chance: bool) -> tuple[str, ...]:
    if beyond_chance or not share > 0:  # NaN, too, is no share to tell of
        return ()
    return (f"{100 * share:.3g} % of these rows are equal to training rows: few, or no more than by chance",)


def _balls(
    x: Array,
    delta: float | Nearest | None,
    norm: Norm | None,
    max_size: int,
    n_centers: int | None,
    n_columns: int,
    rng: np.random.Generator,
) -> tuple[Array, Balls]:
    """Centres and their balls of at least two rows; nothing here looks at y, so exactness is untouched."""
    wanted = MOST_CENTERS if n_centers is None else check_count(n_centers, "n_centers", 1)
    max_size = check_count(max_size, "max_size", 2, why="a swap changes nothing in a ball of one row")
    seed, order = int(rng.integers(2**63)), rng.permutation(len(x))
    if delta is None:
        check_norm(norm)
        return order[:1], Balls(np.array([len(x)]), np.arange(len(x)))
    search: BallSearch
    if isinstance(delta, Nearest):
        k = check_count(delta.k, "k of Nearest", 2, why="a swap changes nothing in a ball of one row")
        search = nearest_search(x, min(k, len(x)), check_norm(norm), max_size, seed)
    else:
        search = radius_search(x, check_radius(delta), check_norm(norm), max_size, seed)
    sizes = search.sizes(order[:wanted])
    kept = np.flatnonzero(sizes > 1)
    if len(kept) == 0:
        raise ValueError(
            f"delta={delta:.6g} leaves all {len(sizes)} balls that were looked at with one row, where "
            "swapping y and yhat changes nothing. Take a larger delta, so that balls hold 20 rows or more, "
            "or None for one ball with all rows."
        )
    if n_centers is None:
        affordable = np.cumsum(sizes[kept]) * n_columns <= MOST_EDGES
        kept = kept[: max(LEAST_CENTERS, np.count_nonzero(affordable))]
    centers = np.sort(order[kept])
    return centers, Balls.join(list(search.chunks(centers)))


def _check_independent(pairs: SwapPairs) -> None:
    if pairs.shared_noise > SHARED_NOISE:
        warnings.warn(
            f"the sampler's draws are not independent from row to row: about {pairs.shared_noise:.0f} rows "
            "share their noise, as when one omega or one set of weights serves a whole call. The p-value is "
            "then not valid. Draw anew for every row, as the estimators' sample does.",
            DependentDrawsWarning,
            stacklevel=3,
        )
    elif pairs.repeats:
        warnings.warn(
            "the sampler's draws repeat: some that should be new equal the one that is compared, as with a "
            "fixed random_state inside the sampler. They were left out of its mean and SD. Let every call "
            "draw anew, or use the random_state that sample is given.",
            DependentDrawsWarning,
            stacklevel=3,
        )
