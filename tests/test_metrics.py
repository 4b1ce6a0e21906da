import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from localw2 import metrics
from localw2.datasets import Nonlinear
from localw2.metrics import (
    coverage,
    crps,
    distance_correlation,
    draw_errors,
    energy_score,
    gaussian_crps,
    interval_width,
    mean_error,
    pit,
    std_error,
    w2,
)

# --- errors in the moments ---


def test_errors_against_true_moments():
    truth = Nonlinear()
    x = np.linspace(-0.5, 0.5, 11)
    mean, std = truth.mean(x), truth.std(x)
    assert mean_error(mean, mean) == std_error(std, std) == 0
    assert mean_error(mean, 1.1 * mean) == pytest.approx(0.1)
    assert std_error(std, 0 * std) == pytest.approx(1)
    assert mean_error(-mean, 0 * mean) == pytest.approx(1)  # the scale is |truth|, whatever its sign
    assert mean_error(3 * mean, 3 * mean + 3) == pytest.approx(mean_error(mean, mean + 1))


def test_draw_errors_are_the_errors_of_the_draws_moments():
    rng = np.random.default_rng(0)
    y, yhat = rng.normal(2, 1, (7, 4)), rng.normal(1, 2, (5, 4))
    in_mean, in_std = draw_errors(y, yhat)
    assert in_mean == pytest.approx(mean_error(y.mean(0), yhat.mean(0)))
    assert in_std == pytest.approx(std_error(np.std(y, 0, ddof=1), np.std(yhat, 0, ddof=1)))
    assert draw_errors(y, rng.permuted(y, axis=0)) == pytest.approx((0, 0), abs=1e-12)


def test_a_perfect_model_scores_the_documented_noise_floor():
    truth, rng = Nonlinear(), np.random.default_rng(1)
    x = -0.5 + 0.1 * np.arange(11)

    def draws():
        return truth.sample_y(np.tile(x, 100)[:, None], rng).reshape(100, 11)

    scores = np.array([draw_errors(draws(), draws()) for _ in range(1500)])
    standard_error = scores.std(0) / np.sqrt(len(scores))
    # The floor is quoted to three decimals (hence .0005); beyond that 4.5 standard errors for each of two
    # means, 1.4e-5 of seeds.
    assert np.all(np.abs(scores.mean(0) - [0.019, 0.096]) < 0.0005 + 4.5 * standard_error)
    assert np.all(standard_error < [0.0002, 0.001])


# --- scores against independent formulas ---


def naive_score(y, draws):
    """The fair energy score of one row as it is written: y (d,), draws (S, d)."""
    n = len(draws)
    pairs = sum(np.linalg.norm(s - t) for s in draws for t in draws)
    return np.mean([np.linalg.norm(s - y) for s in draws]) - pairs / (2 * n * (n - 1))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
def test_scores_are_the_naive_sums_over_pairs(n_samples, n, d, tied, seed):
    rng = np.random.default_rng(seed)
    y, samples = rng.normal(size=(n, d)), 3 * rng.normal(size=(n_samples, n, d))
    if tied:
        y, samples = y.round(), samples.round()
    by_output = [[naive_score(y[i, [k]], samples[:, i, [k]]) for k in range(d)] for i in range(n)]
    np.testing.assert_allclose(crps(y, samples), by_output, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(crps(y[:, 0], samples[..., 0]), crps(y, samples)[:, 0], atol=1e-12)
    expected = [naive_score(y[i], samples[:, i]) for i in range(n)]
    np.testing.assert_allclose(energy_score(y, samples), expected, rtol=1e-12, atol=1e-12)


def test_the_energy_score_in_chunks_of_rows_is_the_same(monkeypatch):
    rng = np.random.default_rng(2)
    y, samples = rng.normal(size=(7, 2)), rng.normal(size=(5, 7, 2))
    whole = energy_score(y, samples)
    for elements in (1, 20, 39, 60, 70):  # chunks of 1, 2, 3, 6 and 7 rows
        monkeypatch.setattr(metrics, "SCORE_ELEMENTS", elements)
        np.testing.assert_allclose(energy_score(y, samples), whole, rtol=1e-13)


def test_the_energy_score_needs_little_memory():
    rng = np.random.default_rng(3)
    y, samples = rng.normal(size=(100, 2)), rng.normal(size=(400, 100, 2))
    tracemalloc.start()
    try:
        energy_score(y, samples)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 8 * metrics.SCORE_ELEMENTS  # 4 MB, where all pairs of all rows would take 128


def test_the_energy_score_of_one_output_is_the_crps():
    rng = np.random.default_rng(4)
    y, samples = rng.normal(size=6), rng.normal(size=(5, 6))
    for scores in (energy_score(y, samples), energy_score(y[:, None], samples[..., None])):
        assert scores.shape == (6,)
        np.testing.assert_array_equal(scores, crps(y, samples))


def test_scores_shift_scale_and_forget_the_order_of_draws():
    rng = np.random.default_rng(5)
    y, samples = rng.normal(size=(4, 3)), rng.normal(size=(8, 4, 3))
    for score in (crps, energy_score):
        plain = score(y, samples)
        np.testing.assert_allclose(score(y + 7, samples + 7), plain, rtol=1e-12)
        np.testing.assert_allclose(score(-2 * y, -2 * samples), 2 * plain, rtol=1e-12)
        np.testing.assert_allclose(score(y, samples[::-1]), plain, rtol=1e-12)


def test_a_common_offset_does_not_eat_the_digits():
    rng = np.random.default_rng(6)
    y, samples = rng.integers(0, 99, size=4) / 64, rng.integers(0, 99, size=(50, 4)) / 64  # exact in binary
    np.testing.assert_array_equal(crps(y + 2.0**40, samples + 2.0**40), crps(y, samples))


def test_gaussian_crps_is_the_integral_that_defines_it():
    for y, mean, std in [(0.3, 0.0, 1.0), (-2.0, 1.0, 0.5), (4.0, -1.0, 3.0)]:

        def below(t, mean=mean, std=std):
            return stats.norm.cdf(t, mean, std) ** 2

        def above(t, mean=mean, std=std):
            return stats.norm.sf(t, mean, std) ** 2

        expected = integrate.quad(below, -40, y)[0] + integrate.quad(above, y, 40)[0]
        assert float(gaussian_crps(y, mean, std)) == pytest.approx(expected, rel=1e-7)


def test_gaussian_crps_tends_to_the_distance_as_the_spread_vanishes():
    y = np.array([-1.0, 0.0, 2.5])
    for std in (0.0, 5e-324, 1e-200, 1e-12):
        np.testing.assert_allclose(gaussian_crps(y, 0.0, std), np.abs(y), atol=1e-12)


# --- scores are fair ---


@pytest.mark.parametrize("y", [-1.3, 0.0, 2.0])
def test_the_crps_of_two_draws_is_right_on_average(y):
    samples = np.random.default_rng(7).normal(size=(2, 200_000))
    scores = crps(np.full(200_000, y), samples)
    standard_error = scores.std() / np.sqrt(len(scores))
    exact = float(gaussian_crps(y, 0.0, 1.0))
    # 4.5 standard errors in three cases: 2e-5 of seeds.
    assert abs(scores.mean() - exact) < 4.5 * standard_error
    # The usual 1 / S^2 form is not: it takes away half as much, E|X - X'| / 4 = .28 too high.
    unfair = scores + np.abs(samples[0] - samples[1]) / 4
    assert unfair.mean() - exact > 50 * standard_error


@pytest.mark.parametrize("n_samples", [2, 5])
def test_the_energy_score_of_few_draws_is_right_on_average(n_samples):
    scores = energy_score(np.zeros((10_000, 2)), np.random.default_rng(8).normal(size=(n_samples, 10_000, 2)))
    exact = math.sqrt(math.pi / 2) - math.sqrt(math.pi) / 2  # E|X| and E|X - X'| / 2 of a standard normal
    # 4.5 standard errors in two cases: 1.4e-5 of seeds.
    assert abs(scores.mean() - exact) < 4.5 * scores.std() / np.sqrt(len(scores))


def test_the_truth_scores_best():
    rng = np.random.default_rng(9)
    y, noise = rng.normal(size=(2000, 2)), rng.normal(size=(10, 2000, 2))
    for wrong in (noise + 1, 2.5 * noise, 0.2 * noise):
        for score in (lambda y, s: crps(y[:, 0], s[..., 0]), energy_score):
            excess = score(y, wrong) - score(y, noise)
            # The wrong laws lose by 19 to 45 standard errors, so 10 are missed in well below 1e-9 of seeds.
            assert excess.mean() > 10 * excess.std() / np.sqrt(len(excess))


# --- intervals ---


def test_coverage_counts_the_ends_and_width_is_a_mean():
    y = np.array([0.0, 1.0, 2.0, 3.0])
    assert coverage(y, y, y) == 1
    assert coverage(y, y + 0.5, y + 1) == 0
    assert coverage(y, np.full(4, 1.0), np.full(4, 2.0)) == 0.5
    assert coverage(y.reshape(2, 2), np.ones((2, 2)), np.full((2, 2), 9.0)) == 0.75
    assert interval_width(y, y + np.arange(4)) == 1.5
    assert type(coverage(y, y, y)) is type(interval_width(y, y)) is float


def test_coverage_of_the_true_quantiles_is_nominal():
    n = 20_000
    y = np.random.default_rng(10).normal(size=n)
    ends = stats.norm.ppf([0.05, 0.95])
    # 4.5 standard errors: 7e-6 of seeds.
    assert coverage(y, np.full(n, ends[0]), np.full(n, ends[1])) == pytest.approx(
        0.9, abs=4.5 * math.sqrt(0.09 / n)
    )


# --- PIT ---

LAWS = {
    "continuous": lambda rng, size: rng.normal(size=size),
    "counts": lambda rng, size: rng.poisson(1.5, size=size),
    "atom": lambda rng, size: np.maximum(rng.normal(size=size), 0),
    "constant": lambda rng, size: np.zeros(size),
}


@pytest.mark.parametrize("n_samples", [1, 2, 19])
@pytest.mark.parametrize("law", LAWS)
def test_pit_is_uniform_if_y_and_its_draws_share_a_law(law, n_samples):
    rng = np.random.default_rng(11)
    values = pit(LAWS[law](rng, 20_000), LAWS[law](rng, (n_samples, 20_000)), random_state=rng)
    assert values.min() >= 0
    assert values.max() <= 1
    # Kolmogorov-Smirnov, twelve cases at level 1e-6 each: 1.2e-5 of seeds.
    assert stats.kstest(values, "uniform").pvalue > 1e-6
    # The same for 40 equal cells, which sees what happens inside a rank: another 1.2e-5.
    assert stats.chisquare(np.histogram(values, 40, (0, 1))[0]).pvalue > 1e-6


@pytest.mark.parametrize("law", ["continuous", "counts"])
def test_pit_is_not_uniform_if_the_draws_are_wrong(law):
    rng = np.random.default_rng(12)
    y, samples = LAWS[law](rng, 5000), LAWS[law](rng, (50, 5000))
    centre = 1.5 * (law == "counts")
    for wrong in (samples + 0.3, centre + 0.6 * (samples - centre)):
        assert stats.kstest(pit(y, wrong, random_state=rng), "uniform").pvalue < 1e-6


def test_pit_tells_too_little_spread_from_too_much():
    rng = np.random.default_rng(13)
    y, samples = rng.normal(size=5000), rng.normal(size=(50, 5000))
    # The SD of a uniform variable is .289; the effects are over .05, some 25 standard errors.
    assert pit(y, 0.5 * samples, 0).std() > 0.33
    assert pit(y, 2 * samples, 0).std() < 0.25


def test_pit_depends_on_its_random_state_only():
    rng = np.random.default_rng(14)
    y, samples = rng.normal(size=(6, 2)), rng.normal(size=(4, 6, 2))
    assert pit(y, samples).shape == (6, 2)
    np.testing.assert_array_equal(pit(y, samples, 3), pit(y, samples, 3))
    assert not np.array_equal(pit(y, samples, 3), pit(y, samples, 4))
    ranks = (samples < y).sum(0)
    np.testing.assert_array_equal(np.floor(5 * pit(y, samples, 3)), ranks)


# --- W2 ---


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.integers(0, 2**32 - 1))
def test_w2_of_one_column_is_pot_s(n, m, tied, seed):
    import ot

    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), rng.normal(1, 2, size=m)
    if tied:
        a, b = a.round(), b.round()
    expected = math.sqrt(ot.emd2_1d(a, b, metric="sqeuclidean"))
    assert w2(a, b) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert w2(b[:, None], a[:, None]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("n", "d"), [(1, 2), (3, 2), (20, 2), (40, 5)])
def test_w2_of_several_columns_is_pot_s(n, d):
    import ot

    rng = np.random.default_rng(15)
    a, b = rng.normal(size=(n, d)), rng.normal(0.5, 2, size=(n, d))
    assert w2(a, b) == pytest.approx(math.sqrt(ot.emd2([], [], ot.dist(a, b))), rel=1e-9)


def test_w2_is_a_distance_between_empirical_laws():
    rng = np.random.default_rng(16)
    for a in (rng.normal(size=30), rng.normal(size=(30, 3))):
        b, c = rng.normal(1, 2, size=a.shape), rng.normal(size=a.shape)
        assert w2(a, rng.permutation(a)) == pytest.approx(0, abs=1e-12)
        assert w2(a, b) == pytest.approx(w2(b, a))
        assert w2(a, b) <= w2(a, c) + w2(c, b) + 1e-12
        assert w2(a, a + 2) == pytest.approx(2 * math.sqrt(1 if a.ndim == 1 else 3))
        assert w2(-3 * a, -3 * b) == pytest.approx(3 * w2(a, b))


def test_w2_does_not_see_how_often_a_whole_sample_is_repeated():
    rng = np.random.default_rng(17)
    a, b = rng.normal(size=6), rng.normal(size=10)
    assert w2(a, np.repeat(a, 7)) == 0
    assert w2(np.repeat(a, 3), np.tile(b, 2)) == pytest.approx(w2(a, b))


def test_w2_tends_to_that_of_two_gaussians():
    rng = np.random.default_rng(18)
    a, b = rng.normal(0, 1, 40_000), rng.normal(1, 3, 60_000)
    # The limit of W2^2 is 1 + 2^2. Its variance is that of the potentials, 2 z + 2 z^2 for a and 6 z + 6 z^2
    # for b with z standard normal: 12 and 108. 4.5 standard deviations: 7e-6 of seeds.
    assert w2(a, b) ** 2 == pytest.approx(5, abs=4.5 * math.sqrt(12 / len(a) + 108 / len(b)))


# --- inputs ---


def test_lists_integers_float32_and_tensors_are_welcome():
    samples = [[0, 2], [1, 4], [5, 5]]
    expected = crps(np.array([1.0, 3.0]), np.array(samples, float))
    for kind in (list, lambda v: np.array(v, np.float32), lambda v: np.array(v), torch.tensor):
        scores = crps(kind([1, 3]), kind(samples))
        assert scores.dtype == np.float64
        np.testing.assert_allclose(scores, expected)


def test_inputs_are_left_as_they_were():
    rng = np.random.default_rng(19)
    y, samples = rng.normal(size=(5, 2)), rng.normal(size=(4, 5, 2))
    copies = y.copy(), samples.copy()
    for call in (crps, energy_score, pit):
        call(y, samples)
    w2(y[:, 0], samples[0, :, 0])
    w2(y, samples[0])
    np.testing.assert_array_equal(y, copies[0])
    np.testing.assert_array_equal(samples, copies[1])


TEN = np.arange(10.0)
DRAWS = np.random.default_rng(20).normal(size=(4, 10))
NAN = np.where(TEN == 3, np.nan, TEN)


@pytest.mark.parametrize("score", [crps, energy_score, pit])
@pytest.mark.parametrize(
    ("y", "samples", "message"),
    [
        (NAN, DRAWS, r"y has 1 NaN.*index \(3,\)"),
        (TEN, np.where(DRAWS > 0, np.inf, DRAWS), r"samples has \d+ NaN"),
        (["low", "high"], DRAWS[:, :2], "y holds text, such as 'low'"),
        (TEN, DRAWS.astype(str), "samples holds text"),
        (TEN, DRAWS.T, r"\(S, 10\).*np.moveaxis\(samples, -1, 0\)"),
        (TEN, DRAWS[:, :9], r"samples has shape \(4, 9\) and y \(10,\)"),
        (TEN[:, None], DRAWS, r"samples has shape \(4, 10\) and y \(10, 1\).*\(S, 10, 1\)"),
        (TEN, TEN, r"samples has shape \(10,\)"),
        (1.0, DRAWS, r"y has shape \(\); expected \(N,\)"),
        (np.zeros((1, 2, 3)), np.zeros((4, 1, 2, 3)), r"y has shape \(1, 2, 3\)"),
        ([], np.zeros((4, 0)), "y is empty"),
    ],
)
def test_bad_outcomes_and_draws(score, y, samples, message):
    with pytest.raises(ValueError, match=message):
        score(y, samples)


@pytest.mark.parametrize("score", [crps, energy_score])
def test_a_fair_score_needs_two_draws(score):
    with pytest.raises(ValueError, match=r"samples has 1 draw.*needs at least 2"):
        score(TEN, DRAWS[:1])
    with pytest.raises(ValueError, match=r"samples has 1 draw.*needs at least 2"):
        score(np.zeros((3, 2)), np.zeros((1, 3, 2)))


def test_distance_correlation_is_its_definition():
    """Szekely and Rizzo 2014, Eqs. 2.2 and 3.1, in loops."""
    a, b = np.random.default_rng(0).normal(size=(2, 9, 2))
    n = len(a)

    def centre(rows):
        distances = np.array([[np.linalg.norm(p - q) for q in rows] for p in rows])
        found = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                if i != j:
                    sums = distances[i].sum() / (n - 2) + distances[:, j].sum() / (n - 2)
                    found[i, j] = distances[i, j] - sums + distances.sum() / ((n - 1) * (n - 2))
        return found

    def product(first, second):
        return (centre(first) * centre(second)).sum() / (n * (n - 3))

    square = product(a, b + a) / np.sqrt(product(a, a) * product(b + a, b + a))
    assert distance_correlation(a, b + a) == pytest.approx(np.sqrt(max(0, square)))


def test_distance_correlation_sees_any_dependence():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 400))
    assert distance_correlation(x, x**2) > 0.3
    found = [distance_correlation(*rng.normal(size=(2, 100))) ** 2 for _ in range(100)]
    assert np.mean(found) < 0.01  # the estimate of its square is unbiased, and cut off at 0
    value = distance_correlation(x, x + noise)
    order = rng.permutation(len(x))
    assert distance_correlation(3 * x[order] - 1, -1e9 * (x + noise)[order]) == pytest.approx(value)
    assert distance_correlation(x + noise, x) == pytest.approx(value)
    assert distance_correlation(x, np.ones(400)) == 0
    assert distance_correlation(1e200 * x, x) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: distance_correlation(TEN, TEN[:9]), "10 rows.*9"),
        (lambda: distance_correlation(TEN[:3], TEN[:3]), "at least 4"),
        (lambda: distance_correlation(np.zeros(5001), np.zeros(5001)), "at most 5000"),
        (lambda: distance_correlation(NAN, TEN), "a has 1 NaN"),
        (lambda: mean_error(TEN, TEN[:9]), r"true_mean has shape \(10,\) and mean \(9,\)"),
        (lambda: mean_error(0 * TEN, TEN), "true_mean is 0"),
        (lambda: mean_error(NAN, TEN), "true_mean has 1 NaN"),
        (lambda: mean_error(TEN, ["a"] * 10), "mean holds text"),
        (lambda: std_error(-TEN, TEN), "true_std .*negative"),
        (lambda: std_error(TEN, TEN - 1), r"std .*negative .*-1"),
        (lambda: std_error(0 * TEN, TEN), "true_std is 0"),
        (lambda: draw_errors(DRAWS, DRAWS[:, :9]), r"both must be \(draws, n_x\)"),
        (lambda: draw_errors(TEN, TEN), r"both must be \(draws, n_x\)"),
        (lambda: draw_errors(DRAWS[:1], DRAWS), "y_draws has 1 draw"),
        (lambda: draw_errors(DRAWS, DRAWS[:1]), "yhat_draws has 1 draw"),
        (lambda: draw_errors(np.ones((3, 2)), np.ones((3, 2))), "the SD of y_draws is 0"),
        (lambda: draw_errors(DRAWS, [["a"]]), "yhat_draws holds text"),
        (lambda: gaussian_crps(TEN, 0, -1), "std .*negative"),
        (lambda: gaussian_crps(TEN, TEN[:9], 1), r"mean has shape \(9,\) and y \(10,\)"),
        (lambda: gaussian_crps(TEN, 0, np.ones((10, 1))), r"std has shape \(10, 1\)"),
        (lambda: gaussian_crps(NAN, 0, 1), "y has 1 NaN"),
        (lambda: coverage(TEN, TEN + 1, TEN), r"lower exceeds upper in 10 of 10.*\(0,\)"),
        (lambda: coverage(TEN[:9], TEN, TEN), r"\(9,\).*\(10,\)"),
        (lambda: coverage(NAN, TEN, TEN), "y has 1 NaN"),
        (lambda: coverage(TEN, TEN, NAN), "upper has 1 NaN"),
        (lambda: interval_width(TEN, TEN[:9]), r"lower has shape \(10,\) and upper \(9,\)"),
        (lambda: interval_width("a", "b"), "lower holds text"),
        (lambda: pit(TEN, DRAWS, random_state="seed"), "random_state='seed'"),
        (lambda: w2(NAN, TEN), "a has 1 NaN"),
        (lambda: w2(TEN, ["a"]), "b holds text"),
        (lambda: w2(np.zeros((3, 2)), TEN), r"2 column.*1"),
        (lambda: w2(np.zeros((3, 2)), np.zeros((4, 2))), "3 rows.*4"),
        (lambda: w2(np.zeros((3, 2, 1)), TEN), r"a has shape \(3, 2, 1\)"),
        (lambda: w2([], TEN), "a is empty"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
