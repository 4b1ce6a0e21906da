"""Boosting of many fits at once: the trees are scikit-learn's, and fits do not see each other."""

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor

from localw2.estimators.regression import boosting
from localw2.estimators.regression.boosting import Boosting


def make_rows(n=400, p=4, d=1, seed=0):
    """Columns with fewer values than bins, so that every split between two of them is possible."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 50, (n, p)) / 7 + rng.normal(size=p)
    y = np.stack([np.sin(x[:, k]) + x[:, 1] * x[:, 2] / 5 + 0.3 * rng.normal(size=n) for k in range(d)], 1)
    return x, y


def fit_one(x, y, *settings, seed=0):
    ((trees, codes),) = Boosting(*settings).fit_many(x, y, np.ones((1, len(x)), bool), [], seed)
    assert not codes.maps
    return trees


@pytest.mark.parametrize(("depth", "min_rows"), [(1, 5), (2, 5), (3, 20), (5, 3)])
def test_one_tree_is_scikit_learns(depth, min_rows):
    x, y = make_rows()
    tree = DecisionTreeRegressor(max_depth=depth, min_samples_leaf=min_rows).fit(x, y[:, 0])
    found = fit_one(x, y, 1, 1.0, depth, min_rows).predict(x)[:, 0]
    np.testing.assert_allclose(found, tree.predict(x), rtol=1e-9)


@pytest.mark.parametrize("missing", [0.05, 0.4])
def test_missing_values_go_to_the_better_side_as_in_scikit_learn(missing):
    x, y = make_rows()
    rng = np.random.default_rng(1)
    gaps = rng.random(len(x)) < missing
    y[gaps, 0] += 2.0  # that a value is missing tells something
    x[gaps, 0] = np.nan
    tree = DecisionTreeRegressor(max_depth=2, min_samples_leaf=5).fit(x, y[:, 0])
    found = fit_one(x, y, 1, 1.0, 2, 5).predict(x)[:, 0]
    # Among equal splits the two may differ: the sum of squares is what must be equal.
    assert ((found - y[:, 0]) ** 2).sum() == pytest.approx(((tree.predict(x) - y[:, 0]) ** 2).sum(), rel=1e-6)


def test_many_trees_are_scikit_learns_gradient_boosting():
    x, y = make_rows()
    settings = {"n_estimators": 30, "learning_rate": 0.2, "max_depth": 3, "min_samples_leaf": 10}
    peer = GradientBoostingRegressor(**settings).fit(x, y[:, 0])
    found = fit_one(x, y, 30, 0.2, 3, 10).predict(x)[:, 0]
    # Sums are in single precision: of splits that are equally good up to rounding, another one may be taken.
    assert np.corrcoef(found, peer.predict(x))[0, 1] > 0.9995
    ours, theirs = (((one - y[:, 0]) ** 2).mean() for one in (found, peer.predict(x)))
    assert ours == pytest.approx(theirs, rel=0.02)


def test_fits_at_once_are_the_fits_one_by_one(monkeypatch):
    x, y = make_rows(d=2)
    used = np.random.default_rng(2).random((5, len(x))) < 0.7
    settings = Boosting(20, 0.3, 3, 5, columns=0.5)
    together = settings.fit_many(x, y, used, [], seed=3)
    monkeypatch.setattr(boosting, "_AT_A_TIME", 1)
    apart = settings.fit_many(x, y, used, [], seed=3)
    for (one, _), (other, _), rows in zip(together, apart, used, strict=True):
        np.testing.assert_allclose(one.predict(x), other.predict(x), rtol=1e-6)
        ((alone, _),) = settings.fit_many(x[rows], y[rows], np.ones((1, rows.sum()), bool), [], seed=3)
        assert one.feature.shape == alone.feature.shape
        # Bins are those of all rows: with fewer values than bins that makes no difference at the rows.
        assert np.corrcoef(one.predict(x[rows])[:, 0], alone.predict(x[rows])[:, 0])[0, 1] > 0.999


def test_rows_that_are_left_out_do_not_matter():
    x, y = make_rows()
    used = np.arange(len(x))[None] % 3 != 0
    changed = np.where(used.T, y, 1e6)
    first, second = (Boosting(10, 0.3, 3, 5).fit_many(x, one, used, [], 0)[0][0] for one in (y, changed))
    np.testing.assert_array_equal(first.predict(x), second.predict(x))


@pytest.mark.parametrize(("factor", "shift"), [(-3.0, 10.0), (1e-200, 0.0), (1e150, 0.0), (1.0, 1e6)])
def test_predictions_follow_the_units_of_y(factor, shift):
    x, y = make_rows()
    found = fit_one(x, shift + factor * y, 20, 0.3, 3, 5).predict(x)
    np.testing.assert_allclose((found - shift) / factor, fit_one(x, y, 20, 0.3, 3, 5).predict(x), rtol=2e-3)


def test_outputs_do_not_see_each_other():
    x, y = make_rows(d=3)
    whole = fit_one(x, y, 15, 0.3, 3, 5).predict(x)
    each = np.hstack([fit_one(x, y[:, [k]], 15, 0.3, 3, 5).predict(x) for k in range(3)])
    np.testing.assert_allclose(whole, each, rtol=1e-6)


def test_categories_are_split_by_their_mean():
    rng = np.random.default_rng(0)
    means = rng.permutation(12).astype(float)
    code = rng.integers(0, 12, 600)
    x, y = code[:, None].astype(float), means[code][:, None] + 0.01 * rng.normal(size=(600, 1))
    ((trees, codes),) = Boosting(40, 0.5, 3, 5).fit_many(x, y, np.ones((1, 600), bool), [0], 0)
    np.testing.assert_allclose(trees.predict(codes.apply(x)), y, atol=0.1)
    new = np.array([[99.0], [np.nan]])
    assert np.isfinite(trees.predict(codes.apply(new))).all()


def test_constant_y_and_constant_columns_give_the_mean():
    x = np.zeros((30, 2))
    assert (fit_one(x, np.full((30, 1), 7.0), 5, 0.3, 3, 5).predict(x) == 7.0).all()
    y = np.arange(30.0)[:, None]
    np.testing.assert_allclose(fit_one(x, y, 5, 0.3, 3, 5).predict(x), 14.5)
    assert np.isfinite(fit_one(np.full((30, 2), np.nan), y, 5, 0.3, 3, 5).predict(x)).all()


@pytest.mark.parametrize("p", [4, 13, 14, 30, 53, 200])
@pytest.mark.parametrize("share", [0.5, 0.7])
def test_every_column_is_in_some_tree(p, share):
    for seed in range(5):
        sets = boosting._choose_columns(p, round(share * p), np.random.default_rng(seed))
        assert sorted(set(np.concatenate(sets))) == list(range(p))


def test_a_value_that_was_never_missing_goes_where_most_rows_go():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = 100.0 * (x[:, :1] > 1.5)
    trees = fit_one(x, y, 40, 0.3, 3, 5)
    assert abs(trees.predict(np.array([[np.nan, 0.0, 0.0]]))[0, 0]) < 1
    assert abs(trees.predict(np.array([[0.0, np.nan, 0.0]]))[0, 0]) < 1


def test_units_of_one_output_or_fit_do_not_reach_another():
    x, y = make_rows(d=2)
    both = fit_one(x, y * [1e100, 1e-100], 20, 0.3, 3, 5).predict(x)
    for k, unit in enumerate((1e100, 1e-100)):
        assert np.corrcoef(both[:, k], y[:, k])[0, 1] > 0.8
        assert both[:, k].std() == pytest.approx(fit_one(x, y, 20, 0.3, 3, 5).predict(x)[:, k].std() * unit)


def test_a_large_constant_gives_no_warning():
    x, _ = make_rows()
    np.testing.assert_allclose(fit_one(x, np.full((len(x), 1), 1e99), 5, 0.3, 3, 5).predict(x), 1e99)


def test_predictions_do_not_depend_on_blocks(monkeypatch):
    x, y = make_rows()
    trees = fit_one(x, y, 10, 0.3, 3, 5)
    whole = trees.predict(x)
    monkeypatch.setattr(boosting, "_AT_A_TIME", 70)
    np.testing.assert_array_equal(trees.predict(x), whole)
    assert trees.predict(x[:0]).shape == (0, 1)
