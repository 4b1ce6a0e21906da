"""Tables with missing values and categories: what a regressor makes of them, against plain numbers."""

import warnings
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator

from localw2 import LocalW2Regressor, Nearest, SeenRowsWarning, conditional_test, load
from localw2.apps.explorer.answers import Answers
from localw2.apps.report import report_html
from localw2.estimators.tables import MOST_CATEGORIES, read_rows, read_table

QUICK = {"max_epochs": 5, "width": 8, "random_state": 0}


class Table(BaseEstimator):
    """What the functions want of an estimator."""


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"dose": rng.normal(size=n), "site": rng.choice(["north", "south"], n)})
    x["grade"] = pd.Categorical(rng.integers(3, size=n))
    x["lit"] = rng.random(n) < 0.5
    y = x["dose"].to_numpy() + 3 * (x["site"] == "north") + 0.1 * rng.normal(size=n)
    x.loc[::7, "dose"] = np.nan
    return x, y.to_numpy()


def test_complete_numbers_stay_as_they_are():
    x = np.random.default_rng(0).normal(size=(30, 3))
    for given in (x, pd.DataFrame(x), x.tolist()):
        matrix, _, columns = read_table(Table(), given, x[:, 0])
        assert columns.encoder is None
        assert columns.width == 3
        np.testing.assert_array_equal(matrix, x)


def test_missing_numbers_become_medians_with_an_indicator_and_categories_become_columns():
    x, y = table()
    matrix, _, columns = read_table(Table(), x, y)
    dose, missing = x["dose"].fillna(x["dose"].median()), x["dose"].isna()
    by_hand = [dose, missing, x["site"] == "north", x["site"] == "south"]
    by_hand += [x["grade"] == k for k in range(3)] + [~x["lit"], x["lit"]]
    np.testing.assert_array_equal(matrix, np.column_stack(by_hand).astype(float))
    estimator = Table()
    read_table(estimator, x, y)
    np.testing.assert_array_equal(read_rows(estimator, x[:5], columns), matrix[:5])
    as_list = x[:5].astype(object).to_numpy()
    vars(estimator).pop("feature_names_in_")
    np.testing.assert_array_equal(read_rows(estimator, as_list, columns), matrix[:5])


def test_missing_values_in_arrays():
    x = np.random.default_rng(1).normal(size=(40, 2))
    x[3, 1] = np.nan
    matrix, _, columns = read_table(Table(), x, x[:, 0])
    assert matrix.shape == (40, 3)
    assert columns.complete == (0,)
    assert matrix[3].tolist() == [x[3, 0], np.nanmedian(x[:, 1]), 1.0]


def test_rare_categories_share_the_zeros():
    towns = [f"town {i}" for i in range(100)]
    x = pd.DataFrame({"a": np.arange(300.0), "town": np.resize(towns, 300)})
    assert read_table(Table(), x, np.arange(300.0))[0].shape[1] == 1 + MOST_CATEGORIES


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda x: x.assign(when=pd.Timestamp("2020-01-01")), "when"),
        (lambda x: x.assign(empty=np.nan), "empty"),
        (lambda x: x.assign(huge=np.inf), "huge"),
        (lambda x: x.assign(void=pd.Series([None] * len(x), dtype=object)), "void"),
        (lambda x: x.assign(mixed=["a", 1] * (len(x) // 2)), "mixed"),
        (lambda x: x.assign(day=pd.Series([pd.Timestamp(0)] * len(x), dtype=object)), "day"),
        (lambda x: x.assign(month=pd.period_range("2020", periods=len(x), freq="M")), "month"),
    ],
)
def test_columns_that_mean_nothing_are_refused_by_name(change, name):
    x, y = table()
    with pytest.raises(ValueError, match=f"'{name}'"):
        LocalW2Regressor(**QUICK).fit(change(x), y)


def test_an_unexpected_missing_value_is_an_error_and_an_unknown_category_a_warning():
    x, y = table()
    x["full"] = 1.0 * np.arange(len(x))
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.raises(ValueError, match="full"):
        model.predict(x.assign(full=np.nan))
    with pytest.warns(UserWarning, match="west"):
        assert np.isfinite(model.predict(x.assign(site="west"))).all()


def test_the_whole_chain_learns_from_categories_and_missing_values_and_survives_a_file(tmp_path):
    x, y = table(300)
    new, truth = table(100, seed=1)
    model = LocalW2Regressor(max_epochs=60, random_state=0).fit(x, y)
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


@pytest.mark.parametrize("kind", ["object", "missing", "decimal", "Float64", "Int64"])
def test_numbers_of_any_type_are_numbers(kind):
    """Numbers as objects, and pandas' own types with missing values, give what plain floats give."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.integers(-50, 50, 80).astype(float), "c": rng.choice(["u", "v"], 80)})
    if kind in ("missing", "Float64", "Int64"):
        x.loc[::9, "a"] = np.nan
    expected = read_table(Table(), x, x.index)[0]
    convert = {
        "object": lambda a: a.astype(object),
        "missing": lambda a: a.astype(object).where(a.notna(), None),
        "decimal": lambda a: a.map(Decimal),
    }
    converted = convert.get(kind, lambda a: a.astype(kind))(x["a"])
    np.testing.assert_array_equal(read_table(Table(), x.assign(a=converted), x.index)[0], expected)
    alone = read_table(Table(), pd.DataFrame({"a": converted, "b": 1.0 * x.index}), x.index)[0]
    assert alone.dtype == np.float64
    assert alone.shape[1] == (3 if x["a"].isna().any() else 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.ma.masked_array(np.nan_to_num(x, nan=-999.0), np.isnan(x)),
        lambda x: np.where(np.isnan(x), None, x.astype(object)),
        lambda x: [[None if np.isnan(v) else v for v in row] for row in x.tolist()],
        torch.tensor,
    ],
)
def test_missing_values_in_other_tables(make):
    x = np.random.default_rng(1).normal(size=(40, 2))
    x[3, 1] = np.nan
    expected, _, columns = read_table(Table(), x, x[:, 0])
    found = read_table(estimator := Table(), make(x), x[:, 0])[0]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(read_rows(estimator, make(x[2:5]), columns), expected[2:5])


def test_a_masked_y_is_a_missing_one():
    x = np.arange(20.0)[:, None]
    with pytest.raises(ValueError, match="NaN"):
        read_table(Table(), x, np.ma.masked_array(x[:, 0], x[:, 0] == 3))


def test_categories_without_a_frame_are_refused():
    x = np.array([[1.0, "u"], [2.0, "v"]], dtype=object)
    with pytest.raises(ValueError, match="categorical"):
        read_table(Table(), x, [0.0, 1.0])


def test_dates_are_refused_wherever_they_come():
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    dates = pd.Series(pd.date_range("2020", periods=len(x)))
    with pytest.raises(ValueError, match="dose"):
        model.predict(x.assign(dose=dates.to_numpy()))
    with pytest.raises(ValueError, match="datetime64"):
        LocalW2Regressor(**QUICK).fit(x, dates)
    plain = np.arange(20.0)[:, None]
    with pytest.raises(ValueError, match="datetime64"):
        LocalW2Regressor(**QUICK).fit(plain.astype("datetime64[D]"), plain[:, 0])
    numbers = LocalW2Regressor(base=None, **QUICK).fit(pd.DataFrame({"a": plain[:, 0]}), plain[:, 0])
    with pytest.raises(ValueError, match="datetime64"):
        numbers.predict(pd.DataFrame({"a": pd.date_range("2020", periods=3)}))


def test_text_where_there_were_numbers_is_refused():
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.raises(ValueError, match="dose"):
        model.predict(x.assign(dose="much"))


def test_a_missing_value_in_a_column_that_had_none_is_an_error():
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.raises(ValueError, match="site"):
        model.predict(x.assign(site=None))
    numbers = np.random.default_rng(0).normal(size=(30, 2))
    plain = LocalW2Regressor(base=None, **QUICK).fit(pd.DataFrame(numbers, columns=["a", "b"]), numbers[:, 0])
    with pytest.raises(ValueError, match="missing"):
        plain.predict(pd.DataFrame({"a": [1.0], "b": [np.nan]}))


def test_unknown_categories_are_warned_of_unless_rare_ones_share_the_zeros():
    rng = np.random.default_rng(0)
    for count, missing in (
        (MOST_CATEGORIES, False),
        (MOST_CATEGORIES - 1, True),
        (MOST_CATEGORIES + 1, True),
    ):
        values = rng.permutation(np.resize([f"k{i:03d}" for i in range(count)], 400)).astype(object)
        if missing:
            values[:3] = None
        x = pd.DataFrame({"a": np.arange(400.0), "k": values})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, _, columns = read_table(estimator := Table(), x, x["a"])  # rows of the fit are no news
        new = x[5:9].assign(k="new")
        if count > MOST_CATEGORIES:
            assert len(read_rows(estimator, new, columns)) == 4  # rare categories are all alike
        else:
            with pytest.warns(UserWarning, match="new"):
                read_rows(estimator, new, columns)


def test_whole_numbers_as_categories_are_known_again_in_an_array():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.normal(size=60), "k": pd.Categorical(rng.integers(3, size=60))})
    matrix, _, columns = read_table(estimator := Table(), x, x["a"])
    vars(estimator).pop("feature_names_in_")
    np.testing.assert_array_equal(read_rows(estimator, x.astype(float).to_numpy(), columns), matrix)


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
    names = model.columns_.encoded_names()
    assert names[:4] == ["dose", "missing dose", "site_north", "site_south"]
    assert model.columns_.encoded_names(list("abcd"))[:3] == ["a", "missing a", "b_north"]
    found = model.diagnose(new, truth, random_state=0, names=list("abcd"), x_train=None)
    assert found.verdict
    with pytest.raises(ValueError, match="names"):
        model.diagnose(new, truth, names=["a", "b"])


def test_true_and_false_are_known_again_as_numbers():
    x, y = table()
    matrix, _, columns = read_table(estimator := Table(), x[["dose", "lit"]], y)
    for kind in (int, float):
        again = x[["dose", "lit"]].assign(lit=x["lit"].astype(kind))
        np.testing.assert_array_equal(read_rows(estimator, again, columns), matrix)


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


def test_report_and_explorer_show_the_numbers_that_a_table_became():
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    new, truth = table(seed=1)
    page = report_html(model, new, truth, n_samples=40)
    assert "site_north" in page
    assert "missing dose" in page
    for rows in ((None, None), (new, truth)):
        answers = Answers(model, *rows, None, None)
        assert list(answers.names) == model.columns_.encoded_names()
        numbers = read_rows(model, new[:1], model.columns_)
        expected = model.predict(new[:1])
        np.testing.assert_allclose(answers.model.predict(numbers), expected, rtol=1e-12)
    assert answers.data.X.shape == (120, len(answers.names))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"n_features": 3}, "feature_names"),
        ({"n_features": 10**6}, "feature_names"),
        ({"encoded_columns": [[0], [9]]}, "encoder"),
        ({"encoded_columns": None}, "LocalW2Regressor"),
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
