import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from localw2 import Euclidean, Mahalanobis, Weighted


def test_weighted_from_regression_is_the_slopes_of_least_squares():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)) * [1, 10, 0.1, 1] + 5
    y = rng.normal(size=(200, 3)) + x @ rng.normal(size=(4, 3))
    slopes = LinearRegression().fit(x, y).coef_  # (outputs, columns)
    np.testing.assert_allclose(Weighted.from_regression(x, y).weights, np.sqrt((slopes**2).sum(0)), rtol=1e-8)
    one = LinearRegression().fit(x, y[:, 0]).coef_
    np.testing.assert_allclose(Weighted.from_regression(x, y[:, 0]).weights, np.abs(one), rtol=1e-8)


def test_standardised_weights_know_no_unit():
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 100, 1e-3] + 7
    np.testing.assert_allclose(Weighted.standardised(x).embed(x).std(0), 1.0)
    constant = np.full((50, 1), 0.1 + 0.2)  # its mean is rounded, so its spread is not exactly 0
    assert Weighted.standardised(np.hstack([x, constant])).weights[3] == 1.0


def test_mahalanobis_is_the_quadratic_form():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 3))
    metric, x = root @ root.T, rng.normal(size=(50, 3))
    embedded = Mahalanobis(metric).embed(x)
    np.testing.assert_allclose((embedded**2).sum(1), np.einsum("ni,ij,nj->n", x, metric, x), rtol=1e-10)


def test_mahalanobis_from_data_ignores_linear_maps():
    rng = np.random.default_rng(2)
    x, mix = rng.normal(size=(80, 3)), rng.normal(size=(3, 3))
    plain, mixed = Mahalanobis.from_data(x).embed(x), Mahalanobis.from_data(x @ mix).embed(x @ mix)
    gaps = [np.linalg.norm(v[:, None] - v[None], axis=-1) for v in (plain, mixed)]
    np.testing.assert_allclose(gaps[0], gaps[1], rtol=1e-8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Weighted([1.0, np.nan]), "NaN"),
        (lambda: Weighted([0.0, 0.0]), "zero"),
        (lambda: Weighted([[1.0]]), "per column"),
        (lambda: Weighted(["a"]), "text"),
        (lambda: Weighted([1.0, 2.0]).embed(np.ones((3, 3))), r"3 column.*2"),
        (lambda: Weighted.from_regression(np.ones((5, 2)), np.ones(4)), "5 rows.*4"),
        (lambda: Weighted.from_regression(np.arange(5.0), np.full(5, 7.0)), "no slope"),
        (lambda: Mahalanobis([[1.0, 0.0]]), "square"),
        (lambda: Mahalanobis([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (lambda: Mahalanobis([[1.0, 2.0], [2.0, 1.0]]), "eigenvalue"),
        (lambda: Mahalanobis(np.eye(2)).embed(np.ones((3, 3))), "3 column"),
        (lambda: Mahalanobis.from_data([[1.0, 2.0]]), "one row"),
        (lambda: Mahalanobis.from_data(np.ones((5, 2))), "constant"),
        (lambda: Euclidean().embed([[1.0, np.inf]]), r"index \(0, 1\)"),
        (lambda: Euclidean().embed(np.ones((2, 2, 2))), "expected"),
    ],
)
def test_bad_norms_say_what_is_wrong(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_regression_weights_know_no_absolute_scale():
    x = np.linspace(0, 1, 20)
    assert Weighted.from_regression(x, 1e-13 * x).weights[0] == pytest.approx(1e-13)


def test_mahalanobis_sees_columns_in_small_units():
    x = np.random.default_rng(0).normal(size=(100, 2))
    plain, scaled = (Mahalanobis.from_data(v).embed(v) for v in (x, x * [1e-5, 1e5]))
    gaps = [np.linalg.norm(v[1:] - v[:-1], axis=1) for v in (plain, scaled)]
    np.testing.assert_allclose(gaps[0], gaps[1], rtol=1e-6)


def test_mahalanobis_of_columns_that_add_up_to_a_constant():
    rng = np.random.default_rng(0)
    group = rng.integers(3, size=200)
    x = np.column_stack([rng.normal(size=200), *(group == k for k in range(3))]).astype(float)
    distances = np.linalg.norm(np.diff(Mahalanobis.from_data(x).embed(x[[0, 1, 2]]), axis=0), axis=1)
    without = np.linalg.norm(np.diff(Mahalanobis.from_data(x[:, :3]).embed(x[[0, 1, 2], :3]), axis=0), axis=1)
    np.testing.assert_allclose(distances, without, rtol=1e-6)  # the last column says nothing new
