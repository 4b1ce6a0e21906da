r"""How good are the draws: errors in the moments, proper scores, intervals, calibration, distances.

Arrays in, arrays or numbers out. The sample axis comes first, as ``sample`` returns it: draws are (S, N) for
y (N,) and (S, N, d) for y (N, d).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf

from localw2._validation import Array, as_array, as_rows, as_tensor, seed_of
from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.w2 import w2_squared

# Numbers (8 bytes each) that the energy score works on at a time, few enough to stay in cache.
SCORE_ELEMENTS = 1 << 15


def mean_error(true_mean: Any, mean: Any) -> float:
    r"""Relative error in the mean over the test inputs (paper, Fig. example1 j).

    .. math:: \sum_i |E y_i - E \hat y_i| \,/\, \sum_i |E y_i|

    ``true_mean`` and ``mean`` have one shape, such as (n_x,); the sum runs over every entry.

    >>> mean_error([1.0, 3.0], [2.0, 3.0])
    0.25
    """
    return _relative_error(_floats(true_mean, "true_mean"), _floats(mean, "mean"), ("true_mean", "mean"))


def std_error(true_std: Any, std: Any) -> float:
    r"""Relative error in the standard deviation over the test inputs (paper, Fig. example1 j).

    .. math:: \sum_i |\mathrm{SD}\, y_i - \mathrm{SD}\, \hat y_i| \,/\, \sum_i \mathrm{SD}\, y_i

    ``true_std`` and ``std`` have one shape, such as (n_x,); the sum runs over every entry. A single input
    without spread is fine (the nonlinear example at x = 0), all of them without spread is not.

    >>> std_error([0.0, 2.0], [0.5, 1.5])
    0.5
    """
    stds = _spread(true_std, "true_std"), _spread(std, "std")
    return _relative_error(*stds, ("true_std", "std"))


def draw_errors(y_draws: Any, yhat_draws: Any) -> tuple[float, float]:
    r"""Errors in mean and SD with both sides estimated from draws (paper, Fig. example1 j).

    The formulas of ``mean_error`` and ``std_error``, with the mean and the SD of each column of ``y_draws``
    (draws, n_x) as the truth and those of ``yhat_draws`` (draws, n_x) as the estimate. The numbers of draws
    may differ, so variances divide by draws - 1; where they agree the divisor cancels.

    The estimates' own noise is in the score. With the paper's 100 draws on each side of the nonlinear
    example, at x = -0.5, -0.4, .., 0.5, a *perfect* model scores about .019 in mean and .096 in SD: smaller
    differences say nothing, and a lower score is luck. Where the true moments are known compare with those.

    >>> y = np.array([[0.0, 2.0], [2.0, 4.0]])
    >>> draw_errors(y, 2 * y)
    (1.0, 1.0)
    """
    y, yhat = _floats(y_draws, "y_draws"), _floats(yhat_draws, "yhat_draws")
    if y.ndim != 2 or yhat.ndim != 2 or y.shape[1] != yhat.shape[1]:
        raise ValueError(
            f"y_draws has shape {y.shape} and yhat_draws {yhat.shape}; both must be (draws, n_x) "
            "at the same n_x inputs."
        )
    for draws, name in ((y, "y_draws"), (yhat, "yhat_draws")):
        if len(draws) < 2:
            raise ValueError(f"{name} has 1 draw; an SD needs at least 2. The sample axis comes first.")
    names = "y_draws", "yhat_draws"
    in_mean = _relative_error(y.mean(0), yhat.mean(0), names, "mean")
    return in_mean, _relative_error(y.std(0, ddof=1), yhat.std(0, ddof=1), names, "SD")


def _relative_error(truth: Array, estimate: Array, names: tuple[str, str], of: str = "") -> float:
    if truth.shape != estimate.shape:
        raise ValueError(
            f"{names[0]} has shape {truth.shape} and {names[1]} {estimate.shape}; "
            "they must be the same test inputs, in the same order."
        )
    size = np.abs(truth).sum()
    if size == 0:
        zero = f"the {of} of {names[0]}" if of else names[0]
        raise ValueError(
            f"{zero} is 0 at every test input, so a relative error is undefined. Compare differences instead."
        )
    return float(np.abs(truth - estimate).sum() / size)


def crps(y: Any, samples: Any) -> Array:
    r"""Continuous ranked probability score of each row from S draws, fair; lower is better.

    .. math:: \frac1S \sum_s |\hat y_s - y| - \frac1{2 S (S - 1)} \sum_{s, t} |\hat y_s - \hat y_t|

    Fair means unbiased: its expectation over the draws is the CRPS of the law they come from, whatever
    S >= 2, so models may be compared at different S. A single value can be negative.

    ``y`` is (N,) with ``samples`` (S, N), or (N, d) with (S, N, d), where each output is scored by itself;
    the result has the shape of ``y``. Pairs cost no pairs: in sorted order :math:`\sum_{s<t}` is
    :math:`\sum_i (2 i - S - 1)\, \hat y_{(i)}`, O(S log S).

    >>> crps([0.0, 1.0], [[-1.0, 1.0], [1.0, 1.0]])
    array([0., 0.])
    >>> crps([0.0], [[1.0], [2.0], [4.0]]).round(4)
    array([1.3333])
    """
    y, samples = _outcomes_and_draws(y, samples, fewest=2)
    n_samples = len(samples)
    # Differences from y first: a common offset of both would otherwise eat the digits of the spread.
    gaps = samples - y
    closeness: Array = np.abs(gaps).mean(0)
    gaps.sort(axis=0)
    weights = (2.0 * np.arange(n_samples) - n_samples + 1) / (n_samples * (n_samples - 1))
    return closeness - np.tensordot(weights, gaps, 1)


def gaussian_crps(y: Any, mean: Any, std: Any) -> Array:
    r"""Exact CRPS of a Gaussian forecast, with z = (y - mean) / std.

    .. math:: \sigma \left( z\,(2 \Phi(z) - 1) + 2 \varphi(z) - 1/\sqrt{\pi} \right)

    ``mean`` and ``std`` have the shape of ``y`` or are single numbers; so has the result. With std = 0 the
    forecast is a point and the score :math:`|y - \mu|`.

    >>> gaussian_crps([0.0, 2.0], mean=0.0, std=[1.0, 0.0]).round(4)
    array([0.2337, 2.    ])
    """
    y = _floats(y, "y")
    mean, std = _floats(mean, "mean"), _spread(std, "std")
    for values, name in ((mean, "mean"), (std, "std")):
        if values.shape not in ((), y.shape):
            raise ValueError(
                f"{name} has shape {values.shape} and y {y.shape}; "
                f"give one {name} for each value of y, or a single number."
            )
    gap = y - mean
    # As std goes to 0, z runs to infinity, where erf and exp have the right limits.
    with np.errstate(over="ignore"):
        z = gap / np.maximum(std, np.finfo(np.float64).tiny)
        peak = np.exp(-z * z / 2) * np.sqrt(2 / np.pi)
    score: Array = gap * erf(z / np.sqrt(2)) + std * (peak - 1 / np.sqrt(np.pi))
    return score


def energy_score(y: Any, samples: Any) -> Array:
    r"""Energy score of each row from S draws, fair: the CRPS of several outputs at once; lower is better.

    .. math:: \frac1S \sum_s \|\hat y_s - y\| - \frac1{2 S (S - 1)} \sum_{s, t} \|\hat y_s - \hat y_t\|

    Fair as ``crps`` is, with S >= 2. It sees dependence between the outputs, and it adds their units: scale
    them first where these differ. ``y`` is (N, d) with ``samples`` (S, N, d); the result is (N,). For one
    output it is ``crps``, and as fast. Otherwise the time is O(N S^2 d), but memory beyond the arguments is
    bounded: a chunk of rows at a time, down to the S d numbers of one row.

    >>> energy_score([[0.0, 0.0]], [[[3.0, 4.0]], [[-3.0, -4.0]]])
    array([0.])
    """
    y, samples = _outcomes_and_draws(y, samples, fewest=2)
    if y.ndim == 1 or y.shape[1] == 1:
        return crps(y, samples).reshape(-1)
    step = max(1, SCORE_ELEMENTS // (samples.shape[0] * samples.shape[2]))
    chunks = [slice(low, low + step) for low in range(0, len(y), step)]
    return np.concatenate([_energy_score(samples[:, rows] - y[rows]) for rows in chunks])


def _energy_score(gaps: Array) -> Array:
    """The energy score (n,) of draws minus outcome, (S, n, d)."""
    n_samples = len(gaps)
    gaps = np.ascontiguousarray(np.moveaxis(gaps, 2, 0))
    # Draws s and s + lag of all rows at once: each pair is met once, and no S x S table is ever held.
    pairs = sum(_lengths(gaps[:, lag:] - gaps[:, :-lag]).sum(0) for lag in range(1, n_samples))
    score: Array = _lengths(gaps).mean(0) - pairs / (n_samples * (n_samples - 1))
    return score


def _lengths(vectors: Array) -> Array:
    """Euclidean norms of vectors (d, ...)."""
    lengths: Array = np.sqrt(np.einsum("k...,k...->...", vectors, vectors))
    return lengths


def coverage(y: Any, lower: Any, upper: Any) -> float:
    r"""Share of the outcomes inside their closed intervals.

    .. math:: \frac1N \sum_i 1[\,l_i \le y_i \le u_i\,]

    All three have one shape, (N,) or (N, d), where every entry counts; for one output of several give its
    column. Of N independent rows it is uncertain by :math:`\sqrt{c (1 - c) / N}`.

    >>> coverage([1.0, 2.0, 3.0, 4.0], lower=[0, 0, 0, 0], upper=[3, 3, 3, 3])
    0.75
    """
    lower, upper = _interval(lower, upper)
    y = _floats(y, "y")
    if y.shape != lower.shape:
        raise ValueError(
            f"y has shape {y.shape} and its intervals {lower.shape}; give one interval for each value of y."
        )
    return float(((lower <= y) & (y <= upper)).mean())


def interval_width(lower: Any, upper: Any) -> float:
    r"""Mean width of the intervals: at equal coverage, narrower is better.

    .. math:: \frac1N \sum_i (u_i - l_i)

    ``lower`` and ``upper`` have one shape, (N,) or (N, d), where every entry counts.

    >>> interval_width([0.0, 0.0], [1.0, 3.0])
    2.0
    """
    lower, upper = _interval(lower, upper)
    return float((upper - lower).mean())


def pit(y: Any, samples: Any, random_state: Any = None) -> Array:
    r"""Randomised probability integral transform: uniform on [0, 1] if y and its draws share one law.

    .. math:: \frac{\#\{s : \hat y_s < y\} + V\,(1 + \#\{s : \hat y_s = y\})}{S + 1},
              \qquad V \sim U(0, 1)

    The rank of y among its S draws, with ties and the gap between ranks filled at random. So it is *exactly*
    uniform under the null for every S >= 1 and also for counts and other laws with atoms, given independent
    draws. Values heaped at 0 and 1 tell of too little spread, in the middle of too much.

    ``y`` is (N,) with ``samples`` (S, N), or (N, d) with (S, N, d); the result has the shape of ``y``.

    >>> values = pit([10.0, -10.0, 0.5], [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], random_state=0)
    >>> np.floor(3 * values)
    array([2., 0., 1.])
    """
    y, samples = _outcomes_and_draws(y, samples, fewest=1)
    below, ties = (samples < y).sum(0), (samples == y).sum(0)
    v = np.random.default_rng(seed_of(random_state)).random(y.shape)
    values: Array = (below + v * (1 + ties)) / (len(samples) + 1)
    return values


def w2(a: Any, b: Any) -> float:
    r"""2-Wasserstein distance between two samples, exact and *not* squared.

    .. math:: \Big( \min_\pi \sum_{i, j} \pi_{ij} \|a_i - b_j\|^2 \Big)^{1/2}

    The minimum is over couplings of the two empirical laws. One column, (n,) or (n, 1): the sizes may differ;
    quantiles are coupled, :math:`\int_0^1 (F_a^{-1} - F_b^{-1})^2`, in O(n log n). Several columns, (n, d):
    equal sizes, an optimal assignment, O(n^3) time and n^2 memory, so thousands of rows rather than millions.
    Two samples of one law are not at distance 0: the distance only tends to it as they grow.

    >>> w2([0.0, 1.0], [3.0, 2.0])
    2.0
    >>> w2([0.0], [-1.0, 1.0, -1.0, 1.0])
    1.0
    >>> w2([[0.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]])
    1.0
    """
    a, b = (as_rows(values, name).astype(np.float64) for values, name in ((a, "a"), (b, "b")))
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"a has {a.shape[1]} column(s) and b {b.shape[1]}; a distance needs two samples of one space."
        )
    if a.shape[1] == 1:
        return float(np.sqrt(_quantile_cost(np.sort(a[:, 0]), np.sort(b[:, 0]))))
    if len(a) != len(b):
        raise ValueError(
            f"a has {len(a)} rows and b {len(b)}; with several columns rows are paired one to one, so the "
            "sizes must agree. Draw as many, or take a random subset of the larger sample."
        )
    value = w2_squared(as_tensor(a, "a"), as_tensor(b, "b"), Neighborhoods.whole(len(a)))
    return float(value.sqrt())


def _quantile_cost(a: Array, b: Array) -> float:
    """The squared distance of two sorted samples (n,) and (m,), whose quantile functions are steps."""
    n, m = len(a), len(b)
    # Levels in units of 1 / (n m) are whole numbers: k / n and l / m then meet exactly where they should.
    levels = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    shares = np.diff(levels, prepend=0) / (n * m)
    gaps = a[(levels - 1) // m] - b[(levels - 1) // n]
    return float(shares @ gaps**2)


def _floats(values: Any, name: str) -> Array:
    """Finite float64: sums over many rows need the digits."""
    return as_array(values, name).astype(np.float64, copy=False)


def _spread(values: Any, name: str) -> Array:
    std = _floats(values, name)
    if (std < 0).any():
        raise ValueError(f"{name} has a negative value ({std.min():g}); standard deviations are >= 0.")
    return std


def _outcomes_and_draws(y: Any, samples: Any, fewest: int) -> tuple[Array, Array]:
    y, samples = _floats(y, "y"), _floats(samples, "samples")
    if y.ndim not in (1, 2):
        raise ValueError(f"y has shape {y.shape}; expected (N,), or (N, d) with d outputs.")
    if samples.shape[1:] != y.shape:
        hint = ""
        if samples.shape[:-1] == y.shape:
            hint = " These look like draws along the last axis: pass np.moveaxis(samples, -1, 0)."
        expected = ", ".join(["S", *map(str, y.shape)])
        raise ValueError(
            f"samples has shape {samples.shape} and y {y.shape}; the sample axis comes first, "
            f"so ({expected}) is expected.{hint}"
        )
    if len(samples) < fewest:
        raise ValueError(
            f"samples has {len(samples)} draw of each row; the fair score compares draws with each other and "
            f"needs at least {fewest}. Draw with n_samples={fewest} or more."
        )
    return y, samples


def _interval(lower: Any, upper: Any) -> tuple[Array, Array]:
    lower, upper = _floats(lower, "lower"), _floats(upper, "upper")
    if lower.shape != upper.shape:
        raise ValueError(
            f"lower has shape {lower.shape} and upper {upper.shape}; an interval needs one of each."
        )
    crossed = np.argwhere(lower > upper)
    if len(crossed):
        first = tuple(int(i) for i in crossed[0])
        raise ValueError(
            f"lower exceeds upper in {len(crossed)} of {lower.size} intervals, the first at index {first}; "
            "these hold nothing. Swap the arguments, or sort quantiles that cross."
        )
    return lower, upper
