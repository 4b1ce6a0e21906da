"""Discrete and bounded targets: draws that keep to their values and bounds, and laws that stay right."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from localw2 import BallLaw, LocalW2Regressor, Network, load
from localw2.estimators.regression.outcomes import Outcomes, Rounding
from localw2.metrics import crps

FITTED = {"base": Ridge(), "random_state": 0}
LAWS = [Network(epochs=150), "balls", BallLaw(20)]


def counts(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 2, size=(n, 1))
    return x, rng.binomial(6, x[:, 0] / 2.5).astype(float)


def censored(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(n, 1))
    return x, np.maximum(0.0, x[:, 0] + 0.5 * rng.normal(size=n))


@pytest.mark.parametrize("law", LAWS, ids=["network", "balls", "wide balls"])
def test_draws_of_counts_are_counts_with_the_right_frequencies(tmp_path, law):
    x, y = counts(600, 0)
    model = LocalW2Regressor(law, **FITTED).fit(x, y)
    assert model.outcomes_.values[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    new, truth = counts(4000, 1)
    draws = model.sample(new, 50, random_state=0)
    assert set(np.unique(draws)) <= set(range(7))
    for part in (new[:, 0] < 0.7, new[:, 0] > 1.3):
        shares = [np.bincount(v[..., part].ravel().astype(int), minlength=7) for v in (truth, draws)]
        shares = [s / s.sum() for s in shares]
        # Total variation; 600 rows know it to .05.
        assert np.abs(shares[0] - shares[1]).sum() / 2 < 0.08
    free = LocalW2Regressor(law, **FITTED, values=None, bounds=None).fit(x, y)
    assert free.outcomes_.values == (None,)
    assert crps(truth, draws).mean() < crps(truth, free.sample(new, 50, random_state=0)).mean()
    mean, std = model.predict(new[:20], return_std=True)
    many = model.sample(new[:20], 20_000, random_state=1)
    np.testing.assert_allclose(many.mean(0), mean, atol=5 * std.max() / np.sqrt(2000))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.sample(new, 2, random_state=3), model.sample(new, 2, random_state=3))


@pytest.mark.parametrize("law", LAWS, ids=["network", "balls", "wide balls"])
def test_draws_of_a_censored_target_pile_up_where_it_does(law):
    x, y = censored(600, 0)
    model = LocalW2Regressor(law, **FITTED).fit(x, y)
    assert model.outcomes_.lower.tolist() == [0.0]
    assert model.outcomes_.upper.tolist() == [np.inf]
    new, truth = censored(4000, 1)
    draws = model.sample(new, 20, random_state=0)
    assert draws.min() == 0
    assert abs((draws == 0).mean() - (truth == 0).mean()) < 0.08  # 4 standard errors of a share of 600 rows
    assert (model.predict_quantiles(new, [0.01])[0] >= 0).all()
    lower, _ = model.predict_interval(new)
    assert lower.min() >= 0


@pytest.mark.parametrize(
    "law",
    [Network(width=4, epochs=2), [BallLaw(n_trees=10), BallLaw(n_trees=10, on="outcomes")]],
    ids=["network", "balls"],
)
@pytest.mark.parametrize("calibrate", [False, True])
def test_given_bounds_and_values(calibrate, law):
    x, y = censored(100, 2)
    settings = {"law": law, "base": None, "random_state": 0, "calibrate": calibrate}
    model = LocalW2Regressor(**settings, bounds=(None, y.max()), values=None).fit(x, y)
    assert model.sample(x, 20, random_state=0).max() <= y.max()
    lower, upper = model.predict_interval(x)
    assert upper.max() <= y.max()
    model = LocalW2Regressor(**settings, bounds=None, values=range(4)).fit(x, y.round())
    assert set(np.unique(model.sample(x, 20, random_state=0))) <= {0, 1, 2, 3}
    lower, upper = model.predict_interval(x)
    assert set(np.unique([lower, upper])) <= {0, 1, 2, 3}
    assert set(np.unique(model.predict_quantiles(x, np.linspace(0.01, 0.99, 30)))) <= {0, 1, 2, 3}


@pytest.mark.parametrize("law", [Network(width=10, epochs=20), BallLaw(n_trees=10)], ids=["network", "balls"])
def test_an_end_that_no_row_is_near_moves_no_draw(law):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(200, 1))
    y = 100 + 10 * x[:, 0] + 0.5 * rng.normal(size=200)
    settings = {"law": law, "random_state": 0, "base": Ridge()}
    far = np.array([[-0.3], [-0.1], [0.5], [1.3]])
    free = LocalW2Regressor(**settings, bounds=None).fit(x, y)
    for bounds in ((0, None), (0, 1e6), (None, 1e6)):
        model = LocalW2Regressor(**settings, bounds=bounds).fit(x, y)
        np.testing.assert_array_equal(
            model.sample(far, 50, random_state=0), free.sample(far, 50, random_state=0)
        )


def test_values_that_no_row_has_are_reached_step_by_step():
    k = np.random.default_rng(0).poisson(2, size=(300, 1)).astype(float)
    draws = np.random.default_rng(1).normal(2, 1.5, size=(3000, 1))
    found = Rounding.match(Outcomes.of(k, None, range(-5, 101)), draws, k)
    shares = [np.mean(found.apply(draws) == v) - np.mean(k == v) for v in np.unique(k)]
    assert np.abs(shares[1:]).max() < 0.02  # draws below 0 may go below, where no row is
    beyond = found.apply(np.array([[-4.2], [-2.9], [9.2], [30.4], [99.6], [500.0]]))
    assert beyond.ravel().tolist() == [-4, -3, 9, 30, 100, 100]
    assert (np.diff(found.cuts[0]) >= 0).all()


def test_parts_of_a_calibration_keep_to_the_values_of_the_whole():
    """Of 200 rows on 10 values a part has too few rows for each value to be found."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(200, 1))
    y = np.minimum(rng.poisson(1 + 5 * x[:, 0]), 9).astype(float)
    law = Network(width=10, epochs=20)
    settings = {"law": law, "base": None, "random_state": 0, "calibrate": True}
    auto = LocalW2Regressor(**settings).fit(x, y)
    given = LocalW2Regressor(**settings, values=np.unique(y).tolist()).fit(x, y)
    assert len(auto.outcomes_.values[0]) == 10
    np.testing.assert_array_equal(auto.calibration_.scores, given.calibration_.scores)


def test_intervals_are_drawn_in_to_what_y_can_be():
    found = Outcomes.of(np.array([[0.0], [3.0]]), (0, 5), [0, 1, 3])
    lower = np.array([[-1.7], [0.2], [1.2], [0.999999999999], [2.5]])
    upper = np.array([[2.9], [0.4], [2.9], [3.000000000001], [7.0]])
    low, high = found.within(lower, upper)
    assert low.ravel().tolist() == [0, 0, 3, 1, 3]
    assert high.ravel().tolist() == [1, 0, 3, 3, 3]


def test_values_beyond_those_of_the_rows_stay_in_intervals():
    y = np.repeat(np.arange(2.0, 9.0), 20)[:, None]  # many rows at both ends, which are no ends
    for bounds in ("auto", None, (0, 10)):
        outcomes = Outcomes.of(y, bounds, range(11))
        lower, upper = outcomes.within(np.array([[0.0], [9.0]]), np.array([[10.0], [10.0]]))
        assert lower.ravel().tolist() == [0, 9]
        assert upper.ravel().tolist() == [10, 10]
        assert Rounding.halfway(outcomes).apply(np.array([[-1.0], [9.2]])).ravel().tolist() == [0, 9]


def test_parameters_survive_a_file(tmp_path):
    x, y = censored(50, 3)
    y = np.minimum(y.round(1) // 0.5 / 2, 1.0)
    model = LocalW2Regressor(Network(epochs=1), None, bounds=(0, None), values=[0, 0.5, 1]).fit(x, y)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.bounds == [0.0, None]
    assert again.values == [0.0, 0.5, 1.0]
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_nothing_is_found_in_a_continuous_target():
    y = np.random.default_rng(0).normal(size=(500, 2))
    assert Outcomes.of(y, "auto", "auto").free
    draws = np.random.default_rng(1).normal(size=(3, 4, 2))
    assert Rounding.halfway(Outcomes.of(y, "auto", "auto")).apply(draws) is draws


def test_each_output_has_its_own():
    y = np.column_stack([np.resize([1.0, 2.0], 100), np.linspace(0, 1, 100)])
    found = Outcomes.of(y, "auto", "auto")
    assert found.values[0].tolist() == [1, 2]
    assert found.values[1] is None
    draws = np.random.default_rng(0).normal(size=(5, 7, 2)) * 3
    rounding = Rounding.match(found, draws.reshape(-1, 2), y)
    plain = found.plain() | rounding.plain()
    again = Rounding.from_plain(Outcomes.from_plain(plain, 2), plain, 2)
    np.testing.assert_array_equal(again.apply(draws), rounding.apply(draws))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"bounds": (1, 0)}, "bounds"),
        ({"bounds": "positive"}, "bounds"),
        ({"values": [3]}, "values"),
        ({"values": "few"}, "values"),
        ({"values": 5}, "values"),
        ({"values": [0, np.nan]}, "values"),
        ({"bounds": (0.1, None)}, "outside"),
        ({"values": [0, 1]}, "among"),
    ],
)
def test_bad_settings_say_what_to_do(settings, word):
    x, y = censored(20, 4)
    with pytest.raises(ValueError, match=word):
        LocalW2Regressor("balls", None, **settings).fit(x, y)


def test_values_beyond_given_bounds_are_refused():
    y = np.resize([2.0, 3.0, 4.0], (30, 1))
    with pytest.raises(ValueError, match="beyond"):
        Outcomes.of(y, (2, 4), range(11))


def test_one_output_outside_is_named():
    y = np.column_stack([np.linspace(0, 1, 30), np.linspace(104, 106, 30)])
    with pytest.raises(ValueError, match="output 1"):
        Outcomes.of(y, (0, 1), None)


@pytest.mark.parametrize(
    "change",
    [
        {"upper": [-1.0, None]},
        {"lower": [[1.0], [1.0]]},
        {"lower_cut": [-5.0, None], "lower": [0.0, None]},
        {"values": [[1.0, 1.0], None]},
        {"cuts": [[1.5, 1.6], None]},
    ],
)
def test_damaged_outcomes_are_refused(change):
    y = np.column_stack([np.resize([1.0, 2.0], 100), np.linspace(0, 1, 100)])
    outcomes = Outcomes.of(y, "auto", "auto")
    plain = outcomes.plain() | Rounding.halfway(outcomes).plain() | change
    with pytest.raises(ValueError, match="outcomes"):
        Rounding.from_plain(Outcomes.from_plain(plain, 2), plain, 2)
