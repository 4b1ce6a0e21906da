r"""Measures of how good draws are: errors in moments, proper scores, intervals, calibration, distances.

Arrays in, arrays or numbers out. The sample axis comes first, as ``sample`` returns it: draws are (S, N) for
y (N,) and (S, N, d) for y (N, d). Scores have one value per row, and lower is better; what is a mean over
rows takes ``sample_weight`` (N,), with which a row of weight 2 counts as two rows.

The scorers are for scikit-learn: ``cross_val_score(model, X, y, scoring=crps_scorer)``, and the same in
``GridSearchCV``, ``permutation_importance`` and wherever ``scoring=`` is asked for. There, larger is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import erf, logsumexp

from localw2._validation import (
    Array,
    as_array,
    as_rows,
    as_tensor,
    brief,
    check_count,
    check_probability,
    check_sample_weight,
    mean_of_all,
    seed_from,
)
from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.w2 import ball_values
from localw2.models.sampler import SamplerDraws, find_sampler

# Numbers (8 bytes each) that the energy score processes at a time, few enough to stay in cache.
SCORE_ELEMENTS = 1 << 15
SCORER_DRAWS = 200  # per row, of scores that are unbiased for any number of draws
DENSITY_DRAWS = 1000  # per row, of a density, whose bias falls with the number of draws
MOST_PAIRED = 5000  # rows of a distance correlation, which needs all pairs of them in memory


def mean_error(true_mean: Any, mean: Any, sample_weight: Any = None) -> float:
    r"""Relative error in the mean over the test inputs (paper, Fig. example1 j).

    .. math:: \sum_i |E y_i - E \hat y_i| \,/\, \sum_i |E y_i|

    ``true_mean`` and ``mean`` have the same shape, such as (n_x,); the sum runs over every entry, with
    ``sample_weight`` (n_x,) weighted in both.

    >>> mean_error([1.0, 3.0], [2.0, 3.0]), mean_error([1.0, 3.0], [2.0, 3.0], sample_weight=[3, 1])
    (0.25, 0.5)
    """
    truth, estimate = _floats(true_mean, "true_mean"), _floats(mean, "mean")
    return _relative_error(truth, estimate, "true_mean", "mean", sample_weight)


def std_error(true_std: Any, std: Any, sample_weight: Any = None) -> float:
    r"""Relative error in the standard deviation over the test inputs (paper, Fig. example1 j).

    .. math:: \sum_i |\mathrm{SD}\, y_i - \mathrm{SD}\, \hat y_i| \,/\, \sum_i \mathrm{SD}\, y_i

    Shapes and weights are as in ``mean_error``. Some inputs may have no spread (the nonlinear example at
    x = 0), but not all of them.

    >>> std_error([0.0, 2.0], [0.5, 1.5])
    0.5
    """
    truth, estimate = _spread(true_std, "true_std"), _spread(std, "std")
    return _relative_error(truth, estimate, "true_std", "std", sample_weight)


def draw_errors(y_draws: Any, yhat_draws: Any, sample_weight: Any = None) -> tuple[float, float]:
    r"""Relative errors in mean and SD, where both are estimated from draws (paper, Fig. example1 j).

    The formulas of ``mean_error`` and ``std_error``, with the mean and the SD of each column of ``y_draws``
    (draws, n_x) as the truth and those of ``yhat_draws`` (draws, n_x) as the estimate. The numbers of draws
    may differ, so variances divide by draws - 1; where they agree the divisor cancels. ``sample_weight``
    (n_x,) weights the inputs.

    The score includes the noise of the estimates. With the paper's 100 draws of y and yhat in the nonlinear
    example, at x = -0.5, -0.4, .., 0.5, a *perfect* model scores about .019 in mean and .096 in SD: smaller
    differences mean nothing, and a lower score is luck. If the true moments are known, compare with those.

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
            raise ValueError(f"{name} has 1 draw; an SD needs at least 2, along the first axis.")
    in_mean = _relative_error(y.mean(0), yhat.mean(0), "the mean of y_draws", "", sample_weight)
    stds = y.std(0, ddof=1), yhat.std(0, ddof=1)
    return in_mean, _relative_error(*stds, "the SD of y_draws", "", sample_weight)


def _relative_error(truth: Array, estimate: Array, name: str, other: str, sample_weight: Any) -> float:
    if truth.shape != estimate.shape:
        raise ValueError(
            f"{name} has shape {truth.shape} and {other} {estimate.shape}; "
            "they must be for the same test inputs, in the same order."
        )
    weights: Any = 1.0
    if sample_weight is not None:
        weights = check_sample_weight(sample_weight, len(np.atleast_1d(truth)), "test inputs")
        weights = weights.reshape(-1, *[1] * (truth.ndim - 1))
    size = (weights * np.abs(truth)).sum()
    if size == 0:
        raise ValueError(
            f"{name} is 0 at every test input, so a relative error is undefined. Compare differences instead."
        )
    return float((weights * np.abs(truth - estimate)).sum() / size)


def crps(y: Any, samples: Any) -> Array:
    r"""Fair continuous ranked probability score of each row from S draws; lower is better.

    .. math:: \frac1S \sum_s |\hat y_s - y| - \frac1{2 S (S - 1)} \sum_{s, t} |\hat y_s - \hat y_t|

    Fair means unbiased: for any S >= 2 its expectation over the draws is the CRPS of the distribution they
    come from, so that models may be compared at different S. A single value can be negative.

    ``y`` is (N,) with ``samples`` (S, N), or (N, d) with (S, N, d), where each output is scored separately;
    the result has the shape of ``y``. The sum over pairs takes O(S log S): in sorted order
    :math:`\sum_{s<t}` is :math:`\sum_i (2 i - S - 1)\, \hat y_{(i)}`.

    >>> crps([0.0, 1.0], [[-1.0, 1.0], [1.0, 1.0]])
    array([0., 0.])
    >>> crps([0.0], [[1.0], [2.0], [4.0]]).round(4)
    array([1.3333])
    """
    y, samples = _outcomes_and_draws(y, samples, fewest=2)
    n_samples = len(samples)
    # Subtract y first: a large common offset would otherwise cost the digits of the spread.
    gaps = samples - y
    closeness: Array = np.abs(gaps).mean(0)
    gaps.sort(axis=0)
    weights = (2.0 * np.arange(n_samples) - n_samples + 1) / (n_samples * (n_samples - 1))
    return closeness - np.tensordot(weights, gaps, 1)


def gaussian_crps(y: Any, mean: Any, std: Any) -> Array:
    r"""Exact CRPS of a Gaussian forecast, with z = (y - mean) / std.

    .. math:: \sigma \left( z\,(2 \Phi(z) - 1) + 2 \varphi(z) - 1/\sqrt{\pi} \right)

    ``mean`` and ``std`` have the shape of ``y`` or are single numbers; the result has y's shape. With
    std = 0 the forecast is a point and the score is :math:`|y - \mu|`.

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
    # As std goes to 0, z goes to infinity, where erf and exp have the right limits.
    with np.errstate(over="ignore"):
        z = gap / np.maximum(std, np.finfo(np.float64).tiny)
        peak = np.exp(-z * z / 2) * np.sqrt(2 / np.pi)
    score: Array = gap * erf(z / np.sqrt(2)) + std * (peak - 1 / np.sqrt(np.pi))
    return score


def energy_score(y: Any, samples: Any) -> Array:
    r"""Fair energy score of each row from S draws: the CRPS of several outputs at once; lower is better.

    .. math:: \frac1S \sum_s \|\hat y_s - y\| - \frac1{2 S (S - 1)} \sum_{s, t} \|\hat y_s - \hat y_t\|

    It is fair like ``crps``, with S >= 2. It is sensitive to the dependence between outputs, and it adds up
    their units: rescale them first if these differ. ``y`` is (N, d) with ``samples`` (S, N, d); the result is
    (N,). For one output it is ``crps``, and as fast. Otherwise it takes O(N S^2 d) time, in bounded memory: a
    chunk of rows at a time, down to the S d numbers of one row.

    >>> energy_score([[0.0, 0.0]], [[[3.0, 4.0]], [[-3.0, -4.0]]])
    array([0.])
    """
    y, samples = _outcomes_and_draws(y, samples, fewest=2)
    if y.ndim == 1 or y.shape[1] == 1:
        return crps(y, samples).reshape(-1)
    n_samples, n, d = samples.shape
    step, scores = max(1, SCORE_ELEMENTS // (n_samples * d)), np.empty(n)

    def lengths(vectors: Array) -> Any:  # (d, ...)
        return np.sqrt(np.einsum("k...,k...->...", vectors, vectors))

    for low in range(0, n, step):
        rows = slice(low, low + step)
        gaps = np.ascontiguousarray(np.moveaxis(samples[:, rows] - y[rows], 2, 0))
        # Draws s and s + lag of all rows at once: each pair occurs once, and no S x S table is needed.
        pairs = sum(lengths(gaps[:, lag:] - gaps[:, :-lag]).sum(0) for lag in range(1, n_samples))
        scores[rows] = lengths(gaps).mean(0) - pairs / (n_samples * (n_samples - 1))
    return scores


def log_score(y: Any, samples: Any, bandwidth: Any = None) -> Array:
    r"""Logarithmic score of each row from S draws, by a smoothed density; lower is better.

    .. math:: -\log \frac1S \sum_s \frac1h\, \varphi\Big(\frac{y - \hat y_s}{h}\Big), \qquad
              h = 1.06 \min(\mathrm{SD}, \mathrm{IQR} / 1.34)\, S^{-1/5}

    Draws have no density, so this is that of a Gaussian kernel with Silverman's robust bandwidth, or with the
    ``bandwidth`` given (one number, or one per value of y). Smoothing widens a law, a Gaussian of SD 1 to the
    variance 1 + h^2, so that it scores worse than its true density: by .005 on average with 1000 draws, by
    .016 with 200. And a y far beyond all draws gets the thin tail of the kernel, so that one such row may
    dominate a mean. The CRPS has neither weakness; take this score where the density itself matters.

    ``y`` is (N,) with ``samples`` (S, N), or (N, d) with (S, N, d), where each output is scored separately;
    the result has the shape of ``y``.

    >>> log_score([0.0], [[-1.0], [1.0]], bandwidth=1.0).round(4)
    array([1.4189])
    """
    y, samples = _outcomes_and_draws(y, samples, fewest=2)
    h = _choose_bandwidth(y, samples) if bandwidth is None else _floats(bandwidth, "bandwidth")
    if h.shape not in ((), y.shape) or not (h > 0).all():
        raise ValueError(f"bandwidth={brief(bandwidth)} must be positive: a number, or one per value of y.")
    z = (samples - y) / h
    log_density: Array = logsumexp(-0.5 * z * z, axis=0) - np.log(len(samples) * np.sqrt(2 * np.pi) * h)
    return -log_density


def _choose_bandwidth(y: Array, samples: Array) -> Array:
    """Silverman's rule, robust; of draws of which most are equal the SD alone."""
    samples = samples - y  # a large common offset would otherwise cost the digits of the spread
    low, high = np.quantile(samples, [0.25, 0.75], axis=0)
    std = samples.std(0, ddof=1)
    spread = np.where(high > low, np.minimum(std, (high - low) / 1.34), std)
    if stuck := int((~(spread > 0)).sum()):
        raise ValueError(
            f"all draws are equal at {stuck} of {spread.size} values of y, and a point has no density. Use "
            "crps, which needs none, or give a bandwidth."
        )
    width: Array = 1.06 * spread * len(samples) ** -0.2
    return width


def pinball_loss(y: Any, quantiles: Any, q: Any) -> Array:
    r"""Pinball loss of each row at each level q, which the quantile of y minimises; lower is better.

    .. math:: \max\big(q\,(y - \hat y_q),\ (q - 1)(y - \hat y_q)\big)

    ``quantiles`` is (len(q), N) for y (N,), or (len(q), N, d) for y (N, d), as ``predict_quantiles`` returns
    them; the result has their shape. With a single number q, both have the shape of ``y``.

    >>> pinball_loss([1.0, 3.0], [[2.0, 2.0]], q=[0.9])
    array([[0.1, 0.9]])
    """
    y, found = _floats(y, "y"), _floats(quantiles, "quantiles")
    levels = np.array([check_probability(level, "q") for level in np.atleast_1d(np.asarray(q)).tolist()])
    expected = y.shape if np.ndim(q) == 0 else (len(levels), *y.shape)
    if found.shape != expected:
        raise ValueError(
            f"quantiles has shape {found.shape} and y {y.shape}; with q={brief(q)} {expected} is expected, "
            "one quantile per level and value of y."
        )
    levels = levels[0] if np.ndim(q) == 0 else levels.reshape(-1, *[1] * y.ndim)
    loss: Array = np.maximum(levels * (y - found), (levels - 1) * (y - found))
    return loss


def interval_score(y: Any, lower: Any, upper: Any, coverage: float = 0.9) -> Array:
    r"""Interval score (Winkler) of each row: the width, and a penalty where y is outside; lower is better.

    .. math:: (u - l) + \tfrac2{1 - c} \big( (l - y)_+ + (y - u)_+ \big)

    The central interval of probability c, ``coverage``, is best. All three have the same shape, (N,) or
    (N, d), which is that of the result.

    >>> interval_score([0.5, 2.0], lower=[0, 0], upper=[1, 1], coverage=0.8).round(6)
    array([ 1., 11.])
    """
    (lower, upper), y = _interval(lower, upper), _floats(y, "y")
    _check_intervals(y, lower)
    miss = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
    score: Array = upper - lower + 2 / (1 - check_probability(coverage, "coverage")) * miss
    return score


def coverage(y: Any, lower: Any, upper: Any, sample_weight: Any = None) -> float:
    r"""Share of the outcomes inside their closed intervals.

    .. math:: \frac1N \sum_i 1[\,l_i \le y_i \le u_i\,]

    All three have the same shape, (N,) or (N, d), where every entry counts; for one of several outputs pass
    its column. ``sample_weight`` (N,) weights the rows. With N independent rows its standard error is
    :math:`\sqrt{c (1 - c) / N}`.

    >>> coverage([1.0, 2.0, 3.0, 4.0], lower=[0, 0, 0, 0], upper=[3, 3, 3, 3])
    0.75
    """
    (lower, upper), y = _interval(lower, upper), _floats(y, "y")
    _check_intervals(y, lower)
    return _average((lower <= y) & (y <= upper), sample_weight)


def interval_width(lower: Any, upper: Any, sample_weight: Any = None) -> float:
    r"""Mean width of the intervals: at equal coverage, narrower is better.

    .. math:: \frac1N \sum_i (u_i - l_i)

    ``lower`` and ``upper`` have the same shape, (N,) or (N, d), where every entry counts; ``sample_weight``
    (N,) weights the rows.

    >>> interval_width([0.0, 0.0], [1.0, 3.0])
    2.0
    """
    lower, upper = _interval(lower, upper)
    return _average(upper - lower, sample_weight)


def pit(y: Any, samples: Any, random_state: Any = None) -> Array:
    r"""Randomised probability integral transform, uniform on [0, 1] if y and its draws have one distribution.

    .. math:: \frac{\#\{s : \hat y_s < y\} + V\,(1 + \#\{s : \hat y_s = y\})}{S + 1},
              \qquad V \sim U(0, 1)

    This is the rank of y among its S draws, with ties and the gaps between ranks filled at random. With
    independent draws it is *exactly* uniform under the null for every S >= 1, even for counts and other
    distributions with atoms. Values that pile up at 0 and 1 show too little spread, in the middle too much.

    ``y`` is (N,) with ``samples`` (S, N), or (N, d) with (S, N, d); the result has the shape of ``y``.

    >>> values = pit([10.0, -10.0, 0.5], [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], random_state=0)
    >>> np.floor(3 * values)
    array([2., 0., 1.])
    """
    y, samples = _outcomes_and_draws(y, samples, fewest=1)
    below, ties = (samples < y).sum(0), (samples == y).sum(0)
    v = np.random.default_rng(seed_from(random_state)).random(y.shape)
    values: Array = (below + v * (1 + ties)) / (len(samples) + 1)
    return values


def w2(a: Any, b: Any) -> float:
    r"""2-Wasserstein distance between two samples, exact and *not* squared.

    .. math:: \Big( \min_\pi \sum_{i, j} \pi_{ij} \|a_i - b_j\|^2 \Big)^{1/2}

    The minimum is over couplings of the two empirical distributions. With one column, (n,) or (n, 1), the
    sizes may differ; quantiles are coupled, :math:`\int_0^1 (F_a^{-1} - F_b^{-1})^2`, in O(n log n). With
    several columns, (n, d), the sizes must be equal; an optimal assignment takes O(n^3) time and n^2 memory,
    which suits thousands of rows rather than millions. Two samples from one distribution are not at distance
    0: the distance only tends to 0 as they grow.

    >>> w2([0.0, 1.0], [3.0, 2.0])
    2.0
    >>> w2([0.0], [-1.0, 1.0, -1.0, 1.0])
    1.0
    >>> w2([[0.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]])
    1.0
    """
    a, b = (as_rows(values, name).astype(np.float64) for values, name in ((a, "a"), (b, "b")))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"a has {a.shape[1]} column(s) and b has {b.shape[1]}; they must agree.")
    n, m = len(a), len(b)
    if a.shape[1] == 1:
        # The quantile functions are steps. Levels in units of 1 / (n m) are integers, so that k / n and l / m
        # coincide exactly where they should.
        levels = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
        gaps = np.sort(a[:, 0])[(levels - 1) // m] - np.sort(b[:, 0])[(levels - 1) // n]
        return float(np.sqrt(np.diff(levels, prepend=0) / (n * m) @ gaps**2))
    if n != m:
        raise ValueError(
            f"a has {n} rows and b has {m}; with several columns rows are paired one to one, so "
            "the sizes must agree. Draw more, or use a random subset of the larger sample."
        )
    value = ball_values(as_tensor(a, "a")[None], as_tensor(b, "b")[None], Neighborhoods.whole(n))
    return float(value.sqrt())


def distance_correlation(a: Any, b: Any) -> float:
    r"""How much two variables depend on each other, in any way, from 0 (independent) to 1.

    .. math:: \sqrt{\max(0, R)}, \quad R = \sum_{i \ne j} A_{ij} B_{ij} / (\|A\| \|B\|)

    A and B are the U-centred distances within ``a`` and ``b`` (Szekely and Rizzo, Annals of Statistics 42,
    2014), whose R has no bias: it is 0 on average where they are independent, for any number of rows. A
    correlation of 0 does not say that. ``a`` and ``b`` are (n,) or (n, d), 4 <= n <= 5000; the result is 0 if
    one of them does not vary.

    >>> angle = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    >>> x, y = np.cos(angle), np.sin(angle)
    >>> abs(round(float(np.corrcoef(x, y)[0, 1]), 2)), round(distance_correlation(x, y), 2)
    (0.0, 0.14)
    >>> distance_correlation(x, -2 * x)
    1.0
    """
    pair = [as_rows(values, name).astype(np.float64) for values, name in ((a, "a"), (b, "b"))]
    n = len(pair[0])
    if len(pair[1]) != n:
        raise ValueError(f"a has {n} rows and b has {len(pair[1])}; they must agree.")
    if not 4 <= n <= MOST_PAIRED:
        raise ValueError(
            f"a has {n} rows; a distance correlation needs at least 4 and, as it compares all pairs of them, "
            f"takes at most {MOST_PAIRED}. Pass a random subset of more."
        )
    first, second = map(_centred_distances, pair)
    scale = np.sqrt((first**2).sum() * (second**2).sum())
    square = float((first * second).sum() / scale) if scale > 0 else 0.0
    return float(np.sqrt(min(1.0, max(0.0, square))))


def _centred_distances(rows: Array) -> Array:
    """The U-centred distances (n, n) of rows (n, d), in units of the widest column: no square overflows."""
    size = float(np.ptp(rows, axis=0).max())
    if not size > 0:
        return np.zeros((len(rows), len(rows)))
    distances = cdist(rows / size, rows / size)
    n, sums = len(rows), distances.sum(0)
    centred: Array = distances - (sums + sums[:, None]) / (n - 2) + sums.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(centred, 0.0)
    centred[np.abs(centred) < 1e-12] = 0.0
    return centred


def crps_scorer(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, n_samples: int = SCORER_DRAWS
) -> float:
    """Minus the mean CRPS of a fitted estimator, for ``scoring=``: larger is better.

    The estimator has ``sample(X, n_samples=..., random_state=...)``, as ours do, also as the last step of a
    pipeline or inside a search, or it is a ``RandomMap``. All scorers ask for draws with one fixed seed, so
    that the same model and rows have the same score and models are compared by common random numbers. Several
    outputs are scored separately, and their mean is taken. Another number of draws:
    ``functools.partial(crps_scorer, n_samples=50)``; for every number of them the score is unbiased.

    >>> from sklearn.model_selection import cross_val_score
    >>> from localw2 import LocalW2Regressor
    >>> from localw2.datasets import Nonlinear
    >>> x, y = Nonlinear().sample(200, random_state=0)
    >>> model = LocalW2Regressor(law="balls", random_state=0)
    >>> scores = cross_val_score(model, x, y, scoring=crps_scorer, cv=3)
    >>> bool((-1 < scores).all() and (scores < 0).all())
    True
    """
    return -_average(crps(*_draw(estimator, X, y, n_samples)), sample_weight)


def energy_scorer(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, n_samples: int = SCORER_DRAWS
) -> float:
    """Minus the mean energy score of a fitted estimator: ``crps_scorer`` for several outputs together.

    It sees the dependence between outputs, which ``crps_scorer`` does not, and it adds up their units.
    """
    return -_average(energy_score(*_draw(estimator, X, y, n_samples)), sample_weight)


def log_scorer(
    estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, n_samples: int = DENSITY_DRAWS
) -> float:
    """The mean log density of y under a fitted estimator, for ``scoring=``, smoothed as in ``log_score``.

    Estimators and outputs are as in ``crps_scorer``. Compare scores with the same number of draws only.
    """
    return -_average(log_score(*_draw(estimator, X, y, n_samples)), sample_weight)


def interval_scorer(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    coverage: float = 0.9,
    n_samples: int = DENSITY_DRAWS,
) -> float:
    """Minus the mean interval score of central intervals, for ``scoring=``: narrow ones that cover are best.

    The intervals are those of ``predict_interval(X, coverage=...)`` if the estimator has it (calibrated ones
    if the fit was), otherwise quantiles of its draws. Another coverage:
    ``functools.partial(interval_scorer, coverage=0.5)``.
    """
    coverage = check_probability(coverage, "coverage")
    inner, inputs = find_sampler(estimator, X)
    if hasattr(inner, "predict_interval"):
        ends = inner.predict_interval(inputs, coverage=coverage)
        if not isinstance(ends, tuple) or len(ends) != 2:
            raise ValueError(
                f"predict_interval of {type(inner).__name__} returned {brief(ends)}; a pair (lower, upper) "
                "of arrays of the shape of y is expected."
            )
        y = _floats(y, "y")
        lower, upper = (np.reshape(end, y.shape) if np.size(end) == y.size else end for end in ends)
    else:
        y, samples = _draw(estimator, X, y, n_samples)
        lower, upper = np.quantile(samples, [(1 - coverage) / 2, (1 + coverage) / 2], axis=0)
    return -_average(interval_score(y, lower, upper, coverage), sample_weight)


def _draw(estimator: Any, X: Any, y: Any, n_samples: int) -> tuple[Array, Array]:
    """Outcomes, and draws of an estimator of their shape, always from the same seed."""
    inner, inputs = find_sampler(estimator, X)
    y, n_samples = _floats(y, "y"), check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
    if isinstance(inner, type) or not hasattr(inner, "sample"):
        kind = inner.__name__ if isinstance(inner, type) else type(inner).__name__
        raise ValueError(
            f"{kind} has no method sample(X, n_samples=..., random_state=...), whose draws are scored. "
            "Give it one that returns draws (n_samples, *y.shape), or score a fitted LocalW2Regressor."
        )
    return y, SamplerDraws.of(inner, inputs, y.shape).many(n_samples, np.random.default_rng(0))


def _average(values: Array, sample_weight: Any) -> float:
    """The mean of values (N, ...) over every entry, of which those of a row have its weight."""
    rows = np.atleast_1d(values)
    weights = None if sample_weight is None else check_sample_weight(sample_weight, len(rows))
    return mean_of_all(rows.reshape(len(rows), -1), weights)


def _check_intervals(y: Array, lower: Array) -> None:
    if y.shape != lower.shape:
        raise ValueError(
            f"y has shape {y.shape} and its intervals have {lower.shape}; give one interval per value of y."
        )


def _floats(values: Any, name: str) -> Array:
    """Finite float64, because sums over many rows need the precision."""
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
        last = " These look like draws along the last axis: pass np.moveaxis(samples, -1, 0)."
        hint = last if samples.shape[:-1] == y.shape else ""
        expected = ", ".join(["S", *map(str, y.shape)])
        raise ValueError(
            f"samples has shape {samples.shape} and y {y.shape}; the sample axis comes first, "
            f"so ({expected}) is expected.{hint}"
        )
    if len(samples) < fewest:
        raise ValueError(
            f"samples has {len(samples)} draw per row; the fair score compares draws with each other and "
            f"needs at least {fewest}. Draw with n_samples={fewest} or more."
        )
    return y, samples


def _interval(lower: Any, upper: Any) -> tuple[Array, Array]:
    lower, upper = _floats(lower, "lower"), _floats(upper, "upper")
    if lower.shape != upper.shape:
        raise ValueError(f"lower has shape {lower.shape} and upper {upper.shape}; they must agree.")
    crossed = np.argwhere(lower > upper)
    if len(crossed):
        first = tuple(int(i) for i in crossed[0])
        raise ValueError(
            f"lower exceeds upper in {len(crossed)} of {lower.size} intervals, the first at index {first}; "
            "such intervals are empty. Swap the arguments, or sort quantiles that cross."
        )
    return lower, upper


def log_loss(codes: Any, probabilities: Any) -> float:
    """Minus the mean log probability of classes ``codes`` (N,), places in the columns of (N, K).

    >>> log_loss([0, 1], [[0.5, 0.5], [0.5, 0.5]]).__round__(4)
    0.6931
    """
    chosen, table = _classes(codes, probabilities)
    return -float(np.log(np.maximum(table[np.arange(len(chosen)), chosen], 1e-15)).mean())


def brier_score(codes: Any, probabilities: Any) -> float:
    """The mean squared distance of probabilities (N, K) from the classes that came, 0 to 2.

    >>> brier_score([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    0.25
    """
    chosen, table = _classes(codes, probabilities)
    return float(((table - np.eye(table.shape[1])[chosen]) ** 2).sum(1).mean())


def calibration_error(codes: Any, probabilities: Any, n_bins: int = 10) -> float:
    """The expected calibration error: how far shares of classes are from their probabilities, bin by bin.

    The probabilities of each class are put in ``n_bins`` bins of equally many rows, and the distance between
    their mean and the share of rows with that class is averaged over bins and classes. By chance it is not 0.

    >>> calibration_error([0, 0, 0, 1], [[0.75, 0.25]] * 4, n_bins=1)
    0.0
    """
    chosen, table = _classes(codes, probabilities)
    return CalibrationBins.of(table, n_bins).error(chosen)


@final
@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """Bins of equally many rows by the probability of each class, for many tables of the same rows.

    ``places`` (N, K) has the bin of a row among those of a class, ``expected`` (K, B) the sum of the
    probabilities in it.
    """

    places: Array
    expected: Array

    @classmethod
    def of(cls, probabilities: Array, n_bins: int = 10) -> CalibrationBins:
        """The bins of probabilities (N, K)."""
        n, n_classes = probabilities.shape
        n_bins = min(n_bins, n)
        ends = np.repeat(np.arange(n_bins), [len(part) for part in np.array_split(np.arange(n), n_bins)])
        places = np.empty((n, n_classes), np.int64)
        np.put_along_axis(places, np.argsort(probabilities, axis=0, kind="stable"), ends[:, None], 0)
        expected = [
            np.bincount(places[:, k], probabilities[:, k], minlength=n_bins) for k in range(n_classes)
        ]
        return cls(places, np.stack(expected))

    def error(self, codes: Array) -> float:
        """The calibration error if the rows have these classes (N,)."""
        n_classes, n_bins = self.expected.shape
        cells = codes * n_bins + self.places[np.arange(len(codes)), codes]
        seen = np.bincount(cells, minlength=self.expected.size).reshape(n_classes, n_bins)
        return float(np.abs(seen - self.expected).sum() / self.places.size)


def _classes(codes: Any, probabilities: Any) -> tuple[Array, Array]:
    table, chosen = as_array(probabilities, "probabilities"), np.asarray(codes)
    if table.ndim != 2 or chosen.shape != table.shape[:1] or chosen.dtype.kind not in "iu":
        raise ValueError(
            f"codes {chosen.dtype} {chosen.shape} and probabilities {table.shape} do not fit; expected whole "
            "numbers (N,) and (N, K)."
        )
    if len(chosen) and not 0 <= chosen.min() <= chosen.max() < table.shape[1]:
        raise ValueError(f"codes must be from 0 to {table.shape[1] - 1}, the columns of probabilities.")
    return chosen, table
