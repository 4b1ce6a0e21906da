"""An exact test of a sampler: is its distribution of y given x the data's, and where is it not?"""

from __future__ import annotations

import math
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
    seed_from,
)
from localw2.balls.neighborhoods import Nearest, Neighborhoods, check_given
from localw2.balls.norms import Norm, Weighted, check_norm
from localw2.balls.ragged import Balls, compact, merge
from localw2.balls.search import BallSearch, nearest_search, radius_search
from localw2.judging.independence import SHARED_NOISE, DependentDrawsWarning, describe_shared_noise
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning, judge_seen
from localw2.judging.swap_test.pairs import SwapPairs
from localw2.judging.swap_test.plots import draw_test
from localw2.judging.swap_test.statistics import max_t, measure_distances, permutation_pvalue, standardise
from localw2.judging.valleys import describe_valley, measure_grain
from localw2.models.sampler import SamplerDraws, as_inputs, encode_rows, find_owner

# Limits on the number of balls, and on edges (ball, row) times columns (directions, times), that hold unless
# n_centers is given: 999 swaps then take some seconds. Overlapping balls carry the same information: 30 had
# the power of 500 (one input).
MOST_CENTERS, LEAST_CENTERS, MOST_EDGES = 500, 50, 1 << 18
# delta="auto" takes the nearest third of the rows for one input and a fifth for several, but at least 20. At
# N = 1000 larger balls had more power against an SD that is 20 % off everywhere (one input: .86 for a fifth,
# .93 for a third, .96 for half of the rows), but missed shifts whose sign depends on x (four inputs: .72 for
# a fifth, .52 for a third); below a tenth, power fell against all but the most local errors.
AUTO_SHARE, AUTO_SHARE_OF_ONE_INPUT, LEAST_AUTO = 5, 3, 20
# Up to this many rows all 2^N swaps are made, none of them twice, instead of random ones.
ENUMERATED_ROWS = 10


@final
@dataclass(frozen=True, repr=False, eq=False)
class ConditionalTest:
    """The result of ``conditional_test``: the p-value, and where the distributions differ.

    ``null`` (B,) holds the statistic after each swap. The map has one entry for each of the n balls:
    ``centers`` are the row numbers of the centres, ``center_x`` (n, p) their x, ``ball_sizes`` the number of
    rows per ball, ``ball_statistics`` the z of each ball and ``ball_pvalues`` its p-value, adjusted for
    looking at all balls: under the null the probability that any of them is <= level is at most level.
    ``ball_limit`` is the z that a ball must exceed to be rejected. ``seen_share`` is the share of the
    ``n_rows`` rows that equal training rows (NaN if unknown), and ``seen`` whether it is larger than chance
    explains; ``shared_noise`` is roughly how many rows share the noise of a draw, 1 if they are independent.
    ``smallest`` is the smallest p-value that was possible.

    Of several deltas (``deltas``), ``statistic`` is the largest z of all, ``ball_deltas`` (n,) says which one
    a ball belongs to, and ``delta_pvalues`` has a p-value for each delta, adjusted for looking at all.
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
    smallest: float
    deltas: tuple[Any, ...]
    ball_deltas: Array
    delta_pvalues: Array

    @property
    def reject(self) -> bool:
        """Whether the p-value is at most the level."""
        return self.pvalue <= self.level

    @property
    def rejected_balls(self) -> Array:
        """The balls whose adjusted p-value is at most the level, a mask (n,)."""
        return self.ball_pvalues <= self.level

    @property
    def valid(self) -> bool:
        """Whether the rows were new to the sampler and its draws independent, as far as was checked."""
        return not self.seen and self.shared_noise <= SHARED_NOISE

    @property
    def has_place(self) -> Array:
        """Which balls are somewhere, a mask (n,): one of all rows has its centre anywhere."""
        return np.array([delta is not None for delta in self.deltas])[self.ball_deltas]

    @property
    def delta_names(self) -> list[str]:
        """What to call the deltas."""
        return ["one ball of all rows" if delta is None else str(delta) for delta in self.deltas]

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.seen:
            share = f"{100 * self.seen_share:.3g} %"
            return f"Not valid: {share} of these rows are training rows. Test the sampler on new rows."
        if not self.valid:
            return "Not valid: the draws share noise between rows. Draw independently for every row."
        if self.smallest > self.level * (1 + 1e-9):
            return f"There are too few {'rows' if self.n_rows <= ENUMERATED_ROWS else 'swaps'} to tell."
        if not self.reject:
            return "No difference was found between the sampler's distribution of y given x and the data's."
        return f"The sampler's distribution of y given x differs from the data's{self._say_where()}."

    def _say_where(self) -> str:
        failing = self.rejected_balls
        if len(failing) == 1:
            return ""
        if not failing.any():
            return ", but not clearly in any single ball"
        text = f", clearly in {failing.sum()} of {len(failing)} balls"
        worst = np.argmax(self.ball_statistics)
        if not self.has_place[worst]:
            text += ", most of all in all rows together"
        elif self.center_x.shape[1] == 1:
            # The worst place, not the range, which would depend on a single ball rejected by chance.
            text += f", most of all around x = {self.center_x[worst, 0]:.3g}"
        return text

    def summary(self) -> str:
        """The verdict, the figures behind it and any notes, one line each."""
        sizes = self.ball_sizes
        figures = f"p = {self.pvalue:.4g} from {len(self.null)} swaps (level {self.level:g})"
        extent = f"{sizes[0]} rows"
        if sizes.min() < sizes.max():
            extent = f"{sizes.min()} to {sizes.max()} rows (median {np.median(sizes):.0f})"
        balls = f"{len(sizes)} {'balls' if len(sizes) > 1 else 'ball'} of {extent}"
        each = []
        if len(self.deltas) > 1:
            found = [f"{d}: {p:.3g}" for d, p in zip(self.delta_names, self.delta_pvalues, strict=True)]
            each = [f"p by delta, adjusted for looking at all: {', '.join(found)}"]
        return "\n".join([self.verdict, figures, *each, balls, *self.notes])

    def __repr__(self) -> str:
        return f"ConditionalTest(p = {self.pvalue:.4g}: {self.verdict})"

    def plot(self, axes: Any = None) -> Any:
        """Draw the null sample with the observed statistic and, if there are several balls, their map.

        The map shows z against the input if there is one, over the plane if there are two, and otherwise
        against the input along which z varies most. Draws into ``axes`` if given; returns one or two Axes.
        """
        return draw_test(self, axes)


def conditional_test(
    x: Any,
    y: Any,
    sampler: Any,
    delta: Any = "auto",
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
    r"""Test whether a sampler's distribution of y given x is the data's, with an exact p-value.

    One draw yhat is made at every row. If the two distributions agree, swapping y_i and yhat_i in any rows
    changes nothing, so B random swaps (each row with probability 1/2) show how large the statistic

    .. math:: T = \frac{\sum_b m_b W_2^2(y, \hat y;\ \text{ball } b)}{\sum_b m_b}
        \quad\text{gets by chance:}\quad p = \frac{1 + \#\{T^* \ge T\}}{B + 1},

    where ball b holds the m_b rows within delta of its centre under ``norm``; ``delta=Nearest(k)`` takes the
    k nearest rows instead, and None makes one ball of all rows. The default, "auto", takes the nearest third
    of the rows for one input and the nearest fifth for several (at least 20, at most ``max_size``), in
    standardised columns unless ``norm`` is given. It depends on x alone and not on y or yhat, so a swap
    cannot change the balls and the p-value stays exact. Other balls of these rows are taken as they are, such
    as ``delta=Neighborhoods.leaves(forest, x)``: one of the balls of each centre, at random. They too must
    not depend on y, so the forest must have been grown on other rows. Small balls find local errors, large
    ones small errors that are everywhere. **A list of deltas** makes one test of all: under the same swaps,
    each T is standardised by its mean and SD over all swaps, and the largest counts.

    x is (N, p); y is (N,), (N, d), or (N, T, d) for trajectories, each of which is swapped as a whole.
    ``sampler`` is a function of x that returns one draw for every row, of the shape of y, or it has (or is) a
    method ``sample(X, n_samples=..., random_state=...)``, as the estimators do, or it is a ``RandomMap`` or
    another torch module, which gets x as a tensor in the precision of its parameters.

    **The p-value is exact if** (1) the sampler has not seen these rows: one that was trained on them is
    hardly ever rejected; (2) its draws are independent between rows; (3) the rows are independent given x
    (whole trajectories, not a time series cut into rows; no row entered twice). Nothing else matters: not
    delta, not N, not the shape of the distribution. (1) is checked if the sampler has ``seen_rows_`` or
    ``fitted_on=(X, y)`` is given, (2) roughly, from the draws used for standardising (or ten more); both give
    a warning.

    ``standardize`` subtracts the sampler's own mean from each row, divides by its SD, both estimated from
    ``n_moment_draws`` separate draws, and clips at 3 SDs: the same map for both members of a pair. This adds
    much power where the mean or the spread varies within a ball. Draws that repeat yhat (a fixed seed) are
    left out with a warning; a sampler without spread (a point forecast) is compared without standardising.
    Several outputs are compared along ``n_directions`` random directions, trajectories at no more than 16
    times.

    ``n_centers`` is the number of balls, centred at random rows (None: 500, or fewer if that would take more
    than seconds). Each is thinned to ``max_size`` rows, except the single ball of ``delta=None``. In a ball
    of one row a swap changes nothing. With 10 rows or fewer all swaps are made instead of random ones; the
    swap of all rows ties with the data, so p is at least 2^(1 - N), and with five rows or fewer nothing can
    be rejected at level .05.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=(500, 1))
    >>> y = x[:, 0] * rng.normal(size=500)
    >>> conditional_test(x, y, lambda x: x[:, 0] * rng.normal(size=len(x)), delta=0.1, random_state=0)
    ConditionalTest(p = 0.087: No difference was found between the sampler's distribution of y given x ...
    >>> conditional_test(x, y, lambda x: 0.5 * rng.normal(size=len(x)), random_state=0).pvalue
    0.001
    """
    owner = find_owner(sampler)
    rows, outputs = _check_data(encode_rows(owner, x), y)
    level = check_probability(level, "level")
    n_permutations = check_count(n_permutations, "n_permutations", 1)
    standardize = check_flag(standardize, "standardize")
    n_draws = check_count(n_moment_draws, "n_moment_draws", 2) if standardize else 0
    n_directions = check_count(n_directions, "n_directions", 1)
    deltas = _list_deltas(delta)
    rng = np.random.default_rng(seed_from(random_state))
    draws = SamplerDraws.of(sampler, as_inputs(owner, x, rows), outputs.shape)
    share, seen = _check_unseen(owner, fitted_on, rows, as_array(y, "y"))
    pairs = SwapPairs.of(outputs, draws, n_draws, n_directions, rng)
    _check_independent(pairs)
    found = [_find_balls(rows, one, norm, max_size, n_centers, pairs.y.shape[1], rng) for one in deltas]
    centers, balls = np.concatenate([c for c, _ in found]), Balls.join([b for _, b in found])
    which = np.repeat(np.arange(len(deltas)), [len(c) for c, _ in found])
    distinct, ball_of_center, _ = merge(balls, np.ones(len(centers)))
    used, local = compact(distinct)
    swaps, smallest = _choose_swaps(n_permutations, len(used), level, rng)
    distances = measure_distances(pairs.y[used], pairs.yhat[used], local, swaps)
    # Weighted by ball size, the noise of a ball (1/m under the null) counts the same everywhere. Where the
    # density of x varies this had more power than a plain mean (.62 against .55 at an SD 20 % too small, 40
    # runs); where it is uniform neither was clearly better (.70 against .75 at N = 400).
    weights = np.zeros((len(distinct.sizes), len(deltas)))
    np.add.at(weights, (ball_of_center, which), balls.sizes)
    values = distances @ (weights / weights.sum(0))
    _, delta_pvalues, _ = max_t(values, level)
    statistics = values[:, 0]
    if len(deltas) > 1:
        statistics = standardise(values).max(1)
    z, pvalues, limit = max_t(distances, level)
    notes = pairs.notes
    if share > 0 and not seen:
        notes += (f"{100 * share:.3g} % of these rows equal training rows: few, or no more than by chance.",)
    pvalue = permutation_pvalue(float(statistics[0]), statistics[1:])
    if pvalue <= level:
        worst = int(np.argmax(z[ball_of_center]))
        clear = bool(pvalues[ball_of_center][worst] <= level) and deltas[which[worst]] is not None
        there = balls.take(np.array([worst])).rows if clear else np.arange(len(rows))
        place = f"rows around x = {rows[centers[worst], 0]:.3g}"
        if not clear or rows.shape[1] > 1:
            place = "rows of the ball that differs most" if clear else "rows"
        notes += _describe_modes(pairs, outputs.ravel(), there, place)
    return ConditionalTest(
        pvalue=pvalue,
        statistic=float(statistics[0]),
        null=statistics[1:],
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
        notes=notes,
        smallest=smallest,
        deltas=deltas,
        ball_deltas=which,
        delta_pvalues=delta_pvalues,
    )


def _describe_modes(pairs: SwapPairs, y: Array, rows: Array, place: str) -> tuple[str, ...]:
    """A note on modes of y that the draws merge or split in some rows, if it looks so. It is not a test."""
    if pairs.std is None:
        return ()
    some = rows[pairs.std[rows] > 0]
    grain = measure_grain(y[some], pairs.std[some])
    valley = describe_valley(pairs.y[some, 0], pairs.yhat[some, 0], grain)
    if valley is None:
        return ()
    modes, between = valley.describe_modes(), valley.describe_interval("the sampler's mean")
    note = f"{modes} in the {len(some)} {place}: {valley.shares} lie {between}."
    return (f"{note} This describes these rows and is not a test; diagnose tests it.",)


def _list_deltas(delta: Any) -> tuple[Any, ...]:
    """The deltas of a test, one or several."""
    deltas = tuple(delta) if isinstance(delta, list | tuple) else (delta,)
    if not deltas:
        raise ValueError("delta=[] is empty; give at least one radius, Nearest(k), None or 'auto'.")
    if len({str(one) for one in deltas}) < len(deltas):
        raise ValueError(f"delta={list(deltas)} names the same balls twice; give each once.")
    return deltas


def _choose_swaps(n_swaps: int, n_rows: int, level: float, rng: np.random.Generator) -> tuple[Array, float]:
    """Swaps (P, N), none of the rows in the first, and the smallest p-value that they can give.

    Of few rows all 2^N swaps are made. Otherwise they are random, the identity among the possible ones.
    """
    if n_rows <= ENUMERATED_ROWS:
        numbers = np.arange(2**n_rows)[:, None]
        swaps, smallest = (numbers >> np.arange(n_rows)) & 1 == 1, 2.0 ** (1 - n_rows)
        why = f"{n_rows} rows allow only {2 ** (n_rows - 1)} different swaps"
        instead = "Pass more rows."
    else:
        swaps = rng.integers(0, 2, (n_swaps + 1, n_rows), dtype=np.uint8).astype(bool)
        swaps[0] = False
        smallest, why = 1 / (n_swaps + 1), f"there are n_permutations={n_swaps} swaps"
        instead = f"Use at least {math.ceil(1 / level - 1e-9) - 1}, preferably 999."
    if smallest > level * (1 + 1e-9):
        warnings.warn(
            f"{why}, so the p-value is at least {smallest:.3g} and nothing can be rejected at level "
            f"{level:g}. {instead}",
            stacklevel=3,
        )
    return swaps, smallest


def _check_data(x: Any, y: Any) -> tuple[Array, Array]:
    rows, outputs = as_rows(x), as_array(y, "y").astype(np.float64)
    if outputs.ndim not in (1, 2, 3) or len(outputs) != len(rows):
        raise ValueError(
            f"x has {len(rows)} rows and y has shape {outputs.shape}; y must be (N,), (N, d) or (N, T, d), "
            "with one row for each row of x."
        )
    if len(rows) < 2:
        raise ValueError("one row cannot be tested: swapping its y and yhat changes nothing. Pass more rows.")
    return rows, outputs


def _sketch_training_rows(owner: Any, pair: Any, x: Array, y: Array) -> tuple[SeenRows, Array, Array]:
    """The sketch of all training rows, and x and y in the lower precision of the two sets."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError("fitted_on must be a pair (X, y): the rows that the sampler was trained on.")
    old_x = as_rows(encode_rows(owner, pair[0]), "fitted_on[0]")
    old_y = as_array(pair[1], "fitted_on[1]", missing=True)
    if old_y.ndim == 0 or len(old_y) != len(old_x):
        shapes = f"{len(old_x)} rows of X and y of shape {old_y.shape}"
        raise ValueError(f"fitted_on has {shapes}; they must be pairs.")
    matched = []
    for name, old, new in (("X", old_x, x), ("y", old_y, y)):
        if old[0].size != new[0].size:
            raise ValueError(
                f"a row of {name} has {old[0].size} numbers in fitted_on but {new[0].size} in the test, so "
                "they cannot be compared. Pass the training rows with the same columns."
            )
        coarse = min(old.dtype, new.dtype)
        matched += [old.astype(coarse), new.astype(coarse)]
    old_x, x, old_y, y = matched
    return SeenRows.of(old_x, old_y, size=len(old_x)), x, y


def _check_unseen(owner: Any, fitted_on: Any, x: Array, y: Array) -> tuple[float, bool]:
    """The share of rows that equal training rows (NaN if unknown), and whether it is more than chance."""
    seen = getattr(owner, "seen_rows_", None)
    if fitted_on is not None:
        seen, x, y = _sketch_training_rows(owner, fitted_on, x, y)
    if not isinstance(seen, SeenRows):
        return float("nan"), False
    share, beyond_chance = judge_seen(seen, x, y)
    if beyond_chance:
        about = "" if seen.is_complete else "about "
        warnings.warn(
            f"the sampler was trained on {about}{share * len(x):.0f} of these {len(x)} rows. The p-value is "
            "not valid, because a model agrees with the rows it has learned. Test it on held-out rows.",
            SeenRowsWarning,
            stacklevel=3,
        )
    return share, beyond_chance


def _check_independent(pairs: SwapPairs) -> None:
    if pairs.shared_noise > SHARED_NOISE:
        problem = describe_shared_noise(pairs.shared_noise, "the sampler's", "The p-value is not valid.")
    elif pairs.repeats:
        problem = (
            "the sampler's draws repeat: some that should be new equal the draw that is compared with y, as "
            "happens with a fixed random_state inside the sampler. They were left out of its mean and SD. "
            "Make new draws in every call, or use the random_state that is passed to sample."
        )
    else:
        return
    warnings.warn(problem, DependentDrawsWarning, stacklevel=3)


def _find_balls(
    x: Array,
    delta: float | Nearest | Neighborhoods | str | None,
    norm: Norm | None,
    max_size: int,
    n_centers: int | None,
    n_columns: int,
    rng: np.random.Generator,
) -> tuple[Array, Balls]:
    """Centres and their balls of at least two rows. Nothing here looks at y, which keeps the test exact."""
    wanted = MOST_CENTERS if n_centers is None else check_count(n_centers, "n_centers", 1)
    max_size = check_count(max_size, "max_size", 2, why="a swap changes nothing in a ball of one row")
    auto = isinstance(delta, str) and delta == "auto"
    if isinstance(delta, Neighborhoods):
        check_given(delta, "delta", len(x), norm)
    norm = Weighted.standardised(x) if auto and norm is None else check_norm(norm)
    seed, order = int(rng.integers(2**63)), rng.permutation(len(x))
    if delta is None:
        return order[:1], Balls(np.array([len(x)]), np.arange(len(x)))
    if auto:
        share = AUTO_SHARE_OF_ONE_INPUT if x.shape[1] == 1 else AUTO_SHARE
        delta = Nearest(min(max_size, len(x), max(LEAST_AUTO, len(x) // share)))
    search: BallSearch
    if isinstance(delta, Neighborhoods):
        order = order[delta.average(np.ones(delta.n_balls), otherwise=0.0)[order] > 0]
        given = _draw_given(delta, order[:wanted], max_size, rng)
        sizes = given.sizes
    else:
        if isinstance(delta, Nearest):
            k = check_count(delta.k, "k of Nearest", 2, why="a swap changes nothing in a ball of one row")
            search = nearest_search(x, min(k, len(x)), norm, max_size, seed)
        else:
            search = radius_search(x, check_radius(delta), norm, max_size, seed)
        sizes = search.sizes(order[:wanted])
    kept = np.flatnonzero(sizes > 1)
    if len(kept) == 0:
        setting = "these balls" if isinstance(delta, Neighborhoods) else f"delta={delta:.6g}"
        raise ValueError(
            f"with {setting} each of the {len(sizes)} balls tried holds one row, where swapping y and yhat "
            "changes nothing. Use a larger delta, so that balls hold at least 20 rows, or 'auto'."
        )
    if n_centers is None:
        affordable = np.cumsum(sizes[kept]) * n_columns <= MOST_EDGES
        kept = kept[: max(LEAST_CENTERS, np.count_nonzero(affordable))]
    kept = kept[np.argsort(order[kept])]
    centers = order[kept]
    if isinstance(delta, Neighborhoods):
        return centers, given.take(kept)
    return centers, Balls.join(list(search.chunks(centers)))


def _draw_given(hoods: Neighborhoods, centers: Array, max_size: int, rng: np.random.Generator) -> Balls:
    """One of the balls of each centre, at random; large balls are thinned at random."""
    place, ball = hoods.balls_of(centers)
    shuffled = rng.permutation(len(place))
    first = np.unique(place[shuffled], return_index=True)[1]
    distinct, number = np.unique(ball[shuffled][first], return_inverse=True)
    parts = [np.sort(rng.permutation(hoods.ball(int(b)).numpy())[:max_size]) for b in distinct]
    return Balls(np.array([len(rows) for rows in parts]), np.concatenate(parts)).take(number)
