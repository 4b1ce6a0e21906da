"""One wrong y must not ruin a fit without a word: the fit is that to the other rows, and says so."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from localw2 import LocalW2ODE, LocalW2Regressor, Nearest, Network, Normal, RandomCoefficientRegressor
from localw2.estimators.dynamics.trajectories import leave_out_strays
from localw2.estimators.strays import find_strays


def rows(n=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, x[:, 0] + rng.normal(size=n)


@pytest.mark.parametrize("law", ["auto", Network(width=4, epochs=3)], ids=["auto", "network"])
@pytest.mark.parametrize("value", [1e6, -3e4])
def test_the_rest_of_the_fit_is_as_without_that_row(law, value):
    x, y = rows()
    wrong = y.copy()
    wrong[17] = value
    settings = {
        "law": law,
        "base": "auto" if law == "auto" else Ridge(),
        "delta": "auto" if law == "auto" else Nearest(20),
        "random_state": 0,
    }
    with pytest.warns(UserWarning, match=r"row 17 .* is left out"):
        model = LocalW2Regressor(**settings).fit(x, wrong)
    alone = LocalW2Regressor(**settings).fit(np.delete(x, 17, 0), np.delete(y, 17))
    np.testing.assert_array_equal(model.sample(x, 3, 0), alone.sample(x, 3, 0))
    assert model.predict(x, return_std=True)[1].max() < 5


def test_several_outputs_and_calibration():
    x, y = rows()
    both = np.column_stack([y, -y])
    both[5, 1] = 1e9
    with pytest.warns(UserWarning, match=r"row 5 .*-?1e\\+09|1000000000"):
        model = LocalW2Regressor("balls", Ridge(), calibrate="split", random_state=2).fit(x, both)
    lower, upper = model.predict_interval(x, 0.9)
    assert (upper - lower).max() < 20  # one miss of sixty does not widen them


def test_a_split_fit_names_the_row_of_the_table():
    x, y = rows()
    y[298:] = 1e6  # one of the two is fitted, as row 239 at most
    with pytest.warns(UserWarning, match=r"row 29[89] \("):
        LocalW2Regressor("balls", Ridge(), calibrate="split", random_state=2).fit(x, y)


def test_random_coefficients():
    x, y = rows()
    wrong = y.copy()
    wrong[3] = 1e6
    with pytest.warns(UserWarning, match="row 3"):
        model = RandomCoefficientRegressor("ml").fit(x, wrong)
    alone = RandomCoefficientRegressor("ml").fit(np.delete(x, 3, 0), np.delete(y, 3))
    np.testing.assert_array_equal(model.covariance_, alone.covariance_)


@pytest.mark.parametrize("seed", range(5))
def test_heavy_tails_counts_and_few_rows_are_left_alone(seed):
    rng = np.random.default_rng(seed)
    for y in (
        rng.standard_t(2, size=500),
        rng.pareto(1.5, size=500),
        np.exp(2 * rng.normal(size=500)),
        rng.poisson(0.01, size=500).astype(float),
        np.append(np.zeros(499), 7.0),
        np.append(rng.normal(size=15), 1e9),
        np.full(50, 3.0),
    ):
        assert len(find_strays(y[:, None])) == 0


def test_up_to_one_in_a_hundred_rows():
    y = np.random.default_rng(0).normal(size=(400, 1))
    y[[3, 50, 60, 70]] = [[1e6], [-2e6], [1e9], [5e5]]
    np.testing.assert_array_equal(find_strays(y), [3, 50, 60, 70])
    y[80] = 1e6
    assert 80 not in find_strays(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LocalW2Regressor("balls", Ridge(), random_state=0).fit(*rows(40))


TIMES = np.linspace(0, 2, 9)


def decay(t, y, k):
    return -k * y


def paths(n=20, seed=0):
    rng = np.random.default_rng(seed)
    start, rate = rng.uniform(0.9, 1.1, (n, 1)), rng.uniform(0.5, 1, (n, 1))
    return start * np.exp(-rate * TIMES)


def draws_of(model):
    return model.sample([1.0], TIMES, 3, random_state=0)


FIELDS = {
    "a network": {"width": 4, "max_epochs": 3},
    "an equation": {"field": decay, "parameters": {"k": Normal(0.7, 0.1)}, "max_epochs": 3},
    "a population": {
        "field": decay,
        "parameters": {"k": Normal(0.7, 0.1)},
        "noise": "additive",
        "max_epochs": 3,
    },
}


@pytest.mark.filterwarnings("ignore:.*may not have converged", "ignore:these data do not tell")
@pytest.mark.parametrize("kind", FIELDS)
def test_a_wrong_observation_of_a_trajectory_counts_as_missing(kind):
    wrong, gap = paths(), paths()
    wrong[7, 4], gap[7, 4] = 1e6, np.nan
    settings = FIELDS[kind] | {"random_state": 0}
    with pytest.warns(UserWarning, match=r"trajectory 7 .* at t = 1, with y = 1e\+06, is left out"):
        model = LocalW2ODE(**settings).fit(wrong, TIMES)
    np.testing.assert_array_equal(draws_of(model), draws_of(LocalW2ODE(**settings).fit(gap, TIMES)))


def test_a_trajectory_that_starts_wrong_is_left_out():
    y = paths()
    wrong = y.copy()
    wrong[7, 0] = -1e6
    settings, weights = FIELDS["a network"] | {"random_state": 0}, np.arange(1.0, 21)
    with pytest.warns(UserWarning, match="all else of trajectory 7"):
        model = LocalW2ODE(**settings).fit(wrong, TIMES, sample_weight=weights)
    alone = LocalW2ODE(**settings).fit(np.delete(y, 7, 0), TIMES, sample_weight=np.delete(weights, 7))
    np.testing.assert_allclose(draws_of(model), draws_of(alone), rtol=1e-4)
    # A given initial state is kept, and only the observation is missing.
    with pytest.warns(UserWarning, match="trajectory 7 .* at t = 0, .* is left out of the fit:"):
        LocalW2ODE(**settings).fit(wrong, TIMES, y[:, 0])


def test_growth_and_unequal_lengths_are_left_alone():
    """One of 200 grows faster than all others: its last observations are far out, one after the other."""
    y = np.exp(np.linspace(0, 1, 200)[:, None] * TIMES)
    y[3] = np.exp(10 * TIMES)
    for given in ((y, TIMES), ([*y[:-1], y[-1, :5]], [TIMES] * 199 + [TIMES[:5]])):
        assert leave_out_strays(*given, None, None, True)[0] is given[0]
    y[3] = y[4]
    y[3, 2] = 1e6
    given = [*y[:-1], y[-1, :5]], [TIMES] * 199 + [TIMES[:5]]
    with pytest.warns(UserWarning, match=r"trajectory 3 .* at t = 0\.5"):
        found, times, kept, weights = leave_out_strays(*given, None, None, True)
    assert np.isnan(found[3][2]).all()
    assert sum(int(np.isnan(path).sum()) for path in found) == 1
    assert (len(times[-1]), kept, weights) == (5, None, None)
