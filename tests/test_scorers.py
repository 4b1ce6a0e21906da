"""Scores beside those of other packages, and scorers inside scikit-learn's own tools."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.inspection import permutation_importance
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_pinball_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from localw2 import BallLaw, LocalW2ODE, LocalW2Regressor, RandomCoefficientRegressor, RandomLinear
from localw2.metrics import (
    coverage,
    crps,
    crps_scorer,
    draw_errors,
    energy_score,
    energy_scorer,
    gaussian_crps,
    interval_score,
    interval_scorer,
    interval_width,
    log_score,
    log_scorer,
    mean_error,
    pinball_loss,
    std_error,
)

SCORERS = [crps_scorer, energy_scorer, log_scorer, interval_scorer]


def draws(n_samples=40, shape=(30,), seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), rng.standard_t(4, size=(n_samples, *shape))


# --- the scores themselves ---


def test_scores_are_those_of_scoringrules():
    sr = pytest.importorskip("scoringrules")
    y, samples = draws()
    last = samples.T
    np.testing.assert_allclose(crps(y, samples), sr.crps_ensemble(y, last, estimator="fair"), rtol=1e-10)
    np.testing.assert_allclose(log_score(y, samples), sr.logs_ensemble(y, last), rtol=1e-10)
    widths = np.linspace(0.1, 2, 30)
    expected = sr.logs_ensemble(y, last, bw=widths)
    np.testing.assert_allclose(log_score(y, samples, bandwidth=widths), expected, rtol=1e-10)
    lower, upper = np.quantile(samples, [0.1, 0.9], axis=0)
    expected = sr.interval_score(y, lower, upper, 0.2)
    np.testing.assert_allclose(interval_score(y, lower, upper, 0.8), expected, rtol=1e-10)
    np.testing.assert_allclose(pinball_loss(y, lower, 0.1), sr.quantile_score(y, lower, 0.1), rtol=1e-10)
    np.testing.assert_allclose(gaussian_crps(y, 0.3, 2.0), sr.crps_normal(y, 0.3, 2.0), rtol=1e-10)
    y, samples = draws(shape=(20, 3))
    expected = sr.es_ensemble(y, np.moveaxis(samples, 0, 1), estimator="fair")
    np.testing.assert_allclose(energy_score(y, samples), expected, rtol=1e-10)


def test_the_crps_is_that_of_properscoring():
    """Theirs divides by S^2, so the spread among draws that ours takes away is a little larger."""
    ps = pytest.importorskip("properscoring")
    y, samples = draws()
    n = len(samples)
    spread = np.abs(samples[:, None] - samples).sum((0, 1)) / 2
    expected = ps.crps_ensemble(y, samples.T) + spread / n**2 - spread / (n * (n - 1))
    np.testing.assert_allclose(crps(y, samples), expected, rtol=1e-8)
    np.testing.assert_allclose(gaussian_crps(y, 0.3, 2.0), ps.crps_gaussian(y, 0.3, 2.0), rtol=1e-8)


def test_the_log_score_of_a_gaussian_is_its_log_density():
    rng = np.random.default_rng(1)
    y, n, h = np.linspace(-2.5, 2.5, 11), 100_000, 0.1
    samples = rng.normal(size=(n, 1)) + np.zeros(11)
    smooth = stats.norm(0, np.sqrt(1 + h**2))
    # The density is a mean of n kernels: its SD over that of the kernel's values, by the delta method.
    kernels = stats.norm.pdf(y - samples, scale=h)
    error = kernels.std(0) / kernels.mean(0) / np.sqrt(n)
    gap = log_score(y, samples, bandwidth=h) + smooth.logpdf(y)
    assert (np.abs(gap) < 5 * error).all()  # 11 places, 6e-6 of seeds
    # Silverman's bandwidth at this n is .106, which moves the log density by less than h^2 |y^2 - 1| / 2.
    bias = 0.106**2 * np.abs(y**2 - 1) / 2 + 0.002
    assert (np.abs(log_score(y, samples) + stats.norm.logpdf(y)) < bias + 5 * error).all()


def test_the_log_score_shifts_scales_and_prefers_the_truth():
    y, samples = draws()
    np.testing.assert_allclose(log_score(y + 1e6, samples + 1e6), log_score(y, samples), rtol=1e-6)
    np.testing.assert_allclose(log_score(3 * y, 3 * samples), log_score(y, samples) + np.log(3), rtol=1e-9)
    rng = np.random.default_rng(2)
    y, z = rng.normal(size=2000), rng.normal(size=(300, 2000))
    means = [log_score(y, scale * z).mean() for scale in (1.0, 0.6, 1.7)]
    assert means[0] + 0.05 < min(means[1:])


def test_draws_with_an_atom_are_smoothed_by_their_sd_and_points_are_refused():
    samples = np.array([[0.0], [0.0], [0.0], [0.0], [5.0]])
    h = 1.06 * samples.std(ddof=1) * 5**-0.2
    expected = -np.log(np.mean(stats.norm.pdf(1.0, samples, h)))
    assert log_score([1.0], samples)[0] == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"1 of 2 values.*crps"):
        log_score([0.0, 1.0], [[1.0, 1.0], [1.0, 2.0]])
    assert log_score([0.0], [[1.0], [1.0]], bandwidth=1.0)[0] == pytest.approx(-stats.norm.logpdf(1))
    for wrong in (0.0, -1.0, [1.0, 2.0]):
        with pytest.raises(ValueError, match="bandwidth"):
            log_score([0.0], [[1.0], [2.0]], bandwidth=wrong)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.95])
def test_the_pinball_loss_is_scikit_learn_s_and_is_least_at_the_quantile(q):
    y, samples = draws()
    assert pinball_loss(y, samples[0], q).mean() == pytest.approx(
        mean_pinball_loss(y, samples[0], alpha=q), rel=1e-12
    )
    both = pinball_loss(y, samples[:2], [q, 0.5])
    np.testing.assert_array_equal(both[0], pinball_loss(y, samples[0], q))
    y = np.random.default_rng(0).normal(size=50_001)
    at = [pinball_loss(y, np.full(y.shape, v), q).mean() for v in np.quantile(y, [q - 0.05, q, q + 0.04])]
    assert at[1] < min(at[0], at[2])


def test_the_crps_is_twice_the_mean_pinball_loss():
    """The integral over levels, at draws that are fine quantiles: an independent way to the same number."""
    levels = (np.arange(2000) + 0.5) / 2000
    quantiles = stats.norm.ppf(levels)[:, None] * [1.0, 2.0]
    y = np.array([0.3, -3.0])
    twice = 2 * pinball_loss(y, quantiles, levels).mean(0)
    np.testing.assert_allclose(twice, gaussian_crps(y, 0.0, [1.0, 2.0]), rtol=2e-3)


def test_bad_levels_and_intervals_are_refused():
    with pytest.raises(ValueError, match="probability"):
        pinball_loss([0.0], [0.0], 1.0)
    with pytest.raises(ValueError, match=r"\(2, 1\) is expected"):
        pinball_loss([0.0], [0.0], [0.1, 0.9])
    with pytest.raises(ValueError, match="probability"):
        interval_score([0.0], [0.0], [1.0], 90)
    with pytest.raises(ValueError, match="one interval per value"):
        interval_score([0.0, 1.0], [0.0], [1.0])


# --- weights ---


def test_whole_weights_are_repeated_rows():
    rng = np.random.default_rng(0)
    y, low, high = rng.normal(size=(3, 20, 2))
    low, high = np.minimum(low, high), np.maximum(low, high)
    weights = rng.integers(0, 4, 20)

    def again(v):
        return np.repeat(v, weights, axis=0)

    def same(function, *arrays):
        assert function(*arrays, sample_weight=weights) == pytest.approx(function(*map(again, arrays)))

    same(coverage, y, low, high)
    same(interval_width, low, high)
    same(mean_error, y, low)
    same(std_error, np.abs(y), np.abs(low))
    a, b = rng.normal(size=(2, 5, 20))
    repeated = draw_errors(np.repeat(a, weights, 1), np.repeat(b, weights, 1))
    assert draw_errors(a, b, sample_weight=weights) == pytest.approx(repeated)


@pytest.mark.parametrize("weights", [[1, -1], [0, 0], [1], [[1], [1]], [np.nan, 1]])
def test_weights_that_weigh_nothing_are_refused(weights):
    for call in (partial(coverage, [0.0, 1.0], [0, 0], [1, 1]), partial(mean_error, [1.0, 2.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="sample_weight"):
            call(sample_weight=weights)


# --- scorers ---


class Gaussian(RegressorMixin, BaseEstimator):
    """An estimator of somebody else: the normal law of one column, known in closed form."""

    def __init__(self, std=1.0):
        self.std = std

    def fit(self, X, y):
        self.fitted_ = True
        return self

    def predict(self, X):
        return np.asarray(X)[:, 0]

    def sample(self, X, n_samples=1, random_state=None):
        z = np.random.default_rng(random_state).normal(size=(n_samples, len(X)))
        return self.predict(X) + self.std * z


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(400, 2))
    return x, x[:, 0] + rng.normal(size=400)


def test_scorers_agree_with_closed_forms(rows):
    x, y = rows
    model = Gaussian()
    exact = gaussian_crps(y, x[:, 0], 1.0)
    # The CRPS of 200 draws at 400 rows errs by about .5 / sqrt(200 * 400) = .002.
    assert crps_scorer(model, x, y) == pytest.approx(-exact.mean(), abs=0.01)
    assert log_scorer(model, x, y) == pytest.approx(stats.norm.logpdf(y, x[:, 0]).mean(), abs=0.03)
    ends = (x[:, 0] + z for z in stats.norm.ppf([0.25, 0.75]))
    found = partial(interval_scorer, coverage=0.5, n_samples=4000)(model, x, y)
    assert found == pytest.approx(-interval_score(y, *ends, 0.5).mean(), abs=0.02)
    weights = np.arange(400.0)
    expected = -np.average(exact, weights=weights)
    assert crps_scorer(model, x, y, sample_weight=weights) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("scorer", SCORERS)
def test_scorers_are_seeded_and_whole_weights_are_repeated_rows(rows, scorer):
    x, y = rows
    model = RandomCoefficientRegressor("ml").fit(x, y)
    x, y = x[:60], y[:60]
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global generator is what must not change
    score = scorer(model, x, y)
    assert isinstance(score, float)
    assert score == scorer(model, x, y)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002 - as above
    weights = np.random.default_rng(0).integers(0, 3, 60)
    kept = weights > 0
    ones = scorer(model, x, y, sample_weight=np.ones(60))
    assert ones == pytest.approx(score)
    if scorer is interval_scorer:  # the others draw anew at other rows
        assert scorer(model, x, y, sample_weight=weights) == pytest.approx(
            scorer(model, np.repeat(x, weights, 0), np.repeat(y, weights))
        )
    else:
        with_zeros = scorer(model, x, y, sample_weight=kept.astype(float))
        only = scorer(model, x[kept], y[kept])
        assert with_zeros == pytest.approx(only, abs=0.05)


@pytest.mark.parametrize("scorer", SCORERS)
def test_scorers_prefer_the_true_spread_in_a_grid(rows, scorer):
    x, y = rows
    search = GridSearchCV(Gaussian(), {"std": [0.5, 1.0, 2.0]}, scoring=scorer, cv=KFold(3)).fit(x, y)
    assert search.best_params_ == {"std": 1.0}
    by_r2 = cross_val_score(Gaussian(), x, y, cv=3)
    np.testing.assert_array_equal(by_r2, cross_val_score(Gaussian(2.0), x, y, cv=3))  # R2 cannot see it


@pytest.mark.parametrize("scorer", SCORERS)
def test_every_regressor_of_ours_is_scored(rows, scorer):
    x, y = rows
    frame = pd.DataFrame({"a": x[:, 0], "kind": np.where(x[:, 1] > 0, "p", "q")})
    for model, inputs in (
        (LocalW2Regressor(BallLaw(40), base=Ridge(), random_state=0), frame),
        (RandomCoefficientRegressor("ml"), x),
        (make_pipeline(StandardScaler(), RandomCoefficientRegressor("ml")), x),
    ):
        scores = cross_val_score(model, inputs, pd.Series(y), scoring=scorer, cv=3, error_score="raise")
        assert np.isfinite(scores).all()
    linear = RandomLinear(2).double()
    assert np.isfinite(scorer(linear, x, torch.tensor(y)))
    assert scorer(linear, x, y) == scorer(linear, torch.tensor(x), y)


def test_a_pipeline_and_a_search_score_as_what_is_inside(rows):
    x, y = rows
    piped = make_pipeline(StandardScaler(), RandomCoefficientRegressor("ml")).fit(x, y)
    inner = piped[-1]
    assert crps_scorer(piped, x, y) == crps_scorer(inner, piped[:-1].transform(x), y)
    search = GridSearchCV(piped, {"randomcoefficientregressor__covariance": ["diag", "full"]}, cv=2)
    search.set_params(scoring=crps_scorer).fit(x, y)
    assert crps_scorer(search, x, y) == crps_scorer(search.best_estimator_, x, y)
    assert search.score(x, y) == crps_scorer(search.best_estimator_, x, y)


def test_several_outputs_and_several_scorers():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(150, 1))
    z = rng.normal(size=150)
    y = np.column_stack([z, z + 0.1 * rng.normal(size=150)])
    model = LocalW2Regressor("balls", random_state=0)
    found = cross_validate(
        model, x, y, scoring={"crps": crps_scorer, "energy": energy_scorer, "r2": "r2"}, cv=2
    )
    assert {"test_crps", "test_energy", "test_r2"} <= found.keys()
    model.fit(x, y)
    samples = model.sample(x, 200, random_state=int(np.random.default_rng(0).integers(2**31)))
    assert crps_scorer(model, x, y) == pytest.approx(-crps(y, samples).mean())
    assert energy_scorer(model, x, y) == pytest.approx(-energy_score(y, samples).mean())
    assert interval_scorer(model, x, y) == pytest.approx(
        -interval_score(y, *model.predict_interval(x, 0.9), 0.9).mean()
    )


def test_permutation_importance_by_crps_finds_the_column_of_the_spread():
    """The mean does not depend on the first column at all, the spread on nothing else."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 2, size=(800, 2))
    y = x[:, 0] * rng.normal(size=800)
    model = LocalW2Regressor("balls", random_state=0).fit(x[:500], y[:500])
    by = partial(permutation_importance, model, x[500:], y[500:], n_repeats=5, random_state=0)
    law, mean = by(scoring=crps_scorer), by(scoring="neg_mean_squared_error")
    assert law.importances_mean[0] > 5 * law.importances_std[0]
    assert law.importances_mean[0] > 10 * abs(law.importances_mean[1])
    assert abs(mean.importances_mean[0]) < 0.1 * y.var()
    weighted = by(scoring=crps_scorer, sample_weight=np.ones(300))
    np.testing.assert_allclose(weighted.importances, law.importances, rtol=1e-9)


def test_what_cannot_be_scored_gets_words(rows):
    x, y = rows
    with pytest.raises(ValueError, match="Ridge has no method sample"):
        crps_scorer(Ridge().fit(x, y), x, y)
    with pytest.raises(ValueError, match="LocalW2Regressor"):
        crps_scorer(LocalW2Regressor, x, y)
    with pytest.raises(ValueError, match="also needs t"):
        crps_scorer(clone(LocalW2ODE()), x, y)
    with pytest.raises(ValueError, match="n_samples"):
        crps_scorer(Gaussian(), x, y, n_samples=1)
    with pytest.raises(ValueError, match="sample_weight"):
        crps_scorer(Gaussian(), x, y, sample_weight=[1.0])

    class Framed(Gaussian):
        def predict_interval(self, X, coverage=0.9):
            return pd.DataFrame({"lower": X[:, 0], "upper": X[:, 0]})

    with pytest.raises(ValueError, match="pair"):
        interval_scorer(Framed(), x, y)
