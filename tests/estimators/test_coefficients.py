import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize, stats
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from localw2 import Euclidean, Mahalanobis, Neighborhoods, Objective, SquaredW2, Weighted, local_w2
from localw2.datasets import Linear
from localw2.estimators.coefficients import gaussian
from localw2.estimators.coefficients import regressor as coefficients
from localw2.estimators.coefficients.gaussian import (
    CoefficientLaw,
    Frame,
    _likelihood_of_variance,
    _w2_of_variance,
    draw_noise,
    free_entries,
    gather_residuals,
    regress_squares,
    robust_errors,
)
from localw2.estimators.coefficients.regressor import RandomCoefficientRegressor, _std_interval

METHODS = ["w2", "ml"]
KINDS = ["diag", "full"]


def drawn(mean, covariance, n, seed):
    """Rows of a random-coefficient model: x is wide, so that every spread shows."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, len(mean) - 1))
    coefficients = rng.multivariate_normal(mean, covariance, n)
    return x, coefficients[:, 0] + (coefficients[:, 1:] * x).sum(1)


def all_of(model):
    """Means, then SDs, intercept first."""
    return np.array([model.intercept_mean_, *model.coef_mean_, model.intercept_std_, *model.coef_std_])


def log_likelihood(model, x, y):
    return stats.norm.logpdf(y, *model.predict(x, return_std=True)).sum()


TRUTH = np.array([1.0, -2.0, 0.5]), np.array([0.5, 0.3, 0.8])
CORRELATED = np.array([[1.0, 0.5, 0.0], [0.5, 0.8, -0.3], [0.0, -0.3, 0.6]])

# --- maximum likelihood against other optimisers ---


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stds", [(0.1, 0.2, 0.3, 0.4), (0.0, 0.3, 0.0, 0.4)], ids=["inside", "boundary"])
def test_ml_is_where_a_bounded_optimiser_of_mean_and_variances_ends(seed, stds):
    x, y = Linear(coefficient_stds=stds).sample(300, random_state=seed)
    design = np.column_stack([np.ones(len(x)), x])

    def loss(both):
        b, v = both[:4], both[4:]
        return -stats.norm.logpdf(y, design @ b, np.sqrt(design**2 @ v + 1e-12)).mean()

    model = RandomCoefficientRegressor(method="ml").fit(x, y)
    start = np.append(np.linalg.lstsq(design, y, rcond=None)[0], np.full(4, 0.05))
    bounds = [(None, None)] * 4 + [(0, None)] * 4
    other = optimize.minimize(
        loss, start, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-8, "maxiter": 5000}
    )
    assert -log_likelihood(model, x, y) / len(y) <= other.fun + 1e-6
    np.testing.assert_allclose(all_of(model)[:4], other.x[:4], atol=2e-3)
    np.testing.assert_allclose(all_of(model)[4:] ** 2, other.x[4:], atol=2e-3)


def test_ml_with_a_full_covariance_against_a_derivative_free_search():
    x, y = drawn(TRUTH[0], CORRELATED, 400, 0)
    model = RandomCoefficientRegressor(method="ml", covariance="full").fit(x, y)
    design = np.column_stack([np.ones(len(x)), x])
    lower = np.tril_indices(3)

    def loss(theta):
        factor = np.zeros((3, 3))
        factor[lower] = theta[3:]
        return -stats.norm.logpdf(y, design @ theta[:3], np.linalg.norm(design @ factor, axis=1)).mean()

    start = np.concatenate([TRUTH[0], np.linalg.cholesky(CORRELATED)[lower]])
    other = optimize.minimize(loss, start, method="Powell", options={"ftol": 1e-13, "xtol": 1e-8})
    assert -log_likelihood(model, x, y) / len(y) == pytest.approx(other.fun, abs=1e-6)


def test_full_is_never_less_likely_than_diag():
    x, y = drawn(TRUTH[0], CORRELATED, 200, 1)
    diag, full = (RandomCoefficientRegressor(method="ml", covariance=kind).fit(x, y) for kind in KINDS)
    assert log_likelihood(full, x, y) > log_likelihood(diag, x, y) + 1
    assert np.count_nonzero(diag.covariance_) == 3


@pytest.mark.parametrize("name", ["likelihood", "w2"])
def test_slopes_by_finite_differences(name):
    x, y = Linear().sample(40, random_state=0)
    frame = Frame.of(x, y, full=False)
    rng = np.random.default_rng(0)
    center = torch.from_numpy(frame.design @ frame.regress(np.ones(40)))
    objective = Objective(frame.y, Neighborhoods.nearest(x, 10), SquaredW2(debiased=True), center)
    loss = {
        "likelihood": _likelihood_of_variance(frame),
        "w2": _w2_of_variance(objective, center, torch.from_numpy(rng.normal(size=(4, 40)))),
    }[name]
    variance, step = rng.uniform(0.5, 1.5, 40), 1e-6 * np.eye(40)
    numeric = [(loss(variance + h)[0] - loss(variance - h)[0]) / 2e-6 for h in step]
    np.testing.assert_allclose(loss(variance)[1], numeric, rtol=1e-4, atol=1e-7)


# --- recovery ---


@pytest.mark.parametrize("method", METHODS)
def test_recovers_independent_coefficients(method):
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 4000, 0)
    model = RandomCoefficientRegressor(method, n_draws=8, random_state=0).fit(x, y)
    # About four standard errors at this N.
    np.testing.assert_allclose(all_of(model), np.concatenate(TRUTH), atol=0.1)
    assert model.covariance_.shape == (3, 3)
    assert model.score(x, y) == pytest.approx(4 * 17 / 12 / (4 * 17 / 12 + 0.25 + 4 / 3 * 0.73), abs=0.03)


@pytest.mark.parametrize("method", METHODS)
def test_recovers_a_full_covariance(method):
    x, y = drawn(TRUTH[0], CORRELATED, 4000, 0)
    model = RandomCoefficientRegressor(method, covariance="full", n_draws=8, random_state=0).fit(x, y)
    np.testing.assert_allclose(model.covariance_, CORRELATED, atol=0.2)
    np.testing.assert_allclose(all_of(model)[:3], TRUTH[0], atol=0.12)


def errors_on_linear(seeds, **settings):
    """The paper's errors in b and s on its linear example, averaged over seeds."""
    truth = np.array(Linear().coefficient_means), np.array(Linear().coefficient_stds)
    found = []
    for seed in seeds:
        model = RandomCoefficientRegressor(random_state=seed, **settings)
        b, s = all_of(model.fit(*Linear().sample(1000, random_state=seed))).reshape(2, 4)
        found.append(
            [np.abs(b - truth[0]).sum() / truth[0].sum(), np.abs(s - truth[1]).sum() / truth[1].sum()]
        )
    return np.mean(found, axis=0)


def test_w2_is_nearly_as_accurate_as_maximum_likelihood():
    seeds = range(500, 506)
    b, s = errors_on_linear(seeds) / errors_on_linear(seeds, method="ml")
    assert b <= 1.1
    assert s <= 1.4  # 1.06 over 100 seeds; six scatter by 0.13


def test_w2_beats_the_printed_loss_by_far():
    printed = errors_on_linear([500], debiased=False, max_epochs=300)
    assert printed[1] > 4 * errors_on_linear([500])[1]


def test_as_printed_is_the_papers_loss_and_training():
    x, y = Linear().sample(60, random_state=0)
    model = RandomCoefficientRegressor(
        debiased=False, delta=0.6, norm=Euclidean(), max_epochs=5, random_state=3
    )
    seed = int(np.random.default_rng(np.random.default_rng(3).integers(2**63)).integers(2**63))
    rng = np.random.default_rng(seed)
    b, s = (torch.ones(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimiser = torch.optim.AdamW([b, s], lr=0.02, weight_decay=0.005)
    design = torch.from_numpy(np.column_stack([np.ones(60), x]))
    for _ in range(5):
        yhat = ((b + s * torch.from_numpy(rng.standard_normal((60, 4)))) * design).sum(1)
        loss = local_w2(x, torch.from_numpy(y), yhat, delta=0.6)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    expected = torch.cat([b, s.abs()]).detach().numpy()
    np.testing.assert_allclose(all_of(model.fit(x, y)), expected, rtol=1e-10)


@pytest.mark.filterwarnings("ignore:delta")
def test_as_printed_takes_the_regression_norm_and_delta_a_tenth():
    x, y = Linear().sample(80, random_state=0)
    fits = [
        RandomCoefficientRegressor(debiased=False, max_epochs=3, random_state=0, **settings).fit(x, y)
        for settings in ({}, {"delta": 0.1, "norm": Weighted.from_regression(x, y)})
    ]
    assert (all_of(fits[0]) == all_of(fits[1])).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"delta": 0.5},
        {"delta": 1.0, "norm": Euclidean()},
        {"norm": "data"},
        {"delta": np.inf, "norm": Euclidean()},
    ],
)
def test_balls_of_the_users_choice(settings):
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 500, 0)
    if settings.get("norm") == "data":
        settings = {"norm": Mahalanobis.from_data(x), "n_neighbors": 40}
    model = RandomCoefficientRegressor(n_draws=8, random_state=0, **settings).fit(x, y)
    np.testing.assert_allclose(all_of(model)[:3], TRUTH[0], atol=0.2)
    assert np.isfinite(model.covariance_).all()


# --- laws ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_units_and_origin_of_y_and_units_of_x_do_not_matter(method, kind):
    x, y = drawn(TRUTH[0], CORRELATED, 150, 2)
    units = np.array([1000.0, 0.01])
    model = RandomCoefficientRegressor(method, kind, n_draws=4, random_state=0)
    plain, moved = clone(model).fit(x, y), clone(model).fit(x * units, 7 * y + 300)
    np.testing.assert_allclose(moved.coef_mean_, 7 * plain.coef_mean_ / units, rtol=1e-4)
    np.testing.assert_allclose(moved.coef_std_, 7 * plain.coef_std_ / units, rtol=1e-3)
    assert moved.intercept_mean_ == pytest.approx(7 * plain.intercept_mean_ + 300, rel=1e-4)
    assert moved.intercept_std_ == pytest.approx(7 * plain.intercept_std_, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_the_origin_of_x_does_not_matter_to_a_full_covariance(method):
    x, y = drawn(TRUTH[0], CORRELATED, 200, 3)
    model = RandomCoefficientRegressor(method, "full", n_draws=4, random_state=0)
    plain, moved = clone(model).fit(x, y), clone(model).fit(x + 10, y)
    np.testing.assert_allclose(moved.predict(x + 10), plain.predict(x), rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(moved.coef_std_, plain.coef_std_, rtol=1e-2)


@pytest.mark.parametrize("method", METHODS)
def test_samples_quantiles_and_intervals_agree_with_the_moments(method):
    x, y = Linear().sample(300, random_state=0)
    model = RandomCoefficientRegressor(method, n_draws=4, random_state=0).fit(x, y)
    mean, std = model.predict(x[:5], return_std=True)
    drawn = model.sample(x[:5], 20_000, random_state=1)
    assert drawn.shape == (20_000, 5)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=4 * std.max() / 140)
    np.testing.assert_allclose(drawn.std(0), std, rtol=0.025)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(5)).max() < 0.03  # rows are independent
    lower, upper = model.predict_interval(x[:5], coverage=0.8)
    np.testing.assert_allclose(model.predict_quantiles(x[:5], [0.1, 0.5, 0.9]), [lower, mean, upper])
    np.testing.assert_allclose((drawn < upper).mean(0), 0.9, atol=0.01)


def test_random_state_is_honoured_bit_for_bit():
    x, y = Linear().sample(150, random_state=0)
    model = RandomCoefficientRegressor(n_draws=4, n_bootstrap=3, random_state=5)
    one, two = clone(model).fit(x, y), clone(model).fit(x, y)
    other = clone(model).set_params(random_state=6).fit(x, y)
    assert (all_of(one) == all_of(two)).all()
    assert (one.coef_std_se_ == two.coef_std_se_).all()
    assert (all_of(one) != all_of(other)).any()
    assert (one.sample(x, 2, random_state=1) == two.sample(x, 2, random_state=1)).all()
    assert (one.sample(x, 2, random_state=1) != one.sample(x, 2, random_state=2)).any()
    generators = [model.set_params(random_state=np.random.RandomState(0)).fit(x, y) for _ in range(2)]
    assert (all_of(generators[0]) == all_of(generators[1])).all()


def test_samples_without_a_random_state_are_fresh_each_time():
    x, y = Linear().sample(50, random_state=0)
    model = RandomCoefficientRegressor("ml", random_state=5).fit(x, y)
    assert (model.sample(x) != model.sample(x)).all()
    assert (model.sample(x) != model.sample(x, random_state=5)).all()


@pytest.mark.parametrize("norm", ["auto", Euclidean()])
@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_refits_as_printed_are_the_same_together_and_alone(norm, covariance, monkeypatch):
    x, y = Linear().sample(60, random_state=0)
    settings = {"covariance": covariance, "debiased": False, "delta": 0.5, "norm": norm, "max_epochs": 20}
    together = RandomCoefficientRegressor(n_bootstrap=7, random_state=0, **settings).fit(x, y)
    monkeypatch.setattr(coefficients, "_TOGETHER", 1)
    alone = RandomCoefficientRegressor(n_bootstrap=7, random_state=0, **settings).fit(x, y)
    np.testing.assert_allclose(together.covariance_se_, alone.covariance_se_, rtol=1e-9)
    np.testing.assert_allclose(together.coef_mean_interval_, alone.coef_mean_interval_, rtol=1e-9)


def test_the_bootstrap_does_not_depend_on_n_jobs():
    x, y = Linear().sample(100, random_state=0)
    model = RandomCoefficientRegressor("ml", n_bootstrap=4, random_state=0)
    with joblib.parallel_config(backend="threading"):
        one, two = (clone(model).set_params(n_jobs=jobs).fit(x, y) for jobs in (1, 2))
    np.testing.assert_allclose(one.coef_std_se_, two.coef_std_se_, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_exact_line_has_no_spread(method, kind):
    x = np.random.default_rng(0).normal(size=(30, 2))
    model = RandomCoefficientRegressor(method, kind).fit(x, 3 + x @ [1.0, -2.0])
    np.testing.assert_allclose(all_of(model), [3, 1, -2, 0, 0, 0], atol=1e-9)


# --- what these x cannot tell ---

NORMAL = np.random.default_rng(0).normal(size=(400, 1))
DUMMY = np.random.default_rng(1).integers(0, 2, (400, 1)).astype(float)


@pytest.mark.parametrize(
    ("x", "kind", "names"),
    [
        (np.hstack([NORMAL, 2 * DUMMY - 1]), "diag", "intercept, x1"),  # x^2 = 1
        (np.hstack([NORMAL, DUMMY]), "full", "x1"),  # x^2 = x: only var(w1) + 2 cov(w0, w1) shows
        (np.hstack([NORMAL, -NORMAL]), "diag", "x0, x1"),
        (np.hstack([NORMAL, 1000 + 0.001 * NORMAL[::-1]]), "diag", "intercept, x1"),
        (np.hstack([NORMAL, 0 * NORMAL]), "diag", "x1"),
    ],
    ids=["plus-minus", "dummy-full", "opposite", "far", "zeros"],
)
def test_unidentifiable_spreads_are_named(x, kind, names):
    y = x[:, 0] + np.random.default_rng(2).normal(size=400)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = RandomCoefficientRegressor("ml", kind).fit(x, y)
    assert any(f"spread of {names} " in str(w.message) for w in caught)
    assert all(w.filename == __file__ for w in caught)
    # What can be known is still right.
    std = model.predict(x, return_std=True)[1]
    assert std.mean() == pytest.approx(1, abs=0.15)


def test_a_constant_column_makes_the_mean_unidentifiable_too():
    x = np.hstack([NORMAL, np.ones_like(NORMAL)])
    y = NORMAL[:, 0] + np.random.default_rng(2).normal(size=400)
    with (
        pytest.warns(UserWarning, match="mean of intercept, x1"),
        pytest.warns(UserWarning, match="spread of intercept, x1"),
    ):
        model = RandomCoefficientRegressor(n_draws=4, random_state=0).fit(x, y)
    assert np.isfinite(all_of(model)).all()


def test_identifiable_tables_are_not_warned_of():
    for x, kind in (
        (np.hstack([NORMAL, DUMMY]), "diag"),
        (NORMAL + 1, "full"),
        (Linear().sample(300, 0)[0], "diag"),
    ):
        y = x[:, 0] + np.random.default_rng(2).normal(size=len(x))
        RandomCoefficientRegressor("ml", kind).fit(x, y)  # warnings are errors here


# --- standard errors ---


LAWS = {
    "Gaussian": lambda rng, shape: rng.normal(size=shape),
    "t with 5 degrees of freedom": lambda rng, shape: rng.standard_t(5, size=shape) / np.sqrt(5 / 3),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "unlike": lambda rng, shape: np.column_stack(
        [rng.normal(size=shape[0]), rng.laplace(size=shape[0]) / 2**0.5, rng.choice([-1.0, 1.0], shape[0])]
    ),
}


def coverage(method, law, n_rows, n_tables, n_bootstrap, **settings):
    """How often the 90 % intervals hold the truth: a share for each of the means and SDs."""
    hits = []
    for seed in range(n_tables):
        rng = np.random.default_rng([100 + seed, 1])
        x = rng.uniform(-2, 2, (n_rows, 2))
        design = np.column_stack([np.ones(n_rows), x])
        y = (design * (TRUTH[0] + TRUTH[1] * LAWS[law](rng, design.shape))).sum(1)
        model = RandomCoefficientRegressor(method, n_bootstrap=n_bootstrap, random_state=seed, **settings)
        model.fit(x, y)
        for kind, truth in zip(("mean", "std"), TRUTH, strict=True):
            lower, upper = np.column_stack(
                [getattr(model, f"intercept_{kind}_interval_"), getattr(model, f"coef_{kind}_interval_")]
            )
            hits.append((lower <= truth) & (truth <= upper))
    return np.array(hits).reshape(n_tables, 2, 3).mean(0)


def within_binomial_band(shares, n_tables, promise=(0.9, 0.9)):
    """Whether all shares are what that many tables may show if the coverage is what is promised."""
    low, high = stats.binom.ppf([0.001, 0.999], n_tables, promise) / n_tables
    return ((shares >= low) & (shares <= high)).all()


@pytest.mark.parametrize("law", LAWS)
def test_intervals_cover_the_truth(law):
    """A Gaussian bootstrap would hold the SDs of t5 in 77 %: of 3 x 30 intervals of each kind, 80 % must."""
    shares = coverage("ml", law, n_rows=400, n_tables=30, n_bootstrap=49)
    assert within_binomial_band(shares.mean(1), 90), shares


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("method", "n_tables"), [("ml", 400), ("w2", 240)])
def test_intervals_cover_the_truth_at_length(method, law, n_tables):
    """Between .87 and .93 on average over means and over SDs, up to two standard errors of the simulation."""
    shares = coverage(method, law, n_rows=400, n_tables=n_tables, n_bootstrap=99, n_draws=16)
    assert within_binomial_band(shares, n_tables, promise=(0.87, 0.93)), shares
    # The estimates of one table are nearly uncorrelated: 3 times as many trials.
    error = 2 * np.sqrt(0.09 / (3 * n_tables))
    assert ((shares.mean(1) > 0.87 - error) & (shares.mean(1) < 0.93 + error)).all(), shares


def test_robust_errors_are_those_of_weighted_least_squares():
    """Means: HC3 of the weighted regression, by its formula. Variances: of r^2 on the squares."""
    rng = np.random.default_rng(0)
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 80, 0)
    design = np.column_stack([np.ones(80), x])
    law = CoefficientLaw(TRUTH[0] + 0.1 * rng.normal(size=3), np.diag(TRUTH[1] ** 2))
    means, variances = robust_errors(design, y, law, free_entries(3, full=False))
    sigma2, residual = law.variance(design), y - design @ law.mean
    for columns, errors, weights, found in (
        (design, residual, 1 / sigma2, means),
        (design**2, residual**2 - sigma2, 1 / sigma2**2, variances),
    ):
        bread = np.linalg.inv((columns * weights[:, None]).T @ columns)
        hat = weights * np.einsum("ij,jk,ik->i", columns, bread, columns)
        influence = bread @ (columns * (weights * errors / (1 - hat))[:, None]).T
        np.testing.assert_allclose(found, np.sqrt((influence**2).sum(1)), rtol=1e-9)


def test_robust_errors_follow_the_units():
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 80, 0)
    units = np.array([1.0, 1e5, 1e-7])
    for full in (False, True):
        found = []
        for scale in (np.ones(3), units):
            law = CoefficientLaw(TRUTH[0] / scale, np.diag((TRUTH[1] / scale) ** 2))
            design = np.column_stack([np.ones(80), x]) * scale
            means, variances = robust_errors(design, y, law, free_entries(3, full))
            found.append([means * scale, variances * scale**2])
        np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_residuals_come_from_rows_that_are_alike():
    """Half of the rows vary by the intercept alone, which has two values; the others by a normal slope."""
    rng = np.random.default_rng(0)
    x = np.repeat([0.0, 10.0], 200)
    y = rng.choice([-1.0, 1.0], 400) + x * rng.normal(size=400)
    design = np.column_stack([np.ones(400), x])
    found = gather_residuals(design, y, CoefficientLaw(np.zeros(2), np.eye(2)))
    np.testing.assert_allclose(found.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(found.std(1), 1)
    assert max(len(np.unique(row.round(6))) for row in found[:200]) == 2
    assert min(len(np.unique(row.round(6))) for row in found[200:]) > 100


def test_noise_of_a_long_table_is_drawn_in_parts(monkeypatch):
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 250, 0)
    law, design = CoefficientLaw(*TRUTH[:1], np.diag(TRUTH[1] ** 2)), np.column_stack([np.ones(250), x])
    levels = np.random.default_rng(0).random((5, 250))
    whole = draw_noise(design, y, law, levels)
    for level, found in zip(levels, whole, strict=True):
        residuals = np.sort(gather_residuals(design, y, law), axis=1)
        np.testing.assert_array_equal(found, residuals[np.arange(250), (120 * level).astype(int)])
    monkeypatch.setattr(gaussian, "PART", 64)
    np.testing.assert_array_equal(draw_noise(design, y, law, levels), whole)


def test_residuals_of_rows_without_spread():
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 100, 0)
    design = np.column_stack([np.ones(100), x])
    only_slope = CoefficientLaw(TRUTH[0], np.diag([0.0, 1.0, 0.0]))
    design[0, 1], y[0] = 0.0, 1e9  # no spread at all in this row, which is far off
    found = gather_residuals(design, y, only_slope)
    assert np.abs(found).max() < 20
    nothing = CoefficientLaw(TRUTH[0], np.zeros((3, 3)))
    np.testing.assert_array_equal(gather_residuals(design, y, nothing), np.zeros((100, 1)))


def test_intervals_of_sds_by_their_definition():
    """Refits are N(1 + bias, .1^2): the upper end has equal tails, the lower is half-way to the symmetric."""
    rng = np.random.default_rng(0)
    for bias in (0.0, -0.15):
        refits = 1 + bias + 0.1 * rng.normal(size=(100_000, 1))
        variances, errors = np.concatenate([np.ones((1, 1)), refits]), np.full((100_001, 1), 0.1)
        found = _std_interval(np.ones(1), variances, errors, 0.9)[:, 0] ** 2
        equal = 1 - bias + 0.1 * stats.norm.ppf([0.05, 0.95])
        # |refit - 1| in units of its error, |N(bias / .1, 1)|, is below c with probability .9.
        place = abs(bias) / 0.1
        c = optimize.brentq(lambda c, m=place: stats.norm.cdf(c - m) - stats.norm.cdf(-c - m) - 0.9, 0, 9)
        symmetric = 1 + 0.1 * c * np.array([-1, 1])
        expected = (equal[0] + min(equal[0], symmetric[0])) / 2, max(equal[1], symmetric[1])
        np.testing.assert_allclose(found, expected, atol=0.004)


def test_the_interval_of_an_sd_holds_the_estimate():
    """A fit that stopped at 0, one whose own regression is negative, and one far from its regression."""
    rng = np.random.default_rng(0)
    for std, own in ((0.0, 0.0), (0.0, -0.15), (0.3, 0.2), (3.0, 0.1)):
        variances = np.concatenate([[[own]], std**2 + 0.1 * rng.normal(size=(999, 1))])
        lower, upper = _std_interval(np.full(1, std), variances, np.full((1000, 1), 0.1), 0.9)[:, 0]
        assert 0 <= lower <= std <= upper
        assert own < 0 or upper**2 > own + 0.1


def test_squared_residuals_are_regressed_without_an_edge_at_zero():
    """At the true law the mean over tables is the truth, 0 among it; a fit could only err upwards there."""
    stds = np.array([0.5, 0.0, 0.8])
    law, found = CoefficientLaw(TRUTH[0], np.diag(stds**2)), []
    for seed in range(400):
        x, y = drawn(TRUTH[0], np.diag(stds**2), 100, seed)
        design = np.column_stack([np.ones(100), x])
        # One regression of the means first: the correction for leverage is that of residuals.
        weights = 1 / np.sqrt(law.variance(design))
        mean = np.linalg.lstsq(design * weights[:, None], y * weights, rcond=None)[0]
        found.append(
            regress_squares(design, y, CoefficientLaw(mean, law.covariance), free_entries(3, full=False))
        )
    error = np.std(found, axis=0) / 20
    assert (np.abs(np.mean(found, axis=0) - stds**2) < 3.5 * error).all()
    assert 0.3 < np.mean(np.array(found)[:, 1] < 0) < 0.7


def test_w2_finds_the_sds_of_coefficients_that_are_not_gaussian():
    """Beside maximum likelihood on the same rows. Normal noise in simulated rows finds 4 to 6 % less."""
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng([seed, 3])
        x = rng.uniform(-2, 2, (2000, 2))
        design = np.column_stack([np.ones(2000), x])
        y = (design * (TRUTH[0] + TRUTH[1] * LAWS["exponential"](rng, design.shape))).sum(1)
        w2, ml = (
            RandomCoefficientRegressor(method, n_draws=8, random_state=0).fit(x, y).law_.std[[0, 2]]
            for method in ("w2", "ml")
        )
        ratios.append((w2 / ml).mean())
    error = np.std(ratios, ddof=1) / np.sqrt(12)
    assert error < 0.01
    assert abs(np.mean(ratios) - 1) < 3 * error + 0.005


def test_an_exact_fit_has_no_errors():
    x = np.random.default_rng(0).normal(size=(50, 2))
    model = RandomCoefficientRegressor("ml", n_bootstrap=5, random_state=0).fit(x, 1 + x @ [2.0, 3.0])
    np.testing.assert_allclose(model.coef_mean_interval_, [[2.0, 3.0]] * 2, atol=1e-9)
    np.testing.assert_allclose(model.coef_std_interval_, 0.0, atol=1e-9)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_a_refit_from_a_near_law_finds_what_a_fit_finds(covariance):
    """The bootstrap refits in one round from the fit: within a fifth of a standard error of all rounds."""
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 400, 0)
    model = RandomCoefficientRegressor("w2", covariance, n_bootstrap=20, random_state=0).fit(x, y)
    coefficients = np.random.default_rng(5).multivariate_normal(model.law_.mean, model.law_.covariance, 400)
    other = coefficients[:, 0] + (coefficients[:, 1:] * x).sum(1)
    (whole,) = model._estimate(x, [other], [0])
    (quick,) = model._estimate(x, [other], [0], model.law_)
    errors = [model.intercept_std_se_, *model.coef_std_se_]
    assert (np.abs(whole.std - quick.std) < 0.2 * np.array(errors)).all()


def test_standard_errors_are_the_spread_of_estimates_over_tables():
    x, y = drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 300, 0)
    model = RandomCoefficientRegressor("ml", n_bootstrap=120, random_state=0).fit(x, y)
    tables = [drawn(TRUTH[0], np.diag(TRUTH[1] ** 2), 300, seed) for seed in range(120)]
    spread = np.std([all_of(RandomCoefficientRegressor("ml").fit(*table)) for table in tables], axis=0)
    told = [model.intercept_mean_se_, *model.coef_mean_se_, model.intercept_std_se_, *model.coef_std_se_]
    np.testing.assert_allclose(told, spread, rtol=0.35)
    assert model.covariance_se_.shape == (3, 3)


def test_summary_is_a_table_for_people():
    x, y = Linear().sample(200, random_state=0)
    table = pd.DataFrame(x, columns=["age", "dose", "weight"])
    model = RandomCoefficientRegressor("ml", n_bootstrap=5, confidence=0.8, random_state=0).fit(table, y)
    lines = model.summary().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["intercept", "age", "dose", "weight"]
    assert "80 % interval" in lines[0]
    assert len({len(line) for line in lines}) == 1
    assert f"{model.coef_mean_[0]:.4g}" in lines[2]
    plain = RandomCoefficientRegressor("ml").fit(table, y).summary()
    assert "n_bootstrap=200" in plain
    assert "interval" not in plain.splitlines()[0]


# --- refits ---


def test_a_refit_leaves_nothing_of_the_old_one():
    x, y = Linear().sample(100, random_state=0)
    table = pd.DataFrame(x, columns=["age", "dose", "weight"])
    model = RandomCoefficientRegressor("ml", n_bootstrap=3, confidence=0.8, random_state=0).fit(table, y)
    assert model.confidence_ == 0.8
    # Intervals are of the confidence that they were made with.
    assert "80 % interval" in model.set_params(confidence=0.5).summary()
    model.set_params(n_bootstrap=0).fit(x, y)
    fresh = RandomCoefficientRegressor("ml", confidence=0.5, random_state=0).fit(x, y)
    assert vars(model).keys() == vars(fresh).keys()
    assert model.summary() == fresh.summary()
    assert model.to_stored().tensors.keys() == {"mean", "std", "covariance", "seen_rows"}


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("stage", ["most_likely", "studentised_interval"])
def test_a_refit_that_fails_leaves_the_old_one_whole(monkeypatch, failure, stage):
    x, y = Linear().sample(100, random_state=0)
    model = RandomCoefficientRegressor("ml", n_bootstrap=3, random_state=0).fit(x, y)
    before, summary = dict(vars(model)), model.summary()

    def fail(*arguments):
        raise failure

    monkeypatch.setattr(coefficients, stage, fail)
    with pytest.raises(failure):
        model.fit(x[:, :2], 100 * y)
    assert vars(model) == before
    assert model.summary() == summary
    assert model.predict(x).shape == (100,)


# --- misuse, and scikit-learn's contract ---


@pytest.mark.parametrize(
    ("x_unit", "y_unit", "word"),
    [
        (1.0, 1e101, "overflow"),
        (1.0, 1e-102, "vanish"),
        (1e102, 1.0, "X"),
        (1e-102, 1.0, "X"),
        (1e-90, 1e90, "coefficients"),
        (1e90, 1e-90, "coefficients"),
    ],
)
def test_extreme_scales(x_unit, y_unit, word):
    x, y = Linear().sample(50, random_state=0)
    with pytest.raises(ValueError, match=word):
        RandomCoefficientRegressor("ml").fit(x_unit * x, y_unit * y)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"method": "mcmc"}, "method"),
        ({"covariance": "block"}, "covariance"),
        ({"norm": "hete"}, "norm"),
        ({"delta": -1.0}, "delta"),
        ({"delta": "large"}, "delta"),
        ({"n_neighbors": 1}, "n_neighbors"),
        ({"n_draws": 1}, "n_draws"),
        ({"n_bootstrap": 1}, "n_bootstrap"),
        ({"n_bootstrap": 2.5}, "n_bootstrap"),
        ({"confidence": 90}, "confidence"),
        ({"confidence": True}, "confidence"),
        ({"max_epochs": 0}, "max_epochs"),
        ({"random_state": "seed"}, "random_state"),
        ({"delta": np.array([0.1, 0.2])}, "delta"),
        ({"norm": np.eye(3)}, "norm"),
        ({"debiased": "no"}, "debiased"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_wrong_settings(settings, word):
    with pytest.raises(ValueError, match=word):
        RandomCoefficientRegressor(**settings).fit(*Linear().sample(20, random_state=0))


def test_wrong_questions():
    x, y = Linear().sample(50, random_state=0)
    model = RandomCoefficientRegressor("ml").fit(x, y)
    for wrong in (0.0, 1.0, [0.5, 1.5]):
        with pytest.raises(ValueError, match=r"\bq\b"):
            model.predict_quantiles(x, wrong)
    np.testing.assert_array_equal(model.predict_quantiles(x), model.predict_quantiles(x, [0.05, 0.5, 0.95]))
    with pytest.raises(ValueError, match="coverage"):
        model.predict_interval(x, 90)
    with pytest.raises(ValueError, match="n_samples"):
        model.sample(x, 0)
    with pytest.raises(ValueError, match="features"):
        model.predict(x[:, :2])


# The checks' tables are tiny or constant, so the warning is right; it is tested above.
@pytest.mark.filterwarnings("ignore:.*identifiable:UserWarning")
@parametrize_with_checks(
    [
        RandomCoefficientRegressor(n_draws=4),
        RandomCoefficientRegressor("ml", "full"),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_a_number_of_jobs_is_checked():
    """A list, which a file may have, failed inside joblib."""
    x, y = np.random.default_rng(0).normal(size=(2, 40))
    with pytest.raises(ValueError, match="n_jobs"):
        RandomCoefficientRegressor("ml", n_jobs=[1]).fit(x[:, None], y)
