import functools
import itertools
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.ensemble import RandomForestRegressor

import localw2
from localw2.balls.neighborhoods import Nearest, Neighborhoods
from localw2.balls.ragged import Balls
from localw2.datasets import FourStates, Nonlinear
from localw2.judging.independence import DependentDrawsWarning
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning
from localw2.judging.swap_test import conditional as conditional_testing
from localw2.judging.swap_test import statistics as swap_statistics
from localw2.judging.swap_test.conditional import conditional_test
from localw2.judging.swap_test.pairs import DrawMoments
from localw2.judging.swap_test.statistics import max_t, measure_distances, permutation_pvalue
from localw2.models import sampler as sampler_module
from localw2.models.sampler import SamplerDraws

TRUTH = Nonlinear()


def scaled(rng, scale=1.0, shift=0.0):
    """The true sampler with its SD scaled and its mean shifted by so many SDs."""

    def draw(x):
        mean = TRUTH.mean(x)
        return mean + shift * TRUTH.std(x) + scale * (TRUTH.sample_y(x, rng) - mean)

    return draw


class Gaussian:
    """A model with the estimators' ``sample``."""

    def __init__(self, scale=1.0):
        self.scale = scale
        self.calls = []

    def sample(self, X, n_samples=1, random_state=None):
        self.calls.append((type(X), n_samples))
        rng = np.random.default_rng(random_state)
        return self.scale * rng.normal(size=(n_samples, len(X)))

    def __repr__(self):
        return "Gaussian"


def gaussian_problem(n=80, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(n, 1)), rng.normal(size=n)


def hand_made_balls():
    return Balls(np.array([6, 3, 2, 4]), np.array([0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 5, 2, 3, 4, 5], np.int32))


def all_swaps(n):
    return np.array(list(itertools.product([False, True], repeat=n)))


def brute_force(y, yhat, balls, swaps):
    """Squared W2 ball by ball with the library's own distance, columns one by one."""
    found = np.zeros((len(swaps), len(balls.sizes)))
    for row, swap in zip(found, swaps, strict=True):
        a, b = np.where(swap[:, None], yhat, y), np.where(swap[:, None], y, yhat)
        for k, rows in enumerate(np.split(balls.rows, np.cumsum(balls.sizes)[:-1])):
            values = [
                localw2.w2_squared(
                    torch.tensor(a[rows, c : c + 1]),
                    torch.tensor(b[rows, c : c + 1]),
                    localw2.Neighborhoods.whole(len(rows)),
                ).item()
                for c in range(y.shape[1])
            ]
            row[k] = np.mean(values)
    return found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("columns", [1, 3])
def test_every_swap_of_a_small_set_against_the_distance_itself(columns, ties):
    rng = np.random.default_rng(columns)
    y, yhat = rng.normal(size=(2, 6, columns))
    if ties:
        y, yhat = y.round(), yhat.round()
    found = measure_distances(y, yhat, hand_made_balls(), all_swaps(6))
    np.testing.assert_allclose(found, brute_force(y, yhat, hand_made_balls(), all_swaps(6)), atol=1e-12)


def test_blocks_of_balls_change_nothing(monkeypatch):
    y, yhat = np.random.default_rng(0).normal(size=(2, 6, 2))
    whole = measure_distances(y, yhat, hand_made_balls(), all_swaps(6))
    monkeypatch.setattr(swap_statistics, "BLOCK_EDGES", 4)  # of 15 edges
    np.testing.assert_array_equal(measure_distances(y, yhat, hand_made_balls(), all_swaps(6)), whole)


def test_the_pvalue_of_all_swaps_is_valid_at_every_level():
    rng = np.random.default_rng(3)
    y, yhat = rng.normal(size=(2, 7, 1))
    balls = Balls(np.array([7, 3]), np.array([0, 1, 2, 3, 4, 5, 6, 1, 2, 3]))
    values = measure_distances(y, yhat, balls, all_swaps(7)) @ np.array([0.7, 0.3])
    # Any of the 2^7 swapped sets is as likely as the observed one, and has these same values as its null.
    pvalues = np.array([permutation_pvalue(v, np.delete(values, i)) for i, v in enumerate(values)])
    for level in np.unique(pvalues):
        assert np.mean(pvalues <= level) == pytest.approx(level)
    # Swapping every row only exchanges the two samples: an exact tie, which must count against rejection.
    np.testing.assert_allclose(values, values[::-1], rtol=1e-12)
    assert pvalues.min() >= 2 / 128


def test_the_random_swaps_find_the_exact_pvalue():
    rng = np.random.default_rng(4)
    x, y, yhat = rng.normal(size=(9, 1)), rng.normal(size=9), 0.7 + rng.normal(size=9)
    balls = Balls(np.array([9]), np.arange(9))
    values = brute_force(y[:, None], yhat[:, None], balls, all_swaps(9))[:, 0]
    exact = np.mean(values >= values[0] - 1e-12)
    found = conditional_test(
        x, y, lambda x: yhat, None, standardize=False, n_permutations=4999, random_state=0
    )
    assert found.statistic == pytest.approx(values[0])
    assert abs(found.pvalue - exact) < 4 * np.sqrt(exact * (1 - exact) / 4999) + 1 / 5000


@pytest.mark.parametrize("standardize", [True, False])
def test_the_statistic_is_the_local_distance_of_standardised_values(standardize):
    rng = np.random.default_rng(0)
    x, y = TRUTH.sample(60, rng)
    draws = [scaled(rng, 1.5)(x) for _ in range(31)]
    replay = iter(draws)
    found = conditional_test(
        x, y, lambda x: next(replay), 0.2, standardize=standardize, n_moment_draws=30, n_permutations=19,
        n_centers=60, random_state=0,
    )  # fmt: skip
    pair = np.stack([y, draws[0]])
    if standardize:
        moments = np.array(draws[1:])
        pair = np.clip((pair - moments.mean(0)) / moments.std(0, ddof=1), -3, 3)
    hoods = localw2.Neighborhoods.within(x, 0.2)
    a, b = torch.tensor(pair)[:, :, None]
    local = localw2.w2_squared(a, b, hoods)
    weights = hoods.weights * hoods.sizes
    assert found.statistic == pytest.approx(float((local * weights).sum() / weights.sum()))
    np.testing.assert_array_equal(found.centers, np.arange(60))
    np.testing.assert_array_equal(found.ball_sizes, hoods.row_sizes())
    np.testing.assert_array_equal(found.center_x, x)


def test_several_outputs_are_compared_along_random_directions():
    rng = np.random.default_rng(0)
    y, c = rng.normal(size=(30, 3)), np.array([1.0, -2.0, 0.5])
    found = conditional_test(
        np.zeros((30, 1)), y, lambda x: y + c, None, standardize=False, n_directions=4000, n_permutations=19,
        random_state=0,
    )  # fmt: skip
    # A shift moves every direction u by u.c, and E (u.c)^2 = |c|^2 / 3 with SD below |c|^2 / 3.
    assert abs(found.statistic - c @ c / 3) < 4 * (c @ c / 3) / np.sqrt(4000)


def test_max_t_against_loops():
    distances = np.random.default_rng(0).exponential(size=(40, 5))
    distances[:, 3] = 2.0  # never moves
    z, pvalues, limit = max_t(distances, 0.1)
    scores = np.zeros_like(distances)
    for b in (0, 1, 2, 4):
        scores[:, b] = (distances[:, b] - distances[:, b].mean()) / distances[:, b].std()
    np.testing.assert_allclose(z, scores[0])
    for b in range(5):
        assert pvalues[b] == (1 + sum(max(row) >= scores[0, b] for row in scores[1:])) / 40
    for observed in np.linspace(-1, 5, 100):
        p = (1 + sum(max(row) >= observed for row in scores[1:])) / 40
        assert (p <= 0.1) == (observed > limit)


def test_units_of_y_do_not_matter():
    x, y = gaussian_problem()
    first = conditional_test(x, y, Gaussian(), 0.2, n_permutations=99, random_state=1)

    class InOtherUnits(Gaussian):
        def sample(self, X, n_samples=1, random_state=None):
            return 1e4 - 50 * super().sample(X, n_samples, random_state)

    other = conditional_test(x, 1e4 - 50 * y, InOtherUnits(), 0.2, n_permutations=99, random_state=1)
    assert other.pvalue == first.pvalue
    assert other.statistic == pytest.approx(first.statistic)
    np.testing.assert_allclose(other.ball_statistics, first.ball_statistics, atol=1e-8)


def test_one_ball_is_an_infinite_radius():
    x, y = gaussian_problem()
    one = conditional_test(x, y, Gaussian(), None, n_permutations=99, random_state=1)
    wide = conditional_test(x, y, Gaussian(), np.inf, n_permutations=99, random_state=1)
    assert one.statistic == pytest.approx(wide.statistic)
    assert one.pvalue == wide.pvalue
    assert len(one.centers) == 1
    assert one.ball_sizes.tolist() == [80]


def test_samplers_of_every_kind(monkeypatch):
    import pandas as pd

    x, y = gaussian_problem()
    frame = pd.DataFrame(x, columns=["a"])
    model = Gaussian()
    settings = {"n_permutations": 19, "n_moment_draws": 30, "random_state": 5}
    first = conditional_test(frame, y, model, 0.2, **settings)
    assert {kind for kind, _ in model.calls} == {pd.DataFrame}
    assert sum(n for _, n in model.calls) == 31
    assert len(model.calls) == 3

    def with_units(X, unit, n_samples=1, random_state=None):
        return unit * model.sample(X, n_samples, random_state)

    for sampler in (model.sample, functools.partial(with_units, unit=1.0)):
        again = conditional_test(x, y, sampler, 0.2, **settings)
        assert again.statistic == first.statistic
        np.testing.assert_array_equal(again.null, first.null)
    monkeypatch.setattr(sampler_module, "CHUNK_NUMBERS", 800)
    conditional_test(x, y, model, 0.2, **settings)
    assert max(n for _, n in model.calls[-3:]) == 10
    # Leading or trailing axes of length one are not worth an error.
    for shape in ((1, 80), (80, 1), (80,)):
        rng = np.random.default_rng(0)
        conditional_test(x, y, lambda x, s=shape, rng=rng: rng.normal(size=s), 0.2, **settings)


def test_a_random_map_of_the_library_is_a_sampler():
    x, y = gaussian_problem()
    torch.manual_seed(0)
    model = localw2.RandomLinear(1, 1).double()
    found = conditional_test(torch.tensor(x), torch.tensor(y), model, 0.3, n_permutations=19, random_state=0)
    assert 0 < found.pvalue <= 1


def binomial_band(n, level, confidence):
    law = stats.binom(n, level)
    return law.ppf((1 - confidence) / 2), law.ppf((1 + confidence) / 2)


def null_set(rng, n, outputs):
    """Data and the law that made them: one output, two dependent ones, or a trajectory of strong memory."""
    x = rng.uniform(-1, 1, (n, 1))

    def draw(x):
        spread = 0.2 + np.abs(x)
        if outputs == 1:
            return 2 * x[:, 0] + spread[:, 0] * rng.normal(size=len(x))
        if outputs == 2:
            noise = rng.normal(size=(len(x), 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
            return 2 * x + spread * noise
        steps = rng.normal(size=(len(x), 20, 1)).cumsum(1)
        return np.concatenate([x[:, None], x[:, None] + spread[:, None] * steps], axis=1)

    return x, draw(x), draw


def rejections(n_sets, n, outputs, delta, seed, **settings):
    """How many null sets are rejected, and how many have any ball rejected."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_sets):
        x, y, draw = null_set(rng, n, outputs)
        result = conditional_test(x, y, draw, delta, random_state=rng, **settings)
        found.append((result.reject, result.rejected_balls.any()))
    return np.sum(found, axis=0)


@pytest.mark.parametrize("delta", [0.4, "auto"])
@pytest.mark.parametrize("outputs", [1, 2, "trajectory"])
def test_size(outputs, delta):
    # Seeded; each count is outside its band with probability below .001.
    settings = {"n_permutations": 19, "n_moment_draws": 12, "n_centers": 15, "n_directions": 3}
    overall, anywhere = rejections(200, 60, outputs, delta, seed=1, **settings)
    low, high = binomial_band(200, 0.05, 0.999)
    assert low <= overall <= high
    assert anywhere <= high


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.1, 0.4, "auto", None])
@pytest.mark.parametrize("outputs", [1, 2])
def test_size_campaign(outputs, delta):
    overall, anywhere = rejections(400, 200, outputs, delta, seed=2, n_permutations=99, n_centers=100)
    low, high = binomial_band(400, 0.05, 0.99)
    print(f"\n{outputs} output(s), delta {delta}: {overall} of 400 ({low:.0f} to {high:.0f}), map {anywhere}")
    assert low <= overall <= high
    assert anywhere <= high


def wrongly_rejected(n_sets, n, seed, **settings):
    """Sets with any ball rejected among those that hold no row of x > 0, where the sampler is wrong."""
    rng = np.random.default_rng(seed)
    count = 0
    for _ in range(n_sets):
        x, y, draw = null_set(rng, n, 1)
        sampler = lambda x, draw=draw: np.where(x[:, 0] > 0, 2.5, 1.0) * draw(x)  # noqa: E731
        found = conditional_test(x, y, sampler, 0.3, random_state=rng, **settings)
        count += found.rejected_balls[found.center_x[:, 0] < -0.3].any()
    return count


def test_places_where_the_sampler_is_right_are_rarely_rejected():
    # Whatever is wrong elsewhere: at most .05, exceeded with probability below .001 (seeded).
    settings = {"n_permutations": 19, "n_moment_draws": 12, "n_centers": 15}
    assert wrongly_rejected(100, 60, seed=1, **settings) <= binomial_band(100, 0.05, 0.998)[1]


@pytest.mark.slow
def test_places_where_the_sampler_is_right_campaign():
    count = wrongly_rejected(400, 200, seed=2, n_permutations=99, n_centers=100)
    print(f"\nany ball rejected where the sampler is right: {count} of 400")
    assert count <= binomial_band(400, 0.05, 0.99)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("delta", "least"), [(0.3, 180), ("auto", 175)])
@pytest.mark.parametrize(("scale", "shift"), [(1.2, 0.0), (0.8, 0.0), (1.0, 0.2)])
def test_power_campaign(scale, shift, delta, least):
    rng = np.random.default_rng(3)
    rejected = 0
    for _ in range(200):
        x, y = TRUTH.sample(1000, rng)
        sampler = scaled(rng, scale, shift)
        found = conditional_test(x, y, sampler, delta, n_permutations=99, n_centers=100, random_state=rng)
        rejected += found.reject
    print(f"\nSD times {scale}, mean + {shift} SD, delta {delta}: {rejected} of 200 rejected")
    assert rejected >= least


def test_the_default_balls_have_power():
    # An SD 20 % too small is found in 99 of 100 sets, and with balls picked for it (delta = .3) in all.
    rng = np.random.default_rng(4)
    rejected = {"auto": 0, 0.3: 0}
    settings = {"n_permutations": 39, "n_moment_draws": 50, "n_centers": 30, "random_state": rng}
    for _ in range(30):
        x, y = TRUTH.sample(1000, rng)
        for delta in rejected:
            rejected[delta] += conditional_test(x, y, scaled(rng, 0.8), delta, **settings).reject
    low = stats.binom(30, 0.97).ppf(0.001)
    assert rejected["auto"] >= low
    assert rejected["auto"] >= rejected[0.3] - 3


def test_the_default_balls_depend_on_x_alone():
    x, y = gaussian_problem(200)
    x = np.c_[x, 1e6 + 1e3 * x[::-1]]  # columns of any unit count alike
    settings = {"n_permutations": 19, "n_centers": 200, "random_state": 0}
    first = conditional_test(x, y, Gaussian(), **settings)
    again = conditional_test(x * [1e-3, 1.0], 5 - y**3, Gaussian(3.0), "auto", **settings)
    assert set(first.ball_sizes.tolist()) == {40}
    np.testing.assert_array_equal(first.centers, again.centers)
    by_hand = conditional_test(x, y, Gaussian(), Nearest(40), norm=localw2.Weighted(1 / x.std(0)), **settings)
    assert first.statistic == by_hand.statistic
    np.testing.assert_array_equal(first.null, by_hand.null)
    few = conditional_test(x[:50], y[:50], Gaussian(), **settings)
    assert set(few.ball_sizes.tolist()) == {20}
    one = conditional_test(x[:, 0], y, Gaussian(), **settings)
    assert set(one.ball_sizes.tolist()) == {66}
    tiny = conditional_test(x[:9], y[:9], Gaussian(), **settings)
    assert set(tiny.ball_sizes.tolist()) == {9}
    thin = conditional_test(x, y, Gaussian(), max_size=30, **settings)
    assert set(thin.ball_sizes.tolist()) == {30}


def test_standardising_gives_power():
    rng = np.random.default_rng(0)
    x, y = TRUTH.sample(1000, rng)
    wrong = scaled(rng, 0.7)
    found = conditional_test(x, y, wrong, 0.3, n_permutations=99, random_state=0)
    raw = conditional_test(x, y, wrong, 0.3, n_permutations=99, standardize=False, random_state=0)
    # In units of the null's own spread; raw, the slope of the mean within a ball hides the SD.
    z = [(t.statistic - t.null.mean()) / t.null.std() for t in (found, raw)]
    assert found.pvalue == 0.01
    assert z[0] > 2 * z[1]


def test_the_map_shows_where():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1500, 1))
    y = rng.normal(size=1500)
    found = conditional_test(
        x, y, lambda x: np.where(x[:, 0] > 0.4, 1.7, 1.0) * rng.normal(size=len(x)), 0.1, n_permutations=199,
        random_state=0,
    )  # fmt: skip
    assert found.reject
    place = found.center_x[found.rejected_balls, 0]
    assert place.min() > 0.4 - 0.1
    # Well inside most balls (of 150 rows, an SD 1.7 times too large) are rejected.
    assert found.rejected_balls[found.center_x[:, 0] > 0.5].mean() > 0.5
    assert "around x = 0." in found.verdict
    np.testing.assert_array_equal(found.rejected_balls, found.ball_statistics > found.ball_limit)


def test_rows_that_the_sampler_is_far_too_sure_of_do_not_hide_the_rest():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(600, 1))
    y = rng.normal(size=600)
    sure = np.arange(600) % 50 == 0
    sampler = lambda x: np.where(sure, 1e-6, 1.5) * rng.normal(size=600)  # noqa: E731
    found = conditional_test(x, y, sampler, 0.3, n_permutations=199, random_state=0)
    assert found.pvalue == 1 / 200
    assert len(found.notes) == 1
    assert found.notes[0].startswith("12 rows")


def test_a_point_forecast_is_compared_as_it_is():
    x, y = TRUTH.sample(300, 0)
    found = conditional_test(x, y, TRUTH.mean, 0.3, n_permutations=99, random_state=0)
    assert found.pvalue == 0.01
    assert "point forecast" in found.summary()
    raw = conditional_test(x, y, TRUTH.mean, 0.3, n_permutations=99, standardize=False, random_state=0)
    unit = np.mean((y - TRUTH.mean(x)) ** 2)
    assert found.statistic == pytest.approx(raw.statistic / unit)


class FixedSeed:
    """A right sampler of N(0, 1) that ignores the random_state it is given."""

    def __init__(self, seed):
        self.seed = seed

    def sample(self, X, n_samples=1, random_state=None):
        return np.random.default_rng(self.seed).normal(size=(n_samples, len(X)))


@pytest.mark.parametrize("n_moment_draws", [2, 4, 12])
def test_a_right_sampler_with_a_fixed_seed_keeps_the_level(n_moment_draws):
    # Its first moment draws are yhat itself: left in, they make yhat's residuals too small (always rejected).
    rng = np.random.default_rng(0)
    count = 0
    for _ in range(200):
        x, y = rng.uniform(size=(40, 1)), rng.normal(size=40)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DependentDrawsWarning)
            found = conditional_test(
                x, y, FixedSeed(int(rng.integers(2**31))), None, n_permutations=19,
                n_moment_draws=n_moment_draws, random_state=rng,
            )  # fmt: skip
        count += found.reject
    low, high = binomial_band(200, 0.05, 0.999)
    assert low <= count <= high


def test_draws_that_repeat_are_told_of_and_left_out():
    x, y = gaussian_problem()
    settings = {"n_permutations": 19, "random_state": 0}
    with pytest.warns(DependentDrawsWarning, match="repeat"):
        found = conditional_test(x, y, FixedSeed(5), 0.3, **settings)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("2 of 100 draws")
    assert found.shared_noise == 1.0
    # What is left are 98 separate draws: the statistic with exactly these moments.
    draws = FixedSeed(5).sample(x, 99)
    mean, std = draws[1:].mean(0), draws[1:].std(0, ddof=1)
    a, b = (torch.tensor(np.clip((v - mean) / std, -3, 3))[:, None] for v in (y, draws[0]))
    with pytest.warns(DependentDrawsWarning):
        one = conditional_test(x, y, FixedSeed(5), None, **settings)
    assert one.statistic == pytest.approx(localw2.w2_squared(a, b, localw2.Neighborhoods.whole(80)).item())
    # One that repeats its only draw is compared as it is, without a warning.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = conditional_test(x, y, FixedSeed(5), 0.3, n_moment_draws=2, **settings)
    assert "fixed seed" in few.notes[0]


@pytest.mark.parametrize(("n", "p"), [(8, 0.5), (60, 0.01), (200, 0.3)])
def test_discrete_draws_that_meet_by_chance_are_no_repeats(n, p):
    rng = np.random.default_rng(1)
    x = rng.uniform(size=(n, 1))
    for _ in range(20):
        y = (rng.uniform(size=n) < p).astype(float)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            conditional_test(
                x, y, lambda x: (rng.uniform(size=n) < p).astype(float), None, n_permutations=19,
                n_moment_draws=30, random_state=rng,
            )  # fmt: skip


def test_leaving_out_draws_does_not_tell_y_from_yhat():
    rng = np.random.default_rng(2)
    chosen = set()
    for k in range(30):
        pair = rng.integers(0, 3, (2, 12, 1)).astype(float)
        draws = rng.integers(0, 3, (20, 12)).astype(float)
        draws[: k % 3] = pair[1, :, 0]
        swap = rng.uniform(size=(12, 1)) < 0.5
        found = []
        for members in (pair, np.where(swap, pair[::-1], pair)):
            replay = iter(draws)
            source = SamplerDraws.of(lambda x, r=replay: next(r), np.zeros((12, 1)), (12,))
            found.append(DrawMoments.of(source, 20, lambda c: c[..., None], rng, members))
        np.testing.assert_array_equal(found[0].mean, found[1].mean)
        np.testing.assert_array_equal(found[0].std, found[1].std)
        chosen.add(found[0].n_left_out > 0)
    assert chosen == {False, True}


def test_trajectories_are_swapped_as_wholes():
    y, _, _ = FourStates(a=0.2).sample(150, 0)
    x = y[:, 0]

    def sampler(sigma, rng):
        return lambda x: FourStates().paths(x, rng.uniform(-sigma, sigma, len(x)))

    rng = np.random.default_rng(1)
    settings = {"n_permutations": 99, "n_moment_draws": 20, "random_state": 0}
    right = conditional_test(x, y, sampler(0.25, rng), None, **settings)
    wide = conditional_test(x, y, sampler(0.5, rng), 0.5, **settings)
    assert right.pvalue > 0.05
    assert wide.pvalue == 0.01


def test_the_start_of_a_trajectory_does_not_count():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1))
    y = np.concatenate([x[:, None], rng.normal(size=(40, 1, 1))], axis=1)
    yhat = np.concatenate([x[:, None], rng.normal(size=(40, 1, 1))], axis=1)
    both = conditional_test(x, y, lambda x: yhat, None, standardize=False, random_state=0)
    last = conditional_test(x, y[:, 1], lambda x: yhat[:, 1], None, standardize=False, random_state=0)
    assert both.statistic == last.statistic


def test_rows_used_for_training_are_found():
    x, y = gaussian_problem()
    model = Gaussian()
    settings = {"n_permutations": 19, "random_state": 0}
    assert np.isnan(conditional_test(x, y, model, 0.2, **settings).seen_share)
    with pytest.warns(SeenRowsWarning, match="20 of these 80 rows"):
        found = conditional_test(x, y, model, 0.2, fitted_on=(x[:20], y[:20]), **settings)
    assert found.seen_share == 0.25
    assert not found.valid
    assert "25 %" in found.verdict
    assert conditional_test(x, y, model, 0.2, fitted_on=(x + 1, y), **settings).seen_share == 0.0
    model.seen_rows_ = SeenRows.of(x[:40], y[:40])
    for sampler in (model, model.sample, functools.partial(model.sample)):
        with pytest.warns(SeenRowsWarning, match="40 of these 80 rows"):
            conditional_test(x, y, sampler, 0.2, **settings)


def test_discrete_rows_that_meet_by_chance_are_only_noted():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 10, (400, 1)).astype(float), rng.integers(0, 3, 400).astype(float)
    settings = {"n_permutations": 19, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = conditional_test(
            x[:200],
            y[:200],
            lambda x: rng.integers(0, 3, len(x)),
            None,
            fitted_on=(x[200:], y[200:]),
            **settings,
        )
    assert found.seen_share > 0.9
    assert not found.seen
    assert found.valid
    assert "training rows" in found.notes[-1]


def test_training_rows_in_another_precision_or_shape():
    x, y = gaussian_problem()
    settings = {"n_permutations": 19, "random_state": 0}
    for old in ((x.astype(np.float32), y), (x, y.astype(np.float32)[:, None]), (list(map(list, x)), list(y))):
        with pytest.warns(SeenRowsWarning, match="80 of these 80 rows"):
            conditional_test(x, y, Gaussian(), 0.2, fitted_on=old, **settings)
    with pytest.warns(SeenRowsWarning):
        conditional_test(
            x.astype(np.float32), y.astype(np.float32), Gaussian(), 0.2, fitted_on=(x, y), **settings
        )


def test_noise_shared_by_rows_is_found():
    x, y = TRUTH.sample(200, 0)
    rng = np.random.default_rng(0)

    def common(x):  # one omega for all rows, whose effect changes its sign with x
        w1, w2 = rng.multivariate_normal(TRUTH.omega_mean, TRUTH.omega_covariance)
        return 5 + w1 * (1 - np.exp(-w2 * x[:, 0]))

    for standardize in (True, False):
        with pytest.warns(DependentDrawsWarning, match=r"about 1\d\d rows"):
            found = conditional_test(
                x, y, common, 0.2, n_permutations=19, standardize=standardize, random_state=0
            )
        assert found.shared_noise > 100
        assert not found.valid
        assert "share noise" in found.verdict


def test_one_coin_for_all_rows_is_found_though_its_draws_repeat():
    x, _ = gaussian_problem()
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 80).astype(float)
    with pytest.warns(DependentDrawsWarning, match="share"):
        conditional_test(
            x, y, lambda x: np.full(80, float(rng.integers(2))), 0.2, n_permutations=19, random_state=0
        )


@pytest.mark.parametrize("law", ["normal", "cauchy", "lognormal", "coin"])
def test_independent_rows_of_any_law_are_not_suspected(law):
    rng = np.random.default_rng(0)
    draw = {
        "normal": lambda n: rng.normal(size=n),
        "cauchy": lambda n: rng.standard_cauchy(n),
        "lognormal": lambda n: rng.lognormal(0, 2, n),
        "coin": lambda n: (rng.uniform(size=n) < 0.1).astype(float),
    }[law]
    for n in (20, 100, 1000):
        for n_draws in (10, 100):
            found = DrawMoments.of(
                SamplerDraws.of(lambda x: draw(len(x)), np.zeros((n, 1)), (n,)),
                n_draws,
                lambda chunk: chunk[..., None],
                rng,
            )
            assert found.shared_noise < 2


def test_too_few_swaps_cannot_reject():
    x, y = gaussian_problem()
    with pytest.warns(UserWarning, match=r"0\.0526.*19"):
        found = conditional_test(x, y, Gaussian(), 0.2, n_permutations=18, random_state=0)
    assert found.verdict == "There are too few swaps to tell."


def test_five_rows_cannot_reject():
    x = np.arange(6.0)[:, None]
    for n_permutations in (19, 99):  # all swaps are made, however many were asked for
        settings = {"n_permutations": n_permutations, "random_state": 0}
        with pytest.warns(UserWarning, match=r"0\.0625"):
            found = conditional_test(x[:5], np.zeros(5), lambda x: np.ones(5), None, **settings)
        assert "too few" in found.verdict
        assert found.pvalue == 1 / 16
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            six = conditional_test(x, np.zeros(6), lambda x: np.ones(6), None, **settings)
        assert six.reject
        assert len(six.null) == 63
        assert six.pvalue == 1 / 32


@pytest.mark.parametrize("n", [3, 5, 7])
def test_few_rows_are_swapped_in_every_way(n):
    """The p-value is that of all 2^n swaps, counted here one by one, and it is exact at every level."""
    rng = np.random.default_rng(n)
    x, y, yhat = np.zeros((n, 1)), rng.normal(size=n), rng.normal(size=n)
    settings = {"standardize": False, "random_state": 0, "level": 0.5}
    found = conditional_test(x, y, lambda x: yhat, None, **settings)
    values = []
    for signs in itertools.product([False, True], repeat=n):
        first, second = np.where(signs, yhat, y), np.where(signs, y, yhat)
        values.append(np.mean((np.sort(first) - np.sort(second)) ** 2))
    assert found.pvalue == np.mean(np.array(values) >= values[0] - 1e-12)


def test_few_rows_keep_the_level():
    """2000 data sets of 6 rows and the right sampler: values come in pairs, so p <= 1/16 in one of 16."""
    rng = np.random.default_rng(0)
    x = np.zeros((6, 1))
    hits = 0
    for _ in range(2000):
        y, yhat = rng.normal(size=(2, 6))
        test = conditional_test(x, y, lambda x, yhat=yhat: yhat, None, standardize=False, level=1 / 16)
        hits += test.reject
    low, high = binomial_band(2000, 1 / 16, 0.999)
    assert low <= hits <= high


class TestSeveralDeltas:
    def test_one_delta_in_a_list_is_that_delta(self):
        x, y = gaussian_problem()
        one, several = (
            conditional_test(x, y, Gaussian(), delta, n_permutations=99, random_state=0)
            for delta in (0.2, [0.2])
        )
        assert one.pvalue == several.pvalue
        assert one.statistic == several.statistic
        np.testing.assert_array_equal(one.ball_pvalues, several.ball_pvalues)

    def test_the_largest_z_under_common_swaps(self):
        """From the definition: each delta's T under the same swaps, standardised, and the largest."""
        rng = np.random.default_rng(0)
        x, y, yhat = rng.uniform(size=(8, 1)), rng.normal(size=8), 2 * rng.normal(size=8)
        deltas = [0.2, None]
        settings = {"standardize": False, "random_state": 0}
        found = conditional_test(x, y, lambda x: yhat, deltas, **settings)
        every = np.array(list(itertools.product([False, True], repeat=8)))
        near = [np.abs(x - x.T) <= 0.2, np.ones((1, 8), bool)]
        columns = []
        for balls in near:
            balls = [ball for ball in balls if ball.sum() > 1]
            column = []
            for signs in every:
                first, second = np.where(signs, yhat, y), np.where(signs, y, yhat)
                parts = [((np.sort(first[b]) - np.sort(second[b])) ** 2).sum() for b in balls]
                column.append(np.sum(parts) / np.sum([b.sum() for b in balls]))
            columns.append(column)
        values = np.array(columns).T
        z = (values - values.mean(0)) / values.std(0)
        largest = z.max(1)
        assert found.statistic == pytest.approx(largest[0])
        assert found.pvalue == np.mean(largest >= largest[0] - 1e-9)
        each = (largest[:, None] >= z[0] - 1e-9).mean(0)
        np.testing.assert_allclose(found.delta_pvalues, each)
        assert found.deltas == (0.2, None)
        assert "p by delta" in found.summary()
        assert found.ball_deltas.tolist() == [0] * (len(found.centers) - 1) + [1]

    def test_the_level_is_kept_and_local_and_global_errors_are_found(self):
        """A test of several deltas is about as powerful as the best of them, whichever that is."""
        deltas = [0.05, 0.3, None]
        rejected = {"right": 0, "local": 0, "global": 0}
        for seed in range(40):
            rng = np.random.default_rng(seed)
            x, y = rng.uniform(size=(300, 1)), rng.normal(size=300)

            def sample(x, kind, rng=rng):
                z = rng.normal(size=len(x))
                wide = np.where(np.abs(x[:, 0] - 0.3) < 0.04, 6.0, 1.0) if kind == "local" else 1.35
                return z if kind == "right" else wide * z

            for kind in rejected:
                test = conditional_test(
                    x, y, lambda x, kind=kind: sample(x, kind), deltas, n_permutations=99, random_state=seed,
                    standardize=False, n_centers=60,
                )  # fmt: skip
                rejected[kind] += test.reject
        assert rejected["right"] <= stats.binom(40, 0.05).ppf(0.999)
        assert rejected["local"] >= 30
        assert rejected["global"] >= 30

    @pytest.mark.slow
    def test_size_campaign(self):
        """1000 data sets and the right sampler: one of 20 is rejected."""
        rng, rejected = np.random.default_rng(5), 0
        for _ in range(1000):
            x, y, draw = null_set(rng, 60, 1)
            found = conditional_test(
                x, y, draw, [0.1, 0.4, None], n_permutations=99, n_centers=30, random_state=rng
            )
            rejected += found.reject
            assert found.delta_pvalues.min() == pytest.approx(found.pvalue)  # so no delta is rejected alone
        low, high = binomial_band(1000, 0.05, 0.99)
        print(f"\nthree deltas: {rejected} of 1000 ({low:.0f} to {high:.0f})")
        assert low <= rejected <= high

    def test_a_ball_of_all_rows_is_nowhere(self):
        """An error that is everywhere: the verdict does not name the random row that is the ball's centre."""
        x, y = gaussian_problem()
        test = conditional_test(
            x, y, lambda x: 9 + 0 * x[:, 0], [0.1, None], n_permutations=99, random_state=0
        )
        worst = int(np.argmax(test.ball_statistics))
        assert ("all rows together" in test.verdict) == (not test.has_place[worst])
        assert test.has_place.sum() == len(test.centers) - 1
        assert len(test.plot()[1].get_lines()[-1].get_xdata()) < len(test.centers)

    def test_settings(self):
        x, y = gaussian_problem()
        with pytest.raises(ValueError, match="twice"):
            conditional_test(x, y, Gaussian(), [0.1, 0.1])
        with pytest.raises(ValueError, match="empty"):
            conditional_test(x, y, Gaussian(), [])
        axes = conditional_test(x, y, Gaussian(), [0.2, None], n_permutations=19, random_state=0).plot()
        assert axes[0].get_xlabel() == "largest z of the deltas"


@pytest.mark.parametrize("standardize", [True, False])
def test_the_origin_of_y_does_not_matter(standardize):
    # At 2^40 the step of float64 is 2^-12: these outputs are shifted without rounding.
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(60, 1)), rng.integers(0, 8, 60) / 8

    class Steps:
        def __init__(self, origin):
            self.origin = origin

        def sample(self, X, n_samples=1, random_state=None):
            draws = np.random.default_rng(random_state).integers(0, 16, (n_samples, len(X)))
            return self.origin + draws / 8

    settings = {"n_permutations": 99, "standardize": standardize, "random_state": 0}
    near, far = (conditional_test(x, c + y, Steps(c), None, **settings) for c in (0.0, 2.0**40))
    assert far.pvalue == near.pvalue == 0.01


def test_nothing_to_swap_is_no_evidence():
    x = np.arange(30.0)[:, None]
    coins = (x[:, 0] % 2 == 0).astype(float)
    for y in (np.full(30, 3.0), coins, np.stack([coins, coins], axis=1)):
        found = conditional_test(x, y, lambda x, y=y: y, 5.0, n_permutations=19, random_state=0)
        assert found.pvalue == 1.0
        assert (found.ball_pvalues == 1).all()
        assert len(found.notes) == 1
        assert "nothing to swap" in found.notes[0]
        assert "No difference" in found.verdict


def test_the_sampler_gets_columns():
    import pandas as pd

    x, y = gaussian_problem()
    for inputs in (x[:, 0], list(x[:, 0]), pd.Series(x[:, 0]), torch.tensor(x[:, 0])):
        shapes = []

        def sampler(x, shapes=shapes):
            shapes.append((tuple(x.shape), type(x)))
            return np.random.default_rng(len(shapes)).normal(size=len(x))

        conditional_test(inputs, y, sampler, 0.2, n_permutations=19, n_moment_draws=5, random_state=0)
        kind = torch.Tensor if isinstance(inputs, torch.Tensor) else np.ndarray
        assert set(shapes) == {((80, 1), kind)}


def test_results_can_be_compared_and_kept_in_sets():
    x, y = gaussian_problem()
    first, second = (conditional_test(x, y, Gaussian(), 0.2, n_permutations=19, random_state=7) for _ in "ab")
    assert first in [first]
    assert first != second
    assert len({first, second}) == 2


def test_a_seed_repeats_the_test():
    x, y = gaussian_problem()
    first, second = (conditional_test(x, y, Gaussian(), 0.2, n_permutations=19, random_state=7) for _ in "ab")
    assert first.pvalue == second.pvalue
    np.testing.assert_array_equal(first.ball_pvalues, second.ball_pvalues)


def test_centres_are_fewer_where_the_work_would_be_large(monkeypatch):
    x, y = gaussian_problem(400)
    monkeypatch.setattr(conditional_testing, "MOST_EDGES", 100 * 80)
    few = conditional_test(x, y, Gaussian(), 0.2, n_permutations=19, random_state=0)
    assert 50 <= len(few.centers) < 100
    asked = conditional_test(x, y, Gaussian(), 0.2, n_permutations=19, n_centers=300, random_state=0)
    assert len(asked.centers) == 300
    thin = conditional_test(x, y, Gaussian(), 0.2, n_permutations=19, max_size=10, random_state=0)
    assert thin.ball_sizes.max() == 10


X, Y = gaussian_problem(20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": Y[:10]}, "10"),
        ({"y": np.zeros((20, 2, 2, 2))}, "shape"),
        ({"y": np.full(20, np.nan)}, "NaN"),
        ({"x": X[:1], "y": Y[:1]}, "one row"),
        ({"sampler": 3}, "callable"),
        ({"sampler": Gaussian}, "class"),
        ({"sampler": lambda x: np.full(20, np.nan)}, "NaN"),
        ({"sampler": lambda x: np.zeros(19)}, r"\(19,\)"),
        ({"sampler": lambda x: np.zeros((20, 2))}, r"\(20, 2\)"),
        ({"sampler": lambda x: Y}, "equals y"),
        ({"sampler": lambda X, t, n_samples=1, random_state=None: Y}, "needs t"),
        ({"delta": 1e-9}, "one row"),
        ({"delta": -1.0}, "radius"),
        ({"delta": "wide"}, "delta"),
        ({"delta": Neighborhoods.whole(19)}, "19"),
        ({"delta": Neighborhoods.singletons(20)}, "one row"),
        ({"delta": Neighborhoods.whole(20), "norm": localw2.Euclidean()}, "norm"),
        ({"norm": 2}, "norm"),
        ({"delta": None, "norm": 2}, "norm"),
        ({"delta": "auto", "norm": 2}, "norm"),
        ({"n_permutations": 0}, "n_permutations"),
        ({"n_moment_draws": 1}, "n_moment_draws"),
        ({"n_directions": 0}, "n_directions"),
        ({"n_centers": 0}, "n_centers"),
        ({"max_size": 1}, "max_size"),
        ({"standardize": "no"}, "standardize"),
        ({"level": 5}, "level"),
        ({"fitted_on": X}, "pair"),
        ({"fitted_on": (3, Y)}, "fitted_on"),
        ({"fitted_on": (X, Y[:5])}, "pairs"),
        ({"fitted_on": (X, None)}, "pairs"),
        ({"fitted_on": (np.c_[X, X], Y)}, "columns"),
        ({"fitted_on": (X, np.c_[Y, Y])}, "columns"),
        ({"random_state": -1}, "random_state"),
    ],
)
def test_bad_input(change, message):
    arguments = {"x": X, "y": Y, "sampler": Gaussian(), "delta": 0.3, "n_permutations": 19, **change}
    with pytest.raises(ValueError, match=message):
        conditional_test(**arguments)


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_the_picture_has_the_null_and_the_map(inputs):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(300, inputs))
    y = rng.normal(size=300)
    found = conditional_test(
        x, y, lambda x: np.where(x[:, -1] > 0.6, 3.0, 1.0) * rng.normal(size=300), 0.3, n_permutations=99,
        random_state=0,
    )  # fmt: skip
    null, where = found.plot()
    assert sum(bar.get_height() for bar in null.patches) == 99
    assert null.lines[0].get_xdata()[0] == found.statistic
    if inputs == 2:
        np.testing.assert_array_equal(where.collections[0].get_array(), found.ball_statistics)
        assert len(where.collections[1].get_offsets()) == found.rejected_balls.sum() > 0
    else:
        assert where.get_xlabel() == ("x" if inputs == 1 else "$x_{3}$ of the centre")
        shown = {line.get_label(): line for line in where.lines}
        np.testing.assert_array_equal(
            shown["ball, rejected"].get_xdata(), found.center_x[found.rejected_balls, -1]
        )
        assert shown["limit for all balls jointly"].get_ydata()[0] == found.ball_limit
    with pytest.raises(ValueError, match="axes"):
        found.plot(axes=[null])
    one = conditional_test(x, y, lambda x: rng.normal(size=300), None, n_permutations=19, random_state=0)
    assert len(one.plot()) == 1
    matplotlib.pyplot.close("all")


def test_given_balls_give_the_statistic_of_their_radius():
    x, y = gaussian_problem(200)
    given, found = (
        conditional_test(x, y, Gaussian(1.3), delta, n_permutations=19, random_state=0)
        for delta in (Neighborhoods.within(x, 0.2), 0.2)
    )
    assert given.statistic == pytest.approx(found.statistic, rel=1e-12)
    np.testing.assert_array_equal(given.ball_sizes, found.ball_sizes)


def test_leaves_give_the_statistic_of_one_leaf_per_row():
    """With one tree there is no choice: every row counts as often as its leaf has rows, times that number."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 2)), rng.normal(size=90)
    yhat = rng.normal(size=90)
    hoods = Neighborhoods.leaves(rng.integers(0, 6, 90), x)
    found = conditional_test(
        x, y, lambda x: yhat, hoods, standardize=False, n_permutations=19, random_state=0
    )
    values = localw2.w2_squared(*(torch.tensor(v)[:, None] for v in (y, yhat)), hoods)
    weights = hoods.sizes.double() ** 2
    assert found.statistic == pytest.approx(float(values @ weights / weights.sum()))
    np.testing.assert_array_equal(found.ball_sizes, hoods.row_sizes())
    thin = conditional_test(x, y, lambda x: yhat, hoods, max_size=8, n_permutations=19, standardize=False)
    assert thin.ball_sizes.max() == 8
    assert len(np.unique(thin.ball_statistics)) <= hoods.n_balls
    some = Neighborhoods.leaves(np.where(x[:, 0] > 0, 1, -1), x)  # rows in no leaf are no centres
    part = conditional_test(x, y, lambda x: yhat, some, n_permutations=19, standardize=False)
    assert (part.center_x[:, 0] > 0).all()


def leaves_of_other_rows(rng, n):
    """New rows with spread 3 in one of four regions, and the leaves of a forest grown on other such rows."""

    def draw(n):
        x = rng.normal(size=(n, 4))
        return x, np.where((x[:, 0] > 0) & (x[:, 1] > 0), 3.0, 1.0)

    grown, spread = draw(200)
    forest = RandomForestRegressor(5, min_samples_leaf=20, random_state=int(rng.integers(2**31)))
    forest.fit(grown, np.abs(spread * rng.normal(size=200)))
    x, spread = draw(n)
    return x, spread, Neighborhoods.leaves(forest, x)


def test_leaves_of_a_forest_grown_on_other_rows_keep_the_level_and_find_a_wrong_spread():
    rng = np.random.default_rng(3)
    right, anywhere, wrong = 0, 0, 0
    settings = {"n_permutations": 19, "n_moment_draws": 12, "n_centers": 30, "random_state": rng}
    for _ in range(200):
        x, spread, leaves = leaves_of_other_rows(rng, 100)
        y = spread * rng.normal(size=100)
        found = conditional_test(x, y, lambda x, s=spread: s * rng.normal(size=len(s)), leaves, **settings)
        right, anywhere = right + found.reject, anywhere + found.rejected_balls.any()
        flat = conditional_test(x, y, lambda x: 1.7 * rng.normal(size=len(x)), leaves, **settings)
        wrong += flat.reject
    low, high = binomial_band(200, 0.05, 0.999)  # seeded; outside with probability below .001
    assert low <= right <= high
    assert anywhere <= high
    assert wrong > 2 * high


def test_nearest_rows_serve_as_balls_too():
    rng = np.random.default_rng(0)
    x = np.exp(2 * rng.normal(size=(300, 1)))
    y = rng.normal(size=300)
    wide = conditional_test(
        x, y, lambda x: 3 * rng.normal(size=len(x)), Nearest(40), n_permutations=99, random_state=0
    )
    assert set(wide.ball_sizes.tolist()) == {40}
    assert wide.pvalue == 0.01
    with pytest.raises(ValueError, match="Nearest"):
        conditional_test(x, y, lambda x: rng.normal(size=len(x)), Nearest(1), n_permutations=99)
