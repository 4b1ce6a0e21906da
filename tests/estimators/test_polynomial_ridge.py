"""Polynomial ridge regression: the model of a scikit-learn pipeline, faster."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from localw2.estimators.regression.polynomial_ridge import PENALTIES, PolynomialRidge
from localw2.storage.regressors import pack_regressor

# A row is left out with all of its weight, as in RidgeCV: two copies are not the same as a weight of 2.
FAILING = {"check_sample_weight_equivalence_on_dense_data": "the penalty is chosen row by row"}


@parametrize_with_checks([PolynomialRidge(2)], expected_failed_checks=lambda _: FAILING)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def make_rows(n, p, d, seed=0):
    rng = np.random.default_rng(seed)
    x = 5 + rng.normal(size=(n, p)) * rng.uniform(0.1, 9, p)
    y = x[:, :1] * x[:, 1:2] + np.sin(x[:, :d]) + rng.normal(size=(n, d))
    return x, y if d > 1 else y[:, 0], rng.uniform(0.1, 2, n)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("n", "p", "d", "degree"), [(60, 3, 1, 1), (80, 3, 2, 3), (300, 6, 1, 2), (40, 9, 1, 2)]
)
def test_it_is_the_pipeline_of_scikit_learn(n, p, d, degree, weighted):
    x, y, weights = make_rows(n, p, d)
    powers = PolynomialFeatures(degree, include_bias=False)
    peer = make_pipeline(StandardScaler(), powers, StandardScaler(), RidgeCV(PENALTIES))
    peer.fit(x, y, **({"ridgecv__sample_weight": weights} if weighted else {}))
    model = PolynomialRidge(degree).fit(x, y, weights if weighted else None)
    assert model.penalty_ == pytest.approx(peer[-1].alpha_)
    new = make_rows(50, p, d, seed=1)[0]
    np.testing.assert_allclose(model.predict(new), peer.predict(new), rtol=1e-6, atol=1e-8)


def test_leave_one_out_errors_are_those_of_fits_without_the_row():
    x, y, _ = make_rows(25, 2, 1)
    z = (x - x.mean(0)) / x.std(0)
    errors = []
    for penalty in PENALTIES:
        left = []
        for i in range(len(y)):
            rows = np.arange(len(y)) != i
            middle, z_middle = y[rows].mean(), z[rows].mean(0)
            a = (z[rows] - z_middle).T @ (z[rows] - z_middle) + penalty * np.eye(2)
            beta = np.linalg.solve(a, (z[rows] - z_middle).T @ (y[rows] - middle))
            left.append(y[i] - middle - (z[i] - z_middle) @ beta)
        errors.append(np.mean(np.square(left)))
    assert PolynomialRidge(1).fit(x, y).penalty_ == PENALTIES[int(np.argmin(errors))]


@pytest.mark.parametrize("value", [0.1, 0.3, 1e9])
def test_rounding_of_a_constant_says_nothing(value):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 2)), rng.normal(size=80)
    x[:, 1] = value * (1 + rng.integers(-2, 3, 80) * 2.3e-16)
    model = PolynomialRidge(2).fit(x, y)
    exact = np.column_stack([x[:, 0], np.full(80, value)])
    np.testing.assert_allclose(
        model.predict(exact), PolynomialRidge(2).fit(exact, y).predict(exact), rtol=1e-9
    )
    np.testing.assert_allclose(model.predict(exact), model.predict(x), rtol=1e-9)


def test_a_degree_that_does_not_fit_the_coefficients_is_refused_at_once():
    x, y, _ = make_rows(60, 3, 1)
    model = PolynomialRidge(2).fit(x, y)
    model.degree = 10**6  # as a damaged file may have it
    with pytest.raises(ValueError, match="coefficients"):
        model.predict(x)
    with pytest.raises(ValueError, match="degree"):
        PolynomialRidge(0).fit(x, y)


@pytest.mark.parametrize(
    "wrong",
    [{"degree": 100}, {"degree": np.int64(2)}, {"scale_": np.zeros(3)}, {"coefficients_": np.zeros(4)}],
)
def test_a_file_of_a_damaged_one_is_refused(wrong):
    x, y, _ = make_rows(60, 3, 1)
    model = PolynomialRidge(2).fit(x, y)
    vars(model).update(wrong)
    with pytest.raises(ValueError, match="PolynomialRidge"):
        pack_regressor(model)
