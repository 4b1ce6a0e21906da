"""Tables with gaps and names: what the regressor makes of them, checked against plain numbers."""

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
from localw2.apps.report.report import report_html
from localw2.estimators.tables import MOST_NAMES, encoded_names, read_rows, read_table

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


def test_numbers_without_gaps_stay_as_they_are():
    x = np.random.default_rng(0).normal(size=(30, 3))
    for given in (x, pd.DataFrame(x), x.tolist()):
        matrix, _, columns = read_table(Table(), given, x[:, 0])
        assert columns is None
        np.testing.assert_array_equal(matrix, x)


def test_gaps_become_medians_with_a_flag_and_names_become_columns_of_zeros_and_ones():
    x, y = table()
    matrix, _, columns = read_table(Table(), x, y)
    dose, gap = x["dose"].fillna(x["dose"].median()), x["dose"].isna()
    by_hand = [dose, gap, x["site"] == "north", x["site"] == "south"]
    by_hand += [x["grade"] == k for k in range(3)] + [~x["lit"], x["lit"]]
    np.testing.assert_array_equal(matrix, np.column_stack(by_hand).astype(float))
    estimator = Table()
    read_table(estimator, x, y)
    np.testing.assert_array_equal(read_rows(estimator, x[:5], columns), matrix[:5])
    as_list = x[:5].astype(object).to_numpy()
    vars(estimator).pop("feature_names_in_")
    np.testing.assert_array_equal(read_rows(estimator, as_list, columns), matrix[:5])


def test_gaps_in_arrays():
    x = np.random.default_rng(1).normal(size=(40, 2))
    x[3, 1] = np.nan
    matrix, _, columns = read_table(Table(), x, x[:, 0])
    assert matrix.shape == (40, 3)
    assert columns.complete == (0,)
    assert matrix[3].tolist() == [x[3, 0], np.nanmedian(x[:, 1]), 1.0]


def test_rare_names_share_a_column():
    names = [f"name {i}" for i in range(100)]
    x = pd.DataFrame({"a": np.arange(300.0), "name": np.resize(names, 300)})
    assert read_table(Table(), x, np.arange(300.0))[0].shape[1] == 1 + MOST_NAMES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.assign(when=pd.Timestamp("2020-01-01")), "'when' is of type .* days since"),
        (lambda x: x.assign(empty=np.nan), "'empty' has no values at all; drop it"),
        (lambda x: x.assign(huge=np.inf), "'huge' has infinite values"),
        (lambda x: x.assign(void=pd.Series([None] * len(x), dtype=object)), "'void' has no values at all"),
        (lambda x: x.assign(mixed=["a", 1] * (len(x) // 2)), "'mixed' is of objects .mixed-integer."),
        (lambda x: x.assign(day=pd.Series([pd.Timestamp(0)] * len(x), dtype=object)), "'day' is of objects"),
        (lambda x: x.assign(month=pd.period_range("2020", periods=len(x), freq="M")), "'month' is of type"),
    ],
)
def test_columns_that_mean_nothing_are_refused_by_name(change, message):
    x, y = table()
    with pytest.raises(ValueError, match=message):
        LocalW2Regressor(**QUICK).fit(change(x), y)


def test_a_gap_where_there_was_none_is_an_error_and_an_unknown_name_a_warning():
    x, y = table()
    x["full"] = 1.0 * np.arange(len(x))
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.raises(ValueError, match=r"'full' has missing values .NaN., but had none"):
        model.predict(x.assign(full=np.nan))
    with pytest.warns(UserWarning, match="'site' has names that the fit has not seen, such as 'west'"):
        assert np.isfinite(model.predict(x.assign(site="west"))).all()


def test_the_whole_chain_learns_from_names_and_gaps_and_survives_a_file(tmp_path):
    x, y = table(300)
    new, truth = table(100, seed=1)
    model = LocalW2Regressor(max_epochs=60, random_state=0).fit(x, y)
    # y without the names has a standard deviation of 1.8, with a gap in dose 1.
    assert np.abs(model.predict(new) - truth).mean() < 0.4
    wide = np.diff(model.predict_interval(new), axis=0)[0]
    gap = new["dose"].isna().to_numpy()
    assert wide[gap].mean() > 2 * wide[~gap].mean()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.sample(new, 3, random_state=0), model.sample(new, 3, random_state=0))
    assert again.feature_names_in_.tolist() == list(x.columns)
    assert again.n_features_in_ == 4
    diagnosis = model.diagnose(new, truth, random_state=0, x_train=x, y_train=y)
    assert diagnosis.verdict
    assert np.isfinite(LocalW2Regressor(base=None, calibrate=True, **QUICK).fit(x, y).predict(new)).all()


@pytest.mark.parametrize("kind", ["object", "gap", "decimal", "Float64", "Int64"])
def test_numbers_in_any_clothes_are_numbers(kind):
    """Numbers as objects, and pandas' own types with gaps, give what plain floats give."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.integers(-50, 50, 80).astype(float), "c": rng.choice(["u", "v"], 80)})
    if kind in ("gap", "Float64", "Int64"):
        x.loc[::9, "a"] = np.nan
    expected = read_table(Table(), x, x.index)[0]
    clothes = {
        "object": lambda a: a.astype(object),
        "gap": lambda a: a.astype(object).where(a.notna(), None),
        "decimal": lambda a: a.map(Decimal),
    }
    dressed = clothes.get(kind, lambda a: a.astype(kind))(x["a"])
    np.testing.assert_array_equal(read_table(Table(), x.assign(a=dressed), x.index)[0], expected)
    alone = read_table(Table(), pd.DataFrame({"a": dressed, "b": 1.0 * x.index}), x.index)[0]
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
def test_gaps_in_other_tables(make):
    x = np.random.default_rng(1).normal(size=(40, 2))
    x[3, 1] = np.nan
    expected, _, columns = read_table(Table(), x, x[:, 0])
    found = read_table(estimator := Table(), make(x), x[:, 0])[0]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(read_rows(estimator, make(x[2:5]), columns), expected[2:5])


def test_a_masked_y_is_a_missing_one():
    x = np.arange(20.0)[:, None]
    with pytest.raises(ValueError, match="y contains NaN"):
        read_table(Table(), x, np.ma.masked_array(x[:, 0], x[:, 0] == 3))


def test_names_without_a_frame_are_told_what_to_do():
    x = np.array([[1.0, "u"], [2.0, "v"]], dtype=object)
    with pytest.raises(ValueError, match=r"could not convert X to numbers: it holds 'u'.*pandas frame"):
        read_table(Table(), x, [0.0, 1.0])


def test_dates_are_refused_wherever_they_come():
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    dates = pd.Series(pd.date_range("2020", periods=len(x)))
    with pytest.raises(ValueError, match=r"column 'dose' is of type datetime64.*days since"):
        model.predict(x.assign(dose=dates.to_numpy()))
    with pytest.raises(ValueError, match="y is of type datetime64"):
        LocalW2Regressor(**QUICK).fit(x, dates)
    plain = np.arange(20.0)[:, None]
    with pytest.raises(ValueError, match="X is of type datetime64"):
        LocalW2Regressor(**QUICK).fit(plain.astype("datetime64[D]"), plain[:, 0])
    numbers = LocalW2Regressor(base=None, **QUICK).fit(pd.DataFrame({"a": plain[:, 0]}), plain[:, 0])
    with pytest.raises(ValueError, match="column 'a' is of type datetime64"):
        numbers.predict(pd.DataFrame({"a": pd.date_range("2020", periods=3)}))


def test_text_where_there_were_numbers_is_refused():
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.raises(ValueError, match="column 'dose' was one of numbers when the model was fitted"):
        model.predict(x.assign(dose="much"))


def test_a_gap_among_names_or_plain_numbers_that_had_none_is_an_error():
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.raises(ValueError, match="column 'site' has missing values"):
        model.predict(x.assign(site=None))
    numbers = np.random.default_rng(0).normal(size=(30, 2))
    plain = LocalW2Regressor(base=None, **QUICK).fit(pd.DataFrame(numbers, columns=["a", "b"]), numbers[:, 0])
    with pytest.raises(ValueError, match=r"column 'b' has missing values .NaN., but had none"):
        plain.predict(pd.DataFrame({"a": [1.0], "b": [np.nan]}))


def test_warnings_of_names_go_by_how_many_there_were():
    rng = np.random.default_rng(0)
    for count, gap in ((MOST_NAMES, False), (MOST_NAMES - 1, True), (MOST_NAMES + 1, True)):
        names = rng.permutation(np.resize([f"k{i:03d}" for i in range(count)], 400)).astype(object)
        if gap:
            names[:3] = None
        x = pd.DataFrame({"a": np.arange(400.0), "k": names})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, _, columns = read_table(estimator := Table(), x, x["a"])  # rows of the fit are no news
        new = x[5:9].assign(k="new")
        if count > MOST_NAMES:
            assert len(read_rows(estimator, new, columns)) == 4  # rare names are all alike
        else:
            with pytest.warns(UserWarning, match="'k' has names that the fit has not seen, such as 'new'"):
                read_rows(estimator, new, columns)


def test_whole_numbers_as_categories_are_known_again_in_an_array():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.normal(size=60), "k": pd.Categorical(rng.integers(3, size=60))})
    matrix, _, columns = read_table(estimator := Table(), x, x["a"])
    vars(estimator).pop("feature_names_in_")
    np.testing.assert_array_equal(read_rows(estimator, x.astype(float).to_numpy(), columns), matrix)


def test_judgement_of_tables_with_names():
    """A diagnosis calls the columns by name, and a test on the rows of the fit is told of as such."""
    x, y = table()
    model = LocalW2Regressor(base=None, **QUICK).fit(x, y)
    with pytest.warns(SeenRowsWarning):
        tested = conditional_test(x, y, model, Nearest(20), n_permutations=99, random_state=0)
    assert tested.seen
    assert tested.seen_share == 1.0
    new, truth = table(seed=1)
    assert not conditional_test(new, truth, model.sample, Nearest(20), random_state=0).seen
    names = encoded_names(model)
    assert names[:4] == ["dose", "no dose", "site_north", "site_south"]
    assert encoded_names(model, list("abcd"))[:3] == ["a", "no a", "b_north"]
    found = model.diagnose(new, truth, random_state=0, names=list("abcd"), x_train=None)
    assert found.verdict
    with pytest.raises(ValueError, match="names has 2 entries"):
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
    assert "no dose" in page
    for rows in ((None, None), (new, truth)):
        answers = Answers(model, *rows, None, None)
        assert list(answers.names) == encoded_names(model)
        numbers = read_rows(model, new[:1], model.columns_)
        expected = model.predict(new[:1])
        np.testing.assert_allclose(answers.model.predict(numbers), expected, rtol=1e-12)
    assert answers.data.X.shape == (120, len(answers.names))


@pytest.mark.parametrize(
    "change",
    [
        {"n_features": 3},
        {"n_features": 10**6},
        {"encoded_columns": [[0], [9]]},
        {"encoded_columns": None},
        {"balls": {"delta": [0.1, 0.2], "norm": None}},
    ],
)
def test_forged_files_of_tables_are_refused(change):
    x, y = table()
    stored = LocalW2Regressor(base=None, **QUICK).fit(x, y).to_stored()
    settings = stored.settings | change
    if "balls" in change:
        settings["balls"] = stored.settings["balls"] | {"delta": [0.1, 0.2]}
    with pytest.raises(ValueError, match=r"damaged|do not fit together|are none|feature"):
        LocalW2Regressor.from_stored(replace(stored, settings=settings))


def test_rows_too_far_away_are_refused_before_the_base_sees_them():
    x = np.linspace(0, 1, 60)[:, None]
    model = LocalW2Regressor(**QUICK).fit(x, x[:, 0] ** 3)
    for ask in (model.predict, model.sample, model.predict_quantiles, model.predict_interval):
        with pytest.raises(ValueError, match=r"a row of X has the value 1e\+150.*Check its units"):
            ask([[1e150]])
