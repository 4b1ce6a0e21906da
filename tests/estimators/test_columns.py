"""A regressor on tables with missing values and categories: fit, judgement, pages and files."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from localw2 import LocalW2Regressor, Nearest, Network, SeenRowsWarning, conditional_test, load

QUICK = {"law": Network(epochs=5, width=8), "random_state": 0}


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"dose": rng.normal(size=n), "site": rng.choice(["north", "south"], n)})
    x["grade"] = pd.Categorical(rng.integers(3, size=n))
    x["lit"] = rng.random(n) < 0.5
    y = x["dose"].to_numpy() + 3 * (x["site"] == "north") + 0.1 * rng.normal(size=n)
    x.loc[::7, "dose"] = np.nan
    return x, y.to_numpy()


@pytest.mark.parametrize("law", [Network(epochs=60), "balls"], ids=["network", "balls"])
def test_the_whole_chain_learns_from_categories_and_missing_values_and_survives_a_file(tmp_path, law):
    x, y = table(300)
    new, truth = table(100, seed=1)
    model = LocalW2Regressor(random_state=0).fit(x, y)
    # y without the site has a standard deviation of 1.8, without the dose of 1.
    assert np.abs(model.predict(new) - truth).mean() < 0.4
    wide = np.diff(model.predict_interval(new), axis=0)[0]
    missing = new["dose"].isna().to_numpy()
    assert wide[missing].mean() > 2 * wide[~missing].mean()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.sample(new, 3, random_state=0), model.sample(new, 3, random_state=0))
    assert again.feature_names_in_.tolist() == list(x.columns)
    assert again.n_features_in_ == 4
    diagnosis = model.diagnose(new, truth, random_state=0, x_train=x, y_train=y)
    assert diagnosis.verdict
    assert np.isfinite(LocalW2Regressor(base=None, calibrate=True, **QUICK).fit(x, y).predict(new)).all()


def test_judgement_of_tables_with_categories():
    """A diagnosis calls the columns by name, and a test on training rows warns that they were seen."""
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.warns(SeenRowsWarning):
        tested = conditional_test(x, y, model, Nearest(20), n_permutations=99, random_state=0)
    assert tested.seen
    assert tested.seen_share == 1.0
    new, truth = table(seed=1)
    assert not conditional_test(new, truth, model.sample, Nearest(20), random_state=0).seen
    names = model.columns_.expanded_names()
    assert names[:4] == ["dose", "lit", "missing dose", "site_north"]
    assert model.columns_.expanded_names(list("abcd"))[:4] == ["a", "d", "missing a", "b_north"]
    found = model.diagnose(new, truth, random_state=0, names=list("abcd"), x_train=None)
    assert found.verdict
    with pytest.raises(ValueError, match="names"):
        model.diagnose(new, truth, names=["a", "b"])


def test_a_test_of_tables_in_lists_and_beside_the_rows_of_the_fit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    x[::5, 1] = np.nan
    y = x[:, 0] + rng.normal(size=80)
    model = LocalW2Regressor(base=None, **QUICK).fit(x[:40], y[:40])
    settings = {"delta": Nearest(15), "n_permutations": 99, "random_state": 0}
    found = [conditional_test(given, y[40:], model, **settings) for given in (x[40:], x[40:].tolist())]
    assert found[0].pvalue == found[1].pvalue
    assert conditional_test(x[40:], y[40:], model, fitted_on=(x[:40], y[:40]), **settings).seen_share == 0
    with pytest.warns(SeenRowsWarning):
        seen = conditional_test(x[40:], y[40:], model, fitted_on=(x[40:], y[40:]), **settings)
    assert seen.seen_share == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"n_features": 3}, "feature_names"),
        ({"n_features": 10**6}, "feature_names"),
        ({"table": {"used": [9]}}, "damaged"),
        ({"table": None}, "float64"),
        ({"balls": {"delta": [0.1, 0.2], "norm": None}}, "balls"),
    ],
)
def test_forged_files_of_tables_are_refused(change, word):
    x, y = table()
    stored = LocalW2Regressor(base=None, **QUICK).fit(x, y).to_stored()
    settings = stored.settings | change
    if "balls" in change:
        settings["balls"] = stored.settings["balls"] | {"delta": [0.1, 0.2]}
    with pytest.raises(ValueError, match=word):
        LocalW2Regressor.from_stored(replace(stored, settings=settings))


def test_rows_too_far_away_are_refused_before_the_base_sees_them():
    x = np.linspace(0, 1, 60)[:, None]
    model = LocalW2Regressor(**QUICK).fit(x, x[:, 0] ** 3)
    for ask in (model.predict, model.sample, model.predict_quantiles, model.predict_interval):
        with pytest.raises(ValueError, match="units"):
            ask([[1e150]])


@pytest.mark.parametrize("frame", [True, False])
def test_sums_of_shares_are_a_constant(frame):
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([1.0] * 4, 200)
    x = np.column_stack([shares[:, 0], shares.sum(1)])
    assert len(np.unique(x[:, 1])) > 1
    y = shares[:, 0] + 0.1 * rng.normal(size=200)
    model = LocalW2Regressor("balls", random_state=0)
    if frame:
        x = pd.DataFrame(x, columns=["a", "sum"])
        with pytest.warns(UserWarning, match="'sum' .it has the same value"):
            model.fit(x, y)
    else:
        model.fit(x, y)
    exact = x.copy()
    exact[["sum"] if frame else np.s_[:, 1:]] = 1.0
    np.testing.assert_allclose(model.predict(exact), model.predict(x), rtol=1e-12)
    np.testing.assert_allclose(
        model.sample(exact, 3, random_state=0), model.sample(x, 3, random_state=0), rtol=1e-12
    )


def test_a_survey_loses_its_identifier_only_and_new_rows_need_not_be_complete(tmp_path):
    rng = np.random.default_rng(0)
    x, y = table(200)
    x = x.assign(who=[f"person {k}" for k in range(200)], seen=pd.Timestamp("2020-01-01"))
    x["seen"] += pd.to_timedelta(rng.integers(300, size=200), unit="D")
    with pytest.warns(UserWarning, match="left out: 'who'"):
        model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    assert [model.columns_.names[j] for j in model.columns_.dropped] == ["who"]
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    expected = model.predict(x[:5])
    np.testing.assert_array_equal(again.predict(x[:5].drop(columns="who")), expected)
    with pytest.warns(UserWarning, match="west"):
        assert np.isfinite(again.predict(x.assign(site="west"))).all()
    with pytest.warns(UserWarning, match="'seen'"):
        assert np.isfinite(again.predict(x.assign(seen=pd.NaT))).all()
