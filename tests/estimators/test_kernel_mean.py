"""The smooth base: against scikit-learn's Gaussian process, and on a mean where trees do badly."""

import warnings

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from localw2.estimators.regression.kernel_mean import KernelMean, tune_kernel, unlikelihood
from localw2.storage.regressors import check_storable, pack_regressor, unpack_regressor

SCALES = (0.7, 1.3, 3.0)


@parametrize_with_checks([KernelMean()])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def smooth(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * (1, 10, 0.1) + (0, 5, -3)
    return x, np.sin(x[:, 0]) + 0.1 * x[:, 1] * np.cos(10 * (x[:, 2] + 3)) + 0.1 * rng.normal(size=n)


def process(noise):
    return GaussianProcessRegressor(Matern(SCALES, nu=2.5), alpha=noise, optimizer=None)


@pytest.mark.parametrize("outputs", [1, 2])
def test_it_is_the_mean_of_a_gaussian_process(outputs):
    x, y = smooth(150, 0)
    y = y if outputs == 1 else np.column_stack([y, y**2])
    standard, middle, size = (x - x.mean(0)) / x.std(0), y.mean(0), y.std(0)
    expected = process(0.05).fit(standard, (y - middle) / size).predict(standard[:20] + 0.1) * size + middle
    found = KernelMean(SCALES, 0.05).fit(x, y).predict(x[:20] + 0.1 * x.std(0))
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_weights_are_inverse_variances():
    x, y = smooth(100, 1)
    weights = np.random.default_rng(2).uniform(0.2, 3, 100)
    model = KernelMean(SCALES, 0.05).fit(x, y, weights)
    standard, target = (x - model.location_) / model.scale_, (y - model.y_location_) / model.y_scale_
    expected = process(0.05 / weights).fit(standard, target).predict(standard)
    np.testing.assert_allclose(model.predict(x), expected * model.y_scale_ + model.y_location_, rtol=1e-7)
    np.testing.assert_allclose(model.location_, np.average(x, axis=0, weights=weights))


def test_all_but_one_row_as_centres_give_nearly_the_same_by_the_other_route():
    x, y = smooth(80, 3)
    weights = np.random.default_rng(4).uniform(0.5, 2, 80)
    whole, most = (KernelMean(SCALES, 0.05, n, random_state=0).fit(x, y, weights) for n in (80, 79))
    assert len(most.centers_) == 79
    assert np.abs(most.predict(x) - whole.predict(x)).mean() < 0.02 * y.std()


def test_half_the_rows_as_centres_do_nearly_as_well_on_many_rows():
    x, y = smooth(3000, 5)
    test, truth = smooth(500, 6)
    full = KernelMean(SCALES, 0.05, n_centers=3000).fit(x, y)
    few = KernelMean(SCALES, 0.05, n_centers=1500, random_state=0).fit(x, y)
    errors = [np.mean((model.predict(test) - truth) ** 2) for model in (full, few)]
    assert errors[1] < 1.1 * errors[0]


def test_tuning_finds_the_columns_that_matter_and_beats_trees_on_a_smooth_mean():
    rng = np.random.default_rng(7)
    x = rng.uniform(-2, 2, size=(400, 4))
    y = np.sin(2 * x[:, 0]) * np.exp(x[:, 1] / 2) + 0.05 * rng.normal(size=400)
    model = tune_kernel(x[:300], y[:300, None], seed=0)
    assert min(model.length_scales[2:]) > 5 * max(model.length_scales[:2])
    error = np.mean((model.fit(x[:300], y[:300]).predict(x[300:]) - y[300:]) ** 2)
    trees = HistGradientBoostingRegressor(random_state=0).fit(x[:300], y[:300]).predict(x[300:])
    assert error < 0.1 * np.mean((trees - y[300:]) ** 2)
    assert error < 3 * 0.05**2  # the noise itself is 1


def test_it_is_stored_without_pickle_and_equal_bit_for_bit():
    x, y = smooth(60, 8)
    model = KernelMean(SCALES, 0.05, random_state=1).fit(x, y)
    again = unpack_regressor(pack_regressor(model))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    check_storable(KernelMean())


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"length_scales": (1.0, 2.0)}, "length_scales"),
        ({"length_scales": -1.0}, "length_scales"),
        ({"noise": 0.0}, "noise"),
        ({"n_centers": 0}, "n_centers"),
    ],
)
def test_bad_settings_say_what_to_do(settings, word):
    with pytest.raises(ValueError, match=word):
        KernelMean(**settings).fit(*smooth(20, 9))


def test_far_away_the_mean_is_that_of_all():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = KernelMean(0.5).fit(x, y).predict([[1e5, 0.0], [1e160, -1e200], [0.0, 1e300]])
    np.testing.assert_allclose(found, y.mean(), rtol=1e-12)


def test_constant_columns_and_outputs():
    x, y = smooth(50, 10)
    x[:, 1] = 4.0
    assert np.isfinite(KernelMean().fit(x, y).predict(x)).all()
    np.testing.assert_allclose(KernelMean().fit(x, np.full(50, 2.5)).predict(x), 2.5)
    with pytest.raises(ValueError, match="negative"):
        KernelMean().fit(x, y, -np.ones(50))


@pytest.mark.parametrize("sd", [0.001, 0.03])
def test_one_row_more_than_centres_costs_no_accuracy(sd):
    """With little noise the penalty is far below the rounding of plain normal equations."""
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(800, 3)), rng.normal(size=(500, 3))

    def mean(x):
        return x @ [1.0, 2.0, -1.0] + 0.3 * x[:, 0] * x[:, 1]

    y = mean(x) + sd * rng.normal(size=800)
    model = tune_kernel(x, y[:, None], 0)
    errors = {}
    for n_centers in (400, 799, 800):
        fitted = model.set_params(n_centers=n_centers).fit(x, y)
        errors[n_centers] = np.sqrt(((fitted.predict(new) - mean(new)) ** 2).mean())
    assert errors[799] < 1.1 * errors[800]
    assert errors[400] < 1.5 * errors[800]


@pytest.mark.parametrize("d", [1, 3])
def test_likelihood_and_gradient_are_scikit_learns(d):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(40, d))
    kernel = ConstantKernel() * Matern(np.ones(3), nu=2.5) + WhiteKernel()
    process = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-10).fit(x, y)
    *scales, signal, noise = settings = rng.normal(size=5)
    expected, slope = process.log_marginal_likelihood([signal, *scales, noise], eval_gradient=True)
    value, gradient = unlikelihood(settings, x, y)
    assert -value == pytest.approx(expected)
    np.testing.assert_allclose(-gradient, [*slope[1:4], slope[0], slope[4]], rtol=1e-6, atol=1e-8)
