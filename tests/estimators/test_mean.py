"""The mean of a law: folds inside of folds, stacks of candidates, and what is fitted to which rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression, Ridge

from localw2 import BallLaw, LocalW2Regressor, Network
from localw2.datasets import Nonlinear
from localw2.estimators.regression.mean import count_folds, cross_fit
from localw2.estimators.tables import Columns


class Remembering(RegressorMixin, BaseEstimator):
    """Knows the rows that it was fitted to, by their first column."""

    def fit(self, X, y):
        self.seen_ = frozenset(X[:, 0])
        self.mean_ = np.mean(y, axis=0)
        return self

    def predict(self, X):
        return np.broadcast_to(self.mean_, (len(X), *np.shape(self.mean_)))


def rows(n, seed=0, d=1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    return x, np.column_stack([x[:, 0] + 0.3 * rng.normal(size=n) for _ in range(d)])


def fit(base, x, y, **settings):
    return cross_fit(base, x, y, Columns.of_numbers(x.shape[1]), 0, **settings)


@pytest.mark.parametrize("held", [((0,), (1,)), ((0, 1),)], ids=["one by one", "together"])
@pytest.mark.parametrize("n", [12, 60, 250])
def test_a_model_of_a_fold_has_seen_all_other_rows_and_held_folds_are_left_out_too(n, held):
    x, y = rows(n)
    fitted = fit(Remembering(), x, y, held=held)
    everything = frozenset(x[:, 0])
    folds = fitted.folds
    assert fitted.mean.n_folds == count_folds(n)
    assert np.ptp(np.bincount(folds)) <= 1
    for g, model in enumerate(fitted.mean.models):
        assert model.seen_ == everything - set(x[folds == g, 0])
    assert tuple(some for some, _ in fitted.without) == held
    for some, part in fitted.without:
        others = [g for g in range(count_folds(n)) if g not in some]
        assert part.mean.n_folds == len(others)
        kept = ~np.isin(folds, some)
        np.testing.assert_array_equal(part.folds, np.searchsorted(others, folds[kept]))
        for g, model in zip(others, part.mean.models, strict=True):
            assert model.seen_ == everything - set(x[np.isin(folds, [*some, g]), 0])


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("base", [Ridge(), None])
def test_y_of_a_held_fold_changes_nothing_of_what_is_learned_without_it(base, d):
    x, y = rows(120, d=d)
    before = fit(base, x, y, held=((0,), (1,)))
    changed = y.copy()
    changed[before.folds == 0] += np.random.default_rng(1).normal(5, 20, changed[before.folds == 0].shape)
    after = fit(base, x, changed, held=((0,), (1,)))
    np.testing.assert_array_equal(after.folds, before.folds)
    (_, ours), (_, theirs) = before.without[0], after.without[0]
    np.testing.assert_array_equal(ours.mean.predict_each(x), theirs.mean.predict_each(x))
    np.testing.assert_array_equal(ours.out_of_fold, theirs.out_of_fold)
    (_, ours), (_, theirs) = before.without[1], after.without[1]  # the other held fold has seen it
    assert not np.array_equal(ours.mean.predict_each(x), theirs.mean.predict_each(x))


def test_models_of_a_stack_do_not_know_the_held_fold():
    """The kinds that are stacked are given here; which of them are best is seen on all rows."""
    x, y = Nonlinear().sample(200, random_state=0)
    y = y[:, None]
    chosen = fit("auto", x, y).mean
    before = fit("auto", x, y, chosen=chosen, held=((0,),))
    changed = y.copy()
    changed[before.folds == 0] += 3.0
    after = fit("auto", x, changed, chosen=chosen, held=((0,),))
    ours, theirs = (
        {part.name: part.models for part in one.without[0][1].mean.parts} for one in (before, after)
    )
    shared = [name for name in ours if name in theirs and "kernel" not in name]
    assert shared
    for name in shared:
        for a, b in zip(ours[name], theirs[name], strict=True):
            np.testing.assert_array_equal(predict(a, chosen, x), predict(b, chosen, x))


@pytest.mark.parametrize("law", [BallLaw(5, 10), Network(width=4, epochs=3)], ids=["balls", "network"])
def test_a_fit_that_chose_before_is_a_stack_of_the_same_kinds(law):
    x, y = rows(150)
    model = LocalW2Regressor(law, random_state=0).fit(x, y[:, 0])
    again = fit("auto", x, y, chosen=model.law_.mean)
    assert {part.name for part in again.mean.parts} <= {part.name for part in model.law_.mean.parts}
    assert again.mean.scale == model.law_.mean.scale


def test_weights_of_a_stack_add_up_to_1_and_its_name_tells_them():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 4))
    y = 3 * x[:, [0]] + 2 * (x[:, [1]] > 0) * (x[:, [2]] > 0) + 0.2 * rng.normal(size=(400, 1))
    mean = fit("auto", x, y).mean
    assert sum(part.weight for part in mean.parts) == pytest.approx(1)
    assert len(mean.parts) <= 3
    assert all(part.name in mean.name for part in mean.parts)
    by_hand = sum(part.weight * np.stack([predict(m, mean, x) for m in part.models]) for part in mean.parts)
    np.testing.assert_allclose(mean.predict_each(x), mean.intercept + mean.slope * by_hand, rtol=1e-9)


def predict(model, mean, x):
    """What one model of a plain table says, (N, 1)."""
    return np.asarray(model.regressor.predict(mean.columns.expand(x))).reshape(-1, 1)


def test_a_base_that_finds_only_noise_gets_no_slope():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)), rng.normal(size=(200, 1))
    fitted = fit(LinearRegression(), x, y)
    assert fitted.mean.slope[0] < 0.5
    assert fit(DummyRegressor(), x, y).mean.slope[0] < 1e-6
    signal = fit(LinearRegression(), x, y + 5 * x[:, :1])
    assert signal.mean.slope[0] == pytest.approx(1, abs=0.05)


def test_without_a_base_the_mean_is_that_of_y_or_0():
    x, y = rows(50, d=2)
    flat = fit(None, x, y, held=((0,),))
    np.testing.assert_allclose(flat.out_of_fold, np.broadcast_to(y.mean(0), y.shape))
    kept = flat.folds != 0
    np.testing.assert_allclose(flat.without[0][1].mean.intercept, y[kept].mean(0))
    assert (fit(None, x, y, shift=False).out_of_fold == 0).all()


def test_boosting_takes_categories_and_missing_values_as_they_are():
    """An effect of a category that no order of the codes shows, and new categories and gaps when asked."""
    rng = np.random.default_rng(0)
    words = np.array(list("abcdefgh"))
    x = pd.DataFrame({"kind": words[rng.integers(8, size=400)], "size": rng.normal(size=400)})
    effect = dict(zip(words, rng.permutation(8), strict=True))
    y = x["kind"].map(effect).to_numpy() * (x["size"] > 0) + 0.1 * rng.normal(size=400)
    x.loc[::11, "size"] = np.nan
    x.loc[::13, "kind"] = None
    model = LocalW2Regressor("balls", random_state=0).fit(x, y)
    native = [part for part in model.law_.mean.parts if "boosting" in part.name]
    assert native
    assert all(one.codes is not None for part in native for one in part.models)
    complete = x.notna().all(axis=1).to_numpy()
    assert model.score(x[complete], y[complete]) > 0.9
    with pytest.warns(UserWarning, match="new"):
        found = model.predict(x.assign(kind="new"))
    missing = model.predict(x.assign(kind=None))
    np.testing.assert_array_equal(found, missing)


def test_a_base_is_cloned_and_seeded():
    x, y = rows(40)
    base = Remembering()
    fitted = fit(base, x, y)
    assert not hasattr(base, "seen_")
    assert fitted.mean.name == "given"
    assert all(type(model) is type(clone(base)) for model in fitted.mean.models)
