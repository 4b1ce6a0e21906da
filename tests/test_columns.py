"""Tables with gaps and names: what the regressor makes of them, checked against plain numbers."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

from localw2 import LocalW2Regressor, load
from localw2.estimators.columns import MOST_NAMES, read_rows, read_table

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
    with pytest.raises(ValueError, match="'full' has missing values, but had none"):
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
